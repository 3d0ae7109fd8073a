//! InfiniBand fabrics as `ibnetdiscover` prints them: a block a switch or channel adapter, a line a port; or, with `-p`,
//! a line a port and nothing else.
//!
//! Every cable is in the text twice, from either end. Cables between the same two devices become one link.

use std::collections::{BTreeMap, HashMap};

use crate::topology::cluster::host_and_adapter;
use crate::topology::{Device, DeviceId, DeviceKind, Link, LinkKind, Topology};
use crate::{Error, Result};

/// Whether a text looks like such a fabric.
pub(super) fn looks_like(text: &str) -> bool {
    text.lines().take(500).any(|l| block(l).is_some() || report(l).is_some_and(|r| r.far.is_some()))
}

/// A switch or an adapter, and the line where it is named first.
struct Node<'t> {
    kind: DeviceKind,
    guid: String,
    name: &'t str,
    line: usize,
}

/// A port line: own node and port, the other's, and the rate.
struct Port {
    near: (String, u32),
    far: (String, u32),
    rate: Option<f64>,
    line: usize,
}

/// A line of `ibnetdiscover -p`.
struct Report<'t> {
    near: (DeviceKind, String, u32),
    far: Option<(DeviceKind, String, u32)>,
    rate: Option<f64>,
    names: [&'t str; 2],
}

