//! What a plan takes, predicted.
//!
//! A latency and bandwidth model in the manner of LogGP (Alexandrov et al., 1995): an instruction has an overhead, a
//! transfer a latency and a rate. Lanes run as the engine would run them, which gives the critical path of a chunk;
//! the busiest link, lane and core give the pace at which further chunks follow. Both are straight lines in the chunk
//! size, so two sizes tell all.

use std::collections::HashMap;

use crate::plan::{Buffer, Instruction, Placement, Plan, Span};
use crate::topology::{DeviceId, LinkId, LinkKind, Topology};
use crate::{Error, Result};

/// Seconds to start an instruction that moves data in host memory.
const HOST_OVERHEAD: f64 = 100e-9;
/// Seconds to start an instruction that moves data on a GPU: about a kernel's launch within a graph.
const GPU_OVERHEAD: f64 = 1.5e-6;
/// Seconds to hand a core to a rank that slept, where ranks outnumber cores: a futex wake and a context switch.
const SWITCH: f64 = 3e-6;
/// Bytes per second that one core copies where nobody has measured it.
const COPY_RATE: f64 = 10e9;

/// A plan's time as a function of the chunk size: `fill` for the first chunk, `pace` for each further one.
#[derive(Debug, Clone, PartialEq)]
pub struct Cost {
    fill: Line,
    pace: Line,
    /// What sets the pace, in words.
    pub limit: String,
}

/// Seconds as `at_zero + per_byte * bytes`.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Line {
    at_zero: f64,
    per_byte: f64,
}

impl Line {
    fn through(small: (f64, f64), large: (f64, f64)) -> Self {
        let per_byte = ((large.1 - small.1) / (large.0 - small.0)).max(0.0);
        Self { at_zero: (small.1 - per_byte * small.0).max(0.0), per_byte }
    }

    fn at(self, bytes: f64) -> f64 {
        self.at_zero + self.per_byte * bytes
    }
}

impl Cost {
    /// Runs `plan` on paper.
    ///
    /// # Errors
    /// [`Error::Plan`] where two ranks that must exchange data have no route.
    pub fn of(topology: &Topology, placement: &Placement, plan: &Plan) -> Result<Self> {
        let mut model = Model::new(topology, placement);
        let (small, large) = (64.0 * plan.parts as f64, 1e6 * plan.parts as f64);
        let (a, b) = (model.run(plan, small)?, model.run(plan, large)?);
        Ok(Self {
            fill: Line::through((small, a.fill), (large, b.fill)),
            pace: Line::through((small, a.pace), (large, b.pace)),
            limit: b.limit,
        })
    }

    /// Seconds for a message of `bytes` in chunks of `chunk`.
    pub fn seconds(&self, bytes: u64, chunk: u64) -> f64 {
        let chunks = bytes.div_ceil(chunk.max(1)).max(1);
        let each = bytes as f64 / chunks as f64;
        self.fill.at(each) + (chunks - 1) as f64 * self.pace.at(each)
    }

    /// The chunk size of least time: the pipeline's optimum in closed form, `sqrt(M a / (b - p))` for a pace of
    /// `a + p c` and a fill with slope `b`, within `most`.
    pub fn chunk(&self, bytes: u64, most: u64) -> u64 {
        let m = bytes as f64;
        let gain = self.fill.per_byte - self.pace.per_byte;
        let best = if gain > 0.0 { (m * self.pace.at_zero / gain).sqrt() } else { m };
        let chunks = (m / best.clamp(1.0, m.max(1.0))).round().max(1.0);
        let chunk = (m / chunks).ceil() as u64;
        chunk.clamp(1, most.max(1))
    }
}

struct Timing {
    fill: f64,
    pace: f64,
    limit: String,
}

struct Model<'a> {
    topology: &'a Topology,
    placement: &'a Placement,
    routes: HashMap<(DeviceId, DeviceId), Path>,
    /// Ranks on each CPU, and the cores there.
    cores: HashMap<DeviceId, (usize, usize)>,
    memory: HashMap<DeviceId, LinkId>,
}

#[derive(Clone)]
struct Path {
    links: Vec<LinkId>,
    rate: f64,
    latency: f64,
}

impl<'a> Model<'a> {
    fn new(topology: &'a Topology, placement: &'a Placement) -> Self {
        let mut cores = HashMap::new();
        for &d in placement.devices() {
            if let Some(cpu) = &topology.device(d).cpu {
                cores.entry(d).or_insert((0, cpu.pus.len().max(cpu.cores).max(1))).0 += 1;
            }
        }
        let own = topology.links().filter(|(_, a, b, l)| a == b && l.kind == LinkKind::Memory);
        let memory = own.map(|(id, a, _, _)| (a, id)).collect();
        Self { topology, placement, routes: HashMap::new(), cores, memory }
    }

