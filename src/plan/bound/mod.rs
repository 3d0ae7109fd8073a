//! The least time that a collective can take on a topology.
//!
//! Devices and links are a graph with whole bytes per second as capacities; switches only pass on. In an all-gather of
//! `M` bytes among `N` ranks, a set of devices that leaves out a rank holds the blocks of its own ranks, and all of them
//! must leave it: the least time is `M / N` times the most, over all such sets, of ranks inside over bytes per second
//! that leave (ForestColl, Zhao et al., 2024, arXiv 2402.06787, which also shows that trees reach it where links lead both ways
//! alike). The set is found by maximum flows, in whole numbers. Reduce-scatter is the mirror; all-reduce by
//! reduce-scatter and all-gather is the sum. A broadcast takes `M` over the least maximum flow from the root to a rank.

mod cut;
mod fold;
mod graph;
mod memory;
mod symmetry;
#[cfg(test)]
mod tests;
mod words;

use std::collections::BTreeMap;

use crate::plan::{Collective, Placement};
use crate::topology::Topology;
use cut::Cut;
use graph::Graph;

/// A lower bound and where it comes from.
#[derive(Debug, Clone, PartialEq)]
pub struct Bound {
    /// Seconds: the larger of the parts below. Of an all-reduce, for what is made of reduce-scatter and all-gather.
    /// Infinite where a rank cannot reach another.
    pub seconds: f64,
    /// Seconds that the bytes need at the tightest place.
    pub bandwidth: f64,
    /// Seconds that the longest unavoidable flight needs.
    pub latency: f64,
    /// Seconds that any algorithm needs if switches only pass on; less than `seconds` for an all-reduce alone.
    pub any: f64,
    /// Seconds that any algorithm needs if switches may also combine and copy; less than `any` for an all-reduce alone.
    pub in_switch: f64,
    /// The tightest place in words.
    pub bottleneck: Vec<String>,
}

/// The bound for a message of `bytes` in the larger buffer, on nominal figures where the topology has them.
pub fn bound(topology: &Topology, placement: &Placement, collective: Collective, bytes: u64) -> Bound {
    let latency = latency(topology, placement);
    let mut cuts = cuts(topology, placement, collective, bytes as f64);
    // All but the root of a reduction only read.
    let copied = bytes as f64 / if matches!(collective, Collective::Reduce { .. }) { 2.0 } else { 1.0 };
    let mut offer = |seconds: f64, what: &dyn Fn() -> String| {
        if seconds > cuts.seconds * (1.0 + 1e-9) {
            (cuts.seconds, cuts.bottleneck) = (seconds, vec![what()]);
        }
        cuts.any = cuts.any.max(seconds);
        cuts.in_switch = cuts.in_switch.max(seconds);
    };
    let by_device = groups(placement.devices().iter().map(|d| d.0.index()));
    for ranks in by_device.values() {
        memory::memory(topology, placement, placement.devices()[ranks[0]], ranks.len(), copied, &mut offer);
    }
    if latency > cuts.seconds {
        cuts.bottleneck = vec![format!("latency: the farthest ranks are {} apart", crate::text::time(latency))];
    }
    Bound {
        seconds: cuts.seconds.max(latency),
        bandwidth: cuts.seconds,
        latency,
        any: cuts.any.max(latency),
        in_switch: cuts.in_switch.max(latency),
        bottleneck: cuts.bottleneck,
    }
}

/// What the tightest cuts ask, in seconds.
struct Cuts {
    seconds: f64,
    any: f64,
    in_switch: f64,
    bottleneck: Vec<String>,
}

impl Cuts {
    fn of(seconds: f64, bottleneck: Vec<String>) -> Self {
        Self { seconds, any: seconds, in_switch: seconds, bottleneck }
    }
}

