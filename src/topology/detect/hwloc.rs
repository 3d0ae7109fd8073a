//! CPUs, memory, caches and the PCI tree, through hwloc. `HWLOC_XMLFILE` and its like work as in any hwloc program.

use std::collections::HashMap;

use hwlocality::Topology as Hwloc;
use hwlocality::object::TopologyObject;
use hwlocality::object::attributes::{BridgeAttributes, ObjectAttributes, PCIDeviceAttributes, UpstreamAttributes};
use hwlocality::object::types::{BridgeType, OSDeviceType, ObjectType};
use hwlocality::topology::builder::TypeFilter;

use crate::topology::{CpuInfo, Device, DeviceId, DeviceKind, Link, LinkKind, Origin, Topology};
use crate::{Error, Result};

const SOURCE: &str = "hwloc";

pub(super) fn detect() -> Result<Topology> {
    let fail = |e: &dyn std::fmt::Display| {
        let from = std::env::var("HWLOC_XMLFILE").map(|f| format!(" (HWLOC_XMLFILE={f})")).unwrap_or_default();
        Error::Detect(format!("hwloc cannot see this machine{from}: {e}"))
    };
    let builder = Hwloc::builder().with_io_type_filter(TypeFilter::KeepImportant).map_err(|e| fail(&e))?;
    let hwloc = builder.build().map_err(|e| fail(&e))?;
    let mut t = Topology::new(&host_name());
    t.source = format!("detected by {SOURCE}");
    let cpus = cpus(&hwloc, &mut t)?;
    if cpus.is_empty() {
        return Err(fail(&"it shows no NUMA node with cores that this process may use"));
    }
    interconnect(&mut t, &cpus);
    let mut pci = Pci { cpus, switches: HashMap::new(), unknown_speed: Vec::new(), unknown_place: Vec::new() };
    for object in hwloc.pci_devices() {
        pci.add(&mut t, object)?;
    }
    pci.report(&mut t);
    Ok(t)
}

fn host_name() -> String {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    if name.is_empty() { "this machine".into() } else { name }
}

/// NUMA nodes by the system's number.
fn cpus(hwloc: &Hwloc, t: &mut Topology) -> Result<Vec<(usize, DeviceId)>> {
    let mut found: Vec<(usize, DeviceId)> = Vec::new();
    let mut seen: Vec<Vec<usize>> = Vec::new();
    for node in hwloc.objects_with_type(ObjectType::NUMANode) {
        let pus: Vec<usize> = node.cpuset().map(|s| s.iter_set().map(usize::from).collect()).unwrap_or_default();
        let number = node.os_index().unwrap_or_else(|| node.logical_index());
        if pus.is_empty() || seen.contains(&pus) {
            t.notice(format!("NUMA node {number} has memory and no cores of its own; no rank is placed there"));
            continue;
        }
        let inside = |o: &&TopologyObject| node.cpuset().is_some_and(|set| o.is_inside_cpuset(set));
        let around = |o: &&TopologyObject| node.cpuset().is_some_and(|set| o.covers_cpuset(set));
        let first = |ty: ObjectType| {
            let within = hwloc.objects_with_type(ty).find(inside);
            within.or_else(|| hwloc.objects_with_type(ty).find(around))
        };
        let cache = |ty: ObjectType| match first(ty)?.attributes()? {
            ObjectAttributes::Cache(c) => c.size().map(u64::from),
            _ => None,
        };
        let package = hwloc.objects_with_type(ObjectType::Package).find(around);
        let memory = match node.attributes() {
            Some(ObjectAttributes::NUMANode(n)) => n.local_memory().map(u64::from),
            _ => None,
        };
        let info = CpuInfo {
            package: package.map_or(0, TopologyObject::logical_index),
            cores: hwloc.objects_with_type(ObjectType::Core).filter(inside).count(),
            pus: pus.clone(),
            l1d: cache(ObjectType::L1Cache),
            l2: cache(ObjectType::L2Cache),
            l3: cache(ObjectType::L3Cache),
            memory,
            copy_rate: None,
            exchange_rate: None,
        };
        let name = package.and_then(|p| p.info("CPUModel")).map(|n| n.to_string_lossy().trim().to_string());
        seen.push(pus);
        let index = found.len();
        let id = t.add_device(Device {
            id: format!("cpu{index}"),
            kind: DeviceKind::Cpu,
            name: name.unwrap_or_default(),
            host: Some(0),
            index,
            bus: None,
            numa: Some(number),
            cpu: Some(info),
            source: SOURCE.into(),
        })?;
        t.add_link(
            id,
            id,
            Link::new(LinkKind::Memory, "assumed: hwloc has no figure; measure with `topo-bench links`"),
        );
        found.push((number, id));
    }
    Ok(found)
}

/// hwloc does not say how NUMA nodes are joined, only that they are.
fn interconnect(t: &mut Topology, cpus: &[(usize, DeviceId)]) {
    for (i, (_, a)) in cpus.iter().enumerate() {
        for (_, b) in &cpus[i + 1..] {
            let source = "assumed: hwloc has no figure; measure with `topo-bench links`";
            t.connect(*a, *b, Link::new(LinkKind::CpuInterconnect, source));
        }
    }
}

struct Pci {
    cpus: Vec<(usize, DeviceId)>,
    /// By hwloc's object id.
    switches: HashMap<u64, DeviceId>,
    unknown_speed: Vec<String>,
    unknown_place: Vec<String>,
}

