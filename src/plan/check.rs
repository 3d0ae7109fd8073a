//! What hurts on a machine: links that trained down, NICs on the wrong side, ports that are down, peers that may not
//! reach each other; what each costs, and what people do about it.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::plan::bound::bound;
use crate::plan::{Collective, Placement};
use crate::topology::{DeviceId, DeviceKind, Link, LinkId, LinkKind, PathClass, Topology};

/// Something that makes collectives slower than they could be.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Finding {
    /// The devices at fault.
    pub devices: Vec<String>,
    /// What is wrong.
    pub what: String,
    /// What is measured by `now` and `could`.
    pub measure: String,
    /// Bytes per second as it is.
    pub now: f64,
    /// Bytes per second if it were mended.
    pub could: f64,
    /// What people do about it.
    pub remedy: String,
}

/// Bytes of the all-reduce whose bound is taken: large enough that bandwidth alone counts.
const MESSAGE: u64 = 1 << 40;

/// Everything found, the costliest (by the share that is lost) first. Hosts that are alike are looked at once.
pub fn check(t: &Topology) -> Vec<Finding> {
    let t = t.distinct();
    let check = Check { t, rails: t.rails(), parents: t.parents() };
    let mut found = Vec::new();
    check.trained(&mut found);
    check.nvlinks(&mut found);
    check.far_nics(&mut found);
    check.unequal_nics(&mut found);
    check.down_ports(&mut found);
    check.denied(&mut found);
    check.redirected(&mut found);
    check.made_up(&mut found);
    found.sort_by(|a, b| (a.now / a.could).total_cmp(&(b.now / b.could)));
    found
}

struct Check<'t> {
    t: &'t Topology,
    rails: Vec<DeviceId>,
    /// What each device hangs on by PCIe, by index.
    parents: Vec<Option<DeviceId>>,
}

