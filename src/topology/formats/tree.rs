//! For people, in a terminal.

use std::collections::{BTreeMap, HashSet};
use std::fmt::Write;

use petgraph::visit::EdgeRef;

use crate::topology::device::NO_RAIL;
use crate::topology::{DeviceId, DeviceKind, Link, LinkKind, Topology};

impl Topology {
    /// Hosts, sockets, switches, devices, then the links that are not part of that tree. Rates are GB/s (10^9 bytes)
    /// in one direction. With `explain`, who says so.
    pub fn to_tree(&self, explain: bool) -> String {
        // Hosts that are alike are shown once.
        let one = self.distinct();
        let mut tree = Tree { t: one, explain, out: String::new(), shown: HashSet::new() };
        let source = if self.source.is_empty() { String::new() } else { format!("  ({})", self.source) };
        tree.line(0, &format!("{}{source}", self.name));
        let several = self.hosts() > 1;
        for (host, mut devices) in one.by_host().into_iter().enumerate() {
            let mut depth = 1;
            if several {
                match &self.recipe {
                    Some(recipe) => tree.line(1, &format!("hosts 0-{}, each", recipe.hosts - 1)),
                    None => tree.line(1, &format!("host {host}")),
                }
                depth = 2;
            }
            // CPUs first, since the rest hangs on them.
            devices.sort_by_key(|id| (one.device(*id).kind != DeviceKind::Cpu, *id));
            for id in devices {
                if !tree.shown.contains(&id) {
                    tree.device(id, None, depth);
                }
            }
        }
        tree.across(one, |kind| self.recipe.is_none() || !kind.is_network());
        if self.recipe.is_some() {
            tree.across(self, LinkKind::is_network);
            let switches = self.of_kind(DeviceKind::NetSwitch).len();
            tree.line(
                0,
                &format!("{switches} switch(es) of the network, {} GPU(s) in all", self.of_kind(DeviceKind::Gpu).len()),
            );
        }
        for notice in &self.notices {
            tree.line(0, &format!("note: {notice}"));
        }
        tree.out
    }
}

struct Tree<'a> {
    t: &'a Topology,
    explain: bool,
    out: String,
    shown: HashSet<DeviceId>,
}

