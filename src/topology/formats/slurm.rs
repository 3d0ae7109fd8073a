//! Slurm's `topology.conf` and `topology.yaml`: a tree of switches, or blocks of nodes.
//!
//! Nodes become one port each, since the file knows nothing of what is in them. A block is what its nodes share.

use std::collections::HashMap;

use crate::topology::formats::{range, yaml};
use crate::topology::{Device, DeviceId, DeviceKind, Link, LinkKind, Topology};
use crate::{Error, Result};

/// Whether a text looks like `topology.conf`.
pub(super) fn looks_like(text: &str) -> bool {
    text.lines().take(500).any(|l| key(l, "SwitchName").is_some() || key(l, "BlockName").is_some())
}

/// Whether a text looks like `topology.yaml`.
pub(super) fn looks_like_yaml(text: &str) -> bool {
    let has = |word: &str| text.lines().take(500).any(|l| l.trim_start_matches([' ', '-']).starts_with(word));
    has("topology:") && ["tree:", "block:", "flat:"].iter().any(|w| has(w))
}

/// A switch or a block, as either file says it.
struct Entry {
    line: usize,
    /// What Slurm calls it: `switch` or `block`.
    word: &'static str,
    names: String,
    children: Option<String>,
    nodes: Option<String>,
}

/// The value of `key=value` in a line; Slurm's keys have no case.
fn key<'l>(line: &'l str, key: &str) -> Option<&'l str> {
    let words = line.split('#').next().unwrap_or_default().split_whitespace();
    words.filter_map(|w| w.split_once('=')).find(|(k, _)| k.eq_ignore_ascii_case(key)).map(|(_, v)| v)
}

/// `srv[1-4,7],gw1`: commas outside brackets separate.
fn list(text: &str) -> std::result::Result<Vec<String>, String> {
    let (mut items, mut depth, mut start) = (Vec::new(), 0usize, 0);
    for (i, c) in text.char_indices().chain([(text.len(), ',')]) {
        match c {
            '[' => depth += 1,
            ']' => depth = depth.saturating_sub(1),
            ',' if depth == 0 || i == text.len() => {
                items.extend(range::expand(text[start..i].trim())?);
                start = i + 1;
            }
            _ => {}
        }
        if items.len() > range::MAX {
            return Err(format!("more than {} names", range::MAX));
        }
    }
    Ok(items)
}

pub(super) fn read(text: &str, file: &str) -> Result<Topology> {
    let mut entries = Vec::new();
    for (i, line) in text.lines().enumerate() {
        let name = [("SwitchName", "switch"), ("BlockName", "block")].into_iter();
        let Some((names, word)) = name.into_iter().find_map(|(k, w)| Some((key(line, k)?, w))) else { continue };
        let own = |k: &str| key(line, k).map(String::from);
        entries.push(Entry { line: i + 1, word, names: names.into(), children: own("Switches"), nodes: own("Nodes") });
    }
    if entries.is_empty() {
        return Err(Error::in_file(file, None, "", "no SwitchName and no BlockName of Slurm is in it"));
    }
    let mut t = Topology::new(file.rsplit('/').next().unwrap_or(file));
    t.source = format!("Slurm topology.conf, {file}");
    build(t, entries, file)
}

/// The topology for the cluster as a whole, else the first that is a tree or blocks.
pub(super) fn read_yaml(text: &str, file: &str) -> Result<Topology> {
    let root = yaml::parse(text, file)?;
    let fail = |line: usize, field: &str, message: &str| Err(Error::in_file(file, Some(line), field, message));
    let shaped = |n: &&yaml::Node| n.get("tree").is_some() || n.get("block").is_some();
    let default = |n: &&yaml::Node| {
        n.get("cluster_default").and_then(yaml::Node::text).is_some_and(|v| v.eq_ignore_ascii_case("true"))
    };
    let shapes: Vec<&yaml::Node> = root.items().iter().filter(shaped).collect();
    let Some(chosen) = shapes.iter().find(|n| default(n)).or(shapes.first()) else {
        return fail(
            root.line,
            "topology",
            "no topology here is a `tree` or a `block`; flat ones say nothing of the network",
        );
    };
    let (list, word, name) = match (chosen.get("tree"), chosen.get("block")) {
        (Some(tree), _) => (tree.get("switches"), "switch", "tree.switches"),
        (_, Some(block)) => (block.get("blocks"), "block", "block.blocks"),
        _ => (None, "", "topology"),
    };
    let Some(list) = list else { return fail(chosen.line, name, "it is missing") };
    let mut entries = Vec::new();
    for item in list.items() {
        let own = |k: &str| item.get(k).and_then(yaml::Node::text).map(String::from);
        let Some(names) = own(word) else { return fail(item.line, name, "an item without a name") };
        entries.push(Entry { line: item.line, word, names, children: own("children"), nodes: own("nodes") });
    }
    let named = |n: &yaml::Node| n.get("topology").and_then(yaml::Node::text).unwrap_or("unnamed").to_string();
    let mut t = Topology::new(&named(chosen));
    t.source = format!("Slurm topology.yaml, {file}");
    let others: Vec<String> = shapes.iter().filter(|n| n.line != chosen.line).map(|n| named(n)).collect();
    if !others.is_empty() {
        t.notice(format!("{file} has other topologies too, left out: {}", others.join(", ")));
    }
    build(t, entries, file)
}