    fn path(&mut self, from: usize, to: usize) -> Result<Path> {
        let (a, b) = (self.placement.devices()[from], self.placement.devices()[to]);
        if let Some(path) = self.routes.get(&(a, b)) {
            return Ok(path.clone());
        }
        let route = self.topology.route(a, b).ok_or_else(|| {
            let id = |d| &self.topology.device(d).id;
            Error::Plan(format!(
                "no route leads from rank {from} ({}) to rank {to} ({})",
                id(a),
                id(b)
            ))
        })?;
        let path = Path { links: route.links, rate: route.bandwidth, latency: route.latency };
        self.routes.insert((a, b), path.clone());
        Ok(path)
    }

    fn crowded(&self, rank: usize) -> bool {
        self.cores.get(&self.placement.devices()[rank]).is_some_and(|(ranks, cores)| ranks > cores)
    }

    /// Seconds that moving `bytes` from `sources` places takes a rank's own engine, and its memory link.
    fn local(&self, rank: usize, bytes: f64, sources: f64) -> (f64, Option<LinkId>) {
        let device = self.placement.devices()[rank];
        match &self.topology.device(device).cpu {
            Some(cpu) => {
                let rate = cpu.copy_rate.unwrap_or(COPY_RATE);
                (
                    HOST_OVERHEAD + bytes * (sources + 1.0) / 2.0 / rate,
                    self.memory.get(&device).copied(),
                )
            }
            None => (GPU_OVERHEAD, None),
        }
    }

    /// Times two and three chunks of `chunk` bytes; the first's end is the fill, the third's delay the pace.
    fn run(&mut self, plan: &Plan, chunk: f64) -> Result<Timing> {
        const CHUNKS: usize = 3;
        let part = chunk / plan.parts as f64;
        let mut load: HashMap<LinkId, f64> = HashMap::new();
        let mut lanes: Vec<(usize, usize, usize, usize)> = Vec::new();
        for (rank, program) in plan.programs.iter().enumerate() {
            lanes.extend((0..program.lanes.len()).map(|lane| (rank, lane, 0, 0)));
        }
        let mut clock = vec![0.0f64; lanes.len()];
        let mut busy = vec![0.0f64; lanes.len()];
        let mut ends = [0.0f64; CHUNKS];
        let mut queues: HashMap<(usize, u32, u32, bool), std::collections::VecDeque<f64>> =
            HashMap::new();
        let mut left = lanes.len();
        while left > 0 {
            let mut moved = false;
            for (l, lane) in lanes.iter_mut().enumerate() {
                let (rank, code) = (lane.0, &plan.programs[lane.0].lanes[lane.1].0);
                while lane.2 < CHUNKS {
                    let Some(i) = code.get(lane.3) else {
                        ends[lane.2] = ends[lane.2].max(clock[l]);
                        lane.2 += 1;
                        lane.3 = 0;
                        moved = true;
                        left -= usize::from(lane.2 == CHUNKS);
                        continue;
                    };
                    let me = rank as u32;
                    let first = lane.2 == 0;
                    let mut charge = |path: &Path, bytes: f64| {
                        if first {
                            path.links.iter().for_each(|e| *load.entry(*e).or_default() += bytes);
                        }
                    };
                    let mut take = 0.0;
                    match i {
                        Instruction::Copy { parts, src, .. } => {
                            let bytes = part * f64::from(parts.count);
                            take = self.move_in(rank, &[*src], bytes, &mut charge)?;
                        }
                        Instruction::Reduce { parts, srcs, .. } => {
                            take = self.move_in(
                                rank,
                                srcs,
                                part * f64::from(parts.count),
                                &mut charge,
                            )?;
                        }
                        Instruction::Send { to, channel, .. } => {
                            let path = self.path(rank, *to as usize)?;
                            charge(&path, part);
                            let (own, _) = self.local(rank, part, 1.0);
                            take = own.max(part / path.rate);
                            let at = clock[l] + take + path.latency;
                            queues.entry((rank, *to, *channel, true)).or_default().push_back(at);
                        }
                        Instruction::Recv { from, channel, .. }
                        | Instruction::RecvReduce { from, channel, .. } => {
                            let queue =
                                queues.entry((*from as usize, me, *channel, true)).or_default();
                            let Some(at) = queue.pop_front() else { break };
                            let sources =
                                if matches!(i, Instruction::Recv { .. }) { 1.0 } else { 2.0 };
                            let (own, memory) = self.local(rank, part, sources);
                            if let Some(e) = memory.filter(|_| first) {
                                *load.entry(e).or_default() += part;
                            }
                            clock[l] = clock[l].max(at);
                            take = own;
                        }
                        Instruction::Notify { to, flag } => {
                            let flight = self.path(rank, *to as usize)?.latency;
                            let flight = if *to == me { 0.0 } else { flight };
                            let wake = if self.crowded(rank) { SWITCH } else { 0.0 };
                            queues
                                .entry((rank, *to, *flag, false))
                                .or_default()
                                .push_back(clock[l] + flight + wake);
                        }
                        Instruction::Await { from, flag, lag } => {
                            if lane.2 >= *lag as usize {
                                let queue =
                                    queues.entry((*from as usize, me, *flag, false)).or_default();
                                let Some(at) = queue.pop_front() else { break };
                                clock[l] = clock[l].max(at);
                            }
                        }
                    }
                    clock[l] += take;
                    if first {
                        busy[l] += take;
                    }
                    lane.3 += 1;
                    moved = true;
                }
            }
            if !moved {
                return Err(Error::Plan(format!(
                    "`{}` cannot be timed: its lanes wait for each other",
                    plan.algorithm
                )));
            }
        }
        Ok(self.pace(plan, &ends, &load, &lanes, &busy))
    }