/// `CA     1  1 0x0002c903000e0b72 4x QDR - SW     2 17 0x0002c9020040d160 ( 'n1 HCA-1' - 'a switch' )`; a port that
/// leads nowhere ends with its own name.
fn report(line: &str) -> Option<Report<'_>> {
    let (head, names) = line.split_once('\'')?;
    let words: Vec<&str> = head.split_whitespace().collect();
    let end = |w: &[&str]| {
        let kind = match w[0] {
            "SW" => DeviceKind::NetSwitch,
            "CA" | "RT" => DeviceKind::Nic,
            _ => return None,
        };
        w[1].parse::<u32>().ok()?;
        let guid = w[3].strip_prefix("0x").filter(|g| !g.is_empty() && g.bytes().all(|b| b.is_ascii_hexdigit()))?;
        let letter = if kind == DeviceKind::NetSwitch { 'S' } else { 'H' };
        Some((kind, format!("{letter}-{guid}"), w[2].parse().ok()?))
    };
    let near = end(words.get(..4)?)?;
    let rate = rate(&format!("{}{}", words.get(4)?, words.get(5)?));
    let far = words.get(6..11).filter(|w| w[0] == "-").and_then(|w| end(&w[1..]));
    let quoted: Vec<&str> = names.split('\'').collect();
    Some(Report { near, far, rate, names: [quoted[0], quoted.get(2).copied().unwrap_or_default()] })
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
    let (nodes, ports) = lines(text).map_err(|(line, why)| fail(line, why))?;
    let mut by_guid: HashMap<&str, DeviceId> = HashMap::new();
    let mut hosts: HashMap<&str, usize> = HashMap::new();
    let mut nics_of: HashMap<usize, usize> = HashMap::new();
    let mut switches = 0;
    for node in &nodes {
        let (host, index) = if node.kind == DeviceKind::NetSwitch {
            switches += 1;
            (None, switches - 1)
        } else {
            // A card whose firmware names no host is a host of its own.
            let owner = match host_and_adapter(node.name) {
                ("", _) => &node.guid,
                (host, _) => host,
            };
            let next = hosts.len();
            let host = *hosts.entry(owner).or_insert(next);
            let count = nics_of.entry(host).or_default();
            *count += 1;
            (Some(host), *count - 1)
        };
        let device = Device { name: node.name.into(), host, ..Device::new(&node.guid, node.kind, index, file) };
        let id = t.add_device(device).map_err(|e| fail(Some(node.line), e.to_string()))?;
        by_guid.insert(&node.guid, id);
    }
    if by_guid.is_empty() {
        return Err(fail(None, "no `Switch` and no `Ca` of ibnetdiscover is in it, and no port of its report".into()));
    }
    // Cables by their two ends, the lower first, and how often each was seen.
    let mut cables: BTreeMap<(End, End), (Option<f64>, u32)> = BTreeMap::new();
    for Port { near, far, rate, line } in &ports {
        let Some(here) = by_guid.get(near.0.as_str()) else { continue };
        let Some(there) = by_guid.get(far.0.as_str()) else {
            t.notice(format!("{file}:{line}: port {} leads to {}, which is not described", near.1, far.0));
            continue;
        };
        let (a, b) = ((*here, near.1), (*there, far.1));
        let cable = cables.entry((a.min(b), a.max(b))).or_default();
        cable.0 = cable.0.or(*rate);
        cable.1 += 1;
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

type Wrong = (Option<usize>, String);

/// What the text names, and what its port lines say, in either of its two forms.
fn lines(text: &str) -> std::result::Result<(Vec<Node<'_>>, Vec<Port>), Wrong> {
    let (mut nodes, mut ports) = (Vec::new(), Vec::new());
    let mut reported = HashMap::new();
    let mut at: Option<String> = None;
    for (i, text) in text.lines().enumerate() {
        let line = i + 1;
        if let Some((kind, guid, name)) = block(text) {
            at = Some(guid.into());
            nodes.push(Node { kind, guid: guid.into(), name, line });
        } else if let (Some(here), Some((own, other, theirs, rate))) = (&at, port(text)) {
            ports.push(Port { near: (here.clone(), own), far: (other.into(), theirs), rate, line });
        } else if let Some(Report { near, far, rate, names }) = report(text) {
            let (kind, guid, own) = near;
            // In a report the nodes are those that have port lines.
            if reported.insert(guid.clone(), kind).is_none() {
                nodes.push(Node { kind, guid: guid.clone(), name: names[0], line });
            }
            if let Some((_, other, theirs)) = far {
                ports.push(Port { near: (guid, own), far: (other, theirs), rate, line });
            }
        }
        if nodes.len() > super::range::MAX {
            return Err((Some(line), format!("more than {} switches and adapters", super::range::MAX)));
        }
    }
    Ok((nodes, ports))
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

    const REPORT: &str = r#"
SW     1  1 0x0000000000000001 4x NDR - CA     5  1 0x000000000000000a ( 'leaf' - 'n1 mlx5_0' )
SW     1  2 0x0000000000000001 4x HDR - SW     2  1 0x0000000000000002 ( 'leaf' - 'spine' )
SW     1  3 0x0000000000000001 4x HDR - SW     2  2 0x0000000000000002 ( 'leaf' - 'spine' )
SW     1  4 0x0000000000000001 4x SDR                                    'leaf'
SW     2  1 0x0000000000000002 4x HDR - SW     1  2 0x0000000000000001 ( 'spine' - 'leaf' )
SW     2  2 0x0000000000000002 4x HDR - SW     1  3 0x0000000000000001 ( 'spine' - 'leaf' )
CA     5  1 0x000000000000000a 4x NDR - SW     1  1 0x0000000000000001 ( 'n1 mlx5_0' - 'leaf' )
"#;

    #[test]
    fn a_report_of_ports_says_the_same() {
        assert!(looks_like(REPORT) && looks_like(FABRIC));
        let (long, short) = (read(FABRIC, "f").unwrap(), read(REPORT, "f").unwrap());
        let facts = |t: &Topology| {
            let mut links: Vec<_> = t
                .links()
                .map(|(_, a, b, l)| {
                    (t.device(a).name.clone(), t.device(b).name.clone(), l.lanes, l.nominal.map(f64::to_bits))
                })
                .collect();
            links.sort();
            links
        };
        assert_eq!(facts(&long), facts(&short));
        assert!(short.notices().is_empty(), "{:?}", short.notices());
        let cut = REPORT.replace("CA     5  1 0x000000000000000a 4x NDR", "gone");
        assert!(read(&cut, "f").unwrap().notices()[0].contains("f:2: port 1 leads to H-000000000000000a"));
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
