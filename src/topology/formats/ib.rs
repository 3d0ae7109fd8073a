//! InfiniBand fabrics as `ibnetdiscover` prints them: a block a switch or channel adapter, a line a port.
//!
//! Every cable is in the text twice, from either end. Cables between the same two devices become one link.

use std::collections::{BTreeMap, HashMap};

use crate::topology::{Device, DeviceId, DeviceKind, Link, LinkKind, Topology};
use crate::{Error, Result};

/// Whether a text looks like such a fabric.
pub(super) fn looks_like(text: &str) -> bool {
    text.lines().take(500).any(|l| block(l).is_some())
}

/// Kind and GUID name of a line that begins a block: `Switch 65 "S-2c5e..." # "name"`.
fn block(line: &str) -> Option<(DeviceKind, &str, &str)> {
    let mut words = line.split_whitespace();
    let kind = match words.next()? {
        "Switch" => DeviceKind::NetSwitch,
        "Ca" | "Rt" => DeviceKind::Nic,
        _ => return None,
    };
    words.next()?.parse::<u32>().ok()?;
    let quoted = line.split('"').collect::<Vec<_>>();
    let id = quoted.get(1).filter(|id| id.starts_with("S-") || id.starts_with("H-") || id.starts_with("R-"))?;
    Some((kind, id, quoted.get(3).copied().unwrap_or_default()))
}

/// A port line, `[1](guid) "S-..."[35](guid) # "name" lid 7 4xNDR`: own port, the other's name and port, and its rate.
fn port(line: &str) -> Option<(u32, &str, u32, Option<f64>)> {
    let rest = line.strip_prefix('[')?;
    let (own, rest) = rest.split_once(']')?;
    let mut quoted = rest.split('"');
    quoted.next()?;
    let other = quoted.next()?;
    let (theirs, _) = quoted.next()?.strip_prefix('[')?.split_once(']')?;
    let rate = line.split_whitespace().rev().find_map(rate);
    Some((own.parse().ok()?, other, theirs.parse().ok()?, rate))
}

/// Bytes per second of one direction of `4xNDR`: lanes times the data rate of the generation (InfiniBand architecture
/// specification, after coding).
fn rate(word: &str) -> Option<f64> {
    let (lanes, speed) = word.split_once('x')?;
    let lanes: f64 = lanes.parse().ok().filter(|l| [1.0, 2.0, 4.0, 8.0, 12.0].contains(l))?;
    let gbit = match speed {
        "SDR" => 2.0,
        "DDR" => 4.0,
        "QDR" => 8.0,
        "FDR10" => 10.0,
        "FDR" => 13.64,
        "EDR" => 25.0,
        "HDR" => 50.0,
        "NDR" => 100.0,
        "XDR" => 200.0,
        _ => return None,
    };
    Some(lanes * gbit * 125e6)
}

/// A port of a device.
type End = (DeviceId, u32);

