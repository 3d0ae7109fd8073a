//! What changed between two topologies: yesterday's and today's, or what is and what should be.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;

use serde::Serialize;

use crate::topology::{Device, DeviceId, LinkKind, Topology};

/// One difference. `before` and `after` are empty where there was or is nothing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Change {
    /// The device or link: `gpu3`, `nvlink gpu0 - nvswitch0`.
    pub what: String,
    /// What of it: `device`, `link`, `place`, `lanes`, `nominal`, `usable`, `measured`, `latency`, `name`, `numa`, `id`, or a key of
    /// what else is known.
    pub aspect: String,
    /// As it was.
    pub before: String,
    /// As it is.
    pub after: String,
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { what, aspect, before, after } = self;
        match (before.as_str(), after.as_str()) {
            ("", after) if aspect == "device" || aspect == "link" => write!(f, "+ {what}  {after}"),
            (before, "") if aspect == "device" || aspect == "link" => write!(f, "- {what}  {before}"),
            (before, after) => {
                let or_none = |s: &str| if s.is_empty() { "nothing".to_string() } else { s.to_string() };
                write!(f, "~ {what}  {aspect}: {} -> {}", or_none(before), or_none(after))
            }
        }
    }
}

impl Topology {
    /// What is different in `other`. Devices are the same if they have the same PCI address on the same host, or, where
    /// one has none, the same id. Sources and notices do not count.
    pub fn diff(&self, other: &Self) -> Vec<Change> {
        let mut changes = Vec::new();
        let pairs = self.matched(other);
        let back: HashSet<DeviceId> = pairs.values().copied().collect();
        let gone = self.devices().filter(|(id, _)| !pairs.contains_key(id));
        changes.extend(gone.map(|(_, d)| change(&d.id, "device", words(d), String::new())));
        let new = other.devices().filter(|(id, _)| !back.contains(id));
        changes.extend(new.map(|(_, d)| change(&d.id, "device", String::new(), words(d))));
        let (up, up_twin) = (self.parents(), other.parents());
        for (id, d) in self.devices() {
            let Some(twin) = pairs.get(&id).copied() else { continue };
            compare_devices(d, other.device(twin), &mut changes);
            let (from, to) = (up[id.0.index()], up_twin[twin.0.index()]);
            if from.and_then(|u| pairs.get(&u).copied()) != to {
                let name =
                    |t: &Self, d: Option<DeviceId>| d.map(|d| format!("below {}", t.device(d).id)).unwrap_or_default();
                changes.push(change(&d.id, "place", name(self, from), name(other, to)));
            }
        }
        self.compare_links(other, &pairs, &mut changes);
        changes
    }

    fn matched(&self, other: &Self) -> HashMap<DeviceId, DeviceId> {
        // Ports of one card share its address.
        let place = |d: &Device| d.bus.clone().map(|b| (d.kind, d.host, b, d.extra.get("port").cloned()));
        let by_place: HashMap<_, DeviceId> = other.devices().filter_map(|(id, d)| Some((place(d)?, id))).collect();
        let mut pairs = HashMap::new();
        let mut taken = HashSet::new();
        for (id, d) in self.devices() {
            if let Some(twin) = place(d).and_then(|p| by_place.get(&p)).filter(|t| taken.insert(**t)) {
                pairs.insert(id, *twin);
            }
        }
        for (id, d) in self.devices() {
            let twin = other.find(&d.id).filter(|t| other.device(*t).kind == d.kind);
            let addressed = |t: DeviceId| d.bus.is_some() && other.device(t).bus.is_some();
            if let Some(twin) = twin.filter(|t| !pairs.contains_key(&id) && !addressed(*t) && taken.insert(*t)) {
                pairs.insert(id, twin);
            }
        }
        pairs
    }

