//! Proof that a plan is right, by running it on symbols.
//!
//! A value is *which ranks' contributions to which part of which chunk*, and in what order they were combined. Lanes
//! run until they wait; what a lane knows of the others is a vector clock. Single-producer single-consumer queues
//! make the run's outcome independent of the order in which lanes are run, so one run stands for all.
//!
//! One more chunk is run than the scratch has generations. That is enough for any number of chunks: flags and
//! channels are empty between chunks (checked), so chunks run one by one cannot deadlock and hence no schedule can;
//! and two instructions that touch the same scratch `depth` chunks apart are ordered in every later pair as in the
//! first, since each lane runs its chunks in order.

mod memory;
mod queues;

use std::collections::VecDeque;
use std::fmt;

use crate::plan::{Blocks, Buffer, Collective, Instruction, Parts, Plan, Span};
use memory::{Access, Memory};
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

/// Parts of memory, and lanes, that a proof is tried for: a few gigabytes of its own. An all-to-all has `2 ranks^2`
/// parts in the buffers of each chunk, so that its largest plans are of some 2,000 ranks.
const MAX_CELLS: usize = 1 << 25;
const MAX_LANES: usize = 1 << 15;

/// Proves that `plan` computes its collective for any message, out of place and (but for an all-to-all) in place, whatever the timing, when
/// rank `r` is on host `hosts[r]`; ranks read the scratch only of their own host.
///
/// Time and memory grow with instructions times lanes of all ranks.
///
/// # Errors
/// The first fault found, with the instruction named.
pub fn verify(plan: &Plan, hosts: &[usize]) -> Result<(), Refusal> {
    shape(plan, hosts)?;
    let queues = Queues::new(plan)?;
    Run::new(plan, &queues, false).run()?;
    // Blocks of an all-to-all change places, so that it is never in place.
    if plan.collective != Collective::AllToAll {
        Run::new(plan, &queues, true).run()?;
    }
    Ok(())
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
    let lanes: usize = plan.programs.iter().map(|p| p.lanes.len()).sum();
    if cells.fold(0, usize::saturating_add) > MAX_CELLS || lanes > MAX_LANES {
        return bad(
            None,
            format!("too large to be proved: more than {MAX_LANES} lanes or {MAX_CELLS} parts of memory"),
        );
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

/// A lane in the symbolic run.
struct LaneState {
    rank: usize,
    lane: usize,
    chunk: usize,
    pc: usize,
    /// What this lane knows to have happened, by lane.
    clock: Vec<u32>,
}

struct Run<'a> {
    plan: &'a Plan,
    queues: &'a Queues,
    chunks: usize,
    lanes: Vec<LaneState>,
    memory: Memory<'a>,
    /// By queue: clocks (and values) on their way.
    posted: Vec<VecDeque<(Vec<u32>, Option<memory::Value>)>>,
    /// By queue: when the consumer took the last one, for the sender that needs the room.
    taken: Vec<Vec<u32>>,
}

impl<'a> Run<'a> {
    fn new(plan: &'a Plan, queues: &'a Queues, in_place: bool) -> Self {
        let total = plan.programs.iter().map(|p| p.lanes.len()).sum();
        let mut lanes = Vec::with_capacity(total);
        for (rank, program) in plan.programs.iter().enumerate() {
            for lane in 0..program.lanes.len() {
                lanes.push(LaneState { rank, lane, chunk: 0, pc: 0, clock: vec![0; total] });
            }
        }
        let chunks = plan.depth + 1;
        Self {
            plan,
            queues,
            chunks,
            lanes,
            memory: Memory::new(plan, chunks, in_place),
            posted: vec![VecDeque::new(); queues.len()],
            taken: vec![Vec::new(); queues.len()],
        }
    }

    fn run(mut self) -> Result<(), Refusal> {
        let mut ready: VecDeque<usize> = (0..self.lanes.len()).collect();
        while let Some(lane) = ready.pop_front() {
            while self.step(lane, &mut ready)? {}
        }
        if let Some(stuck) = (0..self.lanes.len()).find(|&l| self.lanes[l].chunk < self.chunks) {
            return Err(self.deadlock(stuck));
        }
        self.memory.outputs()
    }

    fn code(&self, lane: usize) -> &'a [Instruction] {
        let LaneState { rank, lane, .. } = self.lanes[lane];
        &self.plan.programs[rank].lanes[lane].0
    }

    fn location(&self, lane: usize) -> Location {
        let LaneState { rank, lane, pc, .. } = self.lanes[lane];
        Location { rank, lane, index: pc }
    }

    /// Runs one instruction; false where the lane must wait or has ended.
    fn step(&mut self, l: usize, ready: &mut VecDeque<usize>) -> Result<bool, Refusal> {
        let code = self.code(l);
        if self.lanes[l].pc == code.len() {
            self.lanes[l].pc = 0;
            self.lanes[l].chunk += 1;
        }
        if self.lanes[l].chunk >= self.chunks || code.is_empty() {
            self.lanes[l].chunk = self.chunks;
            return Ok(false);
        }
        let at = self.location(l);
        let (rank, chunk) = (at.rank, self.lanes[l].chunk);
        let queue = self.queues.of(at);
        self.lanes[l].clock[l] += 1;
        macro_rules! access {
            () => {
                Access { at, lane: l, chunk, clock: &self.lanes[l].clock }
            };
        }
        match &code[at.index] {
            Instruction::Copy { parts, src, dst } => {
                for (i, part) in parts.iter().enumerate() {
                    let value = self.memory.read(access!(), rank, *src, i, part)?;
                    self.memory.write(access!(), rank, *dst, i, value)?;
                }
            }
            Instruction::Reduce { parts, srcs, dst, finish } => {
                for (i, part) in parts.iter().enumerate() {
                    let mut values = Vec::with_capacity(srcs.len());
                    for src in srcs {
                        values.push(self.memory.read(access!(), rank, *src, i, part)?);
                    }
                    let value = self.memory.combine(at, &values, *finish)?;
                    self.memory.write(access!(), rank, *dst, i, value)?;
                }
            }
            Instruction::Send { parts, src, .. } => {
                if !self.posted[queue].is_empty() {
                    self.lanes[l].clock[l] -= 1;
                    return Ok(false);
                }
                merge(&mut self.lanes[l].clock, &self.taken[queue]);
                let value = self.memory.read(access!(), rank, *src, 0, parts.first)?;
                self.posted[queue].push_back((self.lanes[l].clock.clone(), Some(value)));
                ready.push_back(self.queues.consumer(queue));
            }
            Instruction::Notify { .. } => {
                self.posted[queue].push_back((self.lanes[l].clock.clone(), None));
                ready.push_back(self.queues.consumer(queue));
            }
            Instruction::Await { lag, .. } => {
                if chunk >= *lag as usize {
                    let Some((clock, _)) = self.posted[queue].pop_front() else {
                        self.lanes[l].clock[l] -= 1;
                        return Ok(false);
                    };
                    merge(&mut self.lanes[l].clock, &clock);
                }
            }
            Instruction::Recv { parts, .. } | Instruction::RecvReduce { parts, .. } => {
                let Some((clock, Some(value))) = self.posted[queue].pop_front() else {
                    self.lanes[l].clock[l] -= 1;
                    return Ok(false);
                };
                merge(&mut self.lanes[l].clock, &clock);
                let value = self.memory.expect(at, value, chunk, parts.first)?;
                match &code[at.index] {
                    Instruction::RecvReduce { src, dst, finish, .. } => {
                        let own = self.memory.read(access!(), rank, *src, 0, parts.first)?;
                        let value = self.memory.combine(at, &[value, own], *finish)?;
                        self.memory.write(access!(), rank, *dst, 0, value)?;
                    }
                    Instruction::Recv { dst, .. } => self.memory.write(access!(), rank, *dst, 0, value)?,
                    _ => {}
                }
                self.taken[queue].clone_from(&self.lanes[l].clock);
                ready.push_back(self.queues.producer(queue));
            }
        }
        self.lanes[l].pc += 1;
        Ok(true)
    }

    /// Follows who waits for whom from a stuck lane until it comes round.
    fn deadlock(&self, stuck: usize) -> Refusal {
        let mut path = vec![stuck];
        loop {
            let at = self.location(path[path.len() - 1]);
            let queue = self.queues.of(at);
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

fn merge(into: &mut [u32], from: &[u32]) {
    for (a, b) in into.iter_mut().zip(from) {
        *a = (*a).max(*b);
    }
}

#[cfg(test)]
mod tests;
