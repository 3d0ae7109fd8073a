//! hwloc's exports (`lstopo machine.xml`) of versions 1, 2 and 3, and so what live detection goes through.
//!
//! The versions differ in names and nesting, but in all of them each object of the machine has a `cpuset`, and I/O
//! objects hang below the object they are near.

use std::collections::{BTreeMap, HashMap, HashSet};

use roxmltree::{Document, Node, NodeId, ParsingOptions};

use crate::topology::{CpuInfo, Device, DeviceId, DeviceKind, Link, LinkKind, Topology};
use crate::{Error, Result};

/// Bits of a cpuset: hardware threads of a machine.
const MAX_PUS: usize = 1 << 16;

/// NUMA nodes of a machine; each is joined with each.
const MAX_NODES: usize = 1024;

const NO_FIGURE: &str = "assumed: hwloc has no figure; measure with `topo-bench links`";

/// Reads an export. `source` is what its facts are said to be from, and what errors call it.
pub(in crate::topology) fn read(text: &str, name: &str, source: &str) -> Result<Topology> {
    let fail = |line: Option<usize>, message: String| Error::in_file(source, line, "", message);
    if text.contains("<!ENTITY") {
        return Err(fail(None, "it defines entities, which no export of hwloc does".into()));
    }
    let options = ParsingOptions { allow_dtd: true, ..ParsingOptions::default() };
    let doc = Document::parse_with_options(text, options)
        .map_err(|e| fail(Some(e.pos().row as usize), format!("this is no well-formed XML: {e}")))?;
    let root = doc.root_element();
    if !root.has_tag_name("topology") && !root.has_tag_name("root") {
        let found = root.tag_name().name();
        return Err(fail(Some(1), format!("found <{found}>, expected hwloc's <topology>")));
    }
    let machine = Machine::new(&doc);
    let mut t = Topology::new(name);
    t.source = if source == "hwloc" { "detected by hwloc".into() } else { format!("hwloc export {source}") };
    machine.cpus(&mut t, source)?;
    let cpus: Vec<(usize, DeviceId)> =
        t.of_kind(DeviceKind::Cpu).iter().map(|c| (t.device(*c).numa.unwrap_or(0), *c)).collect();
    if cpus.is_empty() {
        return Err(fail(None, "it shows no NUMA node with cores that may be used".into()));
    }
    for (i, (_, a)) in cpus.iter().enumerate() {
        // hwloc does not say how NUMA nodes are joined, only that they are.
        cpus[i + 1..].iter().for_each(|(_, b)| t.connect(*a, *b, Link::new(LinkKind::CpuInterconnect, NO_FIGURE)));
    }
    let mut pci = Pci {
        cpus,
        source,
        switches: HashMap::new(),
        is_switch: HashMap::new(),
        unknown_speed: Vec::new(),
        unknown_place: Vec::new(),
    };
    for object in machine.of(&["PCIDev"]) {
        pci.add(&mut t, *object)?;
    }
    pci.report(&mut t);
    Ok(t)
}

/// All objects of the export by type.
struct Machine<'a> {
    by_type: HashMap<&'a str, Vec<Node<'a, 'a>>>,
    /// Their cpusets, read once.
    sets: HashMap<NodeId, Vec<usize>>,
    /// Hardware threads that may be used.
    allowed: Option<Vec<usize>>,
}

impl<'a> Machine<'a> {
    fn new(doc: &'a Document<'a>) -> Self {
        let mut by_type: HashMap<&str, Vec<Node<'_, '_>>> = HashMap::new();
        let mut sets = HashMap::new();
        for object in doc.descendants().filter(|n| n.has_tag_name("object")) {
            if let Some(set) = object.attribute("cpuset") {
                sets.insert(object.id(), bits(set));
            }
            by_type.entry(kind_of(object)).or_default().push(object);
        }
        let machine = by_type.get("Machine").and_then(|m| m.first().copied());
        let allowed = machine.and_then(|m| m.attribute("allowed_cpuset")).map(bits);
        Self { by_type, sets, allowed }
    }

    fn set(&self, object: &Node<'_, '_>) -> &[usize] {
        self.sets.get(&object.id()).map(Vec::as_slice).unwrap_or_default()
    }

