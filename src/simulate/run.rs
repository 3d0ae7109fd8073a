//! Lanes on their way through a program.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use crate::plan::cost;
use crate::plan::{Instruction, Plan, Span};
use crate::simulate::fluid::{Due, Fluid};
use crate::simulate::machine::Machine;
use crate::simulate::program::{Amount, Lane as Code, Op, Program, What};
use crate::topology::LinkId;
use crate::{Error, Result};

/// Chunks that end before their pace is taken for the rest, at most. As many more as have begun by then are run too, so
/// that the end of the pipeline is as it would be.
pub(super) const SOME: u64 = 16;
/// Of a plan of more instructions than this, half as many.
const LARGE: usize = 4_000;
/// So many chunks are run in any case.
const FEW: u64 = 8;
/// How far a lane runs ahead of the last chunk that ended, at most, where nothing holds it.
const AHEAD: u64 = 16;
/// Chunks that take times closer than this share are at one pace.
const STEADY: f64 = 1e-3;
/// So are many chunks whose mean is as close as this to that of as many before.
const STEADY_MEAN: f64 = 5e-3;
/// Seconds that count as one instant: far less than anything takes.
const INSTANT: f64 = 1e-11;
/// In a large plan, rates may be late by this share of the least overhead: among thousands of flows there is always one
/// that begins or ends.
const LATE: f64 = 1.0 / 30.0;
/// A link or core busy for this share of the time sets the pace.
const BUSY: f64 = 0.95;
/// Of an event: it is a lane's.
const LANE: u32 = u32::MAX;
/// No step.
const NONE: u32 = u32::MAX;

/// What a message takes.
#[derive(Debug, Clone, PartialEq)]
pub struct Run {
    /// From beginning to end.
    pub seconds: f64,
    /// How many chunks the message has.
    pub chunks: u64,
    /// Seconds that each further chunk adds.
    pub period: f64,
    /// The links used: bytes in all, and which share of the time at full rate these are.
    pub links: Vec<(LinkId, u64, f64)>,
    /// What sets the pace, in words.
    pub limit: String,
    /// Where its figure comes from.
    pub limit_source: String,
    /// The steps that the end of the last chunk run waited for, each for the one before.
    pub critical: Vec<Step>,
}

/// An instruction that moved data, once.
#[derive(Debug, Clone, PartialEq)]
pub struct Step {
    /// Whose.
    pub rank: usize,
    /// In which of its lanes.
    pub lane: usize,
    /// For which chunk.
    pub chunk: u64,
    /// In words.
    pub what: String,
    /// Seconds.
    pub start: f64,
    /// Seconds.
    pub end: f64,
}

/// A [`Step`] by numbers.
#[derive(Debug, Clone, Copy)]
pub(super) struct Record {
    lane: u32,
    /// The instruction, of the lane's.
    at: u32,
    chunk: u32,
    /// The step before, in time, without which this had not begun.
    cause: u32,
    start: f64,
    pub end: f64,
}

/// A share of a resource's capacity in use from some time on.
pub(super) type Sample = (f64, u32, f64);

#[derive(Debug, Clone, Copy, PartialEq)]
enum Phase {
    /// At an instruction that has not begun.
    Ready,
    /// Until a peer does something.
    Blocked,
    /// What it waited for has happened, and is on its way here.
    Told,
    /// A core is being handed to it.
    Waking,
    /// The overhead.
    Starting,
    /// Flows are under way.
    Moving,
    /// The last bytes are on their way.
    Landing,
}

#[derive(Clone)]
struct Lane {
    at: u32,
    chunk: u64,
    phase: Phase,
    flows: u32,
    /// When all bytes of the flows that have ended are there.
    landed: f64,
    /// When the instruction began, and after which step.
    start: f64,
    cause: u32,
}

/// Notices or messages from one lane to another.
#[derive(Clone, Default)]
struct Queue {
    /// When each is there, and the step that it tells of.
    sent: VecDeque<(f64, u32)>,
    receiver: Option<u32>,
    /// Of a channel: who waits for room, how many messages it has and may have.
    sender: Option<u32>,
    used: u32,
    slots: u32,
}

