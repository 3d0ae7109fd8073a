//! Several hosts: one repeated over a fabric, or placed at the ports of a fabric that was discovered.
//!
//! A topology of hosts that are alike keeps the one host and how it was repeated, so that files and people see it once.

use std::collections::{BTreeMap, HashMap};

use petgraph::graph::{EdgeIndex, NodeIndex};

use crate::topology::{Device, DeviceId, DeviceKind, Fabric, Link, LinkId, LinkKind, Topology};
use crate::{Error, Result};

/// Devices that a repeated host may come to.
const MAX_DEVICES: usize = 2_000_000;

/// Where the devices and links of hosts are that are alike and equally far from each other: what is known of the first
/// two is known of any.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Alike {
    first_device: usize,
    devices: usize,
    first_link: usize,
    links: usize,
}

impl Alike {
    /// Two devices of the first two hosts that are to each other as these are, and the hosts of these.
    pub fn model(&self, a: DeviceId, b: DeviceId) -> Option<((DeviceId, DeviceId), [usize; 2])> {
        let split = |d: DeviceId| {
            let at = d.0.index().checked_sub(self.first_device)?;
            Some((at / self.devices, at % self.devices))
        };
        let ((x, i), (y, j)) = (split(a)?, split(b)?);
        let other = usize::from(x != y);
        let device = |host: usize, i: usize| DeviceId(NodeIndex::new(self.first_device + host * self.devices + i));
        Some(((device(0, i), device(other, j)), [x, y]))
    }

    /// The link that is between `hosts` what this one is between the first two.
    pub fn link(&self, link: LinkId, hosts: [usize; 2]) -> LinkId {
        match link.0.index().checked_sub(self.first_link) {
            Some(at) => {
                let host = hosts[(at / self.links).min(1)];
                LinkId(EdgeIndex::new(self.first_link + host * self.links + at % self.links))
            }
            None => link,
        }
    }
}

/// How a topology of hosts that are alike was made.
#[derive(Debug, Clone)]
pub(super) struct Recipe {
    /// The host, with its own switches of the network if it has any.
    pub host: Topology,
    /// How often.
    pub hosts: usize,
    /// What joins them; none where the host's own switches do, or a switch for each rail.
    pub fabric: Option<Fabric>,
}

impl Topology {
    /// This host `hosts` times, ids prefixed as in `host1/gpu0`. Switches of the network are shared by all; where the
    /// machine has none, NIC `i` of every host is at a switch `rail{i}` of the NIC's width.
    ///
    /// # Errors
    /// [`Error::Topology`] where the machine has no NIC, or is of several hosts already and not of `hosts`.
    pub fn cluster(&self, hosts: usize) -> Result<Self> {
        if hosts == self.hosts() { Ok(self.clone()) } else { self.repeat(hosts, None) }
    }

    /// This host `hosts` times, joined by `fabric` in place of the machine's own switches. A NIC's port stays as wide as
    /// it is.
    ///
    /// # Errors
    /// [`Error::Topology`] where the machine has no NIC, is of several hosts, or does not fit the fabric.
    pub fn cluster_over(&self, hosts: usize, fabric: Fabric) -> Result<Self> {
        self.repeat(hosts, Some(fabric))
    }

    /// Whether hosts are alike, and any two joined as any others are.
    pub(crate) fn alike(&self) -> Option<Alike> {
        let recipe = self.recipe.as_deref()?;
        if !matches!(recipe.fabric, None | Some(Fabric::Rails { leaf: None, .. })) {
            return None;
        }
        let first_device = self.devices().take_while(|(_, d)| d.host.is_none()).count();
        let shared = |d: DeviceId| self.device(d).host.is_none();
        let first_link = self.links().take_while(|(_, a, b, _)| shared(*a) && shared(*b)).count();
        let devices = (self.graph.node_count() - first_device) / recipe.hosts;
        let links = (self.graph.edge_count() - first_link) / recipe.hosts;
        (devices > 0 && links > 0).then_some(Alike { first_device, devices, first_link, links })
    }

