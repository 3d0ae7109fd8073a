//! What a plan takes, predicted.
//!
//! A latency and bandwidth model in the manner of LogGP (Alexandrov et al., 1995): an instruction has an overhead, a
//! transfer a latency and a rate. Lanes run as the engine would run them, which gives the critical path of a chunk;
//! the busiest link and core give the pace that further chunks cannot exceed. All are straight lines in the chunk size,
//! so an empty chunk and a very large one tell all.

use rustc_hash::FxHashMap as HashMap;

use crate::plan::{Buffer, Instruction, Placement, Plan, Span};
use crate::topology::{Alike, DeviceId, LinkId, LinkKind, Topology};
use crate::{Error, Result};

/// Seconds to start an instruction that moves data in host memory.
pub(crate) const HOST_OVERHEAD: f64 = 100e-9;
/// Seconds to start an instruction that moves data on a GPU: about a kernel's launch within a graph.
pub(crate) const GPU_OVERHEAD: f64 = 1.5e-6;
/// Seconds to hand a core to a rank that slept, where ranks outnumber cores: a futex wake and a context switch.
pub(crate) const SWITCH: f64 = 3e-6;
/// Bytes per second that one core copies where nobody has measured it.
pub(crate) const COPY_RATE: f64 = 10e9;

/// How much faster a core moves bytes that are in its own cache than bytes of memory, at least.
pub(crate) const CACHE: f64 = 3.0;

/// A plan's time as a function of the chunk size.
#[derive(Debug, Clone, PartialEq)]
pub struct Cost {
    /// The first chunk from beginning to end.
    fill: Line,
    /// Each further chunk, as a rank's steps follow one another.
    steps: Line,
    /// What the busiest link or core needs for each chunk, which no order of steps goes below.
    floor: Line,
    /// What sets the pace of large messages, in words.
    pub limit: String,
    /// Where its figure comes from.
    pub source: String,
}

/// Seconds without any bytes, and seconds a byte.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Line {
    overhead: f64,
    per_byte: f64,
}

impl Line {
    fn at(self, bytes: f64) -> f64 {
        self.overhead + self.per_byte * bytes
    }
}

impl Cost {
    /// Runs `plan` on paper.
    ///
    /// # Errors
    /// [`Error::Plan`] where two ranks that must exchange data have no route.
    pub fn of(topology: &Topology, placement: &Placement, plan: &Plan) -> Result<Self> {
        let mut model = Model::new(topology, placement);
        let (none, large) = (model.run(plan, 0.0)?, model.run(plan, LARGE)?);
        let line = |of: fn(&Timing) -> f64| Line { overhead: of(&none), per_byte: of(&large) / LARGE };
        Ok(Self {
            fill: line(|t| t.fill),
            steps: line(|t| t.steps),
            floor: line(|t| t.floor),
            limit: large.limit,
            source: large.source,
        })
    }

    /// Seconds for a message of `bytes` in chunks of `chunk`.
    pub fn seconds(&self, bytes: u64, chunk: u64) -> f64 {
        let chunks = bytes.div_ceil(chunk.max(1)).max(1);
        let each = bytes as f64 / chunks as f64;
        let floor = self.floor.at(each);
        self.fill.at(each).max(floor) + (chunks - 1) as f64 * self.steps.at(each).max(floor)
    }

    /// The chunk size, within `most`, of least time: chunks that are too large fill the pipeline late, chunks that are
    /// too small pay their overheads often. Fewer chunks are taken where more gain next to nothing.
    pub fn chunk(&self, bytes: u64, most: u64) -> u64 {
        let least = bytes.div_ceil(most.max(1)).max(1);
        let size = |chunks: u64| bytes.div_ceil(chunks).max(1);
        let mut best = (self.seconds(bytes, size(least)), least);
        // Steps of about an eighth, as far as chunks are not silly.
        let mut chunks = least;
        while chunks < least.saturating_mul(1 << 12) && size(chunks) > 1024 {
            chunks += chunks.div_ceil(8);
            let seconds = self.seconds(bytes, size(chunks));
            if seconds < best.0 * 0.99 {
                best = (seconds, chunks);
            }
        }
        size(best.1)
    }
}