    /// The slowest of all that each chunk must pass.
    fn pace(
        &self,
        plan: &Plan,
        ends: &[f64],
        load: &HashMap<LinkId, f64>,
        lanes: &[(usize, usize, usize, usize)],
        busy: &[f64],
    ) -> Timing {
        let mut pace = ends[2] - ends[1];
        let mut limit = format!("the latency of `{}`'s steps", plan.algorithm);
        let mut floor: f64 = 0.0;
        let mut links: Vec<_> = load.iter().collect();
        links.sort_by_key(|(id, _)| **id);
        for (link, bytes) in links {
            let seconds = bytes / self.topology.link(*link).bandwidth();
            if seconds > floor {
                floor = seconds;
                let (a, b) = self.topology.endpoints(*link);
                let l = self.topology.link(*link);
                let ends = if a == b {
                    format!("the memory of {}", self.topology.device(a).id)
                } else {
                    format!(
                        "the link {} -> {}",
                        self.topology.device(a).id,
                        self.topology.device(b).id
                    )
                };
                limit = format!("{ends} at {:.1} GB/s ({})", l.bandwidth() / 1e9, l.source);
            }
        }
        let mut work: HashMap<DeviceId, f64> = HashMap::new();
        for ((rank, ..), seconds) in lanes.iter().zip(busy) {
            *work.entry(self.placement.devices()[*rank]).or_default() += seconds;
        }
        for (device, seconds) in work {
            if let Some((ranks, cores)) = self.cores.get(&device) {
                let each = seconds / (*cores).min(*ranks) as f64;
                if each > floor {
                    floor = each;
                    limit = format!("the {cores} core(s) of {}", self.topology.device(device).id);
                }
            }
        }
        if floor > pace * 0.999 {
            pace = pace.max(floor);
        } else {
            limit = format!("each rank's own steps ({limit} is not full)");
        }
        Timing { fill: ends[0].max(floor), pace, limit }
    }

    /// Seconds to gather `bytes` from each of `srcs` into this rank's memory.
    fn move_in(
        &mut self,
        rank: usize,
        srcs: &[Span],
        bytes: f64,
        charge: &mut impl FnMut(&Path, f64),
    ) -> Result<f64> {
        let (mut take, memory) = self.local(rank, bytes, srcs.len() as f64);
        if let Some(e) = memory {
            charge(
                &Path { links: vec![e], rate: 0.0, latency: 0.0 },
                bytes * (srcs.len() as f64 + 1.0) / 2.0,
            );
        }
        let mut wire: f64 = 0.0;
        for src in srcs {
            if let (Buffer::Scratch, Some(owner)) = (src.buffer, src.owner) {
                let path = self.path(owner as usize, rank)?;
                if path.links.iter().any(|e| Some(*e) != memory) {
                    charge(&path, bytes);
                    wire += bytes / path.rate;
                }
            }
        }
        take = take.max(wire);
        Ok(take)
    }
}
