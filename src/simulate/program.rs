//! A plan compiled for a machine: everything by number.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use rustc_hash::FxHashMap as HashMap;

use crate::plan::cost::{COPY_RATE, GPU_OVERHEAD, HOST_OVERHEAD, SWITCH};
use crate::plan::{Instruction, Plan, Span};
use crate::simulate::machine::{Machine, Path};
use crate::topology::{DeviceId, LinkId};
use crate::{Error, Result};

/// Messages that a channel in a host's memory holds, as the engine has it; any other holds one.
const HOST_SLOTS: u32 = 2;

/// A plan compiled for a [`Machine`].
#[derive(Debug)]
pub struct Program {
    pub(super) algorithm: String,
    pub(super) parts_a_rank: u64,
    pub(super) lanes: Vec<Lane>,
    pub(super) ops: Vec<Op>,
    pub(super) flows: Vec<Spec>,
    pub(super) shapes: Vec<Shape>,
    pub(super) uses: Vec<(u32, Amount)>,
    pub(super) resources: Vec<Resource>,
    /// How many messages each channel holds.
    pub(super) channels: Vec<u32>,
    pub(super) flags: usize,
    /// The least that an instruction takes which moves data.
    pub(super) overhead: f64,
}

/// A lane of a rank.
#[derive(Debug)]
pub(super) struct Lane {
    pub rank: u32,
    pub lane: u32,
    pub ops: Range<u32>,
    /// What it costs to wake it after a wait, as an index of flows.
    pub wake: Option<u32>,
}

/// What flows share.
#[derive(Debug)]
pub(super) struct Resource {
    pub what: What,
    /// A second: bytes of a link, seconds of cores.
    pub capacity: f64,
    /// What a chunk takes.
    pub load: Amount,
    /// The narrowest of those that all the same flows use alike, which alone has to be looked at.
    pub stand_in: u32,
}

/// Names a [`Resource`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum What {
    Link(LinkId),
    /// A rank on a CPU does one thing at a time.
    Thread(u32),
    /// The cores of a CPU that has more ranks.
    Cores(DeviceId),
}

/// So much, and so much for each byte of a part.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Amount {
    pub fixed: f64,
    pub per_byte: f64,
}

impl Amount {
    pub fn at(self, bytes: f64) -> f64 {
        self.fixed + self.per_byte * bytes
    }
}

/// What flows that are alike use. Work is in seconds of a core or, on GPUs, bytes at the rate of one: flows that share
/// a resource progress equally in it.
#[derive(Debug)]
pub(super) struct Shape {
    pub work: Amount,
    pub uses: Range<u32>,
}

/// A flow that an instruction begins, and how much later than its end its last byte is there.
#[derive(Debug, Clone, Copy)]
pub(super) struct Spec {
    pub shape: u32,
    pub latency: f64,
}

/// An instruction. What moves data waits for `delay`, then begins its flows.
#[derive(Debug)]
pub(super) enum Op {
    Move { delay: f64, flows: Range<u32> },
    Send { channel: u32, delay: f64, latency: f64, flows: Range<u32> },
    Recv { channel: u32, delay: f64, flows: Range<u32> },
    Notify { flag: u32, latency: f64 },
    Await { flag: u32, lag: u32 },
}

/// Flags and channels by their ends; each end is one lane's.
#[derive(Default)]
struct Queues {
    numbers: HashMap<(u32, u32, u32), u32>,
    ends: Vec<[Option<u32>; 2]>,
}

impl Queues {
    fn get(&mut self, from: u32, to: u32, number: u32, end: usize, lane: u32) -> Option<u32> {
        let id = *self.numbers.entry((from, to, number)).or_insert_with(|| {
            self.ends.push([None; 2]);
            self.ends.len() as u32 - 1
        });
        let user = self.ends[id as usize][end].get_or_insert(lane);
        (*user == lane).then_some(id)
    }
}

#[derive(PartialEq, Eq, Hash)]
struct Key {
    /// None on GPUs, where only the links count.
    rank: Option<u32>,
    wires: Vec<(u32, u32)>,
    parts: u32,
    work: [u64; 2],
}

