//! The least time that a collective can take on a topology.
//!
//! For an all-gather of `M` bytes among `N` ranks, a set `S` of devices with `R` ranks holds `R M / N` bytes that must
//! cross the links that leave it, if it leaves a rank out. The tightest set is found by flows (`cut`), in whole numbers,
//! with equal devices taken together (`fold`). Reduce-scatter is the mirror, all-reduce by reduce-scatter and all-gather
//! is the sum: Zhao et al., "ForestColl: Throughput-optimal collective communications on heterogeneous network fabrics",
//! arXiv 2402.06787.

mod cut;
mod fold;
mod name;
mod net;

use std::collections::BTreeMap;

use crate::plan::{Collective, Placement};
use crate::topology::{DeviceId, LinkKind, Topology};
use cut::Cut;
use net::Net;

/// A lower bound and where it comes from.
#[derive(Debug, Clone, PartialEq)]
pub struct Bound {
    /// Seconds: the larger of the parts below; infinite where ranks cannot reach each other.
    pub seconds: f64,
    /// Seconds that the bytes need at the tightest place; for an all-reduce, if it is a reduce-scatter and an all-gather.
    pub bandwidth: f64,
    /// Seconds that the longest unavoidable flight needs.
    pub latency: f64,
    /// Seconds that the bytes of any all-reduce need in which ranks do all the work; [`Bound::bandwidth`] otherwise.
    pub any: f64,
    /// Seconds that the bytes of an all-reduce need if switches reduce and multiply; [`Bound::bandwidth`] otherwise.
    pub in_switch: f64,
    /// The tightest place in words.
    pub bottleneck: Vec<String>,
}

/// The bound for a message of `bytes` in the larger buffer, on nominal figures where the topology has them.
pub fn bound(topology: &Topology, placement: &Placement, collective: Collective, bytes: u64) -> Bound {
    let m = bytes as f64;
    let mut best = Bound {
        seconds: 0.0,
        bandwidth: 0.0,
        latency: latency(topology, placement),
        any: 0.0,
        in_switch: 0.0,
        bottleneck: Vec::new(),
    };
    wires(topology, placement, collective, m, &mut best);
    let (any, in_switch) = (best.any, best.in_switch);
    let mut offer = |seconds: f64, what: &dyn Fn() -> String| {
        if seconds > best.bandwidth * (1.0 + 1e-9) {
            best.bandwidth = seconds;
            best.bottleneck = vec![what()];
        }
    };
    // All but the root of a reduction only read.
    let copied = if matches!(collective, Collective::Reduce { .. }) { m / 2.0 } else { m };
    let mut least: f64 = 0.0;
    for (device, ranks) in groups(placement.devices().iter().copied()) {
        memory(topology, placement, device, ranks.len(), copied, &mut |seconds: f64, what: &dyn Fn() -> String| {
            least = least.max(seconds);
            offer(seconds, what);
        });
    }
    if collective == Collective::AllReduce {
        (best.any, best.in_switch) = (any.max(least), in_switch.max(least));
    } else {
        (best.any, best.in_switch) = (best.bandwidth, best.bandwidth);
    }
    best.seconds = best.bandwidth.max(best.latency);
    if best.latency > best.bandwidth {
        best.bottleneck = vec![format!("latency: the farthest ranks are {} apart", crate::text::time(best.latency))];
    }
    best
}