fn build(mut t: Topology, entries: Vec<Entry>, file: &str) -> Result<Topology> {
    let fail = |line, field: &str, message: String| Error::in_file(file, Some(line), field, message);
    let mut switches: HashMap<String, DeviceId> = HashMap::new();
    let mut parents = Vec::new();
    for entry in &entries {
        for name in list(&entry.names).map_err(|e| fail(entry.line, entry.word, e))? {
            let mut device = Device::new(&name, DeviceKind::NetSwitch, switches.len(), file);
            device.extra.insert("slurm".into(), entry.word.into());
            let id = t.add_device(device).map_err(|e| fail(entry.line, entry.word, e.to_string()))?;
            switches.insert(name, id);
            parents.push((entry, id));
        }
    }
    let names = |text: &Option<String>| text.as_deref().map_or(Ok(Vec::new()), list);
    let mut nodes: HashMap<String, DeviceId> = HashMap::new();
    for (entry, parent) in parents {
        for name in names(&entry.children).map_err(|e| fail(entry.line, "Switches", e))? {
            let Some(child) = switches.get(&name) else {
                return Err(fail(entry.line, "Switches", format!("there is no switch `{name}`")));
            };
            if *child == parent {
                return Err(fail(entry.line, "Switches", format!("`{name}` is below itself")));
            }
            t.connect(*child, parent, link());
        }
        for name in names(&entry.nodes).map_err(|e| fail(entry.line, "Nodes", e))? {
            let id = match nodes.get(&name) {
                Some(id) => *id,
                None => {
                    let device = Device { host: Some(nodes.len()), ..Device::new(&name, DeviceKind::Nic, 0, file) };
                    let id = t.add_device(device).map_err(|e| fail(entry.line, "Nodes", e.to_string()))?;
                    nodes.insert(name, id);
                    id
                }
            };
            t.connect(id, parent, link());
        }
    }
    t.notice(format!("{file} says nothing of links' rates, which are assumed"));
    Ok(t)
}

fn link() -> Link {
    Link::new(LinkKind::Ethernet, "assumed: Slurm's file has no figures")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trees_and_blocks_are_read() {
        let t =
            read("# a comment\nSwitchName=s[1-2] Nodes=n[01-04],gw\nswitchname=top Switches=s[1-2]\n", "f").unwrap();
        assert_eq!((t.of_kind(DeviceKind::NetSwitch).len(), t.of_kind(DeviceKind::Nic).len()), (3, 5));
        assert!(t.find("n04").is_some() && t.find("n4").is_none());
        assert!(t.route(t.find("n01").unwrap(), t.find("gw").unwrap()).is_some());
        let t = read("BlockName=b1 Nodes=n[1-8]\nBlockSizes=8\n", "f").unwrap();
        assert_eq!((t.of_kind(DeviceKind::NetSwitch).len(), t.hosts()), (1, 8));
    }

    const YAML: &str = "- topology: flat1\n  flat: true\n- topology: blocks\n  block:\n    block_sizes: [2]\n    blocks:\n    - block: b1\n      nodes: n[1-2]\n- topology: tree1\n  cluster_default: True\n  tree:\n    switches:\n    - switch: root\n      children: s[1-2]\n    - switch: s1\n      nodes: n[1-2],gw\n    - switch: s2\n      nodes: n[3-4]\n";

    #[test]
    fn the_yaml_of_the_cluster_is_read() {
        assert!(looks_like_yaml(YAML) && !looks_like(YAML));
        let t = read_yaml(YAML, "f").unwrap();
        assert_eq!((t.name(), t.of_kind(DeviceKind::NetSwitch).len(), t.hosts()), ("tree1", 3, 5));
        assert!(t.notices().iter().any(|n| n.contains("left out: blocks")), "{:?}", t.notices());
        let t = read_yaml(&YAML.replace("True", "false"), "f").unwrap();
        assert_eq!((t.name(), t.of_kind(DeviceKind::NetSwitch).len(), t.hosts()), ("blocks", 1, 2));
        for (from, to, word) in [
            ("switch: s2", "twitch: s2", "f:17: `tree.switches`: an item without a name"),
            ("s[1-2]", "s[1-3]", "f:13: `Switches`: there is no switch `s3`"),
            ("nodes: n[3-4]", "nodes: n[4-3]", "f:17: `Nodes`: "),
            ("    switches:", "    witches:", "tree.switches"),
        ] {
            let error = read_yaml(&YAML.replacen(from, to, 1), "f").unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
        assert!(
            read_yaml("- topology: a\n  flat: true\n", "f").unwrap_err().to_string().contains("flat ones say nothing")
        );
    }

    #[test]
    fn what_is_wrong_says_where() {
        for (text, word) in [
            ("SwitchName=a Switches=b", "f:1: `Switches`: there is no switch `b`"),
            ("SwitchName=a Switches=a", "below itself"),
            ("SwitchName=a Nodes=n[4-1]", "backwards"),
            ("SwitchName=a\nSwitchName=a", "two devices `a`"),
            ("SwitchName=a Nodes=n[0-99999999]", "more than"),
            ("nothing", "no SwitchName"),
        ] {
            let error = read(text, "f").unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
    }
}