struct Compiler<'m, 'a> {
    machine: &'m Machine<'a>,
    paths: HashMap<(u32, u32), Arc<Path>>,
    resources: HashMap<What, u32>,
    shapes: HashMap<Key, u32>,
    out: Program,
}

impl Program {
    pub(super) fn new(machine: &Machine<'_>, plan: &Plan) -> Result<Self> {
        let (ranks, there) = (plan.ranks(), machine.placement.ranks());
        if ranks != there {
            return Err(Error::Plan(format!("`{}` is of {ranks} ranks, the machine has {there}", plan.algorithm)));
        }
        let pairs = pairs(plan);
        if let Some((a, b)) = pairs.iter().find(|(a, b)| *a.max(b) as usize >= ranks) {
            let (a, b) = (a.min(b), a.max(b));
            return Err(Error::Plan(format!("rank {a} works with rank {b}, which is not one of the {ranks} ranks")));
        }
        let mut c = Compiler {
            machine,
            paths: machine.paths(&pairs)?,
            resources: HashMap::default(),
            shapes: HashMap::default(),
            out: Self {
                algorithm: plan.algorithm.clone(),
                parts_a_rank: plan.parts_a_rank().max(1) as u64,
                lanes: Vec::new(),
                ops: Vec::new(),
                flows: Vec::new(),
                shapes: Vec::new(),
                uses: Vec::new(),
                resources: Vec::new(),
                channels: Vec::new(),
                flags: 0,
                overhead: if (0..ranks as u32).any(|r| machine.on_cpu(r)) { HOST_OVERHEAD } else { GPU_OVERHEAD },
            },
        };
        let (mut flags, mut channels) = (Queues::default(), Queues::default());
        for (rank, program) in (0..).zip(&plan.programs) {
            let wake = machine.crowded(rank).then(|| c.wake(rank));
            for (lane, code) in (0..).zip(&program.lanes) {
                let first = c.out.ops.len() as u32;
                for i in &code.0 {
                    let id = c.out.lanes.len() as u32;
                    let op = c.compile(rank, id, i, &mut flags, &mut channels).ok_or_else(|| {
                        Error::Plan(format!("rank {rank}, `{i}`: another lane has that end of it already"))
                    })?;
                    c.out.ops.push(op);
                }
                c.out.lanes.push(Lane { rank, lane, ops: first..c.out.ops.len() as u32, wake });
            }
        }
        c.out.flags = flags.ends.len();
        c.out.narrow();
        Ok(c.out)
    }

    /// Leaves one of the links that only occur together, as those between a GPU and the network do.
    fn narrow(&mut self) {
        let mut users: Vec<Vec<(u32, [u64; 2])>> = vec![Vec::new(); self.resources.len()];
        for (i, shape) in (0..).zip(&self.shapes) {
            for (r, amount) in &self.uses[shape.uses.start as usize..shape.uses.end as usize] {
                users[*r as usize].push((i, [amount.fixed.to_bits(), amount.per_byte.to_bits()]));
            }
        }
        let mut narrowest: HashMap<&[(u32, [u64; 2])], u32> = HashMap::default();
        for (r, users) in (0..).zip(&users) {
            let best = narrowest.entry(users).or_insert(r);
            if self.resources[r as usize].capacity < self.resources[*best as usize].capacity {
                *best = r;
            }
        }
        for (r, users) in users.iter().enumerate() {
            self.resources[r].stand_in = narrowest.get(&users[..]).copied().unwrap_or(r as u32);
        }
        let mut uses = Vec::with_capacity(self.uses.len());
        for shape in &mut self.shapes {
            let first = uses.len() as u32;
            let all = &self.uses[shape.uses.start as usize..shape.uses.end as usize];
            uses.extend(all.iter().filter(|(r, _)| self.resources[*r as usize].stand_in == *r).copied());
            shape.uses = first..uses.len() as u32;
        }
        self.uses = uses;
    }
}