/// What the links allow.
fn wires(topology: &Topology, placement: &Placement, collective: Collective, m: f64, best: &mut Bound) {
    let net = Net::new(topology, placement);
    let apart = name::unreachable(topology, placement, &net);
    if !apart.is_empty() {
        (best.bandwidth, best.any, best.in_switch) = (f64::INFINITY, f64::INFINITY, f64::INFINITY);
        best.bottleneck = apart;
        return;
    }
    let n = placement.ranks() as f64;
    // Links that lead back as wide as they lead there make the mirror image the same.
    let mirror = net.mirrored();
    let seconds = |cut: &Cut| m * cut.ranks as f64 / (cut.leaving as f64 * net.unit);
    let put = |best: &mut Bound, net: &Net, cut: &Cut, into: bool, seconds: f64| {
        best.bandwidth = seconds;
        best.bottleneck = vec![name::cut(topology, placement, net, cut, into)];
    };
    let back = mirror.as_ref().unwrap_or(&net);
    let root = |rank: usize| net.devices.iter().position(|d| *d == placement.devices()[rank]);
    match collective {
        Collective::AllGather => {
            if let Some(cut) = cut::gather(&net) {
                put(best, &net, &cut, false, seconds(&cut) / n);
            }
        }
        Collective::ReduceScatter => {
            if let Some(cut) = cut::gather(back) {
                put(best, back, &cut, true, seconds(&cut) / n);
            }
        }
        Collective::AllReduce => {
            let Some(spread) = cut::gather(&net) else { return };
            let gathered = if mirror.is_some() { cut::gather(back) } else { None };
            let gathered = gathered.map_or(seconds(&spread), |cut| seconds(&cut));
            put(best, &net, &spread, false, (seconds(&spread) + gathered) / n);
            let ways = [&net, back].map(|net| cut::narrowest(net, root(0)?));
            let narrow = ways.iter().flatten().map(|cut| m / (cut.leaving as f64 * net.unit));
            best.in_switch = narrow.fold(0.0, f64::max);
            // Every element is told on 2 (N - 1) times in all (Patarasuk and Yuan, 2009), by ranks and to ranks.
            let at_ranks =
                |net: &Net| -> i128 { net.edges.iter().filter(|(a, ..)| net.ranks[*a] > 0).map(|(.., c)| c).sum() };
            let alone = net.ranks.iter().all(|r| *r <= 1);
            let told =
                if alone { 2.0 * (n - 1.0) * m / (at_ranks(&net).min(at_ranks(back)) as f64 * net.unit) } else { 0.0 };
            best.any = best.in_switch.max(told).min(best.bandwidth);
        }
        Collective::Broadcast { root: r } | Collective::Reduce { root: r } => {
            let reduce = matches!(collective, Collective::Reduce { .. });
            let net = if reduce { back } else { &net };
            if let Some(cut) = root(r).and_then(|root| cut::narrowest(net, root)) {
                put(best, net, &cut, reduce, seconds(&cut));
            }
        }
        Collective::AllToAll => {
            // Of all sets, those that a gather finds tight, each device, and each host.
            let mut sets: Vec<Vec<bool>> = cut::gather(&net).into_iter().map(|cut| cut.inside).collect();
            let distinct = fold::Classes::new(&net, &fold::Neighbours::new(&net)).with_ranks(&net);
            sets.extend(distinct.iter().map(|at| (0..net.devices.len()).map(|v| v == *at).collect()));
            let host = |v: usize| topology.device(net.devices[v]).host;
            let mut hosts: Vec<_> = distinct.iter().map(|v| host(*v)).collect();
            hosts.sort_unstable();
            hosts.dedup();
            sets.extend(hosts.iter().map(|h| (0..net.devices.len()).map(|v| host(v) == *h).collect()));
            for (net, into) in [(&net, false), (back, true)] {
                for inside in &sets {
                    let ranks: i128 = (0..inside.len()).filter(|v| inside[*v]).map(|v| net.ranks[v]).sum();
                    let cut = Cut { ranks, leaving: net.leaving(|v| inside[v]), inside: inside.clone() };
                    // What each rank in it has for each rank outside.
                    let share = ranks as f64 * (n - ranks as f64) / n;
                    let seconds = m * share / (cut.leaving as f64 * net.unit);
                    if share > 0.0 && seconds > best.bandwidth * (1.0 + 1e-9) {
                        put(best, net, &cut, into, seconds);
                    }
                }
            }
        }
    }
}

/// Each rank reads its input once and writes its output once: ranks on a CPU share its memory, each has one core.
fn memory(
    topology: &Topology,
    placement: &Placement,
    device: DeviceId,
    ranks: usize,
    bytes: f64,
    offer: &mut impl FnMut(f64, &dyn Fn() -> String),
) {
    let d = topology.device(device);
    let Some(cpu) = &d.cpu else { return };
    if placement.ranks() < 2 {
        return;
    }
    if let Some(rate) = cpu.copy_rate {
        offer(bytes / rate, &|| format!("copying by one core of {}, {:.1} GB/s", d.id, rate / 1e9));
    }
    let own = topology.links().find(|(_, a, b, l)| *a == device && *b == device && l.kind == LinkKind::Memory);
    if let Some((_, _, _, link)) = own {
        let rate = link.bound_bandwidth();
        offer(bytes * ranks as f64 / rate, &|| format!("the memory of {}, copying at {:.1} GB/s", d.id, rate / 1e9));
    }
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

fn groups<K: Ord>(places: impl Iterator<Item = K>) -> BTreeMap<K, Vec<usize>> {
    let mut groups: BTreeMap<K, Vec<usize>> = BTreeMap::new();
    for (rank, place) in places.enumerate() {
        groups.entry(place).or_default().push(rank);
    }
    groups
}

#[cfg(test)]
mod tests;
