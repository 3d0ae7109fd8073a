//! Which plan, of those that builders can make.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::plan::bound::{Bound, bound};
use crate::plan::builders::{self, Lanes, Nest, Request, Shape};
use crate::plan::cost::Cost;
use crate::plan::search::Wires;
use crate::plan::{Collective, Placement, Plan};
use crate::topology::{DeviceId, Topology};
use crate::{Error, Result};

/// Predictions closer than this share are a tie, which the simpler plan wins.
const TIE: f64 = 0.03;
/// Direct exchange among more ranks than this is not tried: its steps grow with their square.
const DIRECT_MOST: usize = 64;
/// As that, for ranks that have several levels: between hosts it is for the smallest messages only.
const DIRECT_APART: usize = 16;
/// Plans of more steps than this are tried only where no other is shorter.
const MANY_STEPS: usize = 1 << 16;
/// Chunks of host ranks are kept to this where the cache is not known.
const HOST_CHUNK: u64 = 512 << 10;

/// What a caller insists on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Wish {
    /// One of [`builders::NAMES`].
    pub algorithm: Option<String>,
    /// How many chunks the message is cut into.
    pub chunks: Option<u64>,
    /// How finely work is cut into lanes.
    pub lanes: Option<Lanes>,
    /// Only plans that combine every result in one step.
    pub single_step: bool,
}

impl Wish {
    /// From `TOPOCOLL_ALGO`, `TOPOCOLL_CHUNKS` and `TOPOCOLL_LANES`.
    ///
    /// # Errors
    /// [`Error::Environment`] where they make no sense.
    pub fn from_env() -> Result<Self> {
        let get = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let algorithm = get("TOPOCOLL_ALGO");
        let lanes = get("TOPOCOLL_LANES").map(|l| l.parse());
        let lanes = lanes.transpose().map_err(|why| Error::Environment(format!("TOPOCOLL_LANES: {why}")))?;
        let chunks = get("TOPOCOLL_CHUNKS").map(|c| {
            let n = c.trim().parse().ok().filter(|n| (1..=1 << 20).contains(n));
            n.ok_or_else(|| {
                Error::Environment(format!("TOPOCOLL_CHUNKS={c:?}: a number from 1 to 1048576 is expected"))
            })
        });
        Ok(Self { algorithm, chunks: chunks.transpose()?, lanes, single_step: false })
    }
}

/// A plan that was considered.
#[derive(Debug, Clone, PartialEq)]
pub struct Candidate {
    /// Its name.
    pub algorithm: String,
    /// Chunks for the message asked about.
    pub chunks: u64,
    /// Most lanes of a rank.
    pub lanes: usize,
    /// Predicted seconds.
    pub seconds: f64,
    /// What sets its pace.
    pub limit: String,
    /// Where the figure of that comes from.
    pub limit_source: String,
}

/// The plan chosen, and why.
#[derive(Debug, Clone)]
pub struct Choice {
    /// The plan.
    pub plan: Arc<Plan>,
    /// Its prediction.
    pub chosen: Candidate,
    /// All that were considered, the fastest first; the chosen one is among them.
    pub candidates: Vec<Candidate>,
    /// The least time possible.
    pub bound: Bound,
    /// Bytes of the larger buffer that this was asked for.
    pub bytes: u64,
}

impl Choice {
    /// Bytes of the larger buffer over predicted seconds.
    pub fn algbw(&self) -> f64 {
        if self.chosen.seconds > 0.0 { self.bytes as f64 / self.chosen.seconds } else { 0.0 }
    }

    /// Bound over prediction: 1 is perfect.
    pub fn ratio(&self) -> f64 {
        if self.chosen.seconds > 0.0 { self.bound.seconds / self.chosen.seconds } else { 1.0 }
    }
}

