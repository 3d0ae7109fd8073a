//! What a topology's edges are.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The kind of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LinkKind {
    /// NVLink.
    #[serde(rename = "nvlink")]
    NvLink,
    /// NVLink between a GPU and its CPU.
    #[serde(rename = "nvlink-c2c")]
    NvLinkC2c,
    /// AMD's link between GPUs.
    Xgmi,
    /// PCI Express.
    Pcie,
    /// Between sockets or NUMA nodes: UPI, Infinity Fabric.
    CpuInterconnect,
    /// InfiniBand.
    #[serde(rename = "infiniband")]
    InfiniBand,
    /// RDMA over Ethernet.
    #[serde(rename = "roce")]
    RoCe,
    /// Ethernet without RDMA.
    Ethernet,
    /// Amazon's Elastic Fabric Adapter.
    Efa,
    /// A CPU's own memory, from and to itself: what ranks on one CPU share.
    Memory,
}

impl LinkKind {
    /// The word used in files.
    pub fn name(self) -> &'static str {
        match self {
            Self::NvLink => "nvlink",
            Self::NvLinkC2c => "nvlink-c2c",
            Self::Xgmi => "xgmi",
            Self::Pcie => "pcie",
            Self::CpuInterconnect => "cpu-interconnect",
            Self::InfiniBand => "infiniband",
            Self::RoCe => "roce",
            Self::Ethernet => "ethernet",
            Self::Efa => "efa",
            Self::Memory => "memory",
        }
    }

    /// Whether it leads to other hosts.
    pub fn is_network(self) -> bool {
        matches!(self, Self::InfiniBand | Self::RoCe | Self::Ethernet | Self::Efa)
    }

    /// What is assumed where nothing at all is known, in bytes per second: deliberately low.
    pub(crate) fn assumed_bandwidth(self) -> f64 {
        match self {
            Self::NvLink | Self::Xgmi => 20e9,
            Self::NvLinkC2c => 100e9,
            Self::Pcie => 12e9,
            Self::CpuInterconnect | Self::Memory => 10e9,
            Self::InfiniBand | Self::RoCe | Self::Efa => 12e9,
            Self::Ethernet => 1.25e9,
        }
    }

    /// Seconds from one end to the other where nothing is known. GPU links and PCIe as NCCL's tuning tables take them
    /// to be within a factor of two; cores as a cache line takes to cross a socket.
    pub(crate) fn assumed_latency(self) -> f64 {
        match self {
            Self::NvLink | Self::Xgmi | Self::NvLinkC2c => 0.6e-6,
            Self::Pcie => 0.5e-6,
            Self::CpuInterconnect => 0.2e-6,
            Self::Memory => 0.1e-6,
            Self::InfiniBand | Self::RoCe => 1.0e-6,
            Self::Efa | Self::Ethernet => 10e-6,
        }
    }
}

impl fmt::Display for LinkKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Where a figure comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Origin {
    /// The vendor's data rate.
    Nominal,
    /// Said to be reached in practice.
    Declared,
    /// Seen on this machine.
    Measured,
    /// Nothing is known; a stated default.
    Assumed,
}

impl Origin {
    /// The word used in files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Nominal => "nominal",
            Self::Declared => "declared",
            Self::Measured => "measured",
            Self::Assumed => "assumed",
        }
    }
}

/// A link in one direction.
#[derive(Debug, Clone, PartialEq)]
pub struct Link {
    /// What it is.
    pub kind: LinkKind,
    /// NVLinks taken together, or PCIe lanes; else 1.
    pub lanes: u32,
    /// The vendor's data rate, bytes per second, all lanes.
    pub nominal: Option<f64>,
    /// What is reached in practice, bytes per second, all lanes.
    pub usable: Option<f64>,
    /// What was seen on this machine, bytes per second, all lanes.
    pub measured: Option<f64>,
    /// Seconds.
    pub latency: f64,
    /// Where the latency comes from.
    pub latency_origin: Origin,
    /// Where the figures come from.
    pub source: String,
}

impl Link {
    /// A link of which nothing is known but its kind.
    pub fn new(kind: LinkKind, source: &str) -> Self {
        Self {
            kind,
            lanes: 1,
            nominal: None,
            usable: None,
            measured: None,
            latency: kind.assumed_latency(),
            latency_origin: Origin::Assumed,
            source: source.into(),
        }
    }

    /// What a plan counts on, bytes per second: measured, else usable, else nominal, else what is assumed of the kind.
    pub fn bandwidth(&self) -> f64 {
        self.measured.or(self.usable).or(self.nominal).unwrap_or_else(|| {
            // Each NVLink or xGMI link counts; a PCIe rate is assumed for the whole.
            let links = if matches!(self.kind, LinkKind::NvLink | LinkKind::Xgmi) { self.lanes } else { 1 };
            self.kind.assumed_bandwidth() * f64::from(links)
        })
    }

    /// What a bound counts on: nominal, else as [`Link::bandwidth`].
    pub fn bound_bandwidth(&self) -> f64 {
        self.nominal.unwrap_or_else(|| self.bandwidth())
    }

    /// Where [`Link::bandwidth`] comes from.
    pub fn origin(&self) -> Origin {
        match (self.measured, self.usable, self.nominal) {
            (Some(_), _, _) => Origin::Measured,
            (_, Some(_), _) => Origin::Declared,
            (_, _, Some(_)) => Origin::Nominal,
            _ => Origin::Assumed,
        }
    }
}