/// When, as bits, which sort as times do; then in order of making; a flow and which of those that had its place, or a lane.
type Event = (u64, u64, u32, u32);

/// What is to happen, in order. Most events are one of few delays away when they are made, and so come in the order of
/// making, delay by delay.
#[derive(Default)]
struct Events {
    made: u64,
    others: BinaryHeap<Reverse<Event>>,
    by_delay: Vec<(f64, VecDeque<Event>)>,
}

impl Events {
    /// So many delays have queues.
    const DELAYS: usize = 8;

    fn push(&mut self, time: f64, id: u32, generation: u32) {
        self.made += 1;
        self.others.push(Reverse((time.to_bits(), self.made, id, generation)));
    }

    /// A lane's event, `delay` from now.
    fn push_after(&mut self, now: f64, delay: f64, lane: u32) {
        if let Some((_, queue)) = self.by_delay.iter_mut().find(|(d, _)| *d == delay) {
            self.made += 1;
            queue.push_back(((now + delay).to_bits(), self.made, lane, LANE));
        } else if self.by_delay.len() < Self::DELAYS {
            self.by_delay.push((delay, VecDeque::new()));
            self.push_after(now, delay, lane);
        } else {
            self.push(now + delay, lane, LANE);
        }
    }

    /// The time of the next event, and the queue that it is in.
    fn next(&self) -> Option<(f64, usize)> {
        let mut least = (u64::MAX, u64::MAX, usize::MAX);
        if let Some(Reverse(e)) = self.others.peek() {
            least = (e.0, e.1, usize::MAX);
        }
        for (i, (_, queue)) in self.by_delay.iter().enumerate() {
            if let Some(e) = queue.front().filter(|e| (e.0, e.1) < (least.0, least.1)) {
                least = (e.0, e.1, i);
            }
        }
        (least.0 != u64::MAX).then_some((f64::from_bits(least.0), least.2))
    }

    fn pop(&mut self, queue: usize) -> Option<Event> {
        match self.by_delay.get_mut(queue) {
            Some((_, queue)) => queue.pop_front(),
            None => self.others.pop().map(|e| e.0),
        }
    }
}

struct Simulation<'p> {
    program: &'p Program,
    now: f64,
    events: Events,
    fluid: Fluid,
    lanes: Vec<Lane>,
    flags: Vec<Queue>,
    channels: Vec<Queue>,
    ready: Vec<u32>,
    /// Chunks to run: fewer once their pace is known.
    most: u64,
    /// Chunks that end before the pace is taken.
    some: u64,
    /// Seconds a chunk, once known.
    period: Option<f64>,
    /// By chunk, lanes that have done it; when all had.
    done: Vec<usize>,
    ends: Vec<f64>,
    steps: Option<&'p mut Vec<Record>>,
}

/// Runs a message of `bytes` in `chunks` chunks: the first `shown`, or as many as it takes to know the pace.
pub(super) fn run(
    machine: &Machine<'_>,
    program: &Program,
    bytes: u64,
    chunks: u64,
    shown: Option<u64>,
    steps: Option<&mut Vec<Record>>,
    samples: Option<&mut Vec<Sample>>,
) -> Result<Run> {
    let chunks = chunks.max(1);
    let part = bytes as f64 / chunks as f64 / program.parts_a_rank as f64;
    let mut s = Simulation::new(program, part, chunks.min(shown.unwrap_or(SOME + AHEAD)), steps);
    s.go(shown.is_none() && chunks > FEW, samples)?;
    let run = s.ends.len() as u64;
    // The busiest link or core sets a pace that nothing goes below.
    let floor = program.resources.iter().map(|r| r.load.at(part) / r.capacity).fold(0.0, f64::max);
    let period = s.period.unwrap_or_else(|| pace(&s.ends)).max(floor);
    let seconds = s.ends.last().copied().unwrap_or(0.0) + chunks.saturating_sub(run) as f64 * period;
    Ok(summary(machine, program, seconds, chunks, if run > 1 { period } else { seconds }, part))
}

