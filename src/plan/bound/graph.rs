//! What a bound sees of a topology: where ranks are, and how many whole bytes per second lead from where to where.

use std::collections::{BTreeMap, BTreeSet};

use crate::plan::Placement;
use crate::topology::{DeviceId, Topology};

/// Devices that are ranks or may be between two of them.
#[derive(Debug, Clone)]
pub(super) struct Graph {
    pub devices: Vec<DeviceId>,
    pub hosts: Vec<Option<usize>>,
    /// Ranks of each device.
    pub ranks: Vec<u64>,
    /// Neighbour and rate; parallel links are one.
    pub out: Vec<Vec<(usize, u64)>>,
    pub into: Vec<Vec<(usize, u64)>>,
}

/// Some devices.
#[derive(Debug, Default)]
pub(super) struct Group {
    pub members: Vec<usize>,
    pub ranks: u64,
    pub out: u128,
    pub into: u128,
}

impl Graph {
    pub fn new(topology: &Topology, placement: &Placement) -> Self {
        let n = topology.devices().count();
        let mut ranks = vec![0; n];
        placement.devices().iter().for_each(|d| ranks[d.0.index()] += 1);
        // A rate that rounds to nothing is no link; rates beyond 10^18 would overflow sums.
        let rate = |r: f64| r.round().clamp(0.0, 1e18) as u64;
        let links = topology.links().map(|(_, a, b, l)| (a.0.index(), b.0.index(), rate(l.bound_bandwidth())));
        let hosts = topology.devices().map(|(_, d)| d.host).collect();
        Self::of(topology.devices().map(|(id, _)| id).collect(), hosts, ranks, links.collect()).without_leaves()
    }

    pub fn of(
        devices: Vec<DeviceId>,
        hosts: Vec<Option<usize>>,
        ranks: Vec<u64>,
        mut links: Vec<(usize, usize, u64)>,
    ) -> Self {
        links.retain(|(a, b, rate)| a != b && *rate > 0);
        links.sort_unstable();
        links.dedup_by(|next, first| {
            let same = (next.0, next.1) == (first.0, first.1);
            if same {
                first.2 = first.2.saturating_add(next.2);
            }
            same
        });
        let (mut out, mut into) = (vec![Vec::new(); ranks.len()], vec![Vec::new(); ranks.len()]);
        for (a, b, rate) in links {
            out[a].push((b, rate));
            into[b].push((a, rate));
        }
        Self { devices, hosts, ranks, out, into }
    }

    /// Nothing goes through a device that has one neighbour, unless it is a rank's.
    fn without_leaves(self) -> Self {
        let n = self.ranks.len();
        let near = |v: usize| self.out[v].iter().chain(&self.into[v]).map(|(w, _)| *w).collect::<BTreeSet<_>>();
        let near: Vec<BTreeSet<usize>> = (0..n).map(near).collect();
        let mut degree: Vec<usize> = near.iter().map(BTreeSet::len).collect();
        let leaf = |v: usize, degree: &[usize]| self.ranks[v] == 0 && degree[v] <= 1;
        let mut stack: Vec<usize> = (0..n).filter(|v| leaf(*v, &degree)).collect();
        let mut keep = vec![true; n];
        while let Some(v) = stack.pop() {
            if std::mem::replace(&mut keep[v], false) {
                for &w in near[v].iter().filter(|w| keep[**w]) {
                    degree[w] -= 1;
                    if leaf(w, &degree) {
                        stack.push(w);
                    }
                }
            }
        }
        let kept: Vec<usize> = (0..n).filter(|v| keep[*v]).collect();
        let mut now = vec![usize::MAX; n];
        kept.iter().enumerate().for_each(|(i, v)| now[*v] = i);
        let links = |all: &[Vec<(usize, u64)>]| -> Vec<Vec<(usize, u64)>> {
            let of = |v: &usize| all[*v].iter().filter(|(w, _)| keep[*w]).map(|(w, r)| (now[*w], *r)).collect();
            kept.iter().map(of).collect()
        };
        Self {
            out: links(&self.out),
            into: links(&self.into),
            devices: kept.iter().map(|v| self.devices[*v]).collect(),
            hosts: kept.iter().map(|v| self.hosts[*v]).collect(),
            ranks: kept.iter().map(|v| self.ranks[*v]).collect(),
        }
    }

