//! How wide and fast the PCIe links of this machine trained, and how far that is to be believed.

use crate::topology::detect::sysfs::{self, Sysfs};
use crate::topology::{DeviceId, DeviceKind, LinkId, LinkKind, Topology, figures};

/// What a link trained to, in GT/s and lanes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Trained {
    pub speed: f64,
    pub width: u32,
}

impl Trained {
    fn rate(self) -> f64 {
        figures::pcie(self.speed, self.width)
    }
}

/// Sets the figures of every PCIe link of which sysfs knows better than hwloc.
pub(super) fn trained(t: &mut Topology, sysfs: &Sysfs) {
    let devices: Vec<(DeviceId, String)> = t.devices().filter_map(|(id, d)| Some((id, d.bus.clone()?))).collect();
    for (id, bus) in devices {
        let get = |which: &str| {
            let at = |what: &str| format!("/sys/bus/pci/devices/{bus}/{which}_link_{what}");
            let speed = sysfs.number::<f64>(&at("speed")).filter(|s| *s > 0.0 && *s < 1000.0)?;
            let width = sysfs.number(&at("width")).filter(|w| (1..=64).contains(w))?;
            Some(Trained { speed, width })
        };
        if let Some(now) = get("current") {
            set(t, id, now, get("max"), "sysfs");
        }
    }
    disbelieve(t);
}

/// Marks devices whose port sends what they tell their neighbours up to the CPU (access control services). Only root
/// may read so far into the configuration space; to others nothing is marked.
pub(super) fn redirected(t: &mut Topology, sysfs: &Sysfs) {
    let ends = t.devices().filter(|(_, d)| d.kind != DeviceKind::PciSwitch);
    let ends: Vec<(DeviceId, String)> = ends.filter_map(|(id, d)| Some((id, d.bus.clone()?))).collect();
    for (id, bus) in ends {
        let path = sysfs.link(&format!("/sys/bus/pci/devices/{bus}")).unwrap_or_default();
        let port = path.parent().and_then(|p| sysfs::bus(p.file_name()?.to_str()?));
        if let Some(port) = port.filter(|p| redirects(&sysfs.bytes(&format!("/sys/bus/pci/devices/{p}/config")))) {
            t.device_mut(id).extra.insert("acs".into(), port);
        }
    }
}

/// Whether a port's ACS control has request redirect on (PCI Express base specification, ACS extended capability).
fn redirects(config: &[u8]) -> bool {
    const ACS: u32 = 0x0d;
    const REQUEST_REDIRECT: u8 = 1 << 2;
    let word = |at: usize| Some(u32::from_le_bytes(config.get(at..at + 4)?.try_into().ok()?));
    let mut at = 0x100;
    // Each capability takes eight bytes at least, so the list cannot be longer.
    for _ in 0..480 {
        let Some(head) = word(at).filter(|h| *h != 0 && *h != u32::MAX) else { return false };
        if head & 0xffff == ACS {
            return config.get(at + 6).is_some_and(|control| control & REQUEST_REDIRECT != 0);
        }
        at = (head >> 20) as usize;
        if at < 0x100 {
            return false;
        }
    }
    false
}

/// Writes what a device's link upwards trained to.
pub(super) fn set(t: &mut Topology, id: DeviceId, now: Trained, most: Option<Trained>, source: &str) {
    let Some(parent) = t.above(id) else { return };
    if let Some(most) = most {
        let extra = &mut t.device_mut(id).extra;
        extra.insert("pcie.max-speed".into(), most.speed.to_string());
        extra.insert("pcie.max-width".into(), most.width.to_string());
    }
    // A GPU that rests trains its link down, and up again when it has work.
    let rests = t.device(id).kind == DeviceKind::Gpu;
    let (speed, how) = match most {
        Some(most) if rests && most.speed > now.speed => {
            (most.speed, format!("{source}: link width, most link speed ({} GT/s while it rests)", now.speed))
        }
        _ => (now.speed, format!("{source}: link speed and width")),
    };
    let rate = Trained { speed, ..now }.rate();
    for link in between(t, id, parent) {
        let link = t.link_mut(link);
        link.nominal = Some(rate);
        link.lanes = now.width;
        link.source.clone_from(&how);
    }
}

fn between(t: &Topology, a: DeviceId, b: DeviceId) -> Vec<LinkId> {
    let pcie = t.links().filter(|(.., l)| l.kind == LinkKind::Pcie);
    pcie.filter(|(_, x, y, _)| (*x, *y) == (a, b) || (*x, *y) == (b, a)).map(|(id, ..)| id).collect()
}

/// A bridge at 2.5 GT/s x1 above devices that train faster is made up by a hypervisor: nothing passes as slowly. It is
/// taken to be as fast as the fastest device below.
fn disbelieve(t: &mut Topology) {
    let least = figures::pcie(2.5, 1);
    let claims = |id: DeviceId| t.links_from(id).any(|(_, _, l)| l.kind == LinkKind::Pcie && l.nominal == Some(least));
    let suspects: Vec<DeviceId> = t.of_kind(DeviceKind::PciSwitch).into_iter().filter(|s| claims(*s)).collect();
    for bridge in suspects {
        let Some(parent) = t.above(bridge) else { continue };
        let pcie = t.links_from(bridge).filter(|(.., l)| l.kind == LinkKind::Pcie);
        let (up, below): (Vec<_>, Vec<_>) = pcie.partition(|(_, to, _)| *to == parent);
        let fastest = below.iter().filter_map(|(.., l)| l.nominal).fold(0.0, f64::max);
        if fastest <= least || !up.iter().any(|(.., l)| l.nominal == Some(least)) {
            continue;
        }
        t.device_mut(bridge).extra.insert("pcie.claimed".into(), "2.5 GT/s x1".into());
        for link in between(t, bridge, parent) {
            let link = t.link_mut(link);
            link.nominal = Some(fastest);
            link.source = "assumed: as fast as what is below; the 2.5 GT/s x1 it claims is a hypervisor's".into();
        }
        let device = t.device(bridge);
        let text = format!(
            "{} ({}) claims 2.5 GT/s x1 above devices that train faster: a hypervisor made it up, and it is not \
             believed; give the real tree with TOPOCOLL_TOPOLOGY if you know it",
            device.id,
            device.bus.as_deref().unwrap_or("no bus id")
        );
        t.notice(text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_are_followed_to_their_end() {
        let mut config = vec![0u8; 4096];
        assert!(!redirects(&config) && !redirects(&[]));
        // An error report, then ACS.
        config[0x100..0x104].copy_from_slice(&(0x0001u32 | 1 << 16 | 0x148 << 20).to_le_bytes());
        config[0x148..0x14c].copy_from_slice(&(0x000du32 | 1 << 16).to_le_bytes());
        assert!(!redirects(&config));
        config[0x14e] = 0x1d;
        assert!(redirects(&config) && !redirects(&config[..0x14a]));
        // A list that leads to itself.
        config[0x148..0x14c].copy_from_slice(&(0x0001u32 | 0x100 << 20).to_le_bytes());
        assert!(!redirects(&config));
    }
}