impl Tree<'_> {
    fn line(&mut self, depth: usize, text: &str) {
        // Writing to a String cannot fail.
        let _ = writeln!(self.out, "{}{text}", "  ".repeat(depth));
    }

    /// A device and what hangs on it by PCIe.
    fn device(&mut self, id: DeviceId, by: Option<&Link>, depth: usize) {
        self.shown.insert(id);
        let d = self.t.device(id);
        let mut text = d.id.clone();
        if !d.name.is_empty() {
            let _ = write!(text, "  {}", d.name);
        }
        if let Some(c) = &d.cpu {
            let _ = write!(text, "  socket {}", c.package);
            if c.cores > 0 {
                let _ = write!(text, ", {} cores", c.cores);
            }
            for (name, size) in [("L2", c.l2), ("L3", c.l3), ("memory", c.memory)] {
                if let Some(size) = size {
                    let _ = write!(text, ", {name} {}", crate::text::size(size));
                }
            }
            if let Some(rate) = c.copy_rate {
                let _ = write!(text, ", a core copies {:.1} GB/s", rate / 1e9);
            }
        }
        if let Some(bus) = &d.bus {
            let _ = write!(text, "  {bus}");
        }
        if let Some(link) = by {
            let _ = write!(text, "  {}", figure(link, self.explain));
        }
        if let Some(why) = d.extra.get(NO_RAIL) {
            let _ = write!(text, "  no rail: {why}");
        }
        if self.explain {
            for (key, value) in d.extra.iter().filter(|(key, _)| *key != NO_RAIL) {
                let _ = write!(text, "  {key}={value}");
            }
            let _ = write!(text, "  [{}]", d.source);
        }
        self.line(depth, &text);
        let edges = self.t.graph.edges(id.0).filter(|e| e.weight().kind == LinkKind::Pcie);
        let mut below: Vec<(DeviceId, &Link)> =
            edges.map(|e| (DeviceId(e.target()), e.weight())).filter(|(b, _)| self.is_below(id, *b)).collect();
        below.sort_by_key(|(b, _)| (self.t.device(*b).kind != DeviceKind::PciSwitch, *b));
        for (b, link) in below {
            if !self.shown.contains(&b) {
                self.device(b, Some(link), depth + 1);
            }
        }
    }

    fn is_below(&self, parent: DeviceId, child: DeviceId) -> bool {
        let kind = |d| self.t.device(d).kind;
        match (kind(parent), kind(child)) {
            (_, DeviceKind::Cpu) => false,
            (DeviceKind::Cpu, _) => true,
            (DeviceKind::PciSwitch, _) => true,
            _ => false,
        }
    }

    /// All links of these kinds but PCIe, those alike on one line.
    fn across(&mut self, t: &Topology, wanted: impl Fn(LinkKind) -> bool) {
        struct Alike {
            /// The first few, in words, and the last.
            shown: Vec<String>,
            last: Option<(DeviceId, DeviceId, bool)>,
            count: usize,
        }
        let words = |(a, b, both): (DeviceId, DeviceId, bool)| match (a == b, both) {
            (true, _) => t.device(a).id.clone(),
            (_, true) => format!("{} - {}", t.device(a).id, t.device(b).id),
            (_, false) => format!("{} -> {}", t.device(a).id, t.device(b).id),
        };
        let mut alike: BTreeMap<(LinkKind, String), Alike> = BTreeMap::new();
        let mut drawn = HashSet::new();
        // Neighbours in the file are mostly alike: their figures are put in words once.
        let mut before: Option<(&Link, String)> = None;
        let two_way = t.two_way();
        for (id, a, b, link) in t.links().filter(|(.., l)| l.kind != LinkKind::Pcie && wanted(l.kind)) {
            let both = two_way[id.0.index()];
            if both && !drawn.insert((a.min(b), a.max(b), link.kind)) {
                continue;
            }
            let text = match before.take() {
                Some((known, text)) if known == link => text,
                _ => figure(link, self.explain),
            };
            let slot = alike.entry((link.kind, text.clone())).or_insert_with(|| Alike {
                shown: Vec::new(),
                last: None,
                count: 0,
            });
            before = Some((link, text));
            slot.count += 1;
            slot.last = Some((a, b, both));
            if slot.count <= 6 {
                slot.shown.push(words((a, b, both)));
            }
        }
        for ((_, figure), Alike { shown, last, count }) in alike {
            let ends = match last {
                Some(last) if count > 6 => format!("{}, ... {}  ({count} links)", shown[..3].join(", "), words(last)),
                _ => shown.join(", "),
            };
            self.line(0, &format!("{figure}:  {ends}"));
        }
    }
}

fn figure(link: &Link, explain: bool) -> String {
    let lanes = match (link.lanes, link.kind) {
        (1, _) => String::new(),
        (n, LinkKind::Pcie) => format!(" x{n}"),
        (n, _) => format!(" x {n}"),
    };
    let gb = |r: f64| if r >= 1e11 { format!("{:.0}", r / 1e9) } else { format!("{:.1}", r / 1e9) };
    let mut text = format!("{}{lanes} {} GB/s {}", link.kind, gb(link.bandwidth()), link.origin().name());
    if link.measured.is_some() || explain {
        let _ = write!(text, ", {:.2} us", link.latency * 1e6);
    }
    if explain {
        for (name, rate) in [("nominal", link.nominal), ("usable", link.usable), ("measured", link.measured)] {
            if let Some(rate) = rate.filter(|_| link.origin().name() != name) {
                let _ = write!(text, ", {name} {}", gb(rate));
            }
        }
        let _ = write!(text, " [{}; latency {}]", link.source, link.latency_origin.name());
    }
    text
}
