//! Interprets one rank's program over shared memory.
//!
//! A state machine: it runs whatever instruction has what it waits for, lane by lane, and parks when nothing can go
//! on. Flags count up within a collective and carry its number, so that what an abandoned collective left behind can
//! never be mistaken for this one's.
//!
//! Until every rank is known to have asked for the same, nothing of a peer is read and nothing is written to an
//! output. A rank that has passed that gate in collective `k` knows that all have finished `k - 1`, so staging is used
//! in two halves by turns.
#![allow(unsafe_code)]

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::plan::{Layout, message_bytes};
use crate::runtime::agreement::disagreement;
use crate::runtime::code::{CHANNEL_DEPTH, Code, Op, Place, Port, Signal};
use crate::runtime::device::host;
use crate::runtime::element::{DType, ReduceOp};
use crate::runtime::wire::shm::{Descriptor, Gone, Segment};
use crate::{Error, Result};

/// Bits of a flag that count within a collective.
const COUNT_BITS: u32 = 24;

/// How long one sleep lasts at most: how fast a dead peer is noticed.
const NAP: Duration = Duration::from_millis(50);

/// Looks this often before it offers the core: about the time in which a peer on another core would have answered.
const YIELD_EVERY: u32 = 64;

/// One collective of one rank.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Call {
    pub sequence: u64,
    pub asked: Descriptor,
    pub input: *const u8,
    pub output: *mut u8,
    /// Elements of a block.
    pub count: u64,
    pub dtype: DType,
    pub op: ReduceOp,
}

/// How to wait.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Patience {
    /// When to give up.
    pub timeout: Duration,
    /// Turns of looking again before sleeping; 0 where ranks share cores, since the peer needs this one.
    pub spins: u32,
}

#[derive(Debug, Clone, Copy, Default)]
struct Cursor {
    chunk: u64,
    pc: usize,
}

/// A collective under way.
pub(crate) struct Run<'a> {
    segment: &'a Segment,
    code: &'a Code,
    call: Call,
    layout: Layout,
    half: usize,
    part_bytes: usize,
    tag: u64,
    cursors: Vec<Cursor>,
    counters: Vec<u64>,
    /// Ranks below this one are known to agree.
    agreed: usize,
    /// Whether those that wait for this rank's request were woken.
    announced: bool,
}

impl<'a> Run<'a> {
    /// Announces the call to the other ranks.
    ///
    /// # Safety
    /// `call.input` and `call.output` must be valid for the elements that the plan's collective has for `call.count`
    /// until the run is done or dropped, and be the same memory or not overlap.
    pub unsafe fn new(segment: &'a Segment, code: &'a Code, call: Call) -> Result<Self> {
        let layout = layout(segment, code, call.count, call.dtype)?;
        let run = Self {
            segment,
            code,
            call,
            layout,
            half: (call.sequence & 1) as usize * (segment.staging_len() / 2),
            part_bytes: layout.part_bytes() as usize,
            tag: (call.sequence + 1) << COUNT_BITS,
            // Without elements there is the gate and nothing else.
            cursors: vec![Cursor::default(); if call.count == 0 { 0 } else { code.lanes.len() }],
            counters: vec![0; code.counters],
            agreed: 0,
            announced: false,
        };
        segment.ask(code.rank, call.sequence, call.asked);
        Ok(run)
    }

    /// Wakes those that wait for nothing but this rank's request. Notices wake most of them before: this is for the
    /// rest, when this rank has nothing better to do.
    fn announce(&mut self) {
        if !std::mem::replace(&mut self.announced, true) {
            for rank in (0..self.segment.ranks()).filter(|r| *r != self.code.rank) {
                self.segment.wake(rank, self.code.rank);
            }
        }
    }

