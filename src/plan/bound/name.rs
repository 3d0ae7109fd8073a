//! Cuts in the user's words.

use std::collections::BTreeSet;

use crate::plan::Placement;
use crate::plan::bound::cut::Cut;
use crate::plan::bound::net::Net;
use crate::topology::{DeviceKind, Topology};

/// Names listed at most.
const MOST: usize = 4;

/// The links that a cut crosses, and how much gets through; `into` where the net has its links turned around.
pub(super) fn cut(topology: &Topology, placement: &Placement, net: &Net, cut: &Cut, into: bool) -> String {
    let rate = cut.leaving as f64 * net.unit / 1e9;
    let back = net.leaving(|v| !cut.inside[v]) as f64 * net.unit / 1e9;
    let with = |side: bool| -> Vec<usize> {
        (0..net.ranks.len()).filter(|v| net.ranks[*v] > 0 && cut.inside[*v] == side).collect()
    };
    let (inside, outside) = (with(true), with(false));
    // The side with fewer is what people would say is cut off.
    let (few, leaves) = if inside.len() < outside.len() { (inside, !into) } else { (outside, into) };
    let way = match (rate - back).abs() <= rate * 1e-9 {
        true => "each way",
        false if leaves => "out",
        false => "in",
    };
    let host = |v: usize| topology.device(net.devices[v]).host;
    let hosts: BTreeSet<_> = few.iter().map(|v| host(*v)).collect();
    let of_hosts = placement.hosts().iter().zip(placement.devices()).filter(|(h, _)| hosts.contains(&Some(**h)));
    let devices: BTreeSet<_> = of_hosts.map(|(_, d)| *d).collect();
    let crossing = |a: usize, b: usize| cut.inside[a] != cut.inside[b];
    let end = |v: &usize| topology.device(net.devices[*v]).kind;
    let nics: BTreeSet<usize> = net
        .edges
        .iter()
        .filter(|(a, b, _)| crossing(*a, *b))
        .flat_map(|(a, b, _)| [*a, *b])
        .filter(|v| end(v) == DeviceKind::Nic && hosts.contains(&host(*v)))
        .collect();
    let place = match (&few[..], hosts.len()) {
        ([one], _) if devices.len() > 1 || nics.is_empty() => {
            format!("the links of {}", topology.device(net.devices[*one]).id)
        }
        (_, 1) if few.len() == devices.len() && !nics.is_empty() => {
            let host = hosts.iter().flatten().next().copied().unwrap_or(0);
            match nics.len() {
                1 => format!("the NIC of host {host}"),
                n => format!("the {n} NICs of host {host}"),
            }
        }
        _ => {
            let mut names: Vec<&str> =
                few.iter().take(MOST).map(|v| topology.device(net.devices[*v]).id.as_str()).collect();
            let more = format!("{} more", few.len().saturating_sub(MOST));
            if few.len() > MOST {
                names.push(&more);
            }
            format!("the links between {} and the others", names.join(", "))
        }
    };
    format!("{place}, {rate:.1} GB/s {way}")
}

/// Which ranks cannot reach which, a few.
pub(super) fn unreachable(topology: &Topology, placement: &Placement, net: &Net) -> Vec<String> {
    let Some(first) = net.devices.iter().position(|d| *d == placement.devices()[0]) else { return vec![] };
    let mut said = Vec::new();
    for (turned, way) in [(false, "no way leads from"), (true, "no way leads to")] {
        let mut next = vec![Vec::new(); net.devices.len()];
        for (a, b, _) in &net.edges {
            let (a, b) = if turned { (*b, *a) } else { (*a, *b) };
            next[a].push(b);
        }
        let mut reached = vec![false; net.devices.len()];
        reached[first] = true;
        let mut open = vec![first];
        while let Some(at) = open.pop() {
            for &to in &next[at] {
                if !std::mem::replace(&mut reached[to], true) {
                    open.push(to);
                }
            }
        }
        let lost: BTreeSet<_> = (0..reached.len()).filter(|v| !reached[*v]).map(|v| net.devices[v]).collect();
        let ranks: Vec<usize> = (0..placement.ranks()).filter(|r| lost.contains(&placement.devices()[*r])).collect();
        if ranks.is_empty() {
            continue;
        }
        let name = |rank: &usize| format!("rank {rank} ({})", topology.device(placement.devices()[*rank]).id);
        let mut names: Vec<String> = ranks.iter().take(MOST).map(name).collect();
        if ranks.len() > MOST {
            names.push(format!("{} more", ranks.len() - MOST));
        }
        let to = if turned { "from" } else { "to" };
        said.push(format!("{way} {} {to} {}", name(&0), names.join(", ")));
    }
    said
}
