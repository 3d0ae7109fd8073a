//! The graph.

use std::collections::HashMap;
use std::path::Path;

use petgraph::graph::{DiGraph, EdgeIndex, NodeIndex};
use petgraph::visit::EdgeRef;

use crate::topology::cluster::Recipe;
use crate::topology::device::NO_RAIL;
use crate::topology::{Device, DeviceKind, Link, LinkKind};
use crate::{Error, Result};

/// A device of one topology.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceId(pub(crate) NodeIndex);

/// A link of one topology.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId(pub(crate) EdgeIndex);

/// Devices and links of one host or of several.
#[derive(Debug, Clone)]
pub struct Topology {
    pub(super) name: String,
    pub(super) source: String,
    pub(super) graph: DiGraph<Device, Link>,
    pub(super) ids: HashMap<String, NodeIndex>,
    pub(super) notices: Vec<String>,
    counts: HashMap<(DeviceKind, Option<usize>), usize>,
    /// How it was made of one host; none once it was changed.
    pub(super) recipe: Option<Box<Recipe>>,
}

impl PartialEq for Topology {
    /// Equal devices and equal links, in the same order. Notices are remarks and do not count.
    fn eq(&self, other: &Self) -> bool {
        let links = |t: &Self| t.links().map(|(_, a, b, l)| (a, b, l.clone())).collect::<Vec<_>>();
        self.name == other.name
            && self.source == other.source
            && self.devices().map(|(_, d)| d).eq(other.devices().map(|(_, d)| d))
            && links(self) == links(other)
    }
}

impl Topology {
    /// No devices.
    pub fn new(name: &str) -> Self {
        Self {
            name: name.into(),
            source: String::new(),
            graph: DiGraph::new(),
            ids: HashMap::new(),
            notices: Vec::new(),
            counts: HashMap::new(),
            recipe: None,
        }
    }

    /// What people call it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// This machine, or what `TOPOCOLL_TOPOLOGY` names: a file to use instead.
    ///
    /// # Errors
    /// [`Error::Detect`] where hwloc fails altogether; what is missing in part is in [`Topology::notices`]. Errors of
    /// [`Topology::read`] for the file.
    pub fn detect() -> Result<Self> {
        match std::env::var_os("TOPOCOLL_TOPOLOGY").filter(|f| !f.is_empty()) {
            Some(file) => Self::read(Path::new(&file)),
            None => super::detect::detect(),
        }
    }

    /// Adds a device.
    ///
    /// # Errors
    /// [`Error::Topology`] where another has its id, or the id is empty or has brackets, which files use for ranges.
    pub fn add_device(&mut self, device: Device) -> Result<DeviceId> {
        if device.id.is_empty() || device.id.contains(['[', ']']) {
            return Err(Error::Topology(format!("`{}` is no id: it must not be empty or have brackets", device.id)));
        }
        if self.ids.contains_key(&device.id) {
            return Err(Error::Topology(format!("there are two devices `{}`; ids must differ", device.id)));
        }
        self.recipe = None;
        *self.counts.entry((device.kind, device.host)).or_default() += 1;
        let id = device.id.clone();
        let node = self.graph.add_node(device);
        self.ids.insert(id, node);
        Ok(DeviceId(node))
    }

    /// Adds one direction of a link.
    pub fn add_link(&mut self, from: DeviceId, to: DeviceId, link: Link) -> LinkId {
        self.recipe = None;
        LinkId(self.graph.add_edge(from.0, to.0, link))
    }

    /// Adds both directions of a link.
    pub fn connect(&mut self, a: DeviceId, b: DeviceId, link: Link) {
        self.add_link(a, b, link.clone());
        self.add_link(b, a, link);
    }

    /// Says something about this topology that people should know.
    pub(crate) fn notice(&mut self, text: impl Into<String>) {
        self.notices.push(text.into());
    }

    /// What was missing, contradictory or assumed.
    pub fn notices(&self) -> &[String] {
        &self.notices
    }

    /// All devices.
    pub fn devices(&self) -> impl Iterator<Item = (DeviceId, &Device)> {
        self.graph.node_indices().map(|n| (DeviceId(n), &self.graph[n]))
    }