/// The plan of least predicted time for a message of `bytes` in its larger buffer.
///
/// # Errors
/// [`Error::Plan`] where no builder can make one, or not the one wished for.
pub fn choose(
    topology: &Topology,
    placement: &Placement,
    collective: Collective,
    bytes: u64,
    wish: &Wish,
) -> Result<Choice> {
    let bound = bound(topology, placement, collective, bytes);
    if bound.seconds.is_infinite() {
        return Err(Error::Plan(bound.bottleneck.join("; ")));
    }
    let most = most_chunk(topology, placement, bytes);
    let gpus = placement.devices().iter().all(|d| topology.device(*d).cpu.is_none());
    let lanes = wish.lanes.unwrap_or(if gpus { Lanes::Fine } else { Lanes::Coarse });
    let request = Request { collective, hosts: placement.hosts(), chunk_bytes: most, lanes };
    let inner = if gpus { inner_shapes(topology, placement) } else { vec![] };
    let plans = candidates(request, &placement.levels(), &inner, wish)?;
    let mut timed: Vec<(Candidate, Plan)> = Vec::new();
    for mut plan in plans {
        let cost = Cost::of(topology, placement, &plan)?;
        plan.chunk_bytes = match wish.chunks {
            Some(chunks) => bytes.div_ceil(chunks).max(1),
            None => cost.chunk(bytes, most),
        };
        let candidate = Candidate {
            algorithm: plan.algorithm.clone(),
            chunks: plan.chunks(bytes),
            lanes: plan.lanes(),
            seconds: cost.seconds(bytes, plan.chunk_bytes),
            limit: cost.limit,
            limit_source: cost.source,
        };
        timed.push((candidate, plan));
    }
    let least = timed.iter().map(|(c, _)| c.seconds).fold(f64::INFINITY, f64::min);
    // Builders come simplest first.
    let Some(pick) = timed.iter().position(|(c, _)| c.seconds <= least * (1.0 + TIE)) else {
        return Err(Error::Plan(format!("no builder makes {collective} among {} ranks", placement.ranks())));
    };
    let (chosen, plan) = timed[pick].clone();
    let mut candidates: Vec<Candidate> = timed.into_iter().map(|(c, _)| c).collect();
    candidates.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
    Ok(Choice { plan: Arc::new(plan), chosen, candidates, bound, bytes })
}

/// Shapes for the links between the GPUs of a host, where all hosts have the same.
fn inner_shapes(topology: &Topology, placement: &Placement) -> Vec<Shape> {
    let mut by_host: BTreeMap<usize, Vec<DeviceId>> = BTreeMap::new();
    for (host, device) in placement.hosts().iter().zip(placement.devices()) {
        by_host.entry(*host).or_default().push(*device);
    }
    let mut wires = by_host.values().map(|devices| Wires::between(topology, devices));
    match wires.next() {
        Some(first) if wires.all(|other| other == first) => first.shapes(),
        _ => vec![],
    }
}