    /// Objects of any of these types, in document order within each.
    fn of<'s>(&'s self, types: &[&str]) -> Vec<&'s Node<'a, 'a>> {
        types.iter().filter_map(|t| self.by_type.get::<str>(t)).flatten().collect()
    }

    fn cpus(&self, t: &mut Topology, source: &str) -> Result<()> {
        let packages = self.of(&["Package", "Socket"]);
        let mut nodes = self.of(&["NUMANode"]);
        let machines = self.of(&["Machine"]);
        if nodes.is_empty() {
            // Version 1 has no NUMA node where there is only one.
            nodes = machines;
        }
        if nodes.len() > MAX_NODES {
            return Err(Error::in_file(
                source,
                None,
                "NUMANode",
                format!("{} of them; {MAX_NODES} are the most", nodes.len()),
            ));
        }
        // Cores by their first hardware thread, which tells the node they are in.
        let mut cores: HashMap<usize, usize> = HashMap::new();
        for first in self.of(&["Core"]).iter().filter_map(|c| self.set(c).first()) {
            *cores.entry(*first).or_default() += 1;
        }
        let machine_model = self.of(&["Machine"]).first().and_then(|m| info_of(**m, "CPUModel"));
        let mut seen: Vec<Vec<usize>> = Vec::new();
        for node in nodes {
            let number = node.attribute("os_index").and_then(|n| n.parse().ok()).unwrap_or(seen.len());
            let mut pus = self.set(node).to_vec();
            if let Some(allowed) = &self.allowed {
                pus.retain(|p| allowed.binary_search(p).is_ok());
            }
            if pus.is_empty() || seen.contains(&pus) {
                t.notice(format!("NUMA node {number} has memory and no cores of its own; no rank is placed there"));
                continue;
            }
            let inside = |o: &&&Node<'_, '_>| is_subset(self.set(o), self.set(node));
            let around = |o: &&&Node<'_, '_>| is_subset(self.set(node), self.set(o));
            let cache = |level: &str, old: &str| {
                let all = self.of(&[level, "Cache"]);
                let level =
                    |o: &&&Node<'_, '_>| o.attribute("type") != Some("Cache") || o.attribute("depth") == Some(old);
                let found = all.iter().filter(level).find(inside).or_else(|| all.iter().filter(level).find(around));
                found.and_then(|c| c.attribute("cache_size")?.parse().ok()).filter(|s| *s > 0)
            };
            let package = packages.iter().position(|p| around(&p));
            let info = CpuInfo {
                package: package.unwrap_or(0),
                cores: self.set(node).iter().filter_map(|p| cores.get(p)).sum(),
                pus: pus.clone(),
                l1d: cache("L1Cache", "1"),
                l2: cache("L2Cache", "2"),
                l3: cache("L3Cache", "3"),
                memory: node.attribute("local_memory").and_then(|m| m.parse().ok()).filter(|m| *m > 0),
                ..CpuInfo::default()
            };
            let model = package.and_then(|p| info_of(*packages[p], "CPUModel"));
            seen.push(pus);
            let index = seen.len() - 1;
            let id = t.add_device(Device {
                name: model.or_else(|| machine_model.clone()).unwrap_or_default(),
                numa: Some(number),
                cpu: Some(info),
                ..Device::new(format!("cpu{index}"), DeviceKind::Cpu, index, source)
            })?;
            t.add_link(id, id, Link::new(LinkKind::Memory, NO_FIGURE));
        }
        Ok(())
    }
}

/// The PCI tree as far as it leads to GPUs and NICs.
struct Pci<'s> {
    cpus: Vec<(usize, DeviceId)>,
    source: &'s str,
    switches: HashMap<NodeId, DeviceId>,
    /// What was found of bridges; one may have thousands below it.
    is_switch: HashMap<NodeId, bool>,
    unknown_speed: Vec<String>,
    unknown_place: Vec<String>,
}

