//! The way from one device to another, and what people call such ways.
//!
//! Widest-shortest in the sense that NCCL's path search has: the class of the worst step counts first, then the
//! narrowest link, then the number of steps. Traffic passes through a GPU only to stay off the PCIe (NVB) or to reach
//! that GPU's NIC (PXN), and never through a GPU of another host.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::fmt;

use petgraph::graph::NodeIndex;
use petgraph::visit::EdgeRef;

use crate::topology::device::HOST_BRIDGE;
use crate::topology::{Device, DeviceId, DeviceKind, LinkId, LinkKind, Topology};

/// The class of a path, best first, as `nvidia-smi topo -m` and NCCL name them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PathClass {
    /// Within one device.
    Local,
    /// So many NVLinks (or xGMI links), directly or through a switch.
    NvLink(u32),
    /// NVLink through another GPU.
    Nvb,
    /// NVLink between a GPU and a CPU.
    C2c,
    /// At most one PCIe switch.
    Pix,
    /// Several PCIe switches, but not the CPU.
    Pxb,
    /// NVLink to another GPU, then that GPU's NIC.
    Pxn,
    /// PCIe after a chip-to-chip link.
    P2c,
    /// Through a CPU's PCIe host bridge.
    Phb,
    /// Between NUMA nodes of one socket.
    Node,
    /// Between sockets.
    Sys,
    /// Over the network.
    Net,
}

impl fmt::Display for PathClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NvLink(n) => f.pad(&format!("NV{n}")),
            Self::Local => f.pad("LOC"),
            Self::Nvb => f.pad("NVB"),
            Self::C2c => f.pad("C2C"),
            Self::Pix => f.pad("PIX"),
            Self::Pxb => f.pad("PXB"),
            Self::Pxn => f.pad("PXN"),
            Self::P2c => f.pad("P2C"),
            Self::Phb => f.pad("PHB"),
            Self::Node => f.pad("NODE"),
            Self::Sys => f.pad("SYS"),
            Self::Net => f.pad("NET"),
        }
    }
}

/// A way through the graph.
#[derive(Debug, Clone, PartialEq)]
pub struct Route {
    /// The links in order; empty for a device without memory link to itself.
    pub links: Vec<LinkId>,
    /// What people call it.
    pub class: PathClass,
    /// Bytes per second of the narrowest link, infinite without links.
    pub bandwidth: f64,
    /// Seconds, all links together.
    pub latency: f64,
}

/// How bad a step is: the order in which classes are avoided.
fn grade(kind: LinkKind, cross_socket: bool) -> u8 {
    match kind {
        LinkKind::Memory => 0,
        LinkKind::NvLink | LinkKind::Xgmi => 1,
        LinkKind::NvLinkC2c => 3,
        LinkKind::Pcie => 4,
        LinkKind::CpuInterconnect => 5 + u8::from(cross_socket),
        LinkKind::InfiniBand | LinkKind::RoCe | LinkKind::Ethernet | LinkKind::Efa => 7,
    }
}

/// Through a GPU is worse than any NVLink and better than PCIe.
const THROUGH_GPU: u8 = 2;

/// What is known of the best way to a node so far. Less is better.
#[derive(Clone, Copy, PartialEq)]
struct Label {
    grade: u8,
    bandwidth: f64,
    hops: u32,
    latency: f64,
    /// Left another GPU by PCIe, on the way to its NIC.
    pxn: bool,
}

impl Label {
    fn order(&self, other: &Self) -> Ordering {
        self.grade
            .cmp(&other.grade)
            .then(other.bandwidth.total_cmp(&self.bandwidth))
            .then(self.hops.cmp(&other.hops))
            .then(self.latency.total_cmp(&other.latency))
    }
}

struct Entry(Label, NodeIndex);

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> Ordering {
        // The heap gives the greatest; ties go to the lower node, so that routes do not depend on chance.
        other.0.order(&self.0).then(other.1.cmp(&self.1))
    }
}

