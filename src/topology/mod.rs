//! The machine: devices, the links between them, what each link carries and who says so.
//!
//! A [`Topology`] comes from [`Topology::detect`] (hwloc) or from a file ([`Topology::read`]). Links are directed, one
//! edge for each direction. [`Topology::route`] finds the way from one device to another.

mod cluster;
mod detect;
mod device;
mod diff;
mod fabric;
mod figures;
mod formats;
mod graph;
mod link;
mod route;

pub(crate) use cluster::Alike;
pub use device::{CpuInfo, Device, DeviceKind};
pub use diff::Change;
pub use fabric::Fabric;
pub(crate) use figures::pcie as pcie_rate;
pub use formats::Format;
pub use graph::{DeviceId, LinkId, Topology};
pub use link::{Link, LinkKind, Origin};
pub use route::{PathClass, Route};
