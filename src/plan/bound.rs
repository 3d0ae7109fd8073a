//! The least time that a collective can take on a topology.
//!
//! For an all-gather of `M` bytes among `N` ranks, a set of ranks `S` holds `|S| M / N` bytes that must cross the links
//! that leave it. Reduce-scatter is the mirror, all-reduce by reduce-scatter and all-gather is the sum. The sets tried
//! here are each device's ranks and each host's ranks, and their complements.

use std::collections::BTreeMap;

use crate::plan::{Collective, Placement};
use crate::topology::{DeviceId, LinkKind, Topology};

/// A lower bound and where it comes from.
#[derive(Debug, Clone, PartialEq)]
pub struct Bound {
    /// Seconds: the larger of the parts below.
    pub seconds: f64,
    /// Seconds that the bytes need at the tightest place.
    pub bandwidth: f64,
    /// Seconds that the longest unavoidable flight needs.
    pub latency: f64,
    /// The tightest place in words.
    pub bottleneck: Vec<String>,
}

/// The bound for a message of `bytes` in the larger buffer, on nominal figures where the topology has them.
pub fn bound(topology: &Topology, placement: &Placement, collective: Collective, bytes: u64) -> Bound {
    let n = placement.ranks();
    let m = bytes as f64;
    let mut best =
        Bound { seconds: 0.0, bandwidth: 0.0, latency: latency(topology, placement), bottleneck: Vec::new() };
    let mut offer = |seconds: f64, what: &dyn Fn() -> String| {
        if seconds > best.bandwidth * (1.0 + 1e-9) {
            best.bandwidth = seconds;
            best.bottleneck = vec![what()];
        }
    };
    // All but the root of a reduction only read.
    let copied = if matches!(collective, Collective::Reduce { .. }) { m / 2.0 } else { m };
    let by_device = groups(placement.devices().iter().map(|d| d.0.index()));
    for ranks in by_device.values() {
        let device = placement.devices()[ranks[0]];
        let name = &topology.device(device).id;
        if ranks.len() < n {
            let (out, into) = cut(topology, |d| d == device);
            let share = crossing(collective, ranks.len(), n);
            let narrow = out.min(into);
            if narrow > 0.0 {
                offer(m * share / narrow, &|| format!("the links of {name}, {:.1} GB/s each way", narrow / 1e9));
            }
        }
        memory(topology, placement, device, ranks.len(), copied, &mut offer);
    }
    let by_host = groups(placement.hosts().iter().copied());
    if by_host.len() > 1 {
        for (host, ranks) in &by_host {
            let (out, into) = cut(topology, |d| topology.device(d).host == Some(*host));
            let share = crossing(collective, ranks.len(), n);
            let narrow = out.min(into);
            if narrow > 0.0 {
                offer(m * share / narrow, &|| {
                    format!("the network links of host {host}, {:.1} GB/s each way", narrow / 1e9)
                });
            }
        }
    }
    best.seconds = best.bandwidth.max(best.latency);
    if best.latency > best.bandwidth {
        best.bottleneck = vec![format!("latency: the farthest ranks are {} apart", crate::text::time(best.latency))];
    }
    best
}

/// The share of the message that must cross the links around `inside` of `n` ranks: what they hold must leave, what the
/// others hold must enter, in one phase or another.
fn crossing(collective: Collective, inside: usize, n: usize) -> f64 {
    let (inside, outside) = (inside as f64, (n - inside) as f64);
    let most = inside.max(outside) / n as f64;
    match collective {
        Collective::AllReduce => 2.0 * most,
        Collective::ReduceScatter | Collective::AllGather => most,
        Collective::Broadcast { .. } | Collective::Reduce { .. } => 1.0,
        Collective::AllToAll => inside * outside / n as f64,
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

/// Bandwidth out of and into a set of devices.
fn cut(topology: &Topology, inside: impl Fn(DeviceId) -> bool) -> (f64, f64) {
    let (mut out, mut into) = (0.0, 0.0);
    for (_, a, b, link) in topology.links() {
        match (inside(a), inside(b)) {
            (true, false) => out += link.bound_bandwidth(),
            (false, true) => into += link.bound_bandwidth(),
            _ => {}
        }
    }
    (out, into)
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