/// A link and its rate, and where the figure comes from.
pub(crate) fn link_words(topology: &Topology, id: LinkId) -> (String, String) {
    let link = topology.link(id);
    let (a, b) = topology.endpoints(id);
    let (from, to) = (&topology.device(a).id, &topology.device(b).id);
    let ends = if a == b { format!("memory of {from}") } else { format!("link {from} -> {to}") };
    let rate = link.bandwidth() / 1e9;
    (format!("{ends} at {rate:.1} GB/s"), format!("{}: {}", link.origin().name(), link.source))
}

/// Where the rate comes from at which a CPU's cores copy.
pub(crate) fn copying_words(topology: &Topology, cpu: DeviceId) -> String {
    match topology.device(cpu).cpu.as_ref().and_then(|c| c.copy_rate) {
        Some(rate) => format!("measured: a core copies {:.1} GB/s", rate / 1e9),
        None => format!("assumed: a core copies {:.1} GB/s", COPY_RATE / 1e9),
    }
}

/// By CPU that has ranks, how many, and its cores.
pub(crate) fn cores(topology: &Topology, placement: &Placement) -> HashMap<DeviceId, (usize, usize)> {
    let mut cores = HashMap::default();
    for &d in placement.devices() {
        if let Some(cpu) = &topology.device(d).cpu {
            cores.entry(d).or_insert((0, cpu.pus.len().max(cpu.cores).max(1))).0 += 1;
        }
    }
    cores
}

/// The link of each device to its own memory.
pub(crate) fn memory(topology: &Topology) -> HashMap<DeviceId, LinkId> {
    let own = topology.links().filter(|(_, a, b, l)| a == b && l.kind == LinkKind::Memory);
    own.map(|(id, a, _, _)| (a, id)).collect()
}

/// Bytes of a chunk so large that overheads count for nothing.
const LARGE: f64 = 1e12;

/// What a message goes through on its way: scratch of the sender's.
const SLOT: Span = Span { buffer: Buffer::Scratch, owner: None, at: 0 };

struct Timing {
    fill: f64,
    steps: f64,
    floor: f64,
    limit: String,
    source: String,
}