    /// Runs to the end.
    ///
    /// # Errors
    /// [`Error::Disagreement`] leaves the communicator usable; after [`Error::PeerLost`] and [`Error::Timeout`] it is
    /// broken.
    pub fn finish(&mut self, patience: Patience) -> Result<()> {
        let mut idle = 0;
        // When waiting began, and when to look after the others next.
        let mut waiting: Option<(Instant, Instant)> = None;
        loop {
            let (moved, done) = self.advance()?;
            if done {
                self.announce();
                return Ok(());
            }
            if moved {
                (idle, waiting) = (0, None);
                continue;
            }
            self.announce();
            if idle < patience.spins {
                idle += 1;
                // The peer may have been put on this very core, however many there are.
                if idle.is_multiple_of(YIELD_EVERY) {
                    std::thread::yield_now()
                } else {
                    std::hint::spin_loop()
                }
                continue;
            }
            let now = Instant::now();
            let (since, look) = waiting.get_or_insert((now, now + NAP));
            if now >= *look || self.segment.failure().is_some() {
                let since = *since;
                *look = now + NAP;
                self.segment.beat(self.code.rank);
                self.check(since, patience.timeout)?;
            }
            let mut outcome = Ok((false, false));
            let (segment, rank) = (self.segment, self.code.rank);
            segment.sleep(rank, self.waker(), NAP, || {
                outcome = self.advance();
                segment.failure().is_some() || !matches!(outcome, Ok((false, false)))
            });
            match outcome? {
                (_, true) => return Ok(()),
                (true, _) => (idle, waiting) = (0, None),
                _ => {}
            }
        }
    }

    /// The one rank without which nothing can go on; `None` where several will do. Of all that must come before the
    /// next step, the last: by then the others will have come too.
    fn waker(&self) -> Option<usize> {
        if !self.passed() {
            let mut others = (1..self.segment.ranks()).rev().map(|s| (self.code.rank + s) % self.segment.ranks());
            return others.find(|r| self.segment.asked(*r, self.call.sequence).is_none());
        }
        let mut stuck = self.cursors.iter().enumerate().filter(|(_, c)| c.chunk < self.layout.chunks());
        let (Some((lane, cursor)), None) = (stuck.next(), stuck.next()) else { return None };
        let code = &self.code.lanes[lane];
        match code.get(cursor.pc)? {
            Op::Send { to, .. } => Some(to.peer as usize),
            Op::Recv { from, .. } | Op::RecvReduce { from, .. } => Some(from.peer as usize),
            Op::Await { .. } => {
                let waits = code[cursor.pc..].iter().map_while(|op| match op {
                    Op::Await { from, lag } if cursor.chunk >= u64::from(*lag) => Some(from),
                    _ => None,
                });
                let missing = |from: &&Signal| {
                    let flag = self.segment.flag(from.peer as usize, self.code.rank, from.cell as usize);
                    flag.load(Ordering::Acquire) <= self.tag + self.counters[from.counter as usize]
                };
                waits.filter(missing).last().map(|from| from.peer as usize)
            }
            _ => None,
        }
    }

    /// Goes as far as is possible without waiting: whether anything moved, and whether all is done.
    fn advance(&mut self) -> Result<(bool, bool)> {
        let mut moved = self.gate()?;
        let mut done = self.agreed == self.segment.ranks();
        for lane in 0..self.cursors.len() {
            while self.cursors[lane].chunk < self.layout.chunks() {
                let Cursor { chunk, pc } = self.cursors[lane];
                let Some(op) = self.code.lanes[lane].get(pc) else {
                    self.cursors[lane] = Cursor { chunk: chunk + 1, pc: 0 };
                    continue;
                };
                if !self.step(op, chunk) {
                    done = false;
                    break;
                }
                moved = true;
                self.cursors[lane].pc += 1;
            }
        }
        Ok((moved, done))
    }

    /// Compares requests as they come in.
    fn gate(&mut self) -> Result<bool> {
        let before = self.agreed;
        let ranks = self.segment.ranks();
        let sequence = self.call.sequence;
        while self.agreed < ranks {
            match self.segment.asked(self.agreed, sequence) {
                Some(asked) if asked == self.call.asked => self.agreed += 1,
                // To name all of them, all must have said something.
                Some(_) => {
                    let said: Option<Vec<_>> = (0..ranks).map(|r| self.segment.asked(r, sequence)).collect();
                    match said {
                        Some(said) => return Err(disagreement(sequence, &said)),
                        None => break,
                    }
                }
                None => break,
            }
        }
        Ok(self.agreed > before)
    }

