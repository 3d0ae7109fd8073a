//! Proof that a plan is right, by running it on symbols.
//!
//! A value is *which ranks' contributions to which part of which chunk*, and in what order they were combined. Lanes
//! run until they wait; what a lane knows of the others is a vector clock. Single-producer single-consumer queues
//! make the run's outcome independent of the order in which lanes are run, so one run stands for all.
//!
//! Hosts share no memory, so a clock has the lanes of one host only. What a lane could learn of its own host by way of
//! another is not counted: a plan that leans on that is refused though it is right, and none that is wrong is let
//! through. Nor is a sender taken to know, by there being room in a channel, what the receiver did: a wire may hold more
//! than one part.
//!
//! One more chunk is run than the scratch has generations. That is enough for any number of chunks: flags and
//! channels are empty between chunks (checked), so chunks run one by one cannot deadlock and hence no schedule can;
//! and two instructions that touch the same scratch `depth` chunks apart are ordered in every later pair as in the
//! first, since each lane runs its chunks in order.

mod memory;
mod queues;
mod sums;

use std::collections::VecDeque;

use rustc_hash::FxHashMap as HashMap;
use std::fmt;
use std::rc::Rc;

use crate::plan::{Blocks, Buffer, Instruction, Parts, Plan, Span};
use memory::{Access, Event, Memory, Value};
use queues::Queues;

/// What is wrong with a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// An index, a rank or a size that cannot be.
    Malformed,
    /// An output lacks a rank's contribution.
    Dropped,
    /// A contribution would be counted twice.
    Doubled,
    /// Memory is read before anything was written to it.
    ReadBeforeWrite,
    /// A read and a write of one place with nothing to order them.
    UnorderedRead,
    /// Two writes of one place with nothing to order them.
    UnorderedWrites,
    /// Lanes wait for each other.
    CyclicWait,
    /// The wrong data is at this place.
    WrongData,
    /// Ranks would combine in different orders and so end with different bits.
    DifferentBits,
}

/// Why a plan was refused, and where.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}{why}", self.place())]
pub struct Refusal {
    /// The kind of fault.
    pub fault: Fault,
    /// The instruction at fault, where there is one.
    pub at: Option<Location>,
    /// The instruction in words; empty where there is none.
    pub instruction: String,
    /// What is wrong.
    pub why: String,
}

/// One instruction of a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Location {
    /// Rank, from 0.
    pub rank: usize,
    /// Lane of that rank, from 0.
    pub lane: usize,
    /// Instruction of that lane, from 0.
    pub index: usize,
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {}, lane {}, instruction {}", self.rank, self.lane, self.index)
    }
}

impl Refusal {
    fn place(&self) -> String {
        self.at.map(|at| format!("{at} ({}): ", self.instruction)).unwrap_or_default()
    }

    fn new(plan: &Plan, fault: Fault, at: Option<Location>, why: impl Into<String>) -> Self {
        let find = |l: Location| plan.programs.get(l.rank)?.lanes.get(l.lane)?.0.get(l.index);
        let instruction = at.and_then(find).map(ToString::to_string).unwrap_or_default();
        Self { fault, at, instruction, why: why.into() }
    }
}

/// Parts of memory that a proof is tried for, 24 bytes each. An all-to-all has `2 ranks^2` in the buffers of each chunk,
/// so that its largest plans are of some 5,000 ranks.
const MAX_CELLS: usize = 1 << 27;
/// Entries of all lanes' clocks: lanes of a host, squared.
const MAX_CLOCKS: usize = 1 << 26;
/// Parts moved in the run, each some tens of nanoseconds.
const MAX_MOVES: usize = 1 << 29;

/// Proves that `plan` computes its collective for any message, out of place and (but for an all-to-all) in place,
/// whatever the timing, when rank `r` is on host `hosts[r]`; ranks read the scratch only of their own host.
///
/// Time grows with the parts that all instructions together move, and with the waits times the lanes of a host. Plans
/// that would take minutes or many gigabytes are refused; 16,384 ranks of 40 instructions are not.
///
/// # Errors
/// The first fault found, with the instruction named.
pub fn verify(plan: &Plan, hosts: &[usize]) -> Result<(), Refusal> {
    shape(plan, hosts)?;
    let queues = Queues::new(plan)?;
    Run::new(plan, &queues, &Lanes::new(plan, hosts)).run()
}

