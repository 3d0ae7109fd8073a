//! The machine this runs on: hwloc's tree, what the kernel says of links and ports, what a driver says of GPUs.
//!
//! Nothing that is missing makes detection fail but the tree itself; it becomes a notice.

mod cuda;
mod gpu;
mod hwloc;
mod nic;
mod nvml;
mod pci;
mod sysfs;
#[cfg(test)]
mod tests;
mod visible;

use std::path::Path;

use crate::Result;
use crate::topology::{DeviceKind, Format, Topology};
use gpu::Found;
use sysfs::Sysfs;

/// As hwloc does: `HWLOC_XMLFILE` and `HWLOC_FSROOT` show another machine, of which libraries here know nothing unless
/// `HWLOC_THISSYSTEM=1` says that it is this one.
pub(super) fn detect() -> Result<Topology> {
    let env = |name| std::env::var(name).ok().filter(|v: &String| !v.is_empty());
    let root = env("HWLOC_FSROOT");
    let described = env("HWLOC_XMLFILE").or_else(|| env("HWLOC_SYNTHETIC")).is_some();
    let here = env("HWLOC_THISSYSTEM").is_some_and(|v| v == "1") || root.is_none() && !described;
    let tree = match env("HWLOC_XMLFILE") {
        // Our own reader knows versions that the library may not.
        Some(file) => Topology::read_as(Path::new(&file), Some(Format::HwlocXml))?,
        None => hwloc::detect(root.as_deref())?,
    };
    if described && !here {
        return Ok(tree);
    }
    // An empty value counts: it hides all GPUs.
    let wanted = std::env::var("CUDA_VISIBLE_DEVICES").ok().filter(|_| here);
    let drivers: &[fn() -> Result<Found, String>] = if here { &[nvml::gpus, cuda::gpus] } else { &[] };
    complete(tree, &Sysfs::new(root.as_deref().unwrap_or("/")), drivers, wanted.as_deref())
}

/// hwloc's tree with everything else in it. The first of `drivers` that answers is believed.
fn complete(
    mut t: Topology,
    sysfs: &Sysfs,
    drivers: &[fn() -> Result<Found, String>],
    wanted: Option<&str>,
) -> Result<Topology> {
    pci::trained(&mut t, sysfs);
    pci::redirected(&mut t, sysfs);
    nic::nics(&mut t, sysfs)?;
    let mut silent = Vec::new();
    let answers = drivers.iter().find_map(|ask| ask().map_err(|why| silent.push(why)).ok());
    // CUDA has applied the variable itself.
    let wanted = wanted.filter(|_| silent.is_empty() || answers.is_none());
    let none = answers.is_none();
    let found = answers.unwrap_or_else(|| gpu::without_library(&t, sysfs));
    let (nvidia, by) = (found.gpus.len(), found.by.clone());
    let mut t = gpu::merge(&t, found, sysfs, wanted)?;
    if none && nvidia > 0 && !drivers.is_empty() {
        let why = silent.first().map(|w| format!(" ({w})")).unwrap_or_default();
        t.notice(format!("{nvidia} NVIDIA GPU(s), but NVML does not answer{why}: NVLinks and memory cannot be seen"));
    }
    t.source = match t.of_kind(DeviceKind::Gpu).len() {
        0 => "detected: hwloc, sysfs".into(),
        _ => format!("detected: hwloc, sysfs, {by}"),
    };
    Ok(t)
}