impl Topology {
    /// The best way, or `None` where there is none. Within a device it is the device's memory.
    pub fn route(&self, from: DeviceId, to: DeviceId) -> Option<Route> {
        if from == to {
            return Some(self.local(from));
        }
        let via = self.search(from, Some(to), |_| true);
        self.unwind(from, to, &via)
    }

    /// [`Topology::route`] to every device, by node index. One search (Dijkstra's) in all.
    pub fn routes_from(&self, from: DeviceId) -> Vec<Option<Route>> {
        self.routes_over(from, |_| true)
    }

    /// [`Topology::route`] to each of `to`, by one search.
    pub(crate) fn routes_to(&self, from: DeviceId, to: &[DeviceId]) -> Vec<Option<Route>> {
        let via = self.search(from, None, |_| true);
        to.iter().map(|to| if *to == from { Some(self.local(from)) } else { self.unwind(from, *to, &via) }).collect()
    }

    /// Routes that use PCIe and CPU links alone, as `nvidia-smi topo -m` sees what no NVLink joins.
    pub(crate) fn routes_by_pcie(&self, from: DeviceId) -> Vec<Option<Route>> {
        self.routes_over(from, |kind| matches!(kind, LinkKind::Pcie | LinkKind::CpuInterconnect))
    }

    fn routes_over(&self, from: DeviceId, allowed: impl Fn(LinkKind) -> bool) -> Vec<Option<Route>> {
        let via = self.search(from, None, allowed);
        let all =
            self.devices().map(|(to, _)| if to == from { Some(self.local(from)) } else { self.unwind(from, to, &via) });
        all.collect()
    }

    fn local(&self, device: DeviceId) -> Route {
        let own = self.graph.edges_connecting(device.0, device.0).find(|e| e.weight().kind == LinkKind::Memory);
        match own {
            Some(e) => Route {
                links: vec![LinkId(e.id())],
                class: PathClass::Local,
                bandwidth: e.weight().bandwidth(),
                latency: e.weight().latency,
            },
            None => Route { links: vec![], class: PathClass::Local, bandwidth: f64::INFINITY, latency: 0.0 },
        }
    }

    /// The link by which the best way enters each node, as far as `to` where only that is asked for.
    fn search(&self, from: DeviceId, to: Option<DeviceId>, allowed: impl Fn(LinkKind) -> bool) -> Vec<Option<LinkId>> {
        let n = self.graph.node_count();
        let mut best: Vec<Option<Label>> = vec![None; n];
        let mut via: Vec<Option<LinkId>> = vec![None; n];
        let start = Label { grade: 0, bandwidth: f64::INFINITY, hops: 0, latency: 0.0, pxn: false };
        let mut heap = BinaryHeap::from([Entry(start, from.0)]);
        best[from.0.index()] = Some(start);
        while let Some(Entry(label, node)) = heap.pop() {
            if best[node.index()].is_some_and(|b| b.order(&label).is_lt()) {
                continue;
            }
            if to.is_some_and(|to| to.0 == node) {
                break;
            }
            let here = &self.graph[node];
            let through_gpu = here.kind == DeviceKind::Gpu && node != from.0;
            if through_gpu && here.host != self.graph[from.0].host {
                continue;
            }
            // Nothing passes through another host, or leaves by the network and comes back.
            let home = here.host == self.graph[from.0].host;
            let (no_exit, no_entry) = match here.kind {
                DeviceKind::Nic if node != from.0 => (!home, home && label.grade >= 7),
                _ => (false, false),
            };
            for edge in self.graph.edges(node).filter(|e| e.target() != node && allowed(e.weight().kind)) {
                let link = edge.weight();
                let nvlink = matches!(link.kind, LinkKind::NvLink | LinkKind::Xgmi);
                // Out of another GPU by PCIe there is the way to its NIC only.
                let pxn = !link.kind.is_network() && (label.pxn || through_gpu && !nvlink);
                if pxn && matches!(self.graph[edge.target()].kind, DeviceKind::Cpu | DeviceKind::Gpu) {
                    continue;
                }
                if if link.kind.is_network() { no_exit } else { no_entry } {
                    continue;
                }
                let next = Label {
                    grade: label
                        .grade
                        .max(grade(link.kind, self.cross_socket(node, edge.target())))
                        .max(if through_gpu { THROUGH_GPU } else { 0 }),
                    bandwidth: label.bandwidth.min(link.bandwidth()),
                    hops: label.hops + 1,
                    latency: label.latency + link.latency,
                    pxn,
                };
                let slot = &mut best[edge.target().index()];
                if slot.is_none_or(|b| next.order(&b).is_lt()) {
                    *slot = Some(next);
                    via[edge.target().index()] = Some(LinkId(edge.id()));
                    heap.push(Entry(next, edge.target()));
                }
            }
        }
        via
    }