/// Everything that can be seen without running: indices, ranks, sizes.
pub(crate) fn shape(plan: &Plan, hosts: &[usize]) -> Result<(), Refusal> {
    let bad = |at, why: String| Err(Refusal::new(plan, Fault::Malformed, at, why));
    let n = plan.ranks();
    if n == 0 {
        return bad(None, "the plan has no ranks".into());
    }
    if hosts.len() != n {
        return bad(None, format!("the plan is for {n} ranks and hosts are given for {}", hosts.len()));
    }
    let distinct = plan.collective.distinct(n);
    if plan.parts == 0 || !plan.parts.is_multiple_of(distinct) || u32::try_from(plan.parts).is_err() {
        return bad(None, format!("{} parts cannot be shared out to {distinct} blocks", plan.parts));
    }
    if plan.depth == 0 || plan.depth > 64 || plan.chunk_bytes == 0 {
        return bad(None, "depth must be 1 to 64 and chunk_bytes at least 1".into());
    }
    if let Some(root) = plan.collective.root().filter(|root| *root >= n) {
        return bad(None, format!("root {root} is not one of the {n} ranks"));
    }
    let blocks = Blocks::of(plan);
    let user = |rank| (blocks.size(rank, Buffer::Input) + blocks.size(rank, Buffer::Output)) * (plan.depth + 1);
    let cells = plan.programs.iter().enumerate();
    let cells = cells.map(|(rank, p)| p.scratch.saturating_mul(plan.depth).saturating_add(user(rank)));
    let cells = cells.fold(0, usize::saturating_add);
    let mut lanes: HashMap<usize, usize> = HashMap::default();
    for (program, host) in plan.programs.iter().zip(hosts) {
        *lanes.entry(*host).or_default() += program.lanes.len();
    }
    let clocks = lanes.values().map(|n| n.saturating_mul(*n)).fold(0, usize::saturating_add);
    let moves = plan.programs.iter().flat_map(|p| &p.lanes).flat_map(|l| &l.0).map(moves);
    let moves = moves.fold(0, usize::saturating_add).saturating_mul(plan.depth + 1);
    for (what, found, most) in [
        ("parts of memory", cells, MAX_CELLS),
        ("lanes of a host, squared", clocks, MAX_CLOCKS),
        ("parts moved", moves, MAX_MOVES),
    ] {
        if found > most {
            return bad(None, format!("too large to be proved: {found} {what}, at most {most}"));
        }
    }
    for (rank, program) in plan.programs.iter().enumerate() {
        let span = |s: &Span, parts: Parts, write: bool| -> Result<(), String> {
            let owner = s.owner.map_or(rank, |o| o as usize);
            if owner >= n {
                return Err(format!("there is no rank {owner}"));
            }
            if owner != rank && (s.buffer != Buffer::Scratch || write) {
                return Err(format!("only a peer's scratch may be used, and only read: {s}"));
            }
            if write && s.buffer == Buffer::Input {
                return Err(format!("an input is only read: {s}"));
            }
            if hosts[owner] != hosts[rank] {
                return Err(format!("rank {owner} is on another host, whose memory is not mapped"));
            }
            let size = match s.buffer {
                Buffer::Scratch => plan.programs[owner].scratch,
                user => blocks.size(owner, user),
            };
            if s.at as usize + parts.count as usize > size {
                return Err(format!("{s} with {} part(s) is past the end, {size} parts", parts.count));
            }
            Ok(())
        };
        for (lane, code) in program.lanes.iter().enumerate() {
            for (index, i) in code.0.iter().enumerate() {
                let parts = i.parts().unwrap_or(Parts { first: 0, count: 1 });
                let checks = || -> Result<(), String> {
                    if parts.count == 0 || parts.first as usize + parts.count as usize > plan.parts {
                        return Err(format!("{parts} of {}", plan.parts));
                    }
                    match i {
                        Instruction::Copy { src, dst, .. } => span(src, parts, false).and(span(dst, parts, true)),
                        Instruction::Reduce { srcs, dst, .. } if srcs.is_empty() => {
                            Err(format!("nothing is reduced to {dst}"))
                        }
                        Instruction::Reduce { srcs, dst, .. } => {
                            srcs.iter().try_for_each(|s| span(s, parts, false)).and(span(dst, parts, true))
                        }
                        Instruction::Send { src, .. } => span(src, parts, false),
                        Instruction::Recv { dst, .. } => span(dst, parts, true),
                        Instruction::RecvReduce { src, dst, .. } => span(src, parts, false).and(span(dst, parts, true)),
                        Instruction::Notify { .. } | Instruction::Await { .. } => Ok(()),
                    }
                };
                checks().or_else(|why| bad(Some(Location { rank, lane, index }), why))?;
            }
        }
    }
    Ok(())
}

/// Parts that an instruction reads or writes; those without data count as one.
fn moves(i: &Instruction) -> usize {
    let parts = i.parts().map_or(1, |p| p.count as usize);
    match i {
        Instruction::Reduce { srcs, .. } => parts.saturating_mul(srcs.len() + 1),
        _ => parts.saturating_mul(2),
    }
}

