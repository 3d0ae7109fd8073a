//! GPUs joined as a matrix says, as the inputs of synthesis tools have it.

use crate::Result;
use crate::topology::{Device, DeviceId, DeviceKind, Link, LinkKind, Origin, Topology};

/// NVLinks between the GPUs of a DGX-1 V100 or an Azure NDv2, as TACCL and TE-CCL number them.
const CUBE_MESH: [[u32; 8]; 8] = [
    [0, 2, 1, 1, 2, 0, 0, 0],
    [2, 0, 1, 2, 0, 1, 0, 0],
    [1, 1, 0, 2, 0, 0, 2, 0],
    [1, 2, 2, 0, 0, 0, 0, 1],
    [2, 0, 0, 0, 0, 2, 1, 1],
    [0, 1, 0, 0, 2, 0, 1, 2],
    [0, 0, 2, 0, 1, 1, 0, 2],
    [0, 0, 0, 1, 1, 2, 2, 0],
];

/// `count` GPUs of a host; ids have the host's name where there are several.
pub(super) fn gpus(t: &mut Topology, host: usize, hosts: usize, count: usize, file: &str) -> Result<Vec<DeviceId>> {
    let id = |i: usize| if hosts > 1 { format!("host{host}/gpu{i}") } else { format!("gpu{i}") };
    let new = |i: usize| Device { host: Some(host), ..Device::new(id(i), DeviceKind::Gpu, i, file) };
    (0..count).map(|i| t.add_device(new(i))).collect()
}

/// A link of so many bytes per second and seconds; no latency is not known.
pub(super) fn link(kind: LinkKind, rate: f64, latency: f64, source: &str) -> Link {
    let mut link = Link::new(kind, source);
    link.nominal = Some(rate);
    if latency > 0.0 {
        (link.latency, link.latency_origin) = (latency, Origin::Declared);
    }
    link
}

/// [`CUBE_MESH`] as from, to and how many, each direction by itself.
pub(super) fn cube_mesh() -> impl Iterator<Item = (usize, usize, u32)> {
    let row = |(i, row): (usize, &'static [u32; 8])| row.iter().enumerate().map(move |(j, lanes)| (i, j, *lanes));
    CUBE_MESH.iter().enumerate().flat_map(row).filter(|(.., lanes)| *lanes > 0)
}

/// Links from, to, with so many lanes and bytes per second in all, each direction by itself.
pub(super) fn join(
    t: &mut Topology,
    ids: &[DeviceId],
    like: &Link,
    links: impl Iterator<Item = (usize, usize, u32, f64)>,
) {
    for (from, to, lanes, rate) in links {
        t.add_link(ids[from], ids[to], Link { lanes, nominal: Some(rate), ..like.clone() });
    }
}