    /// All links: id, from, to, link.
    pub fn links(&self) -> impl Iterator<Item = (LinkId, DeviceId, DeviceId, &Link)> {
        self.graph.edge_references().map(|e| (LinkId(e.id()), DeviceId(e.source()), DeviceId(e.target()), e.weight()))
    }

    /// The links that leave a device, in the order they were added: id, to, link.
    pub fn links_from(&self, id: DeviceId) -> impl Iterator<Item = (LinkId, DeviceId, &Link)> {
        // petgraph has the last first.
        let mut links: Vec<_> = self.graph.edges(id.0).collect();
        links.reverse();
        links.into_iter().map(|e| (LinkId(e.id()), DeviceId(e.target()), e.weight()))
    }

    /// Devices by host. A host may have none; switches of the network are of no host.
    pub(super) fn by_host(&self) -> Vec<Vec<DeviceId>> {
        let mut hosts = vec![Vec::new(); self.hosts()];
        for (id, d) in self.devices() {
            if let Some(host) = d.host {
                hosts[host].push(id);
            }
        }
        hosts
    }

    /// The one host of hosts that are alike; otherwise all.
    pub(crate) fn distinct(&self) -> &Self {
        self.recipe.as_deref().map_or(self, |r| &r.host)
    }

    /// A device. The id must be of this topology.
    pub fn device(&self, id: DeviceId) -> &Device {
        &self.graph[id.0]
    }

    /// A device to change. Its `id` must stay.
    pub fn device_mut(&mut self, id: DeviceId) -> &mut Device {
        self.recipe = None;
        &mut self.graph[id.0]
    }

    /// A link. The id must be of this topology.
    pub fn link(&self, id: LinkId) -> &Link {
        &self.graph[id.0]
    }

    /// A link to change.
    pub fn link_mut(&mut self, id: LinkId) -> &mut Link {
        self.recipe = None;
        &mut self.graph[id.0]
    }

    /// From where to where a link leads.
    pub fn endpoints(&self, id: LinkId) -> (DeviceId, DeviceId) {
        self.graph.edge_endpoints(id.0).map_or_else(
            || (DeviceId(NodeIndex::end()), DeviceId(NodeIndex::end())),
            |(a, b)| (DeviceId(a), DeviceId(b)),
        )
    }

    /// The device with this id.
    pub fn find(&self, id: &str) -> Option<DeviceId> {
        self.ids.get(id).copied().map(DeviceId)
    }

    /// All devices of a kind, by host and index.
    pub fn of_kind(&self, kind: DeviceKind) -> Vec<DeviceId> {
        let mut found: Vec<DeviceId> = self.devices().filter(|(_, d)| d.kind == kind).map(|(id, _)| id).collect();
        found.sort_by_key(|id| (self.device(*id).host, self.device(*id).index));
        found
    }

    /// How many devices of a kind were added to a host; where no host is given, to none. Asked for each device that a
    /// reader adds, so it must not look at all of them.
    pub(super) fn count(&self, kind: DeviceKind, host: Option<usize>) -> usize {
        self.counts.get(&(kind, host)).copied().unwrap_or(0)
    }

    /// How many hosts.
    pub fn hosts(&self) -> usize {
        self.graph.node_weights().filter_map(|d| d.host).max().map_or(0, |h| h + 1)
    }

