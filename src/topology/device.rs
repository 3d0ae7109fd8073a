//! What a topology's nodes are.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

/// The kind of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DeviceKind {
    /// An accelerator.
    Gpu,
    /// One NUMA node: its cores and its memory.
    Cpu,
    /// A PCIe switch.
    PciSwitch,
    /// The NVSwitches of a host, taken as one.
    NvSwitch,
    /// One port of a network card.
    Nic,
    /// A switch of the network between hosts.
    NetSwitch,
}

impl DeviceKind {
    /// The word used in files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Gpu => "gpu",
            Self::Cpu => "cpu",
            Self::PciSwitch => "pci-switch",
            Self::NvSwitch => "nv-switch",
            Self::Nic => "nic",
            Self::NetSwitch => "net-switch",
        }
    }
}

impl fmt::Display for DeviceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The name of a PCI switch that stands for a host bridge: what is below two of them at one CPU is NODE apart.
pub(super) const HOST_BRIDGE: &str = "host bridge";

/// The extra that says why a NIC leads nowhere that a collective could go.
pub(super) const NO_RAIL: &str = "no-rail";

/// A device.
#[derive(Debug, Clone, PartialEq)]
pub struct Device {
    /// Unique in the topology, such as `gpu0` or `host1/gpu0`.
    pub id: String,
    /// What it is.
    pub kind: DeviceKind,
    /// Model or interface, for people; may be empty.
    pub name: String,
    /// Its host; `None` for switches of the network.
    pub host: Option<usize>,
    /// Index among its kind in its host.
    pub index: usize,
    /// PCI address, as `0000:3b:00.0`.
    pub bus: Option<String>,
    /// Index of the nearest NUMA node in its host.
    pub numa: Option<usize>,
    /// What is known of a [`DeviceKind::Cpu`].
    pub cpu: Option<CpuInfo>,
    /// What else is known of it: a GPU's `uuid`, `gpu.sm`, `memory` (bytes), `nvlinks` (how many it has, up or not) and
    /// `p2p.denied`; a NIC's `net`, `port`, `state` (where it is not up) and `no-rail` (why it is none); `pcie.max-speed` (GT/s) and `pcie.max-width`;
    /// what a file said of it, for writing it again.
    pub extra: BTreeMap<String, String>,
    /// Who says that it exists: `hwloc`, a file, a data sheet.
    pub source: String,
}

impl Device {
    /// A device of which nothing more is known yet; on host 0 unless it is a switch of the network.
    pub fn new(id: impl Into<String>, kind: DeviceKind, index: usize, source: &str) -> Self {
        Self {
            id: id.into(),
            kind,
            name: String::new(),
            host: (kind != DeviceKind::NetSwitch).then_some(0),
            index,
            bus: None,
            numa: None,
            cpu: (kind == DeviceKind::Cpu).then(CpuInfo::default),
            extra: BTreeMap::new(),
            source: source.into(),
        }
    }
}

/// Cores and memory of one NUMA node. Sizes are bytes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct CpuInfo {
    /// Which socket.
    #[serde(default)]
    pub package: usize,
    /// Physical cores.
    #[serde(default)]
    pub cores: usize,
    /// The hardware threads that this process may use, as the system numbers them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pus: Vec<usize>,
    /// One first-level data cache.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub l1d: Option<u64>,
    /// One second-level cache.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub l2: Option<u64>,
    /// One third-level cache.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub l3: Option<u64>,
    /// Memory of the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<u64>,
    /// Bytes per second that one core copies from memory to memory, as measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copy_rate: Option<f64>,
    /// Bytes per second that one core reads of what another has just written, as measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exchange_rate: Option<f64>,
}