    fn repeat(&self, hosts: usize, fabric: Option<Fabric>) -> Result<Self> {
        let refuse = |why: String| Err(Error::Topology(format!("{} cannot be {hosts} hosts: {why}", self.name)));
        if self.hosts() != 1 || hosts == 0 {
            return refuse(format!("it is {} host(s), and one host can be repeated", self.hosts()));
        }
        let nics = self.rails();
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
        let bare = self.of_kind(DeviceKind::NetSwitch).is_empty();
        let own = fabric.is_none() && !bare;
        let mut shared: Vec<Option<DeviceId>> = vec![None; devices];
        for (id, d) in self.devices().filter(|(_, d)| d.host.is_none() && (own || d.kind != DeviceKind::NetSwitch)) {
            shared[id.0.index()] = Some(all.add_device(d.clone())?);
        }
        for (_, a, b, link) in self.links() {
            // Between shared switches there is one link, not one for each host.
            if let (Some(a), Some(b)) = (shared[a.0.index()], shared[b.0.index()]) {
                all.add_link(a, b, link.clone());
            }
        }
        let ports: Vec<Link> = nics.iter().map(|n| self.port(*n)).collect();
        let rails = Fabric::Rails { leaf: None, spines: 1, oversubscription: 1.0 };
        let mut net = match fabric {
            None if own => None,
            fabric => Some(Network::new(&mut all, fabric.unwrap_or(rails), hosts, &ports)?),
        };
        for host in 0..hosts {
            let ids = self.stamp(&mut all, host, &shared)?;
            for (i, nic) in nics.iter().enumerate() {
                if let (Some(net), Some(id)) = (&mut net, ids[nic.0.index()]) {
                    all.connect(id, net.switch_of(host, i), ports[i].clone());
                }
            }
        }
        all.recipe = Some(Box::new(Recipe { host: self.clone(), hosts, fabric }));
        Ok(all)
    }

    /// Adds this host's devices as those of host `host`, and its links among them and to `shared` switches. What each
    /// device became, by index.
    fn stamp(&self, all: &mut Self, host: usize, shared: &[Option<DeviceId>]) -> Result<Vec<Option<DeviceId>>> {
        let mut ids = shared.to_vec();
        for (id, d) in self.devices().filter(|(_, d)| d.host.is_some()) {
            let d = Device { id: format!("host{host}/{}", d.id), host: Some(host), ..d.clone() };
            ids[id.0.index()] = Some(all.add_device(d)?);
        }
        for (_, a, b, link) in self.links() {
            let (a, b) = (a.0.index(), b.0.index());
            // Between shared switches there is one link, not one for each host.
            if let (Some(x), Some(y)) = (ids[a], ids[b])
                && (shared[a].is_none() || shared[b].is_none())
            {
                all.add_link(x, y, link.clone());
            }
        }
        Ok(ids)
    }

    /// A NIC's way to the network: the machine's own, or what a NIC without a network is taken to have, a port as wide
    /// as its way into the host.
    fn port(&self, nic: DeviceId) -> Link {
        let outward = |l: &Link| l.kind.is_network();
        let mut links = self.graph.edges(nic.0).map(|e| e.weight());
        if let Some(own) = links.clone().find(|l| outward(l)) {
            return own.clone();
        }
        let widest = links.by_ref().map(Link::bound_bandwidth).fold(0.0, f64::max);
        let mut port = Link::new(LinkKind::Ethernet, "assumed: as wide as the NIC's way into the host");
        port.nominal = (widest > 0.0).then_some(widest);
        port
    }

