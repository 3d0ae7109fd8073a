//! GPUs joined as a matrix says, as the inputs of synthesis tools have it.

use crate::Result;
use crate::topology::{Device, DeviceId, DeviceKind, Link, LinkKind, Origin, Topology};

/// NVLinks between the GPUs of a DGX-1 V100 or an Azure NDv2, as TACCL and TE-CCL number them.
pub(super) const CUBE_MESH: [[u32; 8]; 8] = [
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

/// A link from `i` to `j` wherever `rate` gives lanes and bytes per second.
pub(super) fn join(t: &mut Topology, ids: &[DeviceId], like: &Link, rate: impl Fn(usize, usize) -> Option<(u32, f64)>) {
    for (i, a) in ids.iter().enumerate() {
        for (j, b) in ids.iter().enumerate().filter(|(j, _)| *j != i) {
            if let Some((lanes, rate)) = rate(i, j) {
                t.add_link(*a, *b, Link { lanes, nominal: Some(rate), ..like.clone() });
            }
        }
    }
}
