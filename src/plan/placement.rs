//! Which rank is where.

use crate::topology::{DeviceId, DeviceKind, Topology};
use crate::{Error, Result};

/// The device of each rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement {
    devices: Vec<DeviceId>,
    hosts: Vec<usize>,
}

impl Placement {
    /// Rank `r` on `devices[r]`; several ranks may share one.
    ///
    /// # Errors
    /// [`Error::Plan`] where there are no devices, or one belongs to no host.
    pub fn new(topology: &Topology, devices: Vec<DeviceId>) -> Result<Self> {
        if devices.is_empty() {
            return Err(Error::Plan("there are 0 ranks, at least 1 is needed".into()));
        }
        let host = |d: &DeviceId| {
            let device = topology.device(*d);
            device.host.ok_or_else(|| Error::Plan(format!("{} is on no host, no rank can run there", device.id)))
        };
        let hosts = devices.iter().map(host).collect::<Result<_>>()?;
        Ok(Self { devices, hosts })
    }

    /// A rank for each GPU, host by host.
    ///
    /// # Errors
    /// [`Error::Plan`] where there are none.
    pub fn gpus(topology: &Topology) -> Result<Self> {
        let gpus = topology.of_kind(DeviceKind::Gpu);
        if gpus.is_empty() {
            return Err(Error::Plan(format!("{} has no GPUs", topology.name())));
        }
        Self::new(topology, gpus)
    }

    /// `ranks` ranks on the CPUs of the first host, neighbours together, in proportion to cores.
    ///
    /// # Errors
    /// [`Error::Plan`] for 0 ranks or a topology without a CPU.
    pub fn on_host(topology: &Topology, ranks: usize) -> Result<Self> {
        let cpus = topology.of_kind(DeviceKind::Cpu);
        let first = cpus.first().and_then(|c| topology.device(*c).host);
        let mut cores = Vec::new();
        for cpu in cpus {
            let device = topology.device(cpu);
            if device.host == first {
                let n = device.cpu.as_ref().map_or(1, |c| c.pus.len().max(c.cores).max(1));
                cores.extend(std::iter::repeat_n(cpu, n));
            }
        }
        if cores.is_empty() {
            return Err(Error::Plan(format!("{} has no CPU for ranks to run on", topology.name())));
        }
        Self::new(topology, (0..ranks).map(|r| cores[r * cores.len() / ranks]).collect())
    }

    /// How many ranks.
    pub fn ranks(&self) -> usize {
        self.devices.len()
    }

    /// The device of each rank.
    pub fn devices(&self) -> &[DeviceId] {
        &self.devices
    }

    /// The host of each rank.
    pub fn hosts(&self) -> &[usize] {
        &self.hosts
    }

    /// Sizes of the levels of the machine, innermost first, if ranks are laid out evenly over it: ranks a CPU or host,
    /// hosts. One level where ranks have one place in common, or are laid out unevenly.
    pub fn levels(&self) -> Vec<usize> {
        let n = self.ranks();
        let by_device: Vec<usize> = self.devices.iter().map(|d| d.0.index()).collect();
        let mut levels = Vec::new();
        let mut inner = 1;
        for places in [&by_device, &self.hosts] {
            if let Some(run) = even_run(places).filter(|run| *run > inner && run % inner == 0 && *run < n) {
                levels.push(run / inner);
                inner = run;
            }
        }
        levels.push(n / inner);
        levels
    }
}

/// The length of the runs of equal values, where all have the same and no value comes twice.
fn even_run(places: &[usize]) -> Option<usize> {
    let run = places.iter().take_while(|p| **p == places[0]).count();
    let mut seen = std::collections::HashSet::new();
    let even = places.len().is_multiple_of(run)
        && places.chunks(run).all(|c| c.iter().all(|p| *p == c[0]) && seen.insert(c[0]));
    even.then_some(run)
}