fn cuts(topology: &Topology, placement: &Placement, collective: Collective, bytes: f64) -> Cuts {
    let graph = Graph::new(topology, placement);
    let places = graph.places();
    if places.len() < 2 || bytes <= 0.0 {
        return Cuts::of(0.0, Vec::new());
    }
    let root = placement.devices()[collective.root().unwrap_or(0)];
    let root = places.iter().copied().find(|p| graph.devices[*p] == root).unwrap_or(places[0]);
    let mirror = if graph.even() { None } else { Some(graph.reversed()) };
    let back = mirror.as_ref().unwrap_or(&graph);
    let severed = severed(&graph, back, collective, root);
    if !severed.is_empty() {
        return Cuts::of(f64::INFINITY, words::severed(topology, placement, &graph, &severed));
    }
    let from_root: Vec<u64> = (0..graph.len()).map(|v| u64::from(v == root)).collect();
    let block = bytes / placement.ranks() as f64;
    let forward = |supply: &[u64]| cut::tightest(&graph, supply).map(|c| (c, false));
    let backward = |supply: &[u64]| cut::tightest(back, supply).map(|c| (c, mirror.is_some()));
    let say = |(cut, mirrored): &(Cut, bool)| words::cut(topology, &graph, cut, *mirrored);
    let time = |cut: Option<(Cut, bool)>, unit: f64| {
        let found = cut.map(|c| (unit * c.0.ratio(), vec![say(&c)]));
        found.map_or_else(|| Cuts::of(0.0, Vec::new()), |(seconds, words)| Cuts::of(seconds, words))
    };
    match collective {
        Collective::AllGather => time(forward(&graph.ranks), block),
        Collective::ReduceScatter => time(backward(&graph.ranks), block),
        Collective::Broadcast { .. } => time(forward(&from_root), bytes),
        Collective::Reduce { .. } => time(backward(&from_root), bytes),
        Collective::AllReduce => {
            let gather = forward(&graph.ranks);
            // What leads both ways alike need not be looked at twice.
            let both = |supply: &[u64], first: &Option<(Cut, bool)>| match mirror {
                Some(_) => backward(supply),
                None => first.clone(),
            };
            let scatter = both(&graph.ranks, &gather);
            let single = forward(&from_root);
            let narrowest = [both(&from_root, &single), single].into_iter().flatten();
            let in_switch = narrowest.map(|(c, _)| bytes * c.ratio()).fold(0.0, f64::max);
            let mut said: Vec<String> = [&scatter, &gather].into_iter().flatten().map(say).collect();
            said.dedup();
            let seconds = [scatter, gather].iter().flatten().map(|(c, _)| block * c.ratio()).sum();
            let any = gossip(&graph, bytes).max(in_switch).min(seconds);
            Cuts { seconds, any, in_switch, bottleneck: said }
        }
        Collective::AllToAll => {
            let all = graph.ranks.iter().sum();
            let mut best = cut::simple(&graph, &graph.ranks, |within| cut::across(within, all));
            let outside = |c: Cut| c.inside.into_iter().map(|i| !i).collect::<Vec<bool>>();
            let ways = [forward(&graph.ranks), forward(&from_root)].into_iter().flatten().map(|(c, _)| c.inside);
            let mirrored = |supply: &[u64]| if mirror.is_some() { backward(supply) } else { None };
            let mirrored =
                [mirrored(&graph.ranks), mirrored(&from_root)].into_iter().flatten().map(|(c, _)| outside(c));
            for inside in ways.chain(mirrored) {
                let cut = cut::pairs(&graph, inside);
                if best.as_ref().is_none_or(|b| cut.tighter_than(b)) {
                    best = Some(cut);
                }
            }
            time(best.map(|c| (c, false)), block)
        }
    }
}

/// What any all-reduce must send where switches only pass on. For each byte, that all of `G` parties hear of all others
/// takes `2 (G - 1)` messages, sums or not (the gossip problem with one-way messages: Harary and Schwenk, 1974).
/// Parties are places of ranks, hosts, or hosts at one switch.
fn gossip(graph: &Graph, bytes: f64) -> f64 {
    let seconds = |grouping: &Vec<Option<usize>>| {
        let parties = graph.groups(grouping);
        let sum = |rate: fn(&graph::Group) -> u128| parties.values().map(rate).sum::<u128>() as f64;
        let narrow = sum(|g| g.out).min(sum(|g| g.into));
        let messages = 2.0 * parties.len().saturating_sub(1) as f64;
        if messages > 0.0 { messages * bytes / narrow } else { 0.0 }
    };
    graph.groupings().iter().map(seconds).fold(0.0, f64::max)
}

/// Pairs of places of which the first cannot reach the second as the collective needs it.
fn severed(graph: &Graph, back: &Graph, collective: Collective, root: usize) -> Vec<(usize, usize)> {
    let (there, here) = (graph.reached(root), back.reached(root));
    let mut pairs = Vec::new();
    for place in graph.places() {
        if !there[place] && !matches!(collective, Collective::Reduce { .. }) {
            pairs.push((root, place));
        }
        if !here[place] && !matches!(collective, Collective::Broadcast { .. }) {
            pairs.push((place, root));
        }
    }
    pairs
}

/// Something of every rank must reach every other: the longest shortest flight, looked for from the first rank of
/// each of the first hosts.
fn latency(topology: &Topology, placement: &Placement) -> f64 {
    let mut worst: f64 = 0.0;
    let by_host = groups(placement.hosts().iter().copied());
    for ranks in by_host.values().take(2) {
        let from = placement.devices()[ranks[0]];
        let routes = topology.routes_from(from);
        for (rank, to) in placement.devices().iter().enumerate() {
            if rank != ranks[0]
                && let Some(Some(route)) = routes.get(to.0.index())
            {
                worst = worst.max(route.latency);
            }
        }
    }
    worst
}

fn groups(places: impl Iterator<Item = usize>) -> BTreeMap<usize, Vec<usize>> {
    let mut groups: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (rank, place) in places.enumerate() {
        groups.entry(place).or_default().push(rank);
    }
    groups
}
