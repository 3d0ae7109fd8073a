//! GPUs: what a driver says of them, brought into the tree that hwloc saw.

use std::collections::{BTreeMap, HashMap};

use crate::Result;
use crate::topology::detect::pci::{self, Trained};
use crate::topology::detect::sysfs::{self, Sysfs};
use crate::topology::detect::visible::visible;
use crate::topology::{Device, DeviceId, DeviceKind, Link, LinkKind, Topology, figures};

const NVIDIA: &str = "0x10de";

/// One GPU, as far as whoever was asked knows it.
#[derive(Debug, Clone, Default)]
pub(super) struct Gpu {
    pub bus: String,
    pub uuid: Option<String>,
    pub name: Option<String>,
    /// Compute capability, 90 for 9.0.
    pub sm: Option<u32>,
    /// Bytes.
    pub memory: Option<u64>,
    pub pcie: Option<(Trained, Trained)>,
    pub nvlinks: Vec<NvLink>,
    /// NVLink-C2C to its CPU.
    pub c2c: bool,
    pub mig: bool,
    /// Cluster and clique of a fabric of several hosts.
    pub fabric: Option<(String, u32)>,
    /// Bus ids of GPUs that it may not reach directly, and why.
    pub denied: Vec<(String, String)>,
}

/// One NVLink of a GPU.
#[derive(Debug, Clone, Default)]
pub(super) struct NvLink {
    pub active: bool,
    pub remote: Remote,
    /// Bus id of the other end.
    pub bus: Option<String>,
}

/// What is at the other end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Remote {
    Gpu,
    Switch,
    /// A CPU, or IBM's NPU in front of it.
    Cpu,
    #[default]
    Unknown,
}

/// All GPUs that the driver gives to this process, in its order.
#[derive(Debug, Clone, Default)]
pub(super) struct Found {
    /// NVML, CUDA, ...
    pub by: String,
    /// Whether a GPU on the PCI bus that is not among these is closed to the process.
    pub complete: bool,
    pub gpus: Vec<Gpu>,
    pub notices: Vec<String>,
}

/// What is known without any library: the NVIDIA driver's files in /proc, else the PCI bus alone.
pub(super) fn without_library(t: &Topology, sysfs: &Sysfs) -> Found {
    let listed = sysfs.list("/proc/driver/nvidia/gpus");
    let read = |name: &String| {
        let text = sysfs.text(&format!("/proc/driver/nvidia/gpus/{name}/information")).unwrap_or_default();
        let field = |key: &str| {
            let line = text.lines().find_map(|l| l.strip_prefix(key)?.trim_start().strip_prefix(':'));
            line.map(|v| v.trim().to_string()).filter(|v| !v.is_empty() && !v.contains('?'))
        };
        Some(Gpu { bus: sysfs::bus(name)?, uuid: field("GPU UUID"), name: field("Model"), ..Gpu::default() })
    };
    let gpus: Vec<Gpu> = listed.iter().filter_map(read).collect();
    if !gpus.is_empty() {
        return Found { by: "/proc/driver/nvidia".into(), gpus, ..Found::default() };
    }
    let nvidia = |d: &&Device| d.kind == DeviceKind::Gpu && d.extra.get("vendor").is_some_and(|v| v == NVIDIA);
    let gpus = t.of_kind(DeviceKind::Gpu).into_iter().map(|g| t.device(g)).filter(nvidia);
    let gpus = gpus.filter_map(|d| Some(Gpu { bus: d.bus.clone()?, ..Gpu::default() })).collect();
    Found { by: "the PCI bus".into(), gpus, ..Found::default() }
}

