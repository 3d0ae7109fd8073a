//! Graphviz: hosts as boxes, links as wide as they are fast and coloured by kind.

use std::fmt::Write;

use crate::topology::{DeviceId, DeviceKind, LinkKind, Topology};

impl Topology {
    /// A drawing for `dot -Tsvg`. Two directions that are alike are one line; ids are quoted.
    pub fn to_dot(&self) -> String {
        let mut out =
            String::from("graph topology {\n  layout=dot; rankdir=TB; node [fontname=\"sans-serif\" fontsize=10];\n");
        let mut put = |line: String| {
            // Writing to a String cannot fail.
            let _ = writeln!(out, "{line}");
        };
        for (host, devices) in self.by_host().into_iter().enumerate().filter(|(_, d)| !d.is_empty()) {
            put(format!("  subgraph cluster_host{host} {{\n    label=\"host {host}\"; color=gray;"));
            for id in devices {
                put(format!("    {}", self.node(id)));
            }
            put("  }".into());
        }
        for (id, _) in self.devices().filter(|(_, d)| d.host.is_none()) {
            put(format!("  {}", self.node(id)));
        }
        let mut drawn = std::collections::HashSet::new();
        let two_way = self.two_way();
        for (id, a, b, link) in self.links().filter(|(_, a, b, _)| a != b) {
            let same_back = two_way[id.0.index()];
            if same_back && !drawn.insert((a.min(b), a.max(b), link.kind)) {
                continue;
            }
            let (gb, arrow) = (link.bandwidth() / 1e9, if same_back { "none" } else { "forward" });
            put(format!(
                "  {} -- {} [label=\"{gb:.1}\" color={} penwidth={:.1} dir={arrow} fontsize=8];",
                quote(&self.device(a).id),
                quote(&self.device(b).id),
                colour(link.kind),
                (gb.max(1.0).log2() / 1.5).max(0.8),
            ));
        }
        out.push_str("}\n");
        out
    }

    fn node(&self, id: DeviceId) -> String {
        let d = self.device(id);
        let shape = match d.kind {
            DeviceKind::Gpu => "box style=filled fillcolor=\"#cfe8cf\"",
            DeviceKind::Cpu => "box style=filled fillcolor=\"#d5dff5\"",
            DeviceKind::Nic => "box style=filled fillcolor=\"#f6e3c5\"",
            DeviceKind::PciSwitch | DeviceKind::NvSwitch | DeviceKind::NetSwitch => "ellipse",
        };
        format!("{} [shape={shape}];", quote(&d.id))
    }
}

fn colour(kind: LinkKind) -> &'static str {
    match kind {
        LinkKind::NvLink | LinkKind::NvLinkC2c | LinkKind::Xgmi => "\"#3a8f3a\"",
        LinkKind::Pcie => "\"#888888\"",
        LinkKind::CpuInterconnect | LinkKind::Memory => "\"#3b5fb0\"",
        LinkKind::InfiniBand | LinkKind::RoCe | LinkKind::Ethernet | LinkKind::Efa => "\"#c07a1a\"",
    }
}

fn quote(id: &str) -> String {
    format!("\"{}\"", id.replace('\\', "\\\\").replace('"', "\\\""))
}