    fn passed(&self) -> bool {
        self.agreed == self.segment.ranks()
    }

    /// Runs one instruction; false where it must wait.
    fn step(&mut self, op: &Op, chunk: u64) -> bool {
        match op {
            Op::Copy { parts, src, dst } => {
                if !self.passed() && !private(&[*src], *dst, self.code.rank) {
                    return false;
                }
                for (i, part) in parts.iter().enumerate() {
                    let n = self.layout.len(chunk, u64::from(part)) * self.layout.width();
                    let (src, dst) = (self.address(*src, chunk, i), self.address(*dst, chunk, i));
                    // SAFETY: the verified plan orders this against every other access, and keeps it in bounds.
                    unsafe { host::copy(src, dst, n as usize) };
                }
            }
            Op::Reduce { parts, srcs, dst, finish } => {
                if !self.passed() && !private(srcs, *dst, self.code.rank) {
                    return false;
                }
                for (i, part) in parts.iter().enumerate() {
                    let dst = self.address(*dst, chunk, i);
                    let mut few = [std::ptr::null::<u8>(); 16];
                    if let Some(few) = few.get_mut(..srcs.len()) {
                        for (p, s) in few.iter_mut().zip(srcs) {
                            *p = self.address(*s, chunk, i);
                        }
                        self.reduce(few, dst, chunk, part, *finish);
                    } else {
                        let many: Vec<_> = srcs.iter().map(|s| self.address(*s, chunk, i).cast_const()).collect();
                        self.reduce(&many, dst, chunk, part, *finish);
                    }
                }
            }
            Op::Send { part, src, to } => {
                if !self.passed() && !matches!(src, Place::Input(_)) && !private(&[*src], *src, self.code.rank) {
                    return false;
                }
                let sent = self.counters[to.counter as usize];
                let credit = self.segment.credit(self.code.rank, to.peer as usize, to.cell as usize);
                if sent >= CHANNEL_DEPTH as u64
                    && credit.load(Ordering::Acquire) < self.tag + sent + 1 - CHANNEL_DEPTH as u64
                {
                    return false;
                }
                let n = self.layout.len(chunk, u64::from(*part)) * self.layout.width();
                let (src, slot) = (self.address(*src, chunk, 0), self.slot(self.code.rank, *to, sent));
                // SAFETY: the slot is this rank's until the flag is raised below, and again once credited.
                unsafe { host::copy(src, slot, n as usize) };
                self.counters[to.counter as usize] = sent + 1;
                let flag = self.segment.flag(self.code.rank, to.peer as usize, to.cell as usize);
                flag.store(self.tag + sent + 1, Ordering::Release);
                self.segment.wake(to.peer as usize, self.code.rank);
            }
            Op::Recv { part, from, dst } => {
                let Some(slot) = self.arrived(*from) else { return false };
                let n = self.layout.len(chunk, u64::from(*part)) * self.layout.width();
                // SAFETY: the sender leaves the slot alone until it is credited.
                unsafe { host::copy(slot, self.address(*dst, chunk, 0), n as usize) };
                self.credit(*from);
            }
            Op::RecvReduce { part, from, src, dst, finish } => {
                let Some(slot) = self.arrived(*from) else { return false };
                let srcs = [slot.cast_const(), self.address(*src, chunk, 0).cast_const()];
                self.reduce(&srcs, self.address(*dst, chunk, 0), chunk, *part, *finish);
                self.credit(*from);
            }
            Op::Notify { to } => {
                let count = &mut self.counters[to.counter as usize];
                *count += 1;
                let flag = self.segment.flag(self.code.rank, to.peer as usize, to.cell as usize);
                flag.store(self.tag + *count, Ordering::Release);
                if to.peer as usize != self.code.rank {
                    self.segment.wake(to.peer as usize, self.code.rank);
                }
            }
            Op::Await { from, lag } => {
                if chunk >= u64::from(*lag) {
                    if !self.passed() && from.peer as usize != self.code.rank {
                        return false;
                    }
                    let flag = self.segment.flag(from.peer as usize, self.code.rank, from.cell as usize);
                    let count = &mut self.counters[from.counter as usize];
                    if flag.load(Ordering::Acquire) <= self.tag + *count {
                        return false;
                    }
                    *count += 1;
                }
            }
        }
        true
    }