    /// Every link the other way round.
    pub fn reversed(&self) -> Self {
        Self { out: self.into.clone(), into: self.out.clone(), ..self.clone() }
    }

    /// Whether every link leads both ways alike, so that what holds one way holds the other.
    pub fn even(&self) -> bool {
        self.out == self.into
    }

    pub fn len(&self) -> usize {
        self.ranks.len()
    }

    /// Devices that have ranks.
    pub fn places(&self) -> Vec<usize> {
        (0..self.len()).filter(|v| self.ranks[*v] > 0).collect()
    }

    /// What can be reached from a device.
    pub fn reached(&self, from: usize) -> Vec<bool> {
        let mut seen = vec![false; self.len()];
        seen[from] = true;
        let mut stack = vec![from];
        while let Some(v) = stack.pop() {
            for &(w, _) in &self.out[v] {
                if !std::mem::replace(&mut seen[w], true) {
                    stack.push(w);
                }
            }
        }
        seen
    }

    /// Devices in groups that cuts are likely around: each place, each host, hosts with the switches that they share (a
    /// leaf, a rail). A device is in the group of its number, or in none.
    pub fn groupings(&self) -> [Vec<Option<usize>>; 3] {
        let place = (0..self.len()).map(|v| (self.ranks[v] > 0).then_some(v)).collect();
        let mut pods = Sets::new(self.len());
        let on_host = |v: usize| self.hosts[v].is_some();
        for v in 0..self.len() {
            for &(w, _) in self.out[v].iter().filter(|(w, _)| on_host(v) || on_host(*w)) {
                pods.join(v, w);
            }
        }
        [place, self.hosts.clone(), (0..self.len()).map(|v| Some(pods.of(v))).collect()]
    }

    /// Ranks, and bytes per second out and in, of each group that has ranks.
    pub fn groups(&self, grouping: &[Option<usize>]) -> BTreeMap<usize, Group> {
        let mut groups: BTreeMap<usize, Group> = BTreeMap::new();
        for v in 0..self.len() {
            let Some(name) = grouping[v] else { continue };
            let across = |links: &[(usize, u64)]| -> u128 {
                links.iter().filter(|(w, _)| grouping[*w] != Some(name)).map(|(_, rate)| u128::from(*rate)).sum()
            };
            let group = groups.entry(name).or_default();
            group.members.push(v);
            group.ranks += self.ranks[v];
            group.out += across(&self.out[v]);
            group.into += across(&self.into[v]);
        }
        groups.retain(|_, g| g.ranks > 0);
        groups
    }

    /// Bytes per second that leave a set of devices.
    pub fn leaving(&self, inside: &[bool]) -> u128 {
        let links = (0..self.len()).filter(|v| inside[*v]).flat_map(|v| &self.out[v]);
        links.filter(|(w, _)| !inside[*w]).map(|(_, rate)| u128::from(*rate)).sum()
    }
}

/// Disjoint sets.
pub(super) struct Sets(Vec<usize>);

impl Sets {
    /// Each element by itself.
    pub fn new(n: usize) -> Self {
        Self((0..n).collect())
    }

    pub fn of(&mut self, v: usize) -> usize {
        let mut root = v;
        while self.0[root] != root {
            self.0[root] = self.0[self.0[root]];
            root = self.0[root];
        }
        root
    }

    pub fn join(&mut self, a: usize, b: usize) {
        let (a, b) = (self.of(a), self.of(b));
        self.0[a.max(b)] = a.min(b);
    }
}