    fn compare_links(&self, other: &Self, pairs: &HashMap<DeviceId, DeviceId>, changes: &mut Vec<Change>) {
        // By the ends in `other`'s devices, the kind, and how many such there were before.
        type Key = (DeviceId, DeviceId, LinkKind, usize);
        let keyed = |t: &Self, map: &dyn Fn(DeviceId) -> Option<DeviceId>| {
            let mut seen: HashMap<(DeviceId, DeviceId, LinkKind), usize> = HashMap::new();
            let mut out: BTreeMap<Key, crate::topology::LinkId> = BTreeMap::new();
            for (id, a, b, l) in t.links() {
                if let (Some(a), Some(b)) = (map(a), map(b)) {
                    let n = seen.entry((a, b, l.kind)).or_default();
                    out.insert((a, b, l.kind, *n), id);
                    *n += 1;
                }
            }
            out
        };
        let (before, after) = (keyed(self, &|d| pairs.get(&d).copied()), keyed(other, &Some));
        let back: HashSet<DeviceId> = pairs.values().copied().collect();
        let keys: std::collections::BTreeSet<Key> =
            before.keys().chain(after.keys().filter(|k| back.contains(&k.0) && back.contains(&k.1))).copied().collect();
        let mut found: Vec<(Key, Vec<Change>)> = Vec::new();
        for key in keys {
            let (a, b, kind, _) = key;
            let (x, y) = (&other.device(a).id, &other.device(b).id);
            let name = |arrow: &str| if a == b { format!("{kind} {x}") } else { format!("{kind} {x} {arrow} {y}") };
            let what = name("->");
            let old = before.get(&key).map(|l| self.link(*l));
            let new = after.get(&key).map(|l| other.link(*l));
            let rate = |l: &crate::topology::Link| format!("{:.1} GB/s {}", l.bandwidth() / 1e9, l.origin().name());
            let mut list = Vec::new();
            match (old, new) {
                (Some(l), None) => list.push(change(&what, "link", format!("x{} {}", l.lanes, rate(l)), String::new())),
                (None, Some(l)) => list.push(change(&what, "link", String::new(), format!("x{} {}", l.lanes, rate(l)))),
                (Some(l), Some(m)) => {
                    let figure = |r: Option<f64>| r.map(|r| format!("{:.1} GB/s", r / 1e9)).unwrap_or_default();
                    let time = |l: &crate::topology::Link| crate::text::time(l.latency);
                    for (aspect, x, y) in [
                        ("lanes", l.lanes.to_string(), m.lanes.to_string()),
                        ("nominal", figure(l.nominal), figure(m.nominal)),
                        ("usable", figure(l.usable), figure(m.usable)),
                        ("measured", figure(l.measured), figure(m.measured)),
                        ("latency", time(l), time(m)),
                    ] {
                        if x != y {
                            list.push(change(&what, aspect, x, y));
                        }
                    }
                }
                (None, None) => {}
            }
            if !list.is_empty() {
                found.push((key, list));
            }
        }
        // Two directions that changed alike are one line.
        let all: HashMap<Key, Vec<Change>> = found.iter().cloned().collect();
        for ((a, b, kind, n), list) in found {
            let alike = all.get(&(b, a, kind, n)).filter(|_| a != b).is_some_and(|other| {
                other.len() == list.len()
                    && other.iter().zip(&list).all(|(x, y)| (&x.before, &x.after) == (&y.before, &y.after))
            });
            match (alike, a < b) {
                (true, false) => {}
                (true, true) => {
                    changes.extend(list.into_iter().map(|c| Change { what: c.what.replace(" -> ", " - "), ..c }))
                }
                (false, _) => changes.extend(list),
            }
        }
    }
}

fn compare_devices(a: &Device, b: &Device, changes: &mut Vec<Change>) {
    let mut differ = |aspect: &str, before: String, after: String| {
        if before != after {
            changes.push(change(&a.id, aspect, before, after));
        }
    };
    differ("id", a.id.clone(), b.id.clone());
    differ("name", a.name.clone(), b.name.clone());
    let number = |n: Option<usize>| n.map(|n| n.to_string()).unwrap_or_default();
    differ("numa", number(a.numa), number(b.numa));
    if let (Some(x), Some(y)) = (&a.cpu, &b.cpu) {
        differ("cores", x.cores.to_string(), y.cores.to_string());
        differ("hardware threads", crate::text::list(&x.pus), crate::text::list(&y.pus));
        let size = |s: Option<u64>| s.map(crate::text::size).unwrap_or_default();
        differ("memory", size(x.memory), size(y.memory));
    }
    for key in a.extra.keys().chain(b.extra.keys().filter(|k| !a.extra.contains_key(*k))) {
        let get = |d: &Device| d.extra.get(key).cloned().unwrap_or_default();
        differ(key, get(a), get(b));
    }
}