    /// For each link, by index, whether there is one alike in the other direction. Asking the graph link by link would
    /// take as long as the square of a switch's ports.
    pub(super) fn two_way(&self) -> Vec<bool> {
        let mut by_ends: HashMap<(NodeIndex, NodeIndex, LinkKind), Vec<&Link>> = HashMap::new();
        for e in self.graph.edge_references() {
            let alike = by_ends.entry((e.source(), e.target(), e.weight().kind)).or_default();
            // Parallel links are few where they mean anything.
            if alike.len() < 64 {
                alike.push(e.weight());
            }
        }
        let back = |e: petgraph::graph::EdgeReference<'_, Link>| {
            let others = by_ends.get(&(e.target(), e.source(), e.weight().kind));
            others.is_some_and(|o| o.contains(&e.weight()))
        };
        self.graph.edge_references().map(back).collect()
    }

    /// NICs that lead to other hosts: those with a network, or, where none has one yet, those that may get one.
    pub fn rails(&self) -> Vec<DeviceId> {
        let mut nics = self.of_kind(DeviceKind::Nic);
        let wired = |n: &DeviceId| self.graph.edges(n.0).any(|e| e.weight().kind.is_network());
        let any = nics.iter().any(wired);
        nics.retain(|n| if any { wired(n) } else { !self.device(*n).extra.contains_key(NO_RAIL) });
        nics
    }

    /// What each device hangs on by PCIe, by index: the neighbour that is nearer to a CPU.
    pub(crate) fn parents(&self) -> Vec<Option<DeviceId>> {
        let depths = self.pcie_depths();
        let parent = |(id, _): (DeviceId, &Device)| {
            let own = depths[id.0.index()]?;
            let pcie = self.graph.edges(id.0).filter(|e| e.weight().kind == LinkKind::Pcie);
            pcie.map(|e| e.target()).find(|n| depths[n.index()].is_some_and(|d| d < own)).map(DeviceId)
        };
        self.devices().map(parent).collect()
    }

    /// What one device hangs on; for many, [`Topology::parents`].
    pub(super) fn above(&self, id: DeviceId) -> Option<DeviceId> {
        self.parents()[id.0.index()]
    }

    /// Adds a device of which the PCI tree is not known: at the CPU of its NUMA node, or of the hardware threads it is
    /// near, else at the first, with a notice.
    pub(super) fn attach(&mut self, device: Device, (numa, near): (Option<usize>, Vec<usize>)) -> Result<DeviceId> {
        let cpus = self.of_kind(DeviceKind::Cpu);
        let at_node = |c: &&DeviceId| numa.is_some() && self.device(**c).numa == numa;
        let has = |c: &&DeviceId| {
            let pus = self.device(**c).cpu.as_ref().map(|i| i.pus.as_slice()).unwrap_or_default();
            !near.is_empty() && near.iter().all(|p| pus.contains(p))
        };
        let found = cpus.iter().find(at_node).or_else(|| cpus.iter().find(has)).copied();
        let cpu = found.or(cpus.first().copied());
        let (name, numa) = (device.id.clone(), found.and_then(|c| self.device(c).numa));
        let id = self.add_device(Device { numa, ..device })?;
        if let Some(cpu) = cpu {
            if found.is_none() && cpus.len() > 1 {
                let at = &self.device(cpu).id;
                self.notice(format!("where {name} is on the PCI tree is not visible; {at} is assumed"));
            }
            self.connect(id, cpu, Link::new(LinkKind::Pcie, "assumed: its place in the PCI tree is not visible"));
        }
        Ok(id)
    }

    /// The same graph with each device as `f` makes it, without those of which it makes none.
    pub(super) fn map_devices(&self, f: impl Fn(DeviceId, &Device) -> Option<Device>) -> Result<Self> {
        let mut out = Self { source: self.source.clone(), notices: self.notices.clone(), ..Self::new(&self.name) };
        let mut ids = HashMap::new();
        for (id, d) in self.devices() {
            if let Some(d) = f(id, d) {
                ids.insert(id, out.add_device(d)?);
            }
        }
        for (_, a, b, link) in self.links() {
            if let (Some(a), Some(b)) = (ids.get(&a), ids.get(&b)) {
                out.add_link(*a, *b, link.clone());
            }
        }
        Ok(out)
    }

    /// PCIe links from each device to the nearest CPU, by node index: what tells above from below in the PCI tree.
    pub(super) fn pcie_depths(&self) -> Vec<Option<u32>> {
        let mut depths = vec![None; self.graph.node_count()];
        let mut level: Vec<NodeIndex> = self.of_kind(DeviceKind::Cpu).into_iter().map(|c| c.0).collect();
        let mut depth = 0;
        while !level.is_empty() {
            level.retain(|n| depths[n.index()].is_none());
            level.iter().for_each(|n| depths[n.index()] = Some(depth));
            let pcie = level.iter().flat_map(|n| self.graph.edges(*n)).filter(|e| e.weight().kind == LinkKind::Pcie);
            level = pcie.map(|e| e.target()).collect();
            depth += 1;
        }
        depths
    }

    /// Names this topology: the same devices, links and figures give the same number in every process.
    pub fn fingerprint(&self) -> u64 {
        crate::fnv(self.to_toml().as_bytes())
    }
}
