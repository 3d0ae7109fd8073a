//! Ports of network cards: what the kernel's RDMA and network classes say of rate, state and kind.

use std::collections::BTreeMap;

use crate::Result;
use crate::topology::detect::sysfs::Sysfs;
use crate::topology::device::NO_RAIL;
use crate::topology::{Device, DeviceId, DeviceKind, Link, LinkKind, Topology};

/// A port of an RDMA device.
struct Rdma {
    name: String,
    port: u32,
    kind: LinkKind,
    rate: Option<f64>,
    active: bool,
    state: String,
}

/// A network interface.
struct Net {
    name: String,
    /// Bytes per second.
    rate: Option<f64>,
    up: bool,
    bond: Option<String>,
}

/// Everything that hangs on one PCI function.
#[derive(Default)]
struct Card {
    rdma: Vec<Rdma>,
    net: Vec<Net>,
    /// The PCI function whose port this one shares, and why.
    shares: Option<(String, String)>,
}

/// Names, rates and states of the NICs that hwloc saw, and those that it did not see.
pub(super) fn nics(t: &mut Topology, sysfs: &Sysfs) -> Result<()> {
    let (mut cards, software) = cards(sysfs);
    bonds(t, &mut cards);
    for bus in cards.keys() {
        if !t.devices().any(|(_, d)| d.bus.as_ref() == Some(bus)) {
            let index = t.of_kind(DeviceKind::Nic).len();
            let device = Device { bus: Some(bus.clone()), ..new(index, "sysfs") };
            t.attach(device, sysfs.near(bus))?;
        }
    }
    let any_rdma = cards.values().flat_map(|c| &c.rdma).any(|p| p.active);
    for id in t.of_kind(DeviceKind::Nic) {
        let Some(bus) = t.device(id).bus.clone() else { continue };
        let card = cards.remove(&bus).unwrap_or_default();
        // A virtual function whose physical one is not here (a virtual machine) is a NIC like any.
        let owner = card.shares.as_ref().filter(|(owner, _)| t.devices().any(|(_, d)| d.bus.as_ref() == Some(owner)));
        if let Some((_, why)) = owner {
            no_rail(t, id, why);
        }
        let shared = owner.is_some();
        if !card.net.is_empty() {
            let names: Vec<&str> = card.net.iter().map(|n| n.name.as_str()).collect();
            t.device_mut(id).extra.insert("net".into(), names.join(" "));
        }
        if card.rdma.is_empty() {
            plain(t, id, &card.net, any_rdma, shared)?;
            continue;
        }
        let parent = t.above(id);
        let inward = t.links_from(id).find(|(_, to, _)| Some(*to) == parent).map(|(.., l)| l.clone());
        for (i, port) in card.rdma.iter().enumerate() {
            let at = match (i, parent, &inward) {
                (0, ..) => id,
                // Further ports of one function have devices of their own and share its way into the host.
                (_, Some(parent), Some(link)) => {
                    let index = t.of_kind(DeviceKind::Nic).len();
                    let (numa, extra) = (t.device(id).numa, t.device(id).extra.clone());
                    let device = Device { bus: Some(bus.clone()), numa, extra, ..new(index, "sysfs") };
                    let next = t.add_device(device)?;
                    t.connect(next, parent, link.clone());
                    next
                }
                _ => continue,
            };
            let device = t.device_mut(at);
            device.name = if card.rdma.len() > 1 { format!("{}:{}", port.name, port.port) } else { port.name.clone() };
            device.extra.insert("port".into(), port.port.to_string());
            if shared {
                continue;
            }
            if port.active {
                outward(
                    t,
                    at,
                    port.kind,
                    port.rate,
                    &format!("sysfs: infiniband/{}/ports/{}/rate", port.name, port.port),
                )?;
            } else {
                let why = format!("port {} of {} is {}", port.port, port.name, port.state);
                no_rail(t, at, &why);
                t.device_mut(at).extra.insert("state".into(), port.state.clone());
                t.notice(format!("{why}; it is no rail until it is up"));
            }
        }
    }
    for (name, why) in software {
        let index = t.of_kind(DeviceKind::Nic).len();
        let id = t.add_device(Device { name: name.clone(), ..new(index, "sysfs") })?;
        no_rail(t, id, &why);
        t.notice(format!("{name} is {why}; it is no rail"));
    }
    Ok(())
}