/// What a chunk adds, on average over those that do not fill the pipeline.
fn pace(ends: &[f64]) -> f64 {
    let first = ends.len() / 3;
    match ends[first.min(ends.len())..] {
        [first, .., last] => (last - first) / (ends.len() - 1 - ends.len() / 3) as f64,
        _ => 0.0,
    }
}

impl<'p> Simulation<'p> {
    fn new(program: &'p Program, part: f64, most: u64, steps: Option<&'p mut Vec<Record>>) -> Self {
        let first = Lane { at: 0, chunk: 0, phase: Phase::Ready, flows: 0, landed: 0.0, start: 0.0, cause: NONE };
        let channel = |slots: &u32| Queue { slots: *slots, ..Queue::default() };
        Self {
            program,
            now: 0.0,
            events: Events::default(),
            fluid: Fluid::new(program, part),
            lanes: program.lanes.iter().map(|l| Lane { at: l.ops.start, ..first.clone() }).collect(),
            flags: vec![Queue::default(); program.flags],
            channels: program.channels.iter().map(channel).collect(),
            ready: (0..program.lanes.len() as u32).rev().collect(),
            most,
            some: if program.ops.len() > LARGE { SOME / 2 } else { SOME },
            period: None,
            done: Vec::new(),
            ends: Vec::new(),
            steps,
        }
    }

    fn go(&mut self, stop: bool, mut samples: Option<&mut Vec<Sample>>) -> Result<()> {
        let large = self.program.ops.len() > LARGE;
        let late = if large { self.program.overhead * LATE } else { 0.0 };
        // Since when rates are stale.
        let mut since = f64::INFINITY;
        loop {
            while let Some(lane) = self.ready.pop() {
                self.advance(lane);
            }
            if let Some((time, queue)) = self.events.next() {
                // All that happens at one instant happens before rates are made anew.
                let instant = time <= self.now + INSTANT.max(self.now * 1e-12);
                if self.fluid.stale() {
                    since = since.min(self.now);
                }
                if instant || time <= since + late && since < f64::INFINITY {
                    self.now = if instant { self.now } else { time };
                    if let Some((_, _, id, generation)) = self.events.pop(queue) {
                        self.happen(id, generation);
                    }
                    continue;
                }
            }
            since = f64::INFINITY;
            let (now, events) = (self.now, &mut self.events);
            let due = |(time, flow, generation): Due| events.push(time, flow, generation);
            match samples.as_deref_mut() {
                None => self.fluid.settle(now, due, None),
                Some(all) => self.fluid.settle(now, due, Some(&mut |r, share| all.push((now, r, share)))),
            }
            if stop && self.period.is_none() {
                self.shorten();
            }
            match self.events.next() {
                Some((time, _)) => self.now = self.now.max(time),
                None if self.lanes.iter().all(|l| l.chunk >= self.most) => return Ok(()),
                None => {
                    let name = &self.program.algorithm;
                    return Err(Error::Plan(format!("`{name}` cannot be timed: its lanes wait for each other")));
                }
            }
        }
    }

    /// Runs no more chunks than have begun, once their pace is known.
    fn shorten(&mut self) {
        let alike = |x: f64, y: f64, share: f64| (x - y).abs() <= share * x.max(y);
        let n = self.ends.len();
        let third = n / 3;
        let mean = |from: usize| (self.ends[from + third] - self.ends[from]) / third as f64;
        let known = match self.ends[..] {
            _ if n as u64 >= self.some => true,
            [_, .., b, c, d] if alike(d - c, c - b, STEADY) => {
                self.period = Some(d - c);
                true
            }
            _ => third > 2 && alike(mean(n - 1 - third), mean(n - 1 - 2 * third), STEADY_MEAN),
        };
        if known {
            let period = pace(&self.ends);
            self.period.get_or_insert(period);
            let begun = |(l, code): (&Lane, &Code)| l.chunk + u64::from(l.at > code.ops.start);
            let begun = self.lanes.iter().zip(&self.program.lanes).map(begun).max().unwrap_or(0);
            self.most = self.most.min(begun);
        }
    }