impl Check<'_> {
    fn id(&self, d: DeviceId) -> String {
        self.t.device(d).id.clone()
    }

    fn extra<T: std::str::FromStr>(&self, d: DeviceId, key: &str) -> Option<T> {
        self.t.device(d).extra.get(key)?.parse().ok()
    }

    /// Devices in groups of one host each.
    fn by_host(&self, devices: &[DeviceId]) -> Vec<Vec<DeviceId>> {
        let mut hosts: BTreeMap<Option<usize>, Vec<DeviceId>> = BTreeMap::new();
        devices.iter().for_each(|d| hosts.entry(self.t.device(*d).host).or_default().push(*d));
        hosts.into_values().collect()
    }

    /// The link from a device to what it hangs on by PCIe.
    fn up(&self, d: DeviceId) -> Option<(LinkId, &Link)> {
        let parent = self.parents[d.0.index()]?;
        let mut links = self.t.links_from(d);
        links.find(|(_, to, l)| *to == parent && l.kind == LinkKind::Pcie).map(|(id, _, l)| (id, l))
    }

    /// The bound of an all-reduce over all GPUs, as algbw; none where there are fewer than two.
    fn all_reduce(t: &Topology) -> Option<f64> {
        let gpus = Placement::gpus(t).ok().filter(|p| p.ranks() > 1)?;
        let least = bound(t, &gpus, Collective::AllReduce, MESSAGE).bandwidth;
        (least > 0.0).then(|| MESSAGE as f64 / least)
    }

    /// The rates that a finding changes: the bound of an all-reduce if `mend` changes it, else what is given.
    fn cost(&self, given: (&str, f64, f64), mend: impl Fn(&mut Topology)) -> (String, f64, f64) {
        let mut better = self.t.clone();
        mend(&mut better);
        match (Self::all_reduce(self.t), Self::all_reduce(&better)) {
            (Some(now), Some(could)) if could > now * 1.001 => {
                ("the bound of an all-reduce over all GPUs".into(), now, could)
            }
            _ => (given.0.into(), given.1, given.2),
        }
    }

    fn port(&self, nic: DeviceId) -> f64 {
        let ports = self.t.links_from(nic).map(|(.., l)| l).filter(|l| l.kind.is_network());
        ports.map(Link::bound_bandwidth).fold(0.0, f64::max)
    }

    fn trained(&self, found: &mut Vec<Finding>) {
        for (d, device) in self.t.devices() {
            let most = self.extra::<f64>(d, "pcie.max-speed").zip(self.extra::<u32>(d, "pcie.max-width"));
            let (Some((speed, width)), Some((id, link))) = (most, self.up(d)) else { continue };
            if device.extra.contains_key("pcie.claimed")
                || !(1..=64).contains(&width)
                || !(0.1..1000.0).contains(&speed)
            {
                continue;
            }
            let (now, could) = (link.bound_bandwidth(), crate::topology::pcie_rate(speed, width));
            if now >= could * 0.99 {
                continue;
            }
            let name = self.id(d);
            let given = (format!("what {name} reaches over PCIe"), now, could);
            let (measure, now, could) = self.cost((&given.0, now, could), |t| {
                t.link_mut(id).nominal = Some(could);
            });
            found.push(Finding {
                devices: vec![name.clone()],
                what: format!(
                    "{name} trained to PCIe x{} at {:.1} GB/s; it can do x{width} at {:.1} GB/s",
                    link.lanes,
                    given.1 / 1e9,
                    given.2 / 1e9
                ),
                measure,
                now,
                could,
                remedy:
                    "reseat the card and its riser, look for link errors (`lspci -vv`, LnkSta), check the slot's width \
                         in the board's manual and bifurcation in the BIOS"
                        .into(),
            });
        }
    }

    fn nvlinks(&self, found: &mut Vec<Finding>) {
        let fast = |l: &Link| matches!(l.kind, LinkKind::NvLink | LinkKind::Xgmi);
        let lanes = |g: DeviceId| self.t.links_from(g).map(|(.., l)| l).filter(|l| fast(l)).map(|l| l.lanes).sum();
        for gpus in self.by_host(&self.t.of_kind(DeviceKind::Gpu)) {
            let counts: Vec<(DeviceId, u32)> = gpus.into_iter().map(|g| (g, lanes(g))).collect();
            let most = counts.iter().map(|(_, n)| *n).max().unwrap_or(0);
            for (gpu, up) in counts {
                // A GPU that has links and none up is a card without a bridge, not a fault.
                let has = self.extra::<u32>(gpu, "nvlinks").filter(|_| up > 0).unwrap_or(0).max(most);
                if up >= has || up == 0 {
                    continue;
                }
                let name = self.id(gpu);
                let factor = f64::from(has) / f64::from(up);
                let own: Vec<LinkId> = self
                    .t
                    .links()
                    .filter(|(_, a, b, l)| {
                        (*a == gpu || *b == gpu) && matches!(l.kind, LinkKind::NvLink | LinkKind::Xgmi)
                    })
                    .map(|(id, ..)| id)
                    .collect();
                let out = |t: &Topology| own.iter().map(|l| t.link(*l)).map(Link::bound_bandwidth).sum::<f64>() / 2.0;
                let given = (format!("what {name} reaches over NVLink"), out(self.t), out(self.t) * factor);
                let (measure, now, could) = self.cost((&given.0, given.1, given.2), |t| {
                    for id in &own {
                        let link = t.link_mut(*id);
                        link.nominal = Some(link.bound_bandwidth() * factor);
                    }
                });
                found.push(Finding {
                    devices: vec![name.clone()],
                    what: format!("{name} has {up} of {has} NVLinks up; the slowest GPU sets the pace of all"),
                    measure,
                    now,
                    could,
                    remedy:
                        "`nvidia-smi nvlink -s` and `-e` for states and errors; reset the GPU or the host; if it stays \
                             down the baseboard or the GPU is to be replaced; until then leave the GPU out"
                            .into(),
                });
            }
        }
    }

    fn far_nics(&self, found: &mut Vec<Finding>) {
        for gpu in self.t.of_kind(DeviceKind::Gpu).into_iter().filter(|_| !self.rails.is_empty()) {
            let host = self.t.device(gpu).host;
            let plain = self.t.routes_by_pcie(gpu);
            let near = self.rails.iter().filter(|n| self.t.device(**n).host == host);
            let routes = near.filter_map(|n| Some((*n, plain[n.0.index()].as_ref()?)));
            let best = routes.min_by(|a, b| a.1.class.cmp(&b.1.class).then(b.1.bandwidth.total_cmp(&a.1.bandwidth)));
            let Some((nic, route)) = best.filter(|(_, r)| r.class == PathClass::Sys) else { continue };
            let (name, nic_name) = (self.id(gpu), self.id(nic));
            let avoided = self.t.route(gpu, nic).is_some_and(|r| r.class == PathClass::Pxn);
            let way = if avoided { ", which NVLink to a GPU near a NIC avoids (PXN)" } else { "" };
            let port = self.port(nic);
            found.push(Finding {
                devices: vec![name.clone(), nic_name.clone()],
                what: format!("the nearest NIC of {name} is {nic_name}, on another socket{way}"),
                measure: format!("what {name} reaches of {nic_name} over PCIe"),
                now: route.bandwidth.min(port),
                could: port.max(route.bandwidth.min(port)),
                remedy:
                    "put a NIC on the GPU's socket, or leave that socket's GPUs out of jobs over several hosts; with \
                         NVLink keep PXN on"
                        .into(),
            });
        }
    }

    fn unequal_nics(&self, found: &mut Vec<Finding>) {
        for here in self.by_host(&self.rails) {
            let host = here.first().and_then(|n| self.t.device(*n).host).unwrap_or(0);
            let rates: Vec<f64> = here.iter().map(|n| self.port(*n)).collect();
            let (least, most) = rates.iter().fold((f64::INFINITY, 0.0f64), |(a, b), r| (a.min(*r), b.max(*r)));
            if here.len() < 2 || least >= most * 0.99 || least <= 0.0 {
                continue;
            }
            let slow: Vec<String> =
                here.iter().zip(&rates).filter(|(_, r)| **r < most * 0.99).map(|(n, _)| self.id(*n)).collect();
            let equal = least * rates.len() as f64;
            let without: f64 = rates.iter().filter(|r| **r >= most * 0.99).sum();
            let all: f64 = rates.iter().sum();
            found.push(Finding {
                what: format!(
                    "the NICs are unequal: {} at {:.1} GB/s, the others at {:.1} GB/s; equal shares wait for the slowest",
                    slow.join(", "),
                    least / 1e9,
                    most / 1e9
                ),
                devices: slow,
                measure: format!("what host {host} sends with equal shares, against shares in proportion"),
                now: equal,
                could: all.max(without),
                remedy: "give each NIC a share in proportion to its rate, or leave the slow ones (often for storage or \
                         management) out of the job"
                    .into(),
            });
        }
    }

    fn down_ports(&self, found: &mut Vec<Finding>) {
        let typical = self.rails.iter().map(|n| self.port(*n)).fold(0.0, f64::max);
        let all: f64 = self.rails.iter().map(|n| self.port(*n)).sum();
        for (_, d) in self.t.devices() {
            let Some(state) = d.extra.get("state").filter(|_| typical > 0.0) else { continue };
            found.push(Finding {
                devices: vec![d.id.clone()],
                what: format!("the port of {} ({}) is {state}", d.id, d.name),
                measure: "what the host sends over all rails, if that port is like the others".into(),
                now: all,
                could: all + typical,
                remedy:
                    "check the cable, the transceiver and the switch's port (`ibstat`, `ethtool`); if it is not meant \
                         to be used, nothing"
                        .into(),
            });
        }
    }

    fn denied(&self, found: &mut Vec<Finding>) {
        let by_bus = |bus: &str| self.t.devices().find(|(_, d)| d.bus.as_deref() == Some(bus)).map(|(id, _)| id);
        for gpu in self.t.of_kind(DeviceKind::Gpu) {
            let Some(buses) = self.t.device(gpu).extra.get("p2p.denied") else { continue };
            let routes = self.t.routes_by_pcie(gpu);
            for peer in buses.split(' ').filter_map(by_bus).filter(|p| *p > gpu) {
                let Some(route) = &routes[peer.0.index()] else { continue };
                // Into host memory and out of it again: two passes of the memory for one of the wire.
                let memory =
                    self.t.links().filter(|(.., l)| l.kind == LinkKind::Memory).map(|(.., l)| l.bound_bandwidth());
                let staged = memory.fold(f64::INFINITY, f64::min) / 2.0;
                let (a, b) = (self.id(gpu), self.id(peer));
                found.push(Finding {
                    what: format!("{a} and {b} may not reach each other directly; every byte goes through host memory"),
                    measure: format!("what {a} sends {b}, of which the CPUs' memory moves each byte twice"),
                    devices: vec![a, b],
                    now: (route.bandwidth / 2.0).min(staged),
                    could: route.bandwidth,
                    remedy:
                        "consumer GPUs never can; else turn ACS and the IOMMU's translation off (`iommu=pt`), use one \
                             socket, or, in a virtual machine, ask for GPUs in one P2P group"
                            .into(),
                });
            }
        }
    }

    /// Access control services that send peers' traffic up to the CPU.
    fn redirected(&self, found: &mut Vec<Finding>) {
        let mut switches: BTreeMap<DeviceId, Vec<(DeviceId, String)>> = BTreeMap::new();
        for (id, d) in self.t.devices() {
            if let (Some(bridge), Some(switch)) = (d.extra.get("acs"), self.parents[id.0.index()])
                && self.t.device(switch).kind == DeviceKind::PciSwitch
            {
                switches.entry(switch).or_default().push((id, bridge.clone()));
            }
        }
        for (switch, below) in switches.into_iter().filter(|(_, b)| b.len() > 1) {
            let (Some((_, uplink)), Some((_, own))) = (self.up(switch), self.up(below[0].0)) else { continue };
            let names: Vec<String> = below.iter().map(|(d, _)| self.id(*d)).collect();
            let share = uplink.bound_bandwidth() / below.len() as f64;
            found.push(Finding {
                what: format!(
                    "ACS at {} sends what {} tell each other up to the CPU and down again instead of across {}",
                    below[0].1,
                    names.join(", "),
                    self.id(switch)
                ),
                measure: format!("what each of them reaches of its neighbours when all {} talk", names.len()),
                devices: names,
                now: share.min(own.bound_bandwidth()),
                could: own.bound_bandwidth(),
                remedy: "on bare metal turn ACS off in the BIOS, or with `setpci -s BRIDGE ECAP_ACS+6.w=0` after each boot; \
                         under a hypervisor it has to stay on, with ATS enabled on the NIC"
                    .into(),
            });
        }
    }

    /// Bridges whose claim was not believed.
    fn made_up(&self, found: &mut Vec<Finding>) {
        for (id, d) in self.t.devices().filter(|(_, d)| d.extra.contains_key("pcie.claimed")) {
            let Some((_, link)) = self.up(id) else { continue };
            found.push(Finding {
                devices: vec![d.id.clone()],
                what: format!("{} claims PCIe 2.5 GT/s x1 above faster devices: a hypervisor made it up", d.id),
                measure: "what programs plan with that believe it".into(),
                now: crate::topology::pcie_rate(2.5, 1),
                could: link.bound_bandwidth(),
                remedy: "give NCCL what was found here: `topo-bench detect --format nccl-xml > topo.xml`, then \
                         NCCL_TOPO_FILE=topo.xml; the cloud's own file is better still"
                    .into(),
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn machine() -> Topology {
        Topology::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("topologies/dgx-h100.toml")).unwrap()
    }

    fn link(t: &Topology, from: &str, kind: LinkKind) -> LinkId {
        let from = t.find(from).unwrap();
        t.links().find(|(_, a, _, l)| *a == from && l.kind == kind).unwrap().0
    }

    #[test]
    fn a_healthy_machine_has_no_findings() {
        assert_eq!(check(&machine()), []);
    }

    #[test]
    fn each_fault_is_found_with_its_cost() {
        let one = |t: &Topology| {
            let found = check(t);
            assert_eq!(found.len(), 1, "{found:#?}");
            assert!(found[0].now < found[0].could && !found[0].remedy.is_empty());
            found.into_iter().next().unwrap()
        };
        // An NVLink down on one GPU: 17/18 of its NVLink and its PCIe bound the all-reduce of eight.
        let mut t = machine();
        let gpu = t.find("gpu3").unwrap();
        let both: Vec<LinkId> = t
            .links()
            .filter(|(_, a, b, l)| l.kind == LinkKind::NvLink && (*a == gpu || *b == gpu))
            .map(|(id, ..)| id)
            .collect();
        for id in both {
            let link = t.link_mut(id);
            (link.lanes, link.nominal) = (17, Some(425e9));
        }
        let f = one(&t);
        assert!(f.what.contains("gpu3 has 17 of 18 NVLinks up") && f.measure.contains("all-reduce"), "{f:?}");
        let algbw = |out: f64| out * 8.0 / 14.0;
        assert!(
            (f.now / algbw(425e9 + 63e9) - 1.0).abs() < 1e-9 && (f.could / algbw(450e9 + 63e9) - 1.0).abs() < 1e-9,
            "{f:?}"
        );

        let mut t = machine();
        let nic = t.find("nic2").unwrap();
        t.device_mut(nic).extra.insert("pcie.max-speed".into(), "32".into());
        t.device_mut(nic).extra.insert("pcie.max-width".into(), "16".into());
        let narrow = link(&t, "nic2", LinkKind::Pcie);
        (t.link_mut(narrow).lanes, t.link_mut(narrow).nominal) = (8, Some(31.5e9));
        let f = one(&t);
        assert!(
            f.what.contains("nic2 trained to PCIe x8") && (f.now, f.could.round()) == (31.5e9, 63_015_384_615.0),
            "{f:?}"
        );

        let mut t = machine();
        let slow = link(&t, "nic7", LinkKind::InfiniBand);
        t.link_mut(slow).nominal = Some(25e9);
        let f = one(&t);
        assert!(
            f.what.contains("nic7 at 25.0 GB/s, the others at 50.0") && (f.now, f.could) == (200e9, 375e9),
            "{f:?}"
        );

        let mut t = machine();
        let nic = t.find("nic5").unwrap();
        t.device_mut(nic).extra.insert("state".into(), "DOWN".into());
        let t = Topology::from_toml(
            &t.to_toml().replacen("from = \"nic5\"\nto = \"rail5\"", "from = \"nic4\"\nto = \"rail5\"", 1),
            "f",
        )
        .unwrap();
        assert!(check(&t).iter().any(|f| f.what.contains("the port of nic5") && f.what.ends_with("is DOWN")));

        let mut t = machine();
        let gpus = [t.find("gpu0").unwrap(), t.find("gpu5").unwrap()];
        t.device_mut(gpus[0]).bus = Some("0000:01:00.0".into());
        t.device_mut(gpus[1]).bus = Some("0000:02:00.0".into());
        t.device_mut(gpus[0]).extra.insert("p2p.denied".into(), "0000:02:00.0".into());
        assert!(one(&t).what.contains("gpu0 and gpu5 may not reach each other"));
    }

    #[test]
    fn nics_of_another_socket_and_redirected_peers_are_found() {
        let text = "name = 'm'\n[[device]]\nkind = 'cpu'\nid = 'cpu[0-1]'\npackage = [0, 1]\n[[device]]\nkind = 'pci-switch'\nid = 'plx0'\n\
            [[device]]\nkind = 'gpu'\nid = 'gpu[0-1]'\n[[device]]\nkind = 'gpu'\nid = 'gpu2'\n[[device]]\nkind = 'nic'\nid = 'nic0'\n\
            [[device]]\nkind = 'net-switch'\nid = 'net'\n\
            [[link]]\nkind = 'pcie'\npairs = ['gpu0 plx0', 'gpu1 plx0', 'plx0 cpu0', 'nic0 cpu0', 'gpu2 cpu1']\nlanes = 16\nnominal = '32 GB/s'\n\
            [[link]]\nkind = 'cpu-interconnect'\nfrom = 'cpu0'\nto = 'cpu1'\nnominal = '20 GB/s'\n\
            [[link]]\nkind = 'infiniband'\nfrom = 'nic0'\nto = 'net'\nnominal = '25 GB/s'\n";
        let mut t = Topology::from_toml(text, "f").unwrap();
        let found = check(&t);
        assert_eq!(found.len(), 1, "{found:#?}");
        assert!(found[0].what.contains("the nearest NIC of gpu2 is nic0, on another socket"));
        assert_eq!((found[0].now, found[0].could), (20e9, 25e9));
        for gpu in ["gpu0", "gpu1"] {
            let id = t.find(gpu).unwrap();
            t.device_mut(id).extra.insert("acs".into(), "0000:02:00.0".into());
        }
        let found = check(&t);
        assert_eq!(found.len(), 2, "{found:#?}");
        assert!(found[0].what.contains("ACS at 0000:02:00.0 sends what gpu0, gpu1 tell each other up"));
        assert_eq!((found[0].now, found[0].could), (16e9, 32e9));
    }
}