fn new(index: usize, source: &str) -> Device {
    Device::new(format!("nic{index}"), DeviceKind::Nic, index, source)
}

fn no_rail(t: &mut Topology, id: DeviceId, why: &str) {
    t.device_mut(id).extra.insert(NO_RAIL.into(), why.into());
}

/// The port's way to a network of its own: nothing here tells which ports meet.
fn outward(t: &mut Topology, nic: DeviceId, kind: LinkKind, rate: Option<f64>, source: &str) -> Result<()> {
    let (id, name) = (t.device(nic).id.clone(), t.device(nic).name.clone());
    let mut link = Link::new(kind, source);
    link.nominal = rate;
    if rate.is_none() {
        link.source = "assumed: the driver does not say how fast it is".into();
        t.notice(format!("the rate of {id} ({name}) is not known and is assumed"));
    }
    let index = t.of_kind(DeviceKind::NetSwitch).len();
    let source = "assumed: what the port is cabled to is not to be seen from here";
    let switch = t.add_device(Device::new(format!("rail{index}"), DeviceKind::NetSwitch, index, source))?;
    t.connect(nic, switch, link);
    Ok(())
}

/// A card without RDMA.
fn plain(t: &mut Topology, id: DeviceId, net: &[Net], any_rdma: bool, shared: bool) -> Result<()> {
    let Some(best) = net.iter().find(|n| n.up).or(net.first()) else {
        no_rail(t, id, "no network interface here: no driver, or another namespace has it");
        let text = format!("{} has no network interface here; it is no rail", describe(t, id));
        t.notice(text);
        return Ok(());
    };
    t.device_mut(id).name.clone_from(&best.name);
    if shared {
        return Ok(());
    }
    match (best.up, any_rdma) {
        (false, _) => {
            no_rail(t, id, "down");
            t.device_mut(id).extra.insert("state".into(), "down".into());
        }
        (true, true) => no_rail(t, id, "plain Ethernet beside RDMA"),
        (true, false) => {
            outward(t, id, LinkKind::Ethernet, best.rate, &format!("sysfs: net/{}/speed", best.name))?;
        }
    }
    if !best.up && !any_rdma {
        t.notice(format!("{} is down; it is no rail until it is up", best.name));
    }
    Ok(())
}

fn describe(t: &Topology, id: DeviceId) -> String {
    let d = t.device(id);
    format!("{} ({})", d.id, d.bus.as_deref().unwrap_or(&d.name))
}

/// What hangs on each PCI function, and RDMA devices that are software, with what they are.
fn cards(sysfs: &Sysfs) -> (BTreeMap<String, Card>, Vec<(String, String)>) {
    let mut cards: BTreeMap<String, Card> = BTreeMap::new();
    let mut software = Vec::new();
    for name in sysfs.list("/sys/class/infiniband") {
        let class = format!("class/infiniband/{name}");
        if let Some(what) = is_software(sysfs, &name) {
            software.push((name, what));
            continue;
        }
        let Some(bus) = sysfs.bus_of(&class) else {
            software.push((name, "an RDMA device without a PCI address".into()));
            continue;
        };
        let driver = sysfs.link(&format!("/sys/{class}/device/driver"));
        let efa = driver.is_some_and(|d| d.ends_with("efa")) || name.starts_with("efa_");
        let ports = sysfs.list(&format!("/sys/{class}/ports"));
        for port in ports.iter().filter_map(|p| p.parse().ok()) {
            let at = |what: &str| sysfs.text(&format!("/sys/{class}/ports/{port}/{what}"));
            let kind = match at("link_layer").as_deref() {
                _ if efa => LinkKind::Efa,
                Some("InfiniBand") => LinkKind::InfiniBand,
                Some("Unspecified") => LinkKind::Efa,
                _ => LinkKind::RoCe,
            };
            // `4: ACTIVE`. A file that is not there says nothing against the port.
            let state = at("state").unwrap_or_else(|| "4: ACTIVE".into());
            let state = state.rsplit(": ").next().unwrap_or(&state).to_string();
            let rate = at("rate").as_deref().and_then(rdma_rate);
            let active = state == "ACTIVE";
            cards.entry(bus.clone()).or_default().rdma.push(Rdma {
                name: name.clone(),
                port,
                kind,
                rate,
                active,
                state,
            });
        }
    }
    for name in sysfs.list("/sys/class/net") {
        let class = format!("class/net/{name}");
        let Some(bus) = sysfs.bus_of(&class) else { continue };
        let at = |what: &str| sysfs.text(&format!("/sys/{class}/{what}"));
        // Mbit/s; -1 where the driver does not know.
        let speed = at("speed").and_then(|s| s.parse::<f64>().ok()).filter(|s| *s > 0.0 && *s < 1e9);
        let bond = sysfs.link(&format!("/sys/{class}/master"));
        let bond = bond.and_then(|m| Some(m.file_name()?.to_str()?.to_string()));
        let bond = bond.filter(|b| sysfs.exists(&format!("/sys/class/net/{b}/bonding")));
        let up = at("operstate").is_none_or(|s| s != "down") && at("carrier").is_none_or(|c| c != "0");
        cards.entry(bus).or_default().net.push(Net { name, rate: speed.map(|s| s * 125e3), up, bond });
    }
    for (bus, card) in &mut cards {
        let physical = sysfs.link(&format!("/sys/bus/pci/devices/{bus}/physfn"));
        let name = |p: std::path::PathBuf| super::sysfs::bus(p.file_name()?.to_str()?);
        let why = |pf: String| (pf.clone(), format!("a virtual function of {pf}, whose port it shares"));
        card.shares = physical.and_then(name).map(why);
    }
    (cards, software)
}