impl Pci<'_> {
    fn add(&mut self, t: &mut Topology, object: Node<'_, '_>) -> Result<()> {
        let ids = object.attribute("pci_type").map(pci_type);
        let Some((kind, class)) = ids.and_then(|(class, vendor)| Some((device_kind(class, vendor)?, class))) else {
            return Ok(());
        };
        let mut name = os_name(object);
        if name.is_empty() {
            let parts = [info_of(object, "PCIVendor"), info_of(object, "PCIDevice")];
            name = parts.into_iter().flatten().collect::<Vec<_>>().join(" ");
        }
        let word = if kind == DeviceKind::Gpu { "gpu" } else { "nic" };
        let index = t.count(kind, Some(0));
        let numa = numa(object);
        let id = format!("{word}{index}");
        let vendor = object.attribute("pci_type").map_or(0, |t| pci_type(t).1);
        let extra = BTreeMap::from([
            ("class".to_string(), format!("0x{class:04x}00")),
            ("vendor".to_string(), format!("{vendor:#06x}")),
        ]);
        let bus = object.attribute("pci_busid").map(String::from);
        let device = Device { name, bus, numa, extra, ..Device::new(&id, kind, index, self.source) };
        let child = t.add_device(device)?;
        let parent = self.above(t, object, &id, numa)?;
        t.connect(child, parent, self.link(&id, object));
        Ok(())
    }

    /// The switch or CPU that an object hangs on.
    fn above(&mut self, t: &mut Topology, object: Node<'_, '_>, name: &str, numa: Option<usize>) -> Result<DeviceId> {
        let mut bridges = object.ancestors().skip(1).take_while(|n| kind_of(*n) == "Bridge");
        let known = &mut self.is_switch;
        if let Some(bridge) = bridges.find(|b| *known.entry(b.id()).or_insert_with(|| is_switch(*b))) {
            if let Some(id) = self.switches.get(&bridge.id()) {
                return Ok(*id);
            }
            // What is above is named before what is below.
            let parent = self.above(t, bridge, name, numa)?;
            let index = self.switches.len();
            let id = format!("plx{index}");
            let bus = bridge.attribute("pci_busid").map(String::from);
            let device = Device { bus, numa, ..Device::new(&id, DeviceKind::PciSwitch, index, self.source) };
            let switch = t.add_device(device)?;
            self.switches.insert(bridge.id(), switch);
            t.connect(switch, parent, self.link(&id, bridge));
            return Ok(switch);
        }
        let at = self.cpus.iter().find(|(number, _)| Some(*number) == numa);
        if at.is_none() && self.cpus.len() > 1 {
            self.unknown_place.push(name.into());
        }
        // There is at least one CPU.
        Ok(at.unwrap_or(&self.cpus[0]).1)
    }

    fn link(&mut self, name: &str, object: Node<'_, '_>) -> Link {
        let mut link = Link::new(LinkKind::Pcie, self.source);
        // GB/s of one direction, all lanes.
        let speed = object.attribute("pci_link_speed").and_then(|s| s.parse::<f64>().ok()).filter(|s| *s > 0.0);
        link.nominal = speed.map(|s| (s * 1e9).round());
        if speed.is_none() {
            link.source = "assumed: hwloc sees no link speed".into();
            self.unknown_speed.push(name.into());
        }
        link
    }

    fn report(self, t: &mut Topology) {
        if !self.unknown_speed.is_empty() {
            t.notice(format!(
                "the PCIe speed of {} is not visible (a virtual machine often hides it) and is assumed",
                self.unknown_speed.join(", ")
            ));
        }
        if !self.unknown_place.is_empty() {
            t.notice(format!(
                "the NUMA node of {} is not visible; {} is assumed",
                self.unknown_place.join(", "),
                t.device(self.cpus[0].1).id
            ));
        }
    }
}

/// The type of an object; anything else has none.
fn kind_of<'a>(node: Node<'a, '_>) -> &'a str {
    if node.has_tag_name("object") { node.attribute("type").unwrap_or_default() } else { "" }
}

fn info_of(node: Node<'_, '_>, name: &str) -> Option<String> {
    let infos = node.children().filter(|n| n.has_tag_name("info"));
    let value = infos.filter(|n| n.attribute("name") == Some(name)).find_map(|n| n.attribute("value"));
    value.map(|v| v.trim().to_string()).filter(|v| !v.is_empty())
}