pub(super) fn read(text: &str, file: &str) -> Result<Topology> {
    let fail = |line: Option<usize>, message: String| Error::in_file(file, line, "", message);
    let mut t = Topology::new(file.rsplit('/').next().unwrap_or(file));
    t.source = format!("ibnetdiscover, {file}");
    let mut by_guid: HashMap<&str, DeviceId> = HashMap::new();
    let mut hosts: HashMap<&str, usize> = HashMap::new();
    let mut nics_of: HashMap<usize, usize> = HashMap::new();
    let mut switches = 0;
    for (i, line) in text.lines().enumerate() {
        let Some((kind, guid, name)) = block(line) else { continue };
        let (host, index) = if kind == DeviceKind::NetSwitch {
            switches += 1;
            (None, switches - 1)
        } else {
            // `host adapter`; a card whose firmware names no host is a host of its own.
            let owner = match name.split_once(' ') {
                Some((host, adapter)) if !adapter.contains(' ') => host,
                _ => guid,
            };
            let next = hosts.len();
            let host = *hosts.entry(owner).or_insert(next);
            let count = nics_of.entry(host).or_default();
            *count += 1;
            (Some(host), *count - 1)
        };
        let device = Device { name: name.into(), host, ..Device::new(guid, kind, index, file) };
        let id = t.add_device(device).map_err(|e| fail(Some(i + 1), e.to_string()))?;
        by_guid.insert(guid, id);
    }
    if by_guid.is_empty() {
        return Err(fail(None, "no `Switch` and no `Ca` of ibnetdiscover is in it".into()));
    }
    // Cables by their two ends, the lower first, and how often each was seen.
    let mut cables: BTreeMap<(End, End), (Option<f64>, u32)> = BTreeMap::new();
    let mut at: Option<DeviceId> = None;
    for (i, line) in text.lines().enumerate() {
        if let Some((_, guid, _)) = block(line) {
            at = by_guid.get(guid).copied();
        } else if let (Some(here), Some((own, other, theirs, rate))) = (at, port(line)) {
            let Some(there) = by_guid.get(other) else {
                t.notice(format!("{file}:{}: port {own} leads to {other}, which is not described", i + 1));
                continue;
            };
            let ends = ((here, own).min((*there, theirs)), (here, own).max((*there, theirs)));
            let cable = cables.entry(ends).or_default();
            cable.0 = cable.0.or(rate);
            cable.1 += 1;
        }
    }
    let mut links: BTreeMap<(DeviceId, DeviceId), (u32, f64, bool)> = BTreeMap::new();
    for (((a, p), (b, q)), (rate, seen)) in cables {
        if a == b {
            t.notice(format!("{file}: ports {p} and {q} of {} are joined with each other; left out", t.device(a).id));
            continue;
        }
        if seen == 1 {
            let (x, y) = (&t.device(a).id, &t.device(b).id);
            t.notice(format!("{file}: the cable of {x} port {p} and {y} port {q} is in it from one end only"));
        }
        let link = links.entry((a, b)).or_insert((0, 0.0, true));
        link.0 += 1;
        link.1 += rate.unwrap_or(0.0);
        link.2 &= rate.is_some();
    }
    for ((a, b), (count, rate, known)) in links {
        let mut link = Link::new(LinkKind::InfiniBand, file);
        link.lanes = count;
        link.nominal = known.then_some(rate);
        t.connect(a, b, link);
    }
    Ok(t)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FABRIC: &str = r#"
Switch	3 "S-01"		# "leaf" enhanced port 0 lid 1 lmc 0
[1]	"H-0a"[1](0a) 		# "n1 mlx5_0" lid 5 4xNDR
[2]	"S-02"[1]		# "spine" lid 2 4xHDR
[3]	"S-02"[2]		# "spine" lid 2 4xHDR

Switch	2 "S-02"		# "spine" lid 2
[1]	"S-01"[2]		# "leaf" lid 1 4xHDR
[2]	"S-01"[3]		# "leaf" lid 1 4xHDR

Ca	1 "H-0a"		# "n1 mlx5_0"
[1](0a) 	"S-01"[1]		# lid 5 lmc 0 "leaf" lid 1 4xNDR
"#;

    #[test]
    fn both_ends_of_a_cable_are_one_link() {
        let t = read(FABRIC, "f").unwrap();
        assert_eq!((t.devices().count(), t.links().count(), t.notices().len()), (3, 4, 0), "{:?}", t.notices());
        let rates: Vec<_> = t.links().map(|(.., l)| (l.lanes, l.nominal)).collect();
        assert!(rates.contains(&(1, Some(50e9))) && rates.contains(&(2, Some(50e9))), "{rates:?}");
        assert_eq!(t.device(t.find("H-0a").unwrap()).host, Some(0));
    }

    #[test]
    fn what_dangles_is_noticed() {
        let t = read(&FABRIC.replace("\"H-0a\"[1](0a)", "\"H-ff\"[1](ff)"), "f").unwrap();
        let all = t.notices().join("\n");
        assert!(all.contains("f:3: port 1 leads to H-ff") && all.contains("one end only"), "{all}");
        assert!(read("nothing", "f").is_err());
        let twice = read(&format!("{FABRIC}{FABRIC}"), "f").unwrap_err().to_string();
        assert!(twice.contains("f:14") && twice.contains("two devices"), "{twice}");
    }
}