impl Pci {
    fn add(&mut self, t: &mut Topology, object: &TopologyObject) -> Result<()> {
        let Some(ObjectAttributes::PCIDevice(pci)) = object.attributes() else { return Ok(()) };
        let Some(kind) = kind(pci) else { return Ok(()) };
        let index = t.of_kind(kind).len();
        let mut name = os_name(object);
        if name.is_empty() {
            let info = |key| object.info(key).map(|s| s.to_string_lossy().trim().to_string());
            let parts: Vec<String> = [info("PCIVendor"), info("PCIDevice")].into_iter().flatten().collect();
            name = parts.join(" ");
        }
        let numa = numa(object);
        let device = Device {
            id: format!("{}{index}", if kind == DeviceKind::Gpu { "gpu" } else { "nic" }),
            kind,
            name,
            host: Some(0),
            index,
            bus: Some(format!("{:04x}:{:02x}:{:02x}.{}", pci.domain(), pci.bus_id(), pci.bus_device(), pci.function())),
            numa,
            cpu: None,
            source: SOURCE.into(),
        };
        let name = device.id.clone();
        let id = t.add_device(device)?;
        let parent = self.above(t, object, &name, numa)?;
        let link = self.link(&name, pci.link_speed());
        t.connect(id, parent, link);
        Ok(())
    }

    /// The switch or CPU that an object hangs on.
    fn above(
        &mut self,
        t: &mut Topology,
        object: &TopologyObject,
        name: &str,
        numa: Option<usize>,
    ) -> Result<DeviceId> {
        for bridge in object.ancestors() {
            let Some(ObjectAttributes::Bridge(attributes)) = bridge.attributes() else { break };
            if !is_switch(bridge, attributes) {
                continue;
            }
            let key = bridge.global_persistent_index();
            if let Some(id) = self.switches.get(&key) {
                return Ok(*id);
            }
            let index = self.switches.len();
            let name = format!("plx{index}");
            let (bus, speed) = match attributes.upstream_attributes() {
                Some(UpstreamAttributes::PCI(up)) => {
                    let bus =
                        format!("{:04x}:{:02x}:{:02x}.{}", up.domain(), up.bus_id(), up.bus_device(), up.function());
                    (Some(bus), up.link_speed())
                }
                _ => (None, 0.0),
            };
            let device = Device {
                id: name.clone(),
                kind: DeviceKind::PciSwitch,
                name: String::new(),
                host: Some(0),
                index,
                bus,
                numa,
                cpu: None,
                source: SOURCE.into(),
            };
            let id = t.add_device(device)?;
            self.switches.insert(key, id);
            let parent = self.above(t, bridge, &name, numa)?;
            let link = self.link(&name, speed);
            t.connect(id, parent, link);
            return Ok(id);
        }
        let at = self.cpus.iter().find(|(number, _)| Some(*number) == numa);
        if at.is_none() && self.cpus.len() > 1 {
            self.unknown_place.push(name.into());
        }
        // There is at least one CPU.
        Ok(at.unwrap_or(&self.cpus[0]).1)
    }

    fn link(&mut self, name: &str, speed: f32) -> Link {
        let mut link = Link::new(LinkKind::Pcie, SOURCE);
        if speed > 0.0 {
            link.nominal = Some((f64::from(speed) * 1e9).round());
        } else {
            link.source = "assumed: hwloc sees no link speed".into();
            link.latency_origin = Origin::Assumed;
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

/// GPUs and NICs by PCI class; a plain VGA adapter counts where NVIDIA or AMD made it.
fn kind(pci: &PCIDeviceAttributes) -> Option<DeviceKind> {
    match (pci.class_id(), pci.vendor_id()) {
        (0x0200 | 0x0207, _) => Some(DeviceKind::Nic),
        (0x0302 | 0x0380 | 0x1200, 0x10de | 0x1002 | 0x8086) | (0x0300, 0x10de | 0x1002) => Some(DeviceKind::Gpu),
        _ => None,
    }
}

/// A switch's upstream port: a bridge below a root port, with ports below it.
fn is_switch(bridge: &TopologyObject, attributes: &BridgeAttributes) -> bool {
    let below_root_port = bridge
        .parent()
        .and_then(TopologyObject::attributes)
        .is_some_and(|a| matches!(a, ObjectAttributes::Bridge(b) if b.upstream_type() == BridgeType::PCI));
    let ports = bridge.io_children().filter(|c| c.object_type() == ObjectType::Bridge).count();
    attributes.upstream_type() == BridgeType::PCI && below_root_port && (ports > 0 || bridge.io_arity() > 1)
}

fn os_name(object: &TopologyObject) -> String {
    let network = |o: &&TopologyObject| match o.attributes() {
        Some(ObjectAttributes::OSDevice(d)) => {
            matches!(d.device_type(), OSDeviceType::Network | OSDeviceType::OpenFabrics)
        }
        _ => false,
    };
    let names = object.io_children().filter(network).filter_map(TopologyObject::name);
    names.map(|n| n.to_string_lossy().into_owned()).collect::<Vec<_>>().join(", ")
}

fn numa(object: &TopologyObject) -> Option<usize> {
    let near = object.first_non_io_ancestor()?;
    let set = near.nodeset()?;
    let mut nodes = set.iter_set().map(usize::from);
    let first = nodes.next();
    // Hanging on all nodes says nothing about which.
    if nodes.next().is_some() { None } else { first }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_is_seen() {
        let t = detect().unwrap();
        let cpus = t.of_kind(DeviceKind::Cpu);
        assert!(!cpus.is_empty());
        let pus: usize = cpus.iter().filter_map(|c| t.device(*c).cpu.as_ref()).map(|c| c.pus.len()).sum();
        assert!(pus >= std::thread::available_parallelism().unwrap().get().min(pus));
        let route = t.route(cpus[0], cpus[0]).unwrap();
        assert_eq!(route.links.len(), 1);
        for (_, d) in t.devices() {
            assert!(t.route(cpus[0], t.find(&d.id).unwrap()).is_some(), "{} is cut off", d.id);
        }
    }
}