    /// Hosts like this one at the ports of `fabric`, as `ibnetdiscover` shows it. A channel adapter is matched with the
    /// NIC of its name (`mlx5_3`), else those of a host in order. Hosts with fewer adapters than this one has NICs are
    /// left out, with a notice.
    ///
    /// # Errors
    /// [`Error::Topology`] where this is several hosts, has no NIC, or no host of the fabric has as many adapters.
    pub fn cluster_in(&self, fabric: &Self) -> Result<Self> {
        let refuse = |why: String| Err(Error::Topology(format!("{} in {}: {why}", self.name, fabric.name)));
        let nics = self.rails();
        if self.hosts() != 1 || nics.is_empty() {
            return refuse(format!(
                "it is {} host(s) with {} NIC(s); one with NICs is needed",
                self.hosts(),
                nics.len()
            ));
        }
        let mut of_host: BTreeMap<usize, Vec<DeviceId>> = BTreeMap::new();
        for id in fabric.of_kind(DeviceKind::Nic) {
            if let Some(host) = fabric.device(id).host {
                of_host.entry(host).or_default().push(id);
            }
        }
        let words = |id: DeviceId| host_and_adapter(&fabric.device(id).name);
        let short: Vec<usize> = of_host.iter().filter(|(_, a)| a.len() < nics.len()).map(|(h, _)| *h).collect();
        let count = of_host.len() - short.len();
        if count == 0 {
            let most = of_host.values().map(Vec::len).max().unwrap_or(0);
            return refuse(format!("no host there has {} adapters, as this has NICs; {most} are the most", nics.len()));
        }
        if count * self.graph.node_count() + fabric.graph.node_count() > MAX_DEVICES {
            return refuse(format!("they are more than {MAX_DEVICES} devices"));
        }
        let mut all = Self::new(&format!("{count} x {} in {}", self.name, fabric.name));
        all.source = format!("{}; {}", self.source, fabric.source);
        all.notices = [self.notices.as_slice(), &fabric.notices].concat();
        if !short.is_empty() {
            // Agents inside switches are adapters too, of no host that has a name.
            let mut names: Vec<&str> = short.iter().map(|h| words(of_host[h][0]).0).filter(|n| !n.is_empty()).collect();
            let (n, nameless, k) = (names.len(), short.len() - names.len(), nics.len());
            names.truncate(5);
            let (list, more) = (names.join(", "), if n > 5 { ", ..." } else { "" });
            all.notice(format!(
                "{n} host(s) have fewer than {k} adapters and are left out: {list}{more}; and {nameless} adapter(s) that \
                 name no host"
            ));
        }
        let mut ids: HashMap<DeviceId, DeviceId> = HashMap::new();
        for id in fabric.of_kind(DeviceKind::NetSwitch) {
            ids.insert(id, all.add_device(fabric.device(id).clone())?);
        }
        let (none, cpus) = (vec![None; self.graph.node_count()], self.of_kind(DeviceKind::Cpu));
        let hosts = of_host.values().filter(|a| a.len() >= nics.len());
        for (host, adapters) in hosts.enumerate() {
            let name = words(adapters[0]).0;
            let own = self.stamp(&mut all, host, &none)?;
            for cpu in cpus.iter().filter_map(|c| own[c.0.index()]).filter(|_| !name.is_empty()) {
                all.device_mut(cpu).extra.insert("host".into(), name.into());
            }
            let mut free: Vec<DeviceId> = adapters.clone();
            free.sort_by_key(|a| crate::text::natural(words(*a).1));
            let named = |nic: &DeviceId| free.iter().position(|a| words(*a).1 == self.device(*nic).name);
            let by_name: Vec<Option<usize>> = nics.iter().map(named).collect();
            for (i, nic) in nics.iter().enumerate() {
                // By name if all NICs have theirs.
                let at = if by_name.iter().all(Option::is_some) { by_name[i].unwrap_or(i) } else { i };
                if let Some(own) = own[nic.0.index()] {
                    ids.insert(free[at], own);
                }
            }
        }
        for (_, a, b, link) in fabric.links() {
            if let (Some(a), Some(b)) = (ids.get(&a), ids.get(&b)) {
                all.add_link(*a, *b, link.clone());
            }
        }
        Ok(all)
    }
}

/// Host and adapter of a name such as `n17 mlx5_3`; no host where it names none (`Mellanox Technologies Aggregation Node`).
pub(super) fn host_and_adapter(name: &str) -> (&str, &str) {
    name.split_once(' ').filter(|(_, adapter)| !adapter.contains(' ')).unwrap_or(("", name))
}

/// The switches of a fabric, made as they are needed.
struct Network {
    fabric: Fabric,
    /// Hosts a router of a dragonfly.
    hosts_a_router: usize,
    leaves: Vec<Vec<DeviceId>>,
}