struct Model<'a> {
    topology: &'a Topology,
    alike: Option<Alike>,
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
        let (cores, memory) = (cores(topology, placement), memory(topology));
        Self { topology, alike: topology.alike(), placement, routes: HashMap::default(), cores, memory }
    }

    fn path(&mut self, from: usize, to: usize) -> Result<Path> {
        let (a, b) = (self.placement.devices()[from], self.placement.devices()[to]);
        // Between hosts that are alike one search does for all.
        let (model, hosts) = match self.alike.and_then(|alike| alike.model(a, b)) {
            Some((model, hosts)) => (model, Some(hosts)),
            None => ((a, b), None),
        };
        let here = |path: &Path| match (self.alike, hosts) {
            (Some(alike), Some(hosts)) => {
                Path { links: path.links.iter().map(|l| alike.link(*l, hosts)).collect(), ..*path }
            }
            _ => path.clone(),
        };
        if let Some(path) = self.routes.get(&model) {
            return Ok(here(path));
        }
        let route = self.topology.route(model.0, model.1).ok_or_else(|| {
            let id = |d| &self.topology.device(d).id;
            Error::Plan(format!("no route leads from rank {from} ({}) to rank {to} ({})", id(a), id(b)))
        })?;
        let path = Path { links: route.links, rate: route.bandwidth, latency: route.latency };
        let found = here(&path);
        self.routes.insert(model, path);
        Ok(found)
    }

    /// Seconds more until a peer of `rank` runs, where ranks outnumber cores.
    fn wake(&self, rank: usize) -> f64 {
        let crowded = |(ranks, cores): &(usize, usize)| ranks > cores;
        if self.cores.get(&self.placement.devices()[rank]).is_some_and(crowded) { SWITCH } else { 0.0 }
    }

    fn same_memory(&self, a: usize, b: usize) -> bool {
        let device = |r: usize| self.placement.devices()[r];
        device(a) == device(b) && self.memory.contains_key(&device(a))
    }

    fn charge_memory(&self, rank: usize, bytes: f64, charge: &mut impl FnMut(&[LinkId], f64)) {
        if let Some(link) = self.memory.get(&self.placement.devices()[rank]) {
            charge(&[*link], bytes);
        }
    }

    /// Seconds that a rank's own engine needs for an instruction, and the bytes of memory that it copies (half of one
    /// for each byte read or written). A rank's own scratch stays in its cache; a peer's comes from the peer's.
    fn local(&self, rank: usize, bytes: f64, srcs: &[Span], dst: Option<Span>, received: bool) -> (f64, f64) {
        let device = self.placement.devices()[rank];
        let Some(cpu) = &self.topology.device(device).cpu else { return (GPU_OVERHEAD, 0.0) };
        let copy = cpu.copy_rate.unwrap_or(COPY_RATE);
        let exchange = cpu.exchange_rate.unwrap_or(copy);
        let (mut memory, mut seconds) = (0.0, if received { bytes / exchange } else { 0.0 });
        for span in srcs.iter().chain(&dst) {
            match (span.buffer, span.owner) {
                (Buffer::Scratch, Some(_)) => seconds += bytes / exchange,
                (Buffer::Scratch, None) => seconds += bytes / 2.0 / copy / CACHE,
                _ => memory += bytes / 2.0,
            }
        }
        (HOST_OVERHEAD + seconds + memory / copy, memory)
    }

    /// Runs three chunks of `chunk` bytes: the first's end is the fill, what the third ends later than the second is a step.
    fn run(&mut self, plan: &Plan, chunk: f64) -> Result<Timing> {
        const CHUNKS: usize = 3;
        let part = chunk / plan.parts_a_rank() as f64;
        let mut load: HashMap<LinkId, f64> = HashMap::default();
        let mut lanes: Vec<(usize, usize, usize, usize)> = Vec::new();
        for (rank, program) in plan.programs.iter().enumerate() {
            lanes.extend((0..program.lanes.len()).map(|lane| (rank, lane, 0, 0)));
        }
        let mut clock = vec![0.0f64; lanes.len()];
        let mut busy = vec![0.0f64; lanes.len()];
        let mut ends = [0.0f64; CHUNKS];
        let mut queues: HashMap<(usize, u32, u32, bool), std::collections::VecDeque<f64>> = HashMap::default();
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
                    let mut charge = |links: &[LinkId], bytes: f64| {
                        if first {
                            links.iter().for_each(|e| *load.entry(*e).or_default() += bytes);
                        }
                    };
                    let mut take = 0.0;
                    match i {
                        Instruction::Copy { parts, src, dst } => {
                            let bytes = part * f64::from(parts.count);
                            take = self.move_in(rank, &[*src], *dst, bytes, &mut charge)?;
                        }
                        Instruction::Reduce { parts, srcs, dst, .. } => {
                            let bytes = part * f64::from(parts.count);
                            take = self.move_in(rank, srcs, *dst, bytes, &mut charge)?;
                        }
                        Instruction::Send { to, channel, src, .. } => {
                            let path = self.path(rank, *to as usize)?;
                            let (own, memory) = self.local(rank, part, &[*src, SLOT], None, false);
                            self.charge_memory(rank, memory, &mut charge);
                            take = own;
                            if !self.same_memory(rank, *to as usize) {
                                charge(&path.links, part);
                                take = own.max(part / path.rate);
                            }
                            let at = clock[l] + take + path.latency + self.wake(rank);
                            queues.entry((rank, *to, *channel, true)).or_default().push_back(at);
                        }
                        Instruction::Recv { from, channel, dst, .. }
                        | Instruction::RecvReduce { from, channel, dst, .. } => {
                            let queue = queues.entry((*from as usize, me, *channel, true)).or_default();
                            let Some(at) = queue.pop_front() else { break };
                            let own = match i {
                                Instruction::RecvReduce { src, .. } => vec![*src],
                                _ => vec![],
                            };
                            let (seconds, memory) = self.local(rank, part, &own, Some(*dst), true);
                            self.charge_memory(rank, memory, &mut charge);
                            if first && at > clock[l] {
                                busy[l] += self.wake(rank);
                            }
                            clock[l] = clock[l].max(at);
                            take = seconds;
                        }
                        Instruction::Notify { to, flag } => {
                            let flight = self.path(rank, *to as usize)?.latency;
                            let at = if *to == me { clock[l] } else { clock[l] + flight + self.wake(rank) };
                            queues.entry((rank, *to, *flag, false)).or_default().push_back(at);
                        }
                        Instruction::Await { from, flag, lag } => {
                            if lane.2 >= *lag as usize {
                                let queue = queues.entry((*from as usize, me, *flag, false)).or_default();
                                let Some(at) = queue.pop_front() else { break };
                                if first && at > clock[l] {
                                    busy[l] += self.wake(rank);
                                }
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
        Ok(self.limits(&ends, &load, &lanes, &busy))
    }

    /// The slowest of all that each chunk must pass.
    fn limits(
        &self,
        ends: &[f64],
        load: &HashMap<LinkId, f64>,
        lanes: &[(usize, usize, usize, usize)],
        busy: &[f64],
    ) -> Timing {
        let steps = ends[2] - ends[1];
        let mut floor: f64 = 0.0;
        let mut limit = "the latency of its steps".to_string();
        let mut source = String::new();
        let mut links: Vec<_> = load.iter().collect();
        links.sort_by_key(|(id, _)| **id);
        for (id, bytes) in links {
            let link = self.topology.link(*id);
            let seconds = bytes / link.bandwidth();
            if seconds > floor {
                floor = seconds;
                (limit, source) = link_words(self.topology, *id);
            }
        }
        let mut work: HashMap<DeviceId, f64> = HashMap::default();
        for ((rank, ..), seconds) in lanes.iter().zip(busy) {
            *work.entry(self.placement.devices()[*rank]).or_default() += seconds;
        }
        for (device, seconds) in work {
            let Some((ranks, cores)) = self.cores.get(&device) else { continue };
            let each = seconds / (*cores).min(*ranks) as f64;
            if each > floor {
                floor = each;
                let d = self.topology.device(device);
                limit = format!("{cores} core(s) of {}", d.id);
                source = copying_words(self.topology, device);
            }
        }
        if floor < steps * 0.999 {
            limit = "its own steps, one after the other".into();
            source = "no link or core is busy all the time".into();
        }
        Timing { fill: ends[0], steps, floor, limit, source }
    }

    /// Seconds to gather `bytes` from each of `srcs` into `dst`.
    fn move_in(
        &mut self,
        rank: usize,
        srcs: &[Span],
        dst: Span,
        bytes: f64,
        charge: &mut impl FnMut(&[LinkId], f64),
    ) -> Result<f64> {
        let (own, memory) = self.local(rank, bytes, srcs, Some(dst), false);
        self.charge_memory(rank, memory, charge);
        // All are read at once: what takes longest is the link that most of them come by.
        let mut by_link: HashMap<LinkId, f64> = HashMap::default();
        for owner in srcs.iter().filter_map(|s| s.owner) {
            let path = self.path(owner as usize, rank)?;
            if !self.same_memory(owner as usize, rank) {
                charge(&path.links, bytes);
                path.links.iter().for_each(|l| *by_link.entry(*l).or_default() += bytes);
            }
        }
        let seconds = by_link.iter().map(|(link, bytes)| bytes / self.topology.link(*link).bandwidth());
        let wire = seconds.fold(0.0, f64::max);
        Ok(own.max(wire))
    }
}