    fn happen(&mut self, id: u32, generation: u32) {
        if generation != LANE {
            if let Some((lane, spec)) = self.fluid.finish(id, generation) {
                self.landed(lane, spec);
            }
            return;
        }
        match self.lanes[id as usize].phase {
            Phase::Told => self.wake(id),
            Phase::Starting => self.started(id),
            Phase::Landing => self.finished(id),
            Phase::Ready | Phase::Blocked | Phase::Waking | Phase::Moving => {}
        }
    }

    /// Runs a lane as far as it goes without waiting.
    fn advance(&mut self, id: u32) {
        let program = self.program;
        let ops = &program.lanes[id as usize].ops;
        loop {
            let now = self.now;
            let lane = &mut self.lanes[id as usize];
            if lane.chunk >= self.most {
                return;
            }
            if lane.at == ops.end {
                lane.at = ops.start;
                let chunk = lane.chunk as usize;
                lane.chunk += 1;
                if self.done.len() == chunk {
                    self.done.push(0);
                }
                self.done[chunk] += 1;
                if self.done[chunk] == self.lanes.len() {
                    self.ends.push(now);
                }
                continue;
            }
            lane.start = now;
            match &program.ops[lane.at as usize] {
                Op::Notify { flag, latency } => {
                    let notice = (now + latency, lane.cause);
                    lane.at += 1;
                    let flag = &mut self.flags[*flag as usize];
                    match flag.receiver.take() {
                        Some(receiver) => self.tell(receiver, notice, Some(*latency)),
                        None => flag.sent.push_back(notice),
                    }
                }
                Op::Await { flag, lag } => {
                    if lane.chunk >= u64::from(*lag) {
                        let flag = &mut self.flags[*flag as usize];
                        match flag.sent.pop_front() {
                            Some((time, _)) if time <= now + INSTANT => {}
                            Some(notice) => return self.tell(id, notice, None),
                            None => {
                                flag.receiver = Some(id);
                                lane.phase = Phase::Blocked;
                                return;
                            }
                        }
                    }
                    lane.at += 1;
                }
                Op::Recv { channel, .. } => {
                    let channel = &mut self.channels[*channel as usize];
                    match channel.sent.pop_front() {
                        Some((time, _)) if time <= now + INSTANT => return self.begin(id),
                        Some(message) => return self.tell(id, message, None),
                        None => {
                            channel.receiver = Some(id);
                            lane.phase = Phase::Blocked;
                            return;
                        }
                    }
                }
                Op::Send { .. } | Op::Move { .. } => return self.begin(id),
            }
        }
    }

    /// What a lane waits for is there at a time (that delay from now, if one is given), told by a step.
    fn tell(&mut self, id: u32, (time, cause): (f64, u32), delay: Option<f64>) {
        let lane = &mut self.lanes[id as usize];
        lane.phase = Phase::Told;
        if cause != NONE {
            lane.cause = cause;
        }
        match delay {
            _ if time <= self.now + INSTANT => self.wake(id),
            Some(delay) => self.events.push_after(self.now, delay, id),
            None => self.events.push(time, id, LANE),
        }
    }

    fn wake(&mut self, id: u32) {
        match self.program.lanes[id as usize].wake {
            Some(spec) => {
                self.lanes[id as usize].phase = Phase::Waking;
                let shape = self.program.flows[spec as usize].shape;
                self.fluid.start(shape, id, spec, self.now);
            }
            None => self.woken(id),
        }
    }

    fn woken(&mut self, id: u32) {
        let now = self.now;
        let lane = &mut self.lanes[id as usize];
        lane.phase = Phase::Ready;
        lane.start = now;
        match &self.program.ops[lane.at as usize] {
            Op::Await { .. } => {
                lane.at += 1;
                self.ready.push(id);
            }
            Op::Send { flows, .. } => self.flow(id, flows.clone()),
            Op::Recv { .. } | Op::Move { .. } | Op::Notify { .. } => self.begin(id),
        }
    }

