//! For people, in a terminal.

use std::collections::{BTreeMap, HashSet};
use std::fmt::Write;

use petgraph::visit::EdgeRef;

use crate::topology::{DeviceId, DeviceKind, Link, LinkKind, Topology};

impl Topology {
    /// Hosts, sockets, switches, devices, then the links that are not part of that tree. Rates are GB/s (10^9 bytes)
    /// in one direction. With `explain`, who says so.
    pub fn to_tree(&self, explain: bool) -> String {
        let mut tree = Tree { t: self, explain, out: String::new(), shown: HashSet::new() };
        tree.line(
            0,
            &format!(
                "{}{}",
                self.name,
                if self.source.is_empty() { String::new() } else { format!("  ({})", self.source) }
            ),
        );
        for host in 0..self.hosts() {
            let mut depth = 1;
            if self.hosts() > 1 {
                tree.line(1, &format!("host {host}"));
                depth = 2;
            }
            for cpu in self.of_kind(DeviceKind::Cpu).into_iter().filter(|c| self.device(*c).host == Some(host)) {
                tree.device(cpu, None, depth);
            }
            let rest: Vec<DeviceId> = self
                .devices()
                .filter(|(id, d)| d.host == Some(host) && !tree.shown.contains(id))
                .map(|(id, _)| id)
                .collect();
            for id in rest {
                if !tree.shown.contains(&id) {
                    tree.device(id, None, depth);
                }
            }
        }
        tree.across();
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
        if self.explain {
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

    /// All links but PCIe, those alike on one line.
    fn across(&mut self) {
        let mut alike: BTreeMap<(LinkKind, String), (Vec<String>, usize)> = BTreeMap::new();
        let mut drawn = HashSet::new();
        for (_, a, b, link) in self.t.links().filter(|(.., l)| l.kind != LinkKind::Pcie) {
            let back = self.t.graph.edges_connecting(b.0, a.0).find(|e| e.weight() == link);
            if back.is_some() && !drawn.insert((a.min(b), a.max(b), link.kind)) {
                continue;
            }
            let ends = if a == b {
                self.t.device(a).id.clone()
            } else {
                let arrow = if back.is_some() { "-" } else { "->" };
                format!("{} {arrow} {}", self.t.device(a).id, self.t.device(b).id)
            };
            let slot = alike.entry((link.kind, figure(link, self.explain))).or_default();
            slot.0.push(ends);
            slot.1 += 1;
        }
        for ((kind, figure), (ends, count)) in alike {
            let shown = if count > 6 {
                format!("{}, ... {}  ({count} links)", ends[..3].join(", "), ends[count - 1])
            } else {
                ends.join(", ")
            };
            let _ = kind;
            self.line(0, &format!("{figure}:  {shown}"));
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