/// Who moves data to whom, or tells whom, each once.
fn pairs(plan: &Plan) -> Vec<(u32, u32)> {
    let mut pairs = BTreeSet::new();
    for (me, program) in (0..).zip(&plan.programs) {
        for i in program.lanes.iter().flat_map(|l| &l.0) {
            let (srcs, dst): (&[Span], Option<&Span>) = match i {
                Instruction::Copy { src, dst, .. } => (std::slice::from_ref(src), Some(dst)),
                Instruction::Reduce { srcs, dst, .. } => (srcs, Some(dst)),
                Instruction::Send { to, .. } | Instruction::Notify { to, .. } => {
                    pairs.insert((me, *to));
                    (&[], None)
                }
                Instruction::Recv { from, .. }
                | Instruction::RecvReduce { from, .. }
                | Instruction::Await { from, .. } => {
                    pairs.insert((*from, me));
                    (&[], None)
                }
            };
            pairs.extend(srcs.iter().filter_map(|s| Some((s.owner?, me))));
            pairs.extend(dst.and_then(|d| Some((me, d.owner?))));
        }
    }
    pairs.into_iter().collect()
}

impl Compiler<'_, '_> {
    fn compile(&mut self, rank: u32, lane: u32, i: &Instruction, flags: &mut Queues, ports: &mut Queues) -> Option<Op> {
        let cpu = self.machine.on_cpu(rank);
        let delay = if cpu { 0.0 } else { GPU_OVERHEAD };
        Some(match i {
            Instruction::Copy { src, dst, .. } => {
                let wires = self.wires(rank, std::slice::from_ref(src), dst);
                Op::Move { delay, flows: self.flows(rank, i, &wires) }
            }
            Instruction::Reduce { srcs, dst, .. } => {
                let wires = self.wires(rank, srcs, dst);
                Op::Move { delay, flows: self.flows(rank, i, &wires) }
            }
            Instruction::Send { to, channel, .. } => {
                let channel = self.channel(ports, rank, *to, *channel, 0, lane)?;
                let flows = self.flows(rank, i, &[(rank, *to)]);
                // A core goes on once it has copied; a GPU's message is sent when it is there.
                let latency = if cpu || flows.is_empty() { self.latency(rank, *to) } else { 0.0 };
                if cpu {
                    self.out.flows[flows.start as usize..].iter_mut().for_each(|f| f.latency = 0.0);
                }
                Op::Send { channel, delay, latency, flows }
            }
            Instruction::Recv { from, channel, .. } | Instruction::RecvReduce { from, channel, .. } => {
                let channel = self.channel(ports, *from, rank, *channel, 1, lane)?;
                Op::Recv { channel, delay, flows: self.flows(rank, i, &[]) }
            }
            Instruction::Notify { to, flag } => {
                let latency = if *to == rank { 0.0 } else { self.latency(rank, *to) };
                Op::Notify { flag: flags.get(rank, *to, *flag, 0, lane)?, latency }
            }
            Instruction::Await { from, flag, lag } => {
                Op::Await { flag: flags.get(*from, rank, *flag, 1, lane)?, lag: *lag }
            }
        })
    }

    fn channel(&mut self, ports: &mut Queues, from: u32, to: u32, n: u32, end: usize, lane: u32) -> Option<u32> {
        let id = ports.get(from, to, n, end, lane)?;
        if id as usize == self.out.channels.len() {
            let hosts = self.machine.placement.hosts();
            let near = hosts[from as usize] == hosts[to as usize];
            let shared = near && self.machine.on_cpu(from) && self.machine.on_cpu(to);
            self.out.channels.push(if shared { HOST_SLOTS } else { 1 });
        }
        Some(id)
    }

    fn latency(&self, from: u32, to: u32) -> f64 {
        self.paths.get(&(from, to)).map_or(0.0, |p| p.latency)
    }

    fn wires(&self, rank: u32, srcs: &[Span], dst: &Span) -> Vec<(u32, u32)> {
        let into = srcs.iter().filter_map(|s| s.owner).filter(|o| *o != rank).map(|o| (o, rank));
        into.chain(dst.owner.filter(|o| *o != rank).map(|o| (rank, o))).collect()
    }

