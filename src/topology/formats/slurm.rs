//! Slurm's `topology.conf`: a tree of switches, or blocks of nodes.
//!
//! Nodes become one port each, since the file knows nothing of what is in them. A block is what its nodes share.

use std::collections::HashMap;

use crate::topology::formats::range;
use crate::topology::{Device, DeviceId, DeviceKind, Link, LinkKind, Topology};
use crate::{Error, Result};

/// Whether a text looks like such a file.
pub(super) fn looks_like(text: &str) -> bool {
    text.lines().take(500).any(|l| key(l, "SwitchName").is_some() || key(l, "BlockName").is_some())
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
                items.extend(range::expand(&text[start..i])?);
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

/// The names after a key, none where it is not there.
fn names(line: &str, what: &str) -> std::result::Result<Vec<String>, String> {
    key(line, what).map_or(Ok(Vec::new()), list)
}

pub(super) fn read(text: &str, file: &str) -> Result<Topology> {
    let fail = |line, field: &str, message: String| Error::in_file(file, line, field, message);
    let mut t = Topology::new(file.rsplit('/').next().unwrap_or(file));
    t.source = format!("Slurm topology.conf, {file}");
    let mut switches: HashMap<String, DeviceId> = HashMap::new();
    let mut lines = Vec::new();
    for (i, line) in text.lines().enumerate() {
        let name = [("SwitchName", "switch"), ("BlockName", "block")]
            .into_iter()
            .find_map(|(k, w)| Some((key(line, k)?, w, k)));
        let Some((names, word, field)) = name else { continue };
        for name in list(names).map_err(|e| fail(Some(i + 1), field, e))? {
            let mut device = Device::new(&name, DeviceKind::NetSwitch, switches.len(), file);
            device.extra.insert("slurm".into(), word.into());
            let id = t.add_device(device).map_err(|e| fail(Some(i + 1), field, e.to_string()))?;
            switches.insert(name, id);
            lines.push((i + 1, line, id));
        }
    }
    if switches.is_empty() {
        return Err(fail(None, "", "no SwitchName and no BlockName of Slurm is in it".into()));
    }
    let mut nodes: HashMap<String, DeviceId> = HashMap::new();
    for (number, line, parent) in lines {
        for name in names(line, "Switches").map_err(|e| fail(Some(number), "Switches", e))? {
            let Some(child) = switches.get(&name) else {
                return Err(fail(Some(number), "Switches", format!("there is no switch `{name}`")));
            };
            if *child == parent {
                return Err(fail(Some(number), "Switches", format!("`{name}` is below itself")));
            }
            t.connect(*child, parent, link());
        }
        for name in names(line, "Nodes").map_err(|e| fail(Some(number), "Nodes", e))? {
            let id = match nodes.get(&name) {
                Some(id) => *id,
                None => {
                    let device = Device { host: Some(nodes.len()), ..Device::new(&name, DeviceKind::Nic, 0, file) };
                    let id = t.add_device(device).map_err(|e| fail(Some(number), "Nodes", e.to_string()))?;
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