/// `0x000000ff,0xffffffff`: words of 32 bits, the highest first. Sets without end are cut.
fn bits(text: &str) -> Vec<usize> {
    let mut all = Vec::new();
    for (word, digits) in text.rsplit(',').enumerate().take(MAX_PUS / 32) {
        let digits = digits.trim().trim_start_matches("0x");
        let Ok(mask) = u32::from_str_radix(if digits.is_empty() { "0" } else { digits }, 16) else { continue };
        all.extend((0..32).filter(|bit| mask >> bit & 1 == 1).map(|bit| word * 32 + bit));
    }
    all
}

/// Of sorted sets; an empty one is in none, since it says nothing.
fn is_subset(small: &[usize], large: &[usize]) -> bool {
    !small.is_empty() && small.iter().all(|p| large.binary_search(p).is_ok())
}

/// Class and vendor of `0302 [10de:1db8] [10de:131d] a1 00`.
fn pci_type(text: &str) -> (u16, u16) {
    let hex = |s: &str| u16::from_str_radix(s, 16).unwrap_or(0);
    let class = text.split_whitespace().next().map_or(0, hex);
    let vendor = text.split('[').nth(1).and_then(|s| s.split(':').next()).map_or(0, hex);
    (class, vendor)
}

/// GPUs and NICs by PCI class; a plain VGA adapter counts where NVIDIA or AMD made it.
fn device_kind(class: u16, vendor: u16) -> Option<DeviceKind> {
    match (class, vendor) {
        (0x0200 | 0x0207, _) => Some(DeviceKind::Nic),
        (0x0302 | 0x0380 | 0x1200, 0x10de | 0x1002 | 0x8086) | (0x0300, 0x10de | 0x1002) => Some(DeviceKind::Gpu),
        _ => None,
    }
}

/// A switch's upstream port. Below the host bridge come by turns a root port, an upstream port, a downstream port of
/// that switch, the upstream port of the next, and so on.
fn is_switch(bridge: Node<'_, '_>) -> bool {
    let is_pci = |b: &Node<'_, '_>| b.attribute("pci_busid").is_some();
    let above = bridge.ancestors().skip(1).take_while(|n| kind_of(*n) == "Bridge" && is_pci(n)).count();
    let below = bridge.children().filter(|n| matches!(kind_of(*n), "Bridge" | "PCIDev"));
    // The functions of one card have one address but for the last digit.
    let cards: HashSet<&str> = below.clone().filter_map(|n| n.attribute("pci_busid")?.split('.').next()).collect();
    is_pci(&bridge) && above % 2 == 1 && below.clone().any(|n| kind_of(n) == "Bridge") || above > 0 && cards.len() > 1
}

/// Names of network and InfiniBand interfaces of a PCI device.
fn os_name(object: Node<'_, '_>) -> String {
    let devices = object.children().filter(|n| kind_of(*n) == "OSDev");
    let mut names: Vec<&str> = Vec::new();
    for device in devices {
        // Network is 2 and OpenFabrics 3 in versions 1 and 2, bits 4 and 8 (with more) in version 3; storage and GPUs
        // are named otherwise anyway.
        let Some(name) = device.attribute("name") else { continue };
        let network = info_of(device, "Address").is_some() || info_of(device, "NodeGUID").is_some();
        if network && !names.contains(&name) {
            names.push(name);
        }
    }
    names.join(", ")
}

/// The NUMA node that an I/O object is near, where that is one.
fn numa(object: Node<'_, '_>) -> Option<usize> {
    let near = object.ancestors().find(|n| n.attribute("cpuset").is_some())?;
    let nodes = near.attribute("nodeset").map(bits)?;
    // Hanging on all nodes says nothing about which.
    if nodes.len() == 1 { nodes.first().copied() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_are_read_from_the_right() {
        assert_eq!(bits("0x00000005"), [0, 2]);
        assert_eq!(bits("0x00000001,0x80000000"), [31, 32]);
        assert_eq!(bits("0xf...f,junk"), Vec::<usize>::new());
        assert_eq!(bits("0x00000003,,0x00000000"), [64, 65]);
        assert_eq!(pci_type("0302 [10de:1db8] [10de:131d] a1 00"), (0x302, 0x10de));
        assert_eq!(pci_type(""), (0, 0));
    }
}