/// Every plan worth timing, simplest first. `special` are shapes made for the innermost level.
fn candidates(request: Request<'_>, sizes: &[usize], special: &[Shape], wish: &Wish) -> Result<Vec<Plan>> {
    let n = request.hosts.len();
    let wanted = |name: &str| wish.algorithm.as_deref().is_none_or(|a| a == name);
    if let Some(name) = wish.algorithm.as_deref().filter(|a| !builders::NAMES.contains(a)) {
        return Err(Error::Plan(format!("there is no algorithm `{name}`; {} are", builders::NAMES.join(", "))));
    }
    let forced = wish.algorithm.is_some();
    let (collective, levels) = (request.collective, sizes.len());
    let most = if levels > 1 && collective != Collective::AllToAll { DIRECT_APART } else { DIRECT_MOST };
    let small = n <= most || forced || wish.single_step;
    let flat = |shape: &Shape| Nest::even(&[(n, shape.clone().into())]);
    let mut nests: Vec<(Nest, bool)> = Vec::new();
    if wanted("direct") && small && collective != Collective::AllReduce {
        nests.push((flat(&Shape::Direct), false));
    }
    if wanted("two-shot") && small {
        nests.push((flat(&Shape::Direct), true));
    }
    let shapes = [Shape::Ring(vec![]), Shape::Tree, Shape::HalvingDoubling];
    nests.extend(shapes.iter().filter(|s| wanted(s.name())).map(|s| (flat(s), false)));
    // An all-to-all goes straight from rank to rank.
    let special = if collective == Collective::AllToAll { &[] } else { special };
    nests.extend(special.iter().filter(|s| levels == 1 && wanted(s.name())).map(|s| (flat(s), false)));
    if levels > 1 && (wanted("hierarchical") || wanted("forest")) {
        let plain = [Shape::Direct, Shape::Ring(vec![])];
        let inners = plain.iter().chain(special);
        for inner in inners.filter(|s| wanted("hierarchical") || s.name() == "forest") {
            for outer in [Shape::Ring(vec![]), Shape::Direct, Shape::HalvingDoubling, Shape::Tree] {
                if outer == Shape::Direct && sizes[levels - 1] > DIRECT_MOST {
                    continue;
                }
                let shape = |level: usize| Arc::new(if level + 1 == levels { outer.clone() } else { inner.clone() });
                let nest: Vec<_> = sizes.iter().enumerate().map(|(i, ranks)| (*ranks, shape(i))).collect();
                nests.push((Nest::even(&nest), true));
            }
        }
    }
    // What is so long that to think about it takes seconds is left out, but for the shortest of it.
    let mut nests: Vec<(usize, Nest, bool)> =
        nests.into_iter().map(|(nest, spread)| (builders::steps(collective, &nest), nest, spread)).collect();
    let most = nests.iter().map(|(steps, ..)| *steps).min().unwrap_or(0).max(MANY_STEPS);
    nests.retain(|(steps, ..)| *steps <= most || wish.single_step);

    let mut plans = Vec::new();
    let mut reasons: Vec<Error> = Vec::new();
    let mut offer = |plan: Result<Plan>| match plan {
        Ok(plan) if wish.single_step && !plan.single_step() => reasons.push(Error::Plan(format!(
            "`{}` combines in several steps, in which the sum for an integer average could wrap; one-shot and \
             two-shot do not",
            plan.algorithm
        ))),
        // Where groups are of one rank, or collectives go one way, shapes come to the same.
        Ok(plan) if plans.iter().any(|p: &Plan| p.algorithm == plan.algorithm) => {}
        Ok(plan) => plans.push(plan),
        Err(reason) => reasons.push(reason),
    };
    if collective == Collective::AllReduce && wanted("one-shot") && small {
        offer(builders::one_shot(request, &[vec![(0..n).collect()]]));
    }
    if collective == Collective::AllReduce
        && wanted("one-shot")
        && levels > 1
        && sizes.iter().all(|s| *s <= DIRECT_MOST)
    {
        offer(builders::one_shot(request, &even_groups(sizes)));
    }
    nests.into_iter().for_each(|(_, nest, spread)| offer(builders::hierarchical(request, &nest, spread)));
    if !plans.is_empty() {
        return Ok(plans);
    }
    Err(reasons.into_iter().next().unwrap_or_else(|| {
        Error::Plan(match wish.algorithm.as_deref() {
            Some("hierarchical") => {
                "these ranks have one level only, a host or a CPU; `hierarchical` needs two".to_string()
            }
            Some("forest") => {
                "`forest` is made for the links between the GPUs of a host, the same in each host; there \
                               are none here, all GPUs are joined alike, or they are too many"
                    .to_string()
            }
            other => format!("{} makes no {collective} among {n} ranks", other.unwrap_or("no builder")),
        })
    }))
}

/// By level, the groups of ranks whose numbers differ in the digit of that level only.
fn even_groups(sizes: &[usize]) -> Vec<Vec<Vec<usize>>> {
    let n: usize = sizes.iter().product();
    let mut stride = 1;
    let level = |size: &usize| {
        let (step, block) = (stride, stride * size);
        stride = block;
        let firsts = (0..n).filter(|r| r % block < step);
        firsts.map(|first| (0..*size).map(|i| first + i * step).collect()).collect()
    };
    sizes.iter().map(level).collect()
}

/// The largest chunk that is worth while: on host ranks, what goes through staging should stay in a core's cache.
fn most_chunk(topology: &Topology, placement: &Placement, bytes: u64) -> u64 {
    let cpu = placement.devices().iter().filter_map(|d| topology.device(*d).cpu.as_ref()).next();
    match cpu {
        Some(cpu) => cpu.l2.map_or(HOST_CHUNK, |l2| (l2 / 4).max(64 << 10)),
        None => bytes.max(1),
    }
}