    fn cross_socket(&self, a: NodeIndex, b: NodeIndex) -> bool {
        let package = |n: NodeIndex| self.graph[n].cpu.as_ref().map(|c| c.package);
        package(a) != package(b) || package(a).is_none()
    }

    fn unwind(&self, from: DeviceId, to: DeviceId, via: &[Option<LinkId>]) -> Option<Route> {
        let mut links = Vec::new();
        let mut at = to;
        while at != from {
            let link = via[at.0.index()]?;
            links.push(link);
            at = self.endpoints(link).0;
            if links.len() > via.len() {
                return None;
            }
        }
        links.reverse();
        let narrowest = links.iter().map(|l| self.link(*l).bandwidth()).fold(f64::INFINITY, f64::min);
        let latency = links.iter().map(|l| self.link(*l).latency).sum();
        Some(Route { class: self.class(&links), bandwidth: narrowest, latency, links })
    }

    fn class(&self, links: &[LinkId]) -> PathClass {
        let kind = |l: &LinkId| self.link(*l).kind;
        let passed: Vec<&Device> = links.iter().skip(1).map(|l| self.device(self.endpoints(*l).0)).collect();
        let bridges = passed.iter().filter(|d| d.name == HOST_BRIDGE).count();
        let inner: Vec<DeviceKind> = passed.iter().filter(|d| d.name != HOST_BRIDGE).map(|d| d.kind).collect();
        let ends = |l: &LinkId| self.endpoints(*l);
        let any = |k: &[LinkKind]| links.iter().any(|l| k.contains(&kind(l)));
        if links.iter().any(|l| kind(l).is_network()) {
            return PathClass::Net;
        }
        let across: Vec<_> = links.iter().filter(|l| kind(l) == LinkKind::CpuInterconnect).collect();
        if !across.is_empty() {
            let sockets = across.iter().any(|l| self.cross_socket(ends(l).0.0, ends(l).1.0));
            return if sockets { PathClass::Sys } else { PathClass::Node };
        }
        let pcie = any(&[LinkKind::Pcie]);
        match (pcie, any(&[LinkKind::NvLinkC2c]), any(&[LinkKind::NvLink, LinkKind::Xgmi])) {
            (true, true, _) => PathClass::P2c,
            (true, false, true) => PathClass::Pxn,
            (false, true, _) => PathClass::C2c,
            (true, ..) if inner.contains(&DeviceKind::Cpu) && bridges > 1 => PathClass::Node,
            (true, ..) if inner.contains(&DeviceKind::Cpu) || bridges == 1 => PathClass::Phb,
            (true, ..) if self.at_cpu(links) => PathClass::Phb,
            (true, ..) if inner.len() > 1 => PathClass::Pxb,
            (true, ..) => PathClass::Pix,
            _ if inner.contains(&DeviceKind::Gpu) => PathClass::Nvb,
            // POWER9 has NVLinks from its GPUs to the CPU.
            _ if inner.contains(&DeviceKind::Cpu) => PathClass::Phb,
            _ => PathClass::NvLink(links.iter().map(|l| self.link(*l).lanes).min().unwrap_or(1)),
        }
    }

    /// Whether a path begins or ends at a CPU.
    fn at_cpu(&self, links: &[LinkId]) -> bool {
        let first = links.first().map(|l| self.endpoints(*l).0);
        let last = links.last().map(|l| self.endpoints(*l).1);
        first.into_iter().chain(last).any(|d| self.device(d).kind == DeviceKind::Cpu)
    }
}