/// Every lane of a plan, and those that share memory.
struct Lanes {
    /// By number: rank, lane of the rank, host, lane of the host.
    all: Vec<(usize, usize, usize, u16)>,
    /// By host, by lane of the host: rank and lane of the rank.
    hosts: Vec<Vec<(usize, usize)>>,
    /// By rank.
    host_of: Vec<usize>,
}

impl Lanes {
    fn new(plan: &Plan, hosts: &[usize]) -> Self {
        let mut names = HashMap::default();
        let mut lanes = Self { all: Vec::new(), hosts: Vec::new(), host_of: Vec::new() };
        for (rank, (program, name)) in plan.programs.iter().zip(hosts).enumerate() {
            let host = *names.entry(*name).or_insert(lanes.hosts.len());
            lanes.hosts.resize(lanes.hosts.len().max(host + 1), Vec::new());
            lanes.host_of.push(host);
            for lane in 0..program.lanes.len() {
                // MAX_CLOCKS leaves a host 8,192 lanes.
                lanes.all.push((rank, lane, host, lanes.hosts[host].len() as u16));
                lanes.hosts[host].push((rank, lane));
            }
        }
        lanes
    }

    /// The instruction that was run as `event` on the host of `rank`.
    fn locate(&self, plan: &Plan, rank: usize, event: Event) -> Location {
        let (rank, lane) = self.hosts[self.host_of[rank]][event.lane as usize];
        let index = (event.time as usize).saturating_sub(1) % plan.programs[rank].lanes[lane].0.len().max(1);
        Location { rank, lane, index }
    }
}

/// A lane in the symbolic run.
struct LaneState<'a> {
    code: &'a [Instruction],
    chunk: usize,
    pc: usize,
    /// What it knows to have happened, by lane of its host. Its own place is not kept up.
    clock: Rc<[u32]>,
    /// The queue it waits for.
    waits: Option<usize>,
}

/// What a queue holds: who put it there, what that lane knew then, and data.
struct Message {
    event: Event,
    clock: Rc<[u32]>,
    value: Option<Value>,
}

struct Run<'a> {
    plan: &'a Plan,
    queues: &'a Queues,
    chunks: usize,
    numbers: &'a Lanes,
    lanes: Vec<LaneState<'a>>,
    memory: Memory<'a>,
    posted: Vec<VecDeque<Message>>,
    ready: VecDeque<usize>,
}

impl<'a> Run<'a> {
    fn new(plan: &'a Plan, queues: &'a Queues, numbers: &'a Lanes) -> Self {
        let nothing: Vec<Rc<[u32]>> = numbers.hosts.iter().map(|lanes| vec![0; lanes.len()].into()).collect();
        let start = |&(rank, lane, host, _): &(usize, usize, usize, u16)| LaneState {
            code: &plan.programs[rank].lanes[lane].0,
            chunk: 0,
            pc: 0,
            clock: nothing[host].clone(),
            waits: None,
        };
        let chunks = plan.depth + 1;
        Self {
            plan,
            queues,
            chunks,
            numbers,
            lanes: numbers.all.iter().map(start).collect(),
            memory: Memory::new(plan, numbers, chunks),
            posted: (0..queues.len()).map(|_| VecDeque::new()).collect(),
            ready: (0..numbers.all.len()).collect(),
        }
    }

    fn run(mut self) -> Result<(), Refusal> {
        while let Some(lane) = self.ready.pop_front() {
            while self.step(lane)? {}
        }
        let stuck = |l: &LaneState<'_>| l.chunk < self.chunks;
        match self.lanes.iter().position(stuck) {
            Some(lane) => Err(self.deadlock(lane)),
            None => self.memory.outputs(),
        }
    }

    fn location(&self, lane: usize) -> Location {
        let (rank, of_rank, ..) = self.numbers.all[lane];
        Location { rank, lane: of_rank, index: self.lanes[lane].pc }
    }