    /// The flows by which `rank` moves what an instruction moves over `wires`. A core does it all as one.
    fn flows(&mut self, rank: u32, i: &Instruction, wires: &[(u32, u32)]) -> Range<u32> {
        let first = self.out.flows.len() as u32;
        let parts = i.parts().map_or(0, |p| p.count);
        if self.machine.on_cpu(rank) {
            let work = self.machine.work(rank, i);
            let (shape, latency) = self.shape(Some(rank), wires, parts, [work.seconds, work.memory]);
            self.out.flows.push(Spec { shape, latency });
        } else {
            for wire in wires {
                if self.paths.get(wire).is_some_and(|p| !p.links.is_empty()) {
                    let (shape, latency) = self.shape(None, &[*wire], parts, [1.0 / COPY_RATE, 0.0]);
                    self.out.flows.push(Spec { shape, latency });
                }
            }
        }
        let last = self.out.flows.len() as u32;
        for f in first..last {
            let uses = self.out.shapes[self.out.flows[f as usize].shape as usize].uses.clone();
            for (r, amount) in &self.out.uses[uses.start as usize..uses.end as usize] {
                let load = &mut self.out.resources[*r as usize].load;
                load.fixed += amount.fixed;
                load.per_byte += amount.per_byte;
            }
        }
        first..last
    }

    /// Flows of `parts` parts over `wires` by the core of `rank`, if it has one; and the latency of the way.
    fn shape(&mut self, rank: Option<u32>, wires: &[(u32, u32)], parts: u32, work: [f64; 2]) -> (u32, f64) {
        let paths = wires.iter().filter_map(|w| self.paths.get(w)).filter(|p| !p.links.is_empty());
        let latency = paths.map(|p| p.latency).fold(0.0, f64::max);
        let key = Key { rank, wires: wires.to_vec(), parts, work: work.map(f64::to_bits) };
        if let Some(shape) = self.shapes.get(&key) {
            return (*shape, latency);
        }
        let n = f64::from(parts);
        let fixed = if rank.is_some() { HOST_OVERHEAD } else { 0.0 };
        let mut uses: Vec<(What, Amount)> = Vec::new();
        let of = |per_part: f64| Amount { fixed: 0.0, per_byte: per_part * n };
        let total = Amount { fixed, per_byte: work[0] * n };
        if let Some(rank) = rank {
            uses.extend(self.core(rank).into_iter().map(|w| (w, total)));
            if let Some(link) = self.machine.memory.get(&self.machine.device(rank)).filter(|_| work[1] > 0.0) {
                uses.push((What::Link(*link), of(work[1])));
            }
        }
        for path in wires.iter().filter_map(|w| self.paths.get(w)) {
            for link in &path.links {
                match uses.iter_mut().find(|(w, _)| *w == What::Link(*link)) {
                    Some((_, amount)) => amount.per_byte += n,
                    None => uses.push((What::Link(*link), of(1.0))),
                }
            }
        }
        let shape = self.add(total, uses);
        self.shapes.insert(key, shape);
        (shape, latency)
    }

    /// A rank's thread and, where ranks outnumber them, the cores of its CPU.
    fn core(&self, rank: u32) -> Vec<What> {
        let mut core = vec![What::Thread(rank)];
        if self.machine.crowded(rank) {
            core.push(What::Cores(self.machine.device(rank)));
        }
        core
    }

    fn wake(&mut self, rank: u32) -> u32 {
        let work = Amount { fixed: SWITCH, per_byte: 0.0 };
        let uses = self.core(rank).into_iter().map(|w| (w, work)).collect();
        let shape = self.add(work, uses);
        self.out.flows.push(Spec { shape, latency: 0.0 });
        self.out.flows.len() as u32 - 1
    }

    fn add(&mut self, work: Amount, uses: Vec<(What, Amount)>) -> u32 {
        let first = self.out.uses.len() as u32;
        for (what, amount) in uses {
            let out = &mut self.out;
            let resource = *self.resources.entry(what).or_insert_with(|| {
                let capacity = match what {
                    // A dead link makes a plan last for ages, not for ever.
                    What::Link(link) => self.machine.topology.link(link).bandwidth().max(1.0),
                    What::Thread(_) => 1.0,
                    What::Cores(device) => self.machine.cores.get(&device).map_or(1.0, |c| c.1 as f64),
                };
                let stand_in = out.resources.len() as u32;
                out.resources.push(Resource { what, capacity, load: Amount { fixed: 0.0, per_byte: 0.0 }, stand_in });
                stand_in
            });
            self.out.uses.push((resource, amount));
        }
        self.out.shapes.push(Shape { work, uses: first..self.out.uses.len() as u32 });
        self.out.shapes.len() as u32 - 1
    }
}