/// Ports joined in a bond: an RDMA device over the bond stands for all of them, with their rates together.
fn bonds(t: &mut Topology, cards: &mut BTreeMap<String, Card>) {
    let mut members: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (bus, card) in cards.iter() {
        for bond in card.net.iter().filter_map(|n| n.bond.clone()) {
            members.entry(bond).or_default().push(bus.clone());
        }
    }
    for (bond, buses) in members {
        let rate: f64 = buses.iter().flat_map(|b| &cards[b].net).filter_map(|n| n.rate).sum();
        let names: Vec<String> = buses.iter().flat_map(|b| &cards[b].net).map(|n| n.name.clone()).collect();
        let lead = buses.iter().find(|b| cards[*b].rdma.iter().any(|r| r.name.contains("bond"))).cloned();
        let Some(lead) = lead.filter(|_| buses.len() > 1 && rate > 0.0) else { continue };
        for port in cards.entry(lead.clone()).or_default().rdma.iter_mut().filter(|r| r.name.contains("bond")) {
            port.rate = Some(rate);
        }
        t.notice(format!("{} are bonded as {bond} and are one rail of {:.1} GB/s", names.join(" and "), rate / 1e9));
        for bus in buses.iter().filter(|b| **b != lead) {
            let nic = t.devices().find(|(_, d)| d.bus.as_ref() == Some(bus)).map(|(id, _)| id);
            if let (Some(nic), Some(card)) = (nic, cards.get_mut(bus)) {
                card.shares = Some((lead.clone(), format!("in {bond} with {lead}, which stands for both")));
                t.device_mut(nic).extra.insert("bond".into(), bond.clone());
            }
        }
    }
}

/// RDMA in software over a network interface: rxe says which one, siw is named so, others are virtual devices.
fn is_software(sysfs: &Sysfs, name: &str) -> Option<String> {
    let over = sysfs.text(&format!("/sys/class/infiniband/{name}/parent"));
    let over = over.map(|p| format!(" over {p}")).unwrap_or_default();
    let path = sysfs.link(&format!("/sys/class/infiniband/{name}"));
    let is_virtual = path.is_some_and(|p| p.to_string_lossy().contains("/virtual/"));
    let named = ["rxe", "siw"].iter().any(|w| name.starts_with(w));
    (named || is_virtual || !over.is_empty()).then(|| format!("RDMA in software{over}"))
}

/// Bytes per second of `200 Gb/sec (4X HDR)`.
fn rdma_rate(text: &str) -> Option<f64> {
    let gbit: f64 = text.split_once(" Gb/sec")?.0.trim().parse().ok()?;
    (gbit.is_finite() && gbit > 0.0 && gbit < 1e6).then_some(gbit * 125e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_read_as_the_kernel_writes_them() {
        assert_eq!(rdma_rate("200 Gb/sec (4X HDR)"), Some(25e9));
        assert_eq!(rdma_rate("2.5 Gb/sec (1X SDR)"), Some(312.5e6));
        for none in ["", "unknown", "0 Gb/sec", "NaN Gb/sec (4X)", "-1 Gb/sec"] {
            assert_eq!(rdma_rate(none), None, "{none}");
        }
    }
}