    /// Runs one instruction; false where the lane must wait or has ended.
    fn step(&mut self, l: usize) -> Result<bool, Refusal> {
        let lane = &mut self.lanes[l];
        if lane.pc == lane.code.len() {
            lane.pc = 0;
            lane.chunk += 1;
        }
        if lane.chunk >= self.chunks || lane.code.is_empty() {
            lane.chunk = self.chunks;
            return Ok(false);
        }
        let (pc, chunk, code) = (lane.pc, lane.chunk, lane.code);
        let (rank, of_rank, host, index) = self.numbers.all[l];
        let at = Location { rank, lane: of_rank, index: pc };
        let event = Event { lane: index, time: (chunk * code.len() + pc + 1) as u32 };
        let queue = self.queues.of(l, pc);
        macro_rules! access {
            () => {
                Access { at, chunk, event, clock: &self.lanes[l].clock }
            };
        }
        match &code[pc] {
            Instruction::Copy { parts, src, dst } => {
                for (i, part) in parts.iter().enumerate() {
                    let value = self.memory.read(access!(), rank, src, i, part)?;
                    self.memory.write(access!(), rank, dst, i, value)?;
                }
            }
            Instruction::Reduce { parts, srcs, dst, finish } => {
                for (i, part) in parts.iter().enumerate() {
                    let mut sum = None;
                    for (k, src) in srcs.iter().enumerate() {
                        let value = self.memory.read(access!(), rank, src, i, part)?;
                        sum = Some(self.memory.combine(at, sum, value, k + 1 == srcs.len())?);
                    }
                    if let Some(sum) = sum {
                        let value = if *finish { self.memory.finish(at, sum)? } else { sum };
                        self.memory.write(access!(), rank, dst, i, value)?;
                    }
                }
            }
            Instruction::Send { parts, src, .. } => {
                if !self.posted[queue].is_empty() {
                    self.lanes[l].waits = Some(queue);
                    return Ok(false);
                }
                let value = self.memory.read(access!(), rank, src, 0, parts.first)?;
                self.post(l, queue, event, Some(value));
            }
            Instruction::Notify { .. } => self.post(l, queue, event, None),
            Instruction::Await { lag, .. } if chunk < *lag as usize => {}
            Instruction::Await { .. } | Instruction::Recv { .. } | Instruction::RecvReduce { .. } => {
                let Some(message) = self.posted[queue].pop_front() else {
                    self.lanes[l].waits = Some(queue);
                    return Ok(false);
                };
                let producer = self.queues.producer(queue);
                if self.numbers.all[producer].2 == host {
                    learn(&mut self.lanes[l].clock, &message);
                }
                if let Some(value) = message.value {
                    match &code[pc] {
                        Instruction::Recv { parts, dst, .. } => {
                            let value = self.memory.expect(at, value, chunk, parts.first)?;
                            self.memory.write(access!(), rank, dst, 0, value)?;
                        }
                        Instruction::RecvReduce { parts, src, dst, finish, .. } => {
                            let value = self.memory.expect(at, value, chunk, parts.first)?;
                            let first = self.memory.combine(at, None, value, true)?;
                            let own = self.memory.read(access!(), rank, src, 0, parts.first)?;
                            let sum = self.memory.combine(at, Some(first), own, true)?;
                            let value = if *finish { self.memory.finish(at, sum)? } else { sum };
                            self.memory.write(access!(), rank, dst, 0, value)?;
                        }
                        _ => {}
                    }
                    self.wake(producer, queue);
                }
            }
        }
        self.lanes[l].pc += 1;
        Ok(true)
    }

    fn post(&mut self, l: usize, queue: usize, event: Event, value: Option<Value>) {
        let clock = self.lanes[l].clock.clone();
        self.posted[queue].push_back(Message { event, clock, value });
        self.wake(self.queues.consumer(queue), queue);
    }

    fn wake(&mut self, lane: usize, queue: usize) {
        if self.lanes[lane].waits == Some(queue) {
            self.lanes[lane].waits = None;
            self.ready.push_back(lane);
        }
    }

    /// Follows who waits for whom from a stuck lane until it comes round.
    fn deadlock(&self, stuck: usize) -> Refusal {
        let mut path = vec![stuck];
        loop {
            let at = self.location(path[path.len() - 1]);
            let queue = self.queues.of(path[path.len() - 1], at.index);
            let instruction = &self.plan.programs[at.rank].lanes[at.lane].0[at.index];
            let next = match instruction {
                Instruction::Send { .. } => self.queues.consumer(queue),
                _ => self.queues.producer(queue),
            };
            if let Some(start) = path.iter().position(|&l| l == next) {
                let first = self.location(path[start]);
                let chain: Vec<String> = path[start..]
                    .iter()
                    .map(|&l| {
                        let at = self.location(l);
                        format!("{at} ({})", self.plan.programs[at.rank].lanes[at.lane].0[at.index])
                    })
                    .collect();
                return Refusal::new(
                    self.plan,
                    Fault::CyclicWait,
                    Some(first),
                    format!("waits for itself: {}", chain.join(" waits for ")),
                );
            }
            path.push(next);
        }
    }
}

/// Adds what the sender of `message` knew to a clock, which is shared with what was sent before.
fn learn(clock: &mut Rc<[u32]>, message: &Message) {
    let sender = message.event.lane as usize;
    let news = |(own, theirs): (&u32, &u32)| theirs > own;
    let any = !Rc::ptr_eq(clock, &message.clock) && clock.iter().zip(message.clock.iter()).any(news);
    if any || clock[sender] < message.event.time {
        let own = Rc::make_mut(clock);
        own.iter_mut().zip(message.clock.iter()).for_each(|(own, theirs)| *own = (*own).max(*theirs));
        own[sender] = own[sender].max(message.event.time);
    }
}

#[cfg(test)]
mod tests;