    /// An instruction that moves data, from its overhead on.
    fn begin(&mut self, id: u32) {
        let delay = match &self.program.ops[self.lanes[id as usize].at as usize] {
            Op::Move { delay, .. } | Op::Send { delay, .. } | Op::Recv { delay, .. } => *delay,
            Op::Notify { .. } | Op::Await { .. } => 0.0,
        };
        if delay > 0.0 {
            self.lanes[id as usize].phase = Phase::Starting;
            self.events.push_after(self.now, delay, id);
        } else {
            self.started(id);
        }
    }

    fn started(&mut self, id: u32) {
        let lane = &mut self.lanes[id as usize];
        match &self.program.ops[lane.at as usize] {
            Op::Send { channel, flows, .. } => {
                let channel = &mut self.channels[*channel as usize];
                if channel.used < channel.slots {
                    channel.used += 1;
                    self.flow(id, flows.clone());
                } else {
                    channel.sender = Some(id);
                    lane.phase = Phase::Blocked;
                }
            }
            Op::Move { flows, .. } | Op::Recv { flows, .. } => self.flow(id, flows.clone()),
            Op::Notify { .. } | Op::Await { .. } => {}
        }
    }

    fn flow(&mut self, id: u32, flows: std::ops::Range<u32>) {
        let mut under_way = 0;
        let mut landed = self.now;
        for spec in flows {
            let flow = self.program.flows[spec as usize];
            if self.fluid.start(flow.shape, id, spec, self.now) {
                under_way += 1;
            } else {
                landed = landed.max(self.now + flow.latency);
            }
        }
        let lane = &mut self.lanes[id as usize];
        (lane.flows, lane.landed, lane.phase) = (under_way, landed, Phase::Moving);
        if under_way == 0 {
            self.land(id, None);
        }
    }

    /// A flow has ended.
    fn landed(&mut self, id: u32, spec: u32) {
        let lane = &mut self.lanes[id as usize];
        if lane.phase == Phase::Waking {
            return self.woken(id);
        }
        lane.flows -= 1;
        let latency = self.program.flows[spec as usize].latency;
        let last = self.now + latency;
        lane.landed = lane.landed.max(last);
        if lane.flows == 0 {
            let delay = (lane.landed == last).then_some(latency);
            self.land(id, delay);
        }
    }

    /// All flows have ended; their last bytes are there that delay from now, if one is given.
    fn land(&mut self, id: u32, delay: Option<f64>) {
        let lane = &mut self.lanes[id as usize];
        let at = lane.landed;
        if at > self.now + INSTANT {
            lane.phase = Phase::Landing;
            match delay {
                Some(delay) => self.events.push_after(self.now, delay, id),
                None => self.events.push(at, id, LANE),
            }
        } else {
            self.finished(id);
        }
    }

    /// An instruction that moves data is done.
    fn finished(&mut self, id: u32) {
        let (now, program) = (self.now, self.program);
        let lane = &mut self.lanes[id as usize];
        if let Some(steps) = self.steps.as_deref_mut() {
            let (at, chunk) = (lane.at - program.lanes[id as usize].ops.start, lane.chunk as u32);
            steps.push(Record { lane: id, at, chunk, cause: lane.cause, start: lane.start, end: now });
            lane.cause = steps.len() as u32 - 1;
        }
        let cause = lane.cause;
        let op = &program.ops[lane.at as usize];
        lane.at += 1;
        lane.phase = Phase::Ready;
        self.ready.push(id);
        match op {
            Op::Send { channel, latency, .. } => {
                let channel = &mut self.channels[*channel as usize];
                match channel.receiver.take() {
                    Some(receiver) => self.tell(receiver, (now + latency, cause), Some(*latency)),
                    None => channel.sent.push_back((now + latency, cause)),
                }
            }
            Op::Recv { channel, .. } => {
                let channel = &mut self.channels[*channel as usize];
                match channel.sender.take() {
                    // Its place goes to the next message.
                    Some(sender) => self.tell(sender, (now, cause), None),
                    None => channel.used -= 1,
                }
            }
            Op::Move { .. } | Op::Notify { .. } | Op::Await { .. } => {}
        }
    }
}