/// The topology with the GPUs that this process may use, in their order, and their links.
pub(super) fn merge(t: &Topology, mut found: Found, sysfs: &Sysfs, wanted: Option<&str>) -> Result<Topology> {
    let (chosen, mut notices) = visible(wanted, &found.gpus);
    let mut refused = Vec::new();
    let chosen: Vec<usize> = chosen
        .into_iter()
        .filter(|i| {
            !found.gpus[*i].mig || {
                refused.push(*i);
                false
            }
        })
        .collect();
    for i in refused {
        notices.push(format!(
            "GPU {} is split by MIG, whose instances have no NVLink and no peer access, so it is left out; \
             `nvidia-smi -i {} -mig 0` makes it whole",
            found.gpus[i].bus, found.gpus[i].bus
        ));
    }
    let place: HashMap<&str, usize> =
        chosen.iter().enumerate().map(|(n, i)| (found.gpus[*i].bus.as_str(), n)).collect();
    let known = |d: &Device| d.bus.as_deref().is_some_and(|b| found.gpus.iter().any(|g| g.bus == b));
    let nvidia = |d: &Device| known(d) || d.extra.get("vendor").is_some_and(|v| v == NVIDIA);
    let (mut hidden, mut others) = (Vec::new(), HashMap::new());
    for id in t.of_kind(DeviceKind::Gpu) {
        let d = t.device(id);
        match (nvidia(d) && found.complete, known(d)) {
            (_, true) => {}
            (true, false) => hidden.push(d.bus.clone().unwrap_or_else(|| d.id.clone())),
            // Other makes, and what no driver had a word on: a GPU on the bus is one.
            (false, false) => {
                others.insert(id, chosen.len() + others.len());
            }
        }
    }
    let mut out = t.map_devices(|id, d| {
        if d.kind != DeviceKind::Gpu {
            return Some(d.clone());
        }
        let index = *d.bus.as_deref().and_then(|b| place.get(b)).or(others.get(&id))?;
        Some(Device { id: format!("gpu{index}"), index, ..d.clone() })
    })?;
    let mut ids = Vec::new();
    for (n, i) in chosen.iter().enumerate() {
        let gpu = &found.gpus[*i];
        let here = out.devices().find(|(_, d)| d.kind == DeviceKind::Gpu && d.bus.as_ref() == Some(&gpu.bus));
        let id = match here.map(|(id, _)| id) {
            Some(id) => id,
            None => {
                let new = Device::new(format!("gpu{n}"), DeviceKind::Gpu, n, &found.by);
                out.attach(Device { bus: Some(gpu.bus.clone()), ..new }, sysfs.near(&gpu.bus))?
            }
        };
        facts(&mut out, id, gpu, &found.by);
        ids.push(id);
    }
    notices.append(&mut found.notices);
    if !hidden.is_empty() {
        let (list, by) = (hidden.join(", "), &found.by);
        notices
            .push(format!("{list}: on the PCI bus, but {by} does not give it to this process (a container hides it)"));
    }
    links(&mut out, &ids, &chosen, &found, &mut notices)?;
    notices.into_iter().for_each(|n| out.notice(n));
    Ok(out)
}

/// What the driver says of one GPU.
fn facts(t: &mut Topology, id: DeviceId, gpu: &Gpu, by: &str) {
    let d = t.device_mut(id);
    if let Some(name) = &gpu.name {
        d.name.clone_from(name);
        d.source = format!("{}, {by}", d.source);
    }
    let mut extra = |key: &str, value: Option<String>| {
        if let Some(value) = value {
            d.extra.insert(key.into(), value);
        }
    };
    extra("uuid", gpu.uuid.clone());
    extra("gpu.sm", gpu.sm.map(|s| s.to_string()));
    extra("memory", gpu.memory.map(|m| m.to_string()));
    extra("nvlinks", (!gpu.nvlinks.is_empty()).then(|| gpu.nvlinks.len().to_string()));
    extra("fabric", gpu.fabric.as_ref().map(|(cluster, clique)| format!("{cluster} clique {clique}")));
    let denied: Vec<&str> = gpu.denied.iter().map(|(bus, _)| bus.as_str()).collect();
    extra("p2p.denied", (!denied.is_empty()).then(|| denied.join(" ")));
    if let Some((now, most)) = gpu.pcie
        && !d.extra.contains_key("pcie.max-width")
    {
        pci::set(t, id, now, Some(most), by);
    }
}