    /// The slot of the next message on a channel, once it is there.
    fn arrived(&self, from: Port) -> Option<*mut u8> {
        let taken = self.counters[from.counter as usize];
        let flag = self.segment.flag(from.peer as usize, self.code.rank, from.cell as usize);
        (self.passed() && flag.load(Ordering::Acquire) > self.tag + taken)
            .then(|| self.slot(from.peer as usize, from, taken))
    }

    fn credit(&mut self, from: Port) {
        let taken = &mut self.counters[from.counter as usize];
        *taken += 1;
        let credit = self.segment.credit(from.peer as usize, self.code.rank, from.cell as usize);
        credit.store(self.tag + *taken, Ordering::Release);
        self.segment.wake(from.peer as usize, self.code.rank);
    }

    fn reduce(&self, srcs: &[*const u8], dst: *mut u8, chunk: u64, part: u32, finish: bool) {
        let n = self.layout.len(chunk, u64::from(part)) as usize;
        let finish = finish.then_some(self.segment.ranks());
        // SAFETY: the verified plan orders this against every other access, and keeps it in bounds; where `dst` is a
        // source it is the very same part.
        unsafe { host::reduce(self.call.dtype, self.call.op, srcs, dst, n, finish) };
    }

    fn slot(&self, sender: usize, port: Port, count: u64) -> *mut u8 {
        let unit = port.unit as usize + (count % CHANNEL_DEPTH as u64) as usize;
        // SAFETY: `layout` made every unit of the plan fit the half.
        unsafe { self.segment.staging(sender).add(self.half + unit * self.part_bytes) }
    }

    /// Where part `i` of those at `place` lies.
    fn address(&self, place: Place, chunk: u64, i: usize) -> *mut u8 {
        let (base, at) = match place {
            Place::Input(at) => (self.call.input.cast_mut(), at),
            Place::Output(at) => (self.call.output, at),
            Place::Staging { rank, unit, stride } => {
                let generation = (chunk % self.code.plan.depth as u64) as usize;
                let unit = unit as usize + generation * stride as usize + i;
                // SAFETY: `layout` made every unit of the plan fit the half.
                return unsafe { self.segment.staging(rank as usize).add(self.half + unit * self.part_bytes) };
            }
        };
        let (start, _) = self.layout.range(chunk, u64::from(at) + i as u64);
        // Wrapping: an empty part at the end of an empty buffer has no address to speak of.
        base.wrapping_add((start * self.layout.width()) as usize)
    }

    /// The ranks that something here waits for, and in what.
    fn waits_for(&self) -> (Vec<usize>, String) {
        if !self.passed() {
            let absent = (0..self.segment.ranks()).filter(|r| self.segment.asked(*r, self.call.sequence).is_none());
            return (absent.collect(), format!("collective number {} (it did not come)", self.call.sequence));
        }
        let mut ranks = Vec::new();
        let mut phase = String::new();
        for (lane, cursor) in self.cursors.iter().enumerate() {
            let Some(op) = self.code.lanes[lane].get(cursor.pc).filter(|_| cursor.chunk < self.layout.chunks()) else {
                continue;
            };
            let peer = match op {
                Op::Send { to, .. } => to.peer,
                Op::Recv { from, .. } | Op::RecvReduce { from, .. } => from.peer,
                Op::Await { from, .. } => from.peer,
                _ => continue,
            } as usize;
            if peer != self.code.rank {
                ranks.push(peer);
                let text = &self.code.plan.programs[self.code.rank].lanes[lane].0[cursor.pc];
                phase = format!(
                    "collective number {}, chunk {} of {}, lane {lane}: {text}",
                    self.call.sequence,
                    cursor.chunk + 1,
                    self.layout.chunks()
                );
            }
        }
        ranks.sort_unstable();
        ranks.dedup();
        (ranks, phase)
    }

