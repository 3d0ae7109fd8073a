//! What ranks on a CPU share: its memory, and a core for each.

use crate::plan::Placement;
use crate::topology::{DeviceId, LinkKind, Topology};

/// Each rank reads its input once and writes its output once: ranks on a CPU share its memory, each has one core.
pub(super) fn memory(
    topology: &Topology,
    placement: &Placement,
    device: DeviceId,
    ranks: usize,
    bytes: f64,
    offer: &mut impl FnMut(f64, &dyn Fn() -> String),
) {
    let d = topology.device(device);
    let Some(cpu) = &d.cpu else { return };
    if placement.ranks() < 2 {
        return;
    }
    if let Some(rate) = cpu.copy_rate {
        offer(bytes / rate, &|| format!("copying by one core of {}, {:.1} GB/s", d.id, rate / 1e9));
    }
    let own = topology.links().find(|(_, a, b, l)| *a == device && *b == device && l.kind == LinkKind::Memory);
    if let Some((_, _, _, link)) = own {
        let rate = link.bound_bandwidth();
        offer(bytes * ranks as f64 / rate, &|| format!("the memory of {}, copying at {:.1} GB/s", d.id, rate / 1e9));
    }
}