fn change(what: &str, aspect: &str, before: String, after: String) -> Change {
    Change { what: what.into(), aspect: aspect.into(), before, after }
}

fn words(d: &Device) -> String {
    let parts = [d.kind.name().to_string(), d.name.clone(), d.bus.clone().unwrap_or_default()];
    parts.into_iter().filter(|p| !p.is_empty()).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: &str = "name = 'm'\n[[device]]\nkind = 'cpu'\nid = 'cpu[0-1]'\n[[device]]\nkind = 'pci-switch'\nid = 'plx0'\n\
        [[device]]\nkind = 'gpu'\nid = 'gpu[0-1]'\nbus = ['0000:01:00.0', '0000:02:00.0']\n[[device]]\nkind = 'nic'\nid = 'nic0'\n\
        [[link]]\nkind = 'pcie'\npairs = ['gpu0 plx0', 'gpu1 plx0', 'plx0 cpu0', 'nic0 cpu1']\nlanes = 16\nnominal = '32 GB/s'\n\
        [[link]]\nkind = 'nvlink'\nfrom = 'gpu0'\nto = 'gpu1'\nlanes = 4\nnominal = '100 GB/s'\n";

    fn lines(from: &str, to: &str) -> Vec<String> {
        let t = |text: &str| Topology::from_toml(text, "f").unwrap();
        t(from).diff(&t(to)).iter().map(Change::to_string).collect()
    }

    #[test]
    fn what_changed_is_said_once() {
        assert!(lines(BASE, BASE).is_empty());
        let down = BASE.replace("lanes = 4\nnominal = '100 GB/s'", "lanes = 3\nnominal = '75 GB/s'");
        assert_eq!(
            lines(BASE, &down),
            ["~ nvlink gpu0 - gpu1  lanes: 4 -> 3", "~ nvlink gpu0 - gpu1  nominal: 100.0 GB/s -> 75.0 GB/s"]
        );
        let moved = BASE.replace("'nic0 cpu1'", "'nic0 plx0'");
        let said = lines(BASE, &moved);
        assert!(said.contains(&"~ nic0  place: below cpu1 -> below plx0".into()), "{said:?}");
        assert!(said.contains(&"- pcie cpu1 - nic0  x16 32.0 GB/s nominal".into()), "{said:?}");
        // Renumbered, but by its address the same.
        let renumbered = BASE.replace("['0000:01:00.0', '0000:02:00.0']", "['0000:02:00.0', '0000:01:00.0']");
        let said = lines(BASE, &renumbered);
        assert_eq!(said, ["~ gpu0  id: gpu0 -> gpu1", "~ gpu1  id: gpu1 -> gpu0"]);
        let gone = BASE.replace("gpu[0-1]'\nbus = ['0000:01:00.0', '0000:02:00.0']", "gpu0'\nbus = '0000:01:00.0'");
        let gone = gone.replace("'gpu1 plx0', ", "");
        let gone = &gone[..gone.find("[[link]]\nkind = 'nvlink'").unwrap()];
        assert_eq!(lines(BASE, gone), ["- gpu1  gpu 0000:02:00.0"]);
        assert_eq!(lines(gone, BASE), ["+ gpu1  gpu 0000:02:00.0"]);
        let one_way = format!("{BASE}[[link]]\nkind = 'xgmi'\nfrom = 'gpu1'\nto = 'gpu0'\none-way = true\n");
        assert_eq!(lines(BASE, &one_way), ["+ xgmi gpu1 -> gpu0  x1 20.0 GB/s assumed"]);
    }
}
