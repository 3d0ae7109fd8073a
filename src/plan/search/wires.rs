//! What joins the members of a group directly or by switches.

use std::collections::BTreeMap;

use crate::topology::{DeviceId, DeviceKind, LinkKind, Topology};

/// Members and switches, and bytes per second between them.
#[derive(Debug, Clone, PartialEq)]
pub struct Wires {
    members: usize,
    /// By (from, to), members before switches.
    rates: BTreeMap<(usize, usize), f64>,
    nodes: usize,
}

impl Wires {
    /// What joins `devices` that does not pass the CPUs, the PCIe or the network: links between GPUs and their switches.
    pub fn between(topology: &Topology, devices: &[DeviceId]) -> Self {
        let mut index: BTreeMap<DeviceId, usize> = devices.iter().enumerate().map(|(i, d)| (*d, i)).collect();
        let mut rates = BTreeMap::new();
        let mut open: Vec<DeviceId> = devices.to_vec();
        let hosts: Vec<_> = devices.iter().map(|d| topology.device(*d).host).collect();
        while let Some(from) = open.pop() {
            let at = index[&from];
            for (_, to, link) in topology.links_from(from) {
                let there = topology.device(to);
                if !matches!(link.kind, LinkKind::NvLink | LinkKind::Xgmi) || link.bandwidth() <= 0.0 {
                    continue;
                }
                if there.kind == DeviceKind::NvSwitch && hosts.contains(&there.host) && !index.contains_key(&to) {
                    index.insert(to, index.len());
                    open.push(to);
                }
                if let Some(&to) = index.get(&to) {
                    *rates.entry((at, to)).or_insert(0.0) += link.bandwidth();
                }
            }
        }
        Self { members: devices.len(), rates, nodes: index.len() }
    }

    #[cfg(test)]
    pub(super) fn of(members: usize, rates: BTreeMap<(usize, usize), f64>) -> Self {
        Self { members, rates, nodes: members }
    }

    /// How many members.
    pub fn members(&self) -> usize {
        self.members
    }

    pub(super) fn nodes(&self) -> usize {
        self.nodes
    }

    /// Every wire, with whole numbers of `1 / scale` bytes per second, rounded down.
    pub(super) fn scaled(&self, scale: f64) -> BTreeMap<(usize, usize), i64> {
        let whole = |rate: &f64| (rate * scale + 1e-6).floor() as i64;
        self.rates.iter().map(|(ends, rate)| (*ends, whole(rate))).filter(|(_, n)| *n > 0).collect()
    }

    /// Each rate that occurs, once.
    pub(super) fn distinct(&self) -> Vec<f64> {
        let mut rates: Vec<f64> = self.rates.values().copied().collect();
        rates.sort_by(f64::total_cmp);
        rates.dedup_by(|a, b| (*a - *b).abs() <= *b * 1e-9);
        rates
    }

    /// Whether all members are equally near: each joined with each, or all at one switch. Direct exchange is best then.
    pub(super) fn is_uniform(&self) -> bool {
        let (m, one_rate) = (self.members, self.distinct().len() == 1);
        let meshed = self.nodes == m && self.rates.len() == m * (m - 1);
        let starred =
            self.nodes == m + 1 && self.rates.len() == 2 * m && self.rates.keys().all(|(a, b)| *a.max(b) == m);
        one_rate && (meshed || starred)
    }

    /// Whether every wire leads back as wide.
    pub(super) fn is_symmetric(&self) -> bool {
        self.rates.iter().all(|((a, b), rate)| self.rates.get(&(*b, *a)) == Some(rate))
    }
}
