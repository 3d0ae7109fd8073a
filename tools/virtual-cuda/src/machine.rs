//! The machine that is stood in for.

use std::path::Path;
use std::sync::OnceLock;

use topocoll::topology::{Device, DeviceId, DeviceKind, LinkKind, Topology};

/// The GPUs of one machine.
pub(crate) struct Machine {
    pub gpus: Vec<Gpu>,
}

/// What is known of a GPU.
pub(crate) struct Gpu {
    pub device: Device,
    pub bus: (u32, u32, u32),
    /// The other end of each NVLink that is up.
    pub nvlinks: Vec<(End, (u32, u32, u32))>,
    /// Lanes of its PCIe link.
    pub width: u32,
}

/// What an NVLink leads to.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Gpu,
    Switch,
    Cpu,
}

impl Gpu {
    pub fn extra<T: std::str::FromStr>(&self, key: &str) -> Option<T> {
        self.device.extra.get(key)?.parse().ok()
    }
}

/// The machine of this process; none where the file is missing or wrong, which is then as a driver that fails.
pub(crate) fn machine() -> Option<&'static Machine> {
    static MACHINE: OnceLock<Option<Machine>> = OnceLock::new();
    MACHINE
        .get_or_init(|| {
            let file = std::env::var_os("VIRTUAL_CUDA_TOPOLOGY")?;
            let read = Topology::read(Path::new(&file)).map_err(|e| eprintln!("virtual-cuda: {e}"));
            Some(Machine::new(&read.ok()?))
        })
        .as_ref()
}

impl Machine {
    fn new(t: &Topology) -> Self {
        let gpus = t.of_kind(DeviceKind::Gpu).into_iter().filter_map(|id| Gpu::new(t, id)).collect();
        Self { gpus }
    }
}

impl Gpu {
    fn new(t: &Topology, id: DeviceId) -> Option<Self> {
        let bus = address(t.device(id))?;
        let mut nvlinks = Vec::new();
        for (_, _, to, link) in t.links().filter(|(_, a, _, l)| *a == id && l.kind == LinkKind::NvLink) {
            let other = t.device(to);
            let end = match other.kind {
                DeviceKind::Gpu => End::Gpu,
                DeviceKind::Cpu => End::Cpu,
                _ => End::Switch,
            };
            let at = address(other).unwrap_or((0, 0, 0));
            nvlinks.extend((0..link.lanes).map(|_| (end, at)));
        }
        let width = t.links().find(|(_, a, _, l)| *a == id && l.kind == LinkKind::Pcie).map_or(16, |(.., l)| l.lanes);
        Some(Self { device: t.device(id).clone(), bus, nvlinks, width })
    }
}

/// Domain, bus and device of `0000:3b:00.0`.
fn address(d: &Device) -> Option<(u32, u32, u32)> {
    let text = d.bus.as_ref()?;
    let mut parts = text.split([':', '.']).map(|p| u32::from_str_radix(p, 16).ok());
    Some((parts.next()??, parts.next()??, parts.next()??))
}