    /// Whether to go on waiting.
    fn check(&mut self, since: Instant, timeout: Duration) -> Result<()> {
        match self.segment.failure() {
            Some((Gone::Late, rank)) => {
                let phase = format!("collective number {} (another rank gave up on it)", self.call.sequence);
                return Err(Error::Timeout { waited: since.elapsed(), ranks: vec![rank], phase });
            }
            Some((gone, rank)) => return Err(lost(rank, gone)),
            None => {}
        }
        let (ranks, phase) = self.waits_for();
        for &rank in &ranks {
            if let Some(gone) = self.segment.gone(rank) {
                // It may have done its part before it went.
                if self.advance()?.0 {
                    return Ok(());
                }
                self.segment.fail(gone, rank);
                return Err(lost(rank, gone));
            }
        }
        if since.elapsed() < timeout {
            return Ok(());
        }
        // Of those that have not come, some only wait for the others too.
        let beats: Vec<u32> = ranks.iter().map(|r| self.segment.beats(*r)).collect();
        for _ in 0..6 {
            self.segment.beat(self.code.rank);
            std::thread::sleep(NAP / 2);
        }
        if self.advance()?.0 {
            return Ok(());
        }
        let still = ranks.iter().zip(beats).filter(|(r, before)| self.segment.beats(**r) == *before);
        let missing: Vec<usize> = still.map(|(r, _)| *r).collect();
        let ranks = if missing.is_empty() { ranks } else { missing };
        self.segment.fail(Gone::Late, ranks.first().copied().unwrap_or(self.code.rank));
        Err(Error::Timeout { waited: since.elapsed(), ranks, phase })
    }
}

fn lost(rank: usize, gone: Gone) -> Error {
    let why = if gone == Gone::Left { "it left the communicator" } else { "its process ended" };
    Error::PeerLost { rank, host: "this host".into(), why: why.into() }
}

/// Whether an instruction touches nothing but this rank's input and staging.
fn private(srcs: &[Place], dst: Place, me: usize) -> bool {
    let own = |p: &Place| matches!(p, Place::Staging { rank, .. } if *rank as usize == me);
    own(&dst) && srcs.iter().all(|s| own(s) || matches!(s, Place::Input(_)))
}

/// Cuts the message into as many chunks as the plan says, or more where staging is small.
fn layout(segment: &Segment, code: &Code, count: u64, dtype: DType) -> Result<Layout> {
    let plan = &code.plan;
    let bytes = message_bytes(plan.collective, plan.ranks(), count, dtype.width())?;
    let room = segment.staging_len() / 2;
    let mut chunks = plan.chunks(bytes);
    loop {
        let layout = Layout::new(plan, count, dtype.width(), chunks)?;
        let need = code.units as u128 * u128::from(layout.part_bytes());
        if need <= room as u128 {
            if u128::from(chunks) * u128::from(code.busiest) >= 1 << COUNT_BITS {
                return Err(Error::Plan(format!(
                    "{bytes} bytes in {chunks} chunks are more notices than a flag counts; more staging is needed"
                )));
            }
            return Ok(layout);
        }
        let more = (need.div_ceil(room.max(1) as u128)).min(u128::from(u32::MAX)) as u64;
        let next = chunks.saturating_mul(more.max(2));
        if layout.part_bytes() <= 64 || chunks > 1 << COUNT_BITS {
            return Err(Error::Plan(format!(
                "`{}` among {} ranks needs {} parts of staging, which do not fit {room} bytes",
                plan.algorithm,
                plan.ranks(),
                code.units
            )));
        }
        chunks = next;
    }
}
