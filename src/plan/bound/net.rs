//! A machine as whole numbers: what flows can be asked of.

use rustc_hash::FxHashMap as HashMap;

use crate::plan::Placement;
use crate::topology::{DeviceId, Topology};

/// Nodes that ranks are at or that lead between them, and what they can send each other.
#[derive(Debug, Clone)]
pub(super) struct Net {
    /// Ranks at each node.
    pub ranks: Vec<i128>,
    /// What tells nodes apart at first.
    pub kinds: Vec<u64>,
    /// From, to, capacity in `unit` bytes per second.
    pub edges: Vec<(usize, usize, i128)>,
    /// Bytes per second.
    pub unit: f64,
    /// The device of each node.
    pub devices: Vec<DeviceId>,
}

impl Net {
    /// Nominal figures, in whole bytes per second. A link to itself leads nowhere, nor does one without bandwidth.
    pub fn new(topology: &Topology, placement: &Placement) -> Self {
        let mut ranks: HashMap<DeviceId, i128> = HashMap::default();
        placement.devices().iter().for_each(|d| *ranks.entry(*d).or_default() += 1);
        let mut links: Vec<(DeviceId, DeviceId, i128)> = topology
            .links()
            .filter(|(_, a, b, _)| a != b)
            .map(|(_, a, b, l)| (a, b, l.bound_bandwidth().round() as i128))
            .filter(|(.., c)| *c > 0)
            .collect();
        prune(&mut links, |d| ranks.contains_key(&d));
        let mut index: HashMap<DeviceId, usize> = HashMap::default();
        let mut devices: Vec<DeviceId> = ranks.keys().copied().collect();
        devices.extend(links.iter().flat_map(|(a, b, _)| [*a, *b]));
        devices.sort_unstable();
        devices.dedup();
        index.extend(devices.iter().enumerate().map(|(i, d)| (*d, i)));
        let gcd = links.iter().fold(0, |g, (.., c)| gcd(g, *c)).max(1);
        Self {
            ranks: devices.iter().map(|d| ranks.get(d).copied().unwrap_or(0)).collect(),
            kinds: devices.iter().map(|d| topology.device(*d).kind as u64).collect(),
            edges: links.into_iter().map(|(a, b, c)| (index[&a], index[&b], c / gcd)).collect(),
            unit: gcd as f64,
            devices,
        }
    }

    /// The same with every link turned around; none if that is no different.
    pub fn mirrored(&self) -> Option<Self> {
        let mut here = self.edges.clone();
        let mut there: Vec<_> = self.edges.iter().map(|(a, b, c)| (*b, *a, *c)).collect();
        here.sort_unstable();
        there.sort_unstable();
        (here != there).then(|| Self { edges: there, ..self.clone() })
    }

    /// What leaves a set of nodes.
    pub fn leaving(&self, inside: impl Fn(usize) -> bool) -> i128 {
        self.edges.iter().filter(|(a, b, _)| inside(*a) && !inside(*b)).map(|(.., c)| c).sum()
    }
}

/// Leaves out what leads between no ranks: nodes with one neighbour only, over and over.
fn prune(links: &mut Vec<(DeviceId, DeviceId, i128)>, keep: impl Fn(DeviceId) -> bool) {
    loop {
        let mut neighbour: HashMap<DeviceId, Option<DeviceId>> = HashMap::default();
        for (a, b, _) in links.iter() {
            for (at, other) in [(*a, *b), (*b, *a)] {
                // None once there are two.
                neighbour.entry(at).and_modify(|n| *n = n.filter(|n| *n == other)).or_insert(Some(other));
            }
        }
        let before = links.len();
        let leaf = |d: &DeviceId| !keep(*d) && neighbour.get(d).copied().flatten().is_some();
        links.retain(|(a, b, _)| !leaf(a) && !leaf(b));
        if links.len() == before {
            return;
        }
    }
}

pub(super) fn gcd(a: i128, b: i128) -> i128 {
    if b == 0 { a } else { gcd(b, a % b) }
}
