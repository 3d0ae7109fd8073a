//! Several hosts alike.

use crate::topology::{Device, DeviceId, DeviceKind, Link, LinkKind, Topology};
use crate::{Error, Result};

/// Devices that a repeated host may come to.
const MAX_DEVICES: usize = 2_000_000;

impl Topology {
    /// This host `hosts` times, ids prefixed as in `host1/gpu0`. Switches of the network are shared by all; where the
    /// machine has none, NIC `i` of every host is at a switch `rail{i}` of the NIC's width.
    ///
    /// # Errors
    /// [`Error::Topology`] where the machine has no NIC, or is of several hosts already and not of `hosts`.
    pub fn cluster(&self, hosts: usize) -> Result<Self> {
        if hosts == self.hosts() {
            return Ok(self.clone());
        }
        let refuse = |why: String| Err(Error::Topology(format!("{} cannot be {hosts} hosts: {why}", self.name)));
        if self.hosts() != 1 || hosts == 0 {
            return refuse(format!("it is {} host(s), and one host can be repeated", self.hosts()));
        }
        let nics = self.of_kind(DeviceKind::Nic);
        if nics.is_empty() {
            return refuse("it has no NIC, so nothing joins them".into());
        }
        let devices = self.graph.node_count();
        if devices.checked_mul(hosts).is_none_or(|n| n > MAX_DEVICES) {
            return refuse(format!("with {devices} devices each they are more than {MAX_DEVICES} devices"));
        }
        let mut all = Self::new(&format!("{hosts} x {}", self.name));
        all.source.clone_from(&self.source);
        all.notices.clone_from(&self.notices);
        let mut shared: Vec<Option<DeviceId>> = vec![None; devices];
        for (id, d) in self.devices().filter(|(_, d)| d.host.is_none()) {
            shared[id.0.index()] = Some(all.add_device(d.clone())?);
        }
        let bare = shared.iter().all(Option::is_none);
        for host in 0..hosts {
            let mut ids = shared.clone();
            for (id, d) in self.devices().filter(|(_, d)| d.host.is_some()) {
                let d = Device { id: format!("host{host}/{}", d.id), host: Some(host), ..d.clone() };
                ids[id.0.index()] = Some(all.add_device(d)?);
            }
            for (_, a, b, link) in self.links() {
                // Between shared switches there is one link, not one for each host.
                let between = shared[a.0.index()].is_some() && shared[b.0.index()].is_some();
                if let (Some(a), Some(b)) = (ids[a.0.index()], ids[b.0.index()])
                    && (!between || host == 0)
                {
                    all.add_link(a, b, link.clone());
                }
            }
            for (rail, nic) in nics.iter().enumerate().filter(|_| bare) {
                let switch = match all.find(&format!("rail{rail}")) {
                    Some(switch) => switch,
                    None => {
                        let source = "assumed: a switch that never blocks";
                        all.add_device(Device::new(format!("rail{rail}"), DeviceKind::NetSwitch, rail, source))?
                    }
                };
                if let Some(id) = ids[nic.0.index()] {
                    all.connect(id, switch, self.port(*nic));
                }
            }
        }
        Ok(all)
    }

    /// What a NIC without a network is taken to have: a port as wide as its way into the host.
    fn port(&self, nic: DeviceId) -> Link {
        let inward = self.links().filter(|(_, a, ..)| *a == nic);
        let widest = inward.map(|(.., l)| l.bound_bandwidth()).fold(0.0, f64::max);
        let mut port = Link::new(LinkKind::Ethernet, "assumed: as wide as the NIC's way into the host");
        port.nominal = (widest > 0.0).then_some(widest);
        port
    }
}