/// What was used how much, and what of it sets the pace.
fn summary(machine: &Machine<'_>, program: &Program, seconds: f64, chunks: u64, pace: f64, part: f64) -> Run {
    let topology = machine.topology;
    let mut run = Run {
        seconds,
        chunks,
        period: pace,
        links: Vec::new(),
        limit: "its own steps, one after the other".into(),
        limit_source: "no link or core is busy all the time".into(),
        critical: Vec::new(),
    };
    let mut busiest: Option<(f64, &What)> = None;
    for r in &program.resources {
        let load: Amount = r.load;
        let needs = load.at(part) / r.capacity;
        if let What::Link(link) = r.what {
            let share = if seconds > 0.0 { needs * chunks as f64 / seconds } else { 0.0 };
            run.links.push((link, (load.at(part) * chunks as f64).round() as u64, share));
        }
        if busiest.is_none_or(|(most, _)| needs > most) {
            busiest = Some((needs, &r.what));
        }
    }
    run.links.sort_by_key(|(link, ..)| *link);
    let Some((needs, what)) = busiest else { return run };
    let (name, source) = match what {
        What::Link(id) => cost::link_words(topology, *id),
        What::Thread(_) | What::Cores(_) => {
            let (device, name) = match what {
                What::Thread(rank) => (machine.device(*rank), format!("the core of rank {rank}")),
                What::Cores(device) => (*device, {
                    let cores = machine.cores.get(device).map_or(1, |c| c.1);
                    format!("{cores} core(s) of {}", topology.device(*device).id)
                }),
                What::Link(_) => return run,
            };
            let source = cost::copying_words(topology, device);
            (name, source)
        }
    };
    if needs >= pace * BUSY && needs > 0.0 {
        (run.limit, run.limit_source) = (name, source);
    } else if pace > 0.0 && needs > 0.0 {
        run.limit_source = format!("no link or core is busy all the time; {name} is for {:.0} %", needs / pace * 100.0);
    }
    run
}

/// The steps that the last one waited for.
pub(super) fn critical(plan: &Plan, program: &Program, steps: &[Record]) -> Vec<Step> {
    let last = (0..steps.len()).rev().max_by(|a, b| steps[*a].end.total_cmp(&steps[*b].end));
    let chain = std::iter::successors(last, |at| Some(steps[*at].cause as usize).filter(|c| c < at));
    let mut path: Vec<Step> = chain.filter_map(|at| step(plan, program, &steps[at])).collect();
    path.reverse();
    path
}

pub(super) fn step(plan: &Plan, program: &Program, r: &Record) -> Option<Step> {
    let lane = &program.lanes[r.lane as usize];
    let (rank, lane) = (lane.rank as usize, lane.lane as usize);
    let what = words(plan.programs.get(rank)?.lanes.get(lane)?.0.get(r.at as usize)?);
    Some(Step { rank, lane, chunk: u64::from(r.chunk), what, start: r.start, end: r.end })
}

fn words(i: &Instruction) -> String {
    let remote = |spans: &[Span]| -> Vec<u32> { spans.iter().filter_map(|s| s.owner).collect() };
    match i {
        Instruction::Copy { parts, src, dst } => match (src.owner, dst.owner) {
            (None, None) => format!("copy {parts}"),
            (Some(r), _) => format!("copy {parts} from rank {r}"),
            (None, Some(r)) => format!("copy {parts} to rank {r}"),
        },
        Instruction::Reduce { parts, srcs, dst, .. } => {
            let from = match remote(srcs)[..] {
                [] => format!("reduce {parts}"),
                [r] => format!("reduce {parts} from rank {r}"),
                ref many => format!("reduce {parts} from {} peers", many.len()),
            };
            dst.owner.map_or(from.clone(), |r| format!("{from} to rank {r}"))
        }
        Instruction::Send { parts, to, .. } => format!("send {parts} to rank {to}"),
        Instruction::Recv { parts, from, .. } => format!("receive {parts} from rank {from}"),
        Instruction::RecvReduce { parts, from, .. } => format!("receive {parts} from rank {from} and reduce"),
        Instruction::Notify { to, .. } => format!("notify rank {to}"),
        Instruction::Await { from, .. } => format!("await rank {from}"),
    }
}