/// NVLinks and what keeps GPUs apart.
fn links(t: &mut Topology, ids: &[DeviceId], chosen: &[usize], found: &Found, notices: &mut Vec<String>) -> Result<()> {
    let by_bus: HashMap<&str, DeviceId> =
        chosen.iter().zip(ids).map(|(i, id)| (found.gpus[*i].bus.as_str(), *id)).collect();
    for (i, id) in chosen.iter().zip(ids) {
        let gpu = &found.gpus[*i];
        let name = t.device(*id).id.clone();
        let up = gpu.nvlinks.iter().filter(|l| l.active).count();
        if up > 0 && up < gpu.nvlinks.len() {
            notices.push(format!("{} of {} NVLinks of {name} are down", gpu.nvlinks.len() - up, gpu.nvlinks.len()));
        }
        let mut lanes: BTreeMap<DeviceId, u32> = BTreeMap::new();
        let mut away: BTreeMap<String, u32> = BTreeMap::new();
        for link in gpu.nvlinks.iter().filter(|l| l.active) {
            let bus = link.bus.clone().unwrap_or_default();
            let to = match (link.remote, by_bus.get(bus.as_str())) {
                (_, Some(peer)) => Some(*peer),
                (Remote::Switch, _) => Some(nv_switch(t, &found.by)?),
                (Remote::Cpu, _) => cpu_of(t, *id),
                _ => None,
            };
            match to {
                Some(to) => *lanes.entry(to).or_default() += 1,
                None => *away.entry(bus).or_default() += 1,
            }
        }
        for (to, lanes) in lanes {
            let mut link = Link::new(LinkKind::NvLink, &format!("{}; {}", found.by, figures::NVLINK_SOURCE));
            let each = gpu.sm.and_then(figures::nvlink);
            link.lanes = lanes;
            link.nominal = each.map(|(nominal, _)| nominal * f64::from(lanes));
            link.usable = each.map(|(_, usable)| usable * f64::from(lanes));
            t.add_link(*id, to, link.clone());
            // Another GPU says its own direction; a switch or a CPU says nothing.
            if t.device(to).kind != DeviceKind::Gpu {
                t.add_link(to, *id, link);
            }
        }
        for (bus, count) in away {
            let whom = if bus.is_empty() { "something unknown".into() } else { bus };
            notices.push(format!("{count} NVLink(s) of {name} lead to {whom}, which this process does not see"));
        }
        if let (true, Some(cpu)) = (gpu.c2c, cpu_of(t, *id)) {
            let mut link = Link::new(LinkKind::NvLinkC2c, &format!("{}; NVIDIA's white paper", found.by));
            link.nominal = gpu.sm.and_then(figures::nvlink_c2c);
            t.connect(*id, cpu, link);
        }
        for (bus, why) in &gpu.denied {
            if let Some(peer) = by_bus.get(bus.as_str()).filter(|p| **p > *id) {
                notices.push(format!("{name} and {} may not reach each other directly: {why}", t.device(*peer).id));
            }
        }
    }
    Ok(())
}

/// The NVSwitches of the host, as one.
fn nv_switch(t: &mut Topology, by: &str) -> Result<DeviceId> {
    match t.find("nvswitch0") {
        Some(id) => Ok(id),
        None => {
            let switch = Device::new("nvswitch0", DeviceKind::NvSwitch, 0, by);
            t.add_device(Device { name: "the NVSwitches, as one".into(), ..switch })
        }
    }
}

/// The CPU that a device hangs on, at whatever depth.
fn cpu_of(t: &Topology, mut id: DeviceId) -> Option<DeviceId> {
    while t.device(id).kind != DeviceKind::Cpu {
        id = t.above(id)?;
    }
    Some(id)
}