impl Network {
    fn new(t: &mut Topology, fabric: Fabric, hosts: usize, ports: &[Link]) -> Result<Self> {
        let source = match fabric {
            Fabric::Rails { leaf: None, .. } => "assumed: a switch that never blocks".to_string(),
            other => format!("fabric {other}"),
        };
        let mut switches = 0;
        let mut add = |t: &mut Topology, id: String| {
            switches += 1;
            t.add_device(Device::new(id, DeviceKind::NetSwitch, switches - 1, &source))
        };
        let between = |ports: &[Link], share: f64| {
            let rate: f64 = ports.iter().map(Link::bound_bandwidth).sum();
            Link {
                nominal: Some(rate * share),
                usable: None,
                measured: None,
                source: source.clone(),
                ..ports[0].clone()
            }
        };
        let mut leaves: Vec<Vec<DeviceId>> = vec![Vec::new(); ports.len()];
        let mut hosts_a_router = 1;
        match fabric {
            Fabric::Rails { leaf: None, .. } => {
                for (i, rail) in leaves.iter_mut().enumerate() {
                    rail.push(add(t, format!("rail{i}"))?);
                }
            }
            Fabric::Rails { leaf: Some(leaf), spines, oversubscription } => {
                for (i, rail) in leaves.iter_mut().enumerate() {
                    let up = between(&ports[i..=i], leaf as f64 / (spines as f64 * oversubscription));
                    clos(t, rail, hosts.div_ceil(leaf), spines, &format!("rail{i}/"), &up, &mut add)?;
                }
            }
            Fabric::LeafSpine { leaf, spines, oversubscription } => {
                let up = between(ports, leaf as f64 / (spines as f64 * oversubscription));
                clos(t, &mut leaves[0], hosts.div_ceil(leaf), spines, "", &up, &mut add)?;
            }
            Fabric::Dragonfly { groups, routers, oversubscription } => {
                if groups.saturating_mul(routers) > hosts {
                    let why = format!("{groups} groups of {routers} routers are more than {hosts} hosts");
                    return Err(Error::Topology(format!("fabric {fabric}: {why}")));
                }
                hosts_a_router = hosts.div_ceil(groups * routers);
                for g in 0..groups {
                    for r in 0..routers {
                        leaves[0].push(add(t, format!("group{g}/router{r}"))?);
                    }
                }
                // Full bisection: among n that inject x each, n/2 x crosses n/2 times n/2 cables.
                let local = between(ports, 2.0 * hosts_a_router as f64 / routers as f64);
                let far = 2.0 * (hosts_a_router * routers) as f64 / (groups as f64 * oversubscription);
                let global = between(ports, far);
                for g in 0..groups {
                    for a in 0..routers {
                        for b in a + 1..routers {
                            t.connect(leaves[0][g * routers + a], leaves[0][g * routers + b], local.clone());
                        }
                    }
                    for h in g + 1..groups {
                        // A group's cables take its routers in turn.
                        let (here, there) = (g * routers + (h - 1) % routers, h * routers + g % routers);
                        t.connect(leaves[0][here], leaves[0][there], global.clone());
                    }
                }
            }
        }
        Ok(Self { fabric, hosts_a_router, leaves })
    }

    /// The switch that NIC `i` of a host is at.
    fn switch_of(&self, host: usize, i: usize) -> DeviceId {
        match self.fabric {
            Fabric::Rails { leaf, .. } => self.leaves[i][leaf.map_or(0, |l| host / l)],
            Fabric::LeafSpine { leaf, .. } => self.leaves[0][host / leaf],
            Fabric::Dragonfly { .. } => self.leaves[0][host / self.hosts_a_router],
        }
    }
}

/// Leaves, and above them, where there are several, spines that each leaf is joined with.
fn clos(
    t: &mut Topology,
    leaves: &mut Vec<DeviceId>,
    count: usize,
    spines: usize,
    prefix: &str,
    up: &Link,
    add: &mut impl FnMut(&mut Topology, String) -> Result<DeviceId>,
) -> Result<()> {
    if count.saturating_mul(spines) > MAX_DEVICES {
        return Err(Error::Topology(format!("{count} leaves with {spines} spines are more than {MAX_DEVICES} links")));
    }
    for l in 0..count {
        leaves.push(add(t, format!("{prefix}leaf{l}"))?);
    }
    for s in (0..spines).filter(|_| count > 1) {
        let spine = add(t, format!("{prefix}spine{s}"))?;
        leaves.iter().for_each(|leaf| t.connect(*leaf, spine, up.clone()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes_between_hosts_that_are_alike_are_images_of_each_other() {
        for name in ["topologies/dgx-h100.toml", "topologies/dgx-1.toml", "tests/machines/2xa100-two-switches.toml"] {
            let t = Topology::read(&std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(name)).unwrap();
            let t = if t.hosts() == 1 { t.cluster(4).unwrap() } else { t };
            let alike = t.alike().unwrap();
            let gpus = t.of_kind(DeviceKind::Gpu);
            for (a, b) in gpus.iter().flat_map(|a| gpus.iter().map(move |b| (*a, *b))) {
                let ((x, y), hosts) = alike.model(a, b).unwrap();
                let (found, model) = (t.route(a, b).unwrap(), t.route(x, y).unwrap());
                assert_eq!(
                    (found.class, found.bandwidth, found.latency),
                    (model.class, model.bandwidth, model.latency)
                );
                let mut at = a;
                for link in model.links.iter().map(|l| alike.link(*l, hosts)) {
                    assert_eq!(t.endpoints(link).0, at, "{name}");
                    at = t.endpoints(link).1;
                }
                assert_eq!(at, b);
            }
            let leaves = t.distinct().clone().cluster_over(4, "leaf-spine:leaf=2,spines=1".parse().unwrap()).unwrap();
            assert!(leaves.alike().is_none());
        }
    }
}
