//! Network files of ASTRA-sim's analytical backend: dimensions of rings, full meshes and switches, the first innermost.

use crate::topology::formats::{range, yaml};
use crate::topology::{Device, DeviceId, DeviceKind, Link, LinkKind, Origin, Topology};
use crate::{Error, Result};

/// Links that a file may stand for.
const MAX_LINKS: usize = 1_000_000;

/// Whether a text looks like such a file.
pub(super) fn looks_like(text: &str) -> bool {
    text.lines().take(500).any(|l| l.starts_with("npus_count:"))
}

#[derive(Clone, Copy, PartialEq)]
enum Shape {
    Ring,
    Full,
    Switch,
}

struct Dimension {
    shape: Shape,
    size: usize,
    /// Bytes per second.
    bandwidth: f64,
    /// Seconds.
    latency: f64,
}

pub(super) fn read(text: &str, file: &str) -> Result<Topology> {
    let dimensions = dimensions(&yaml::parse(text, file)?, file)?;
    let fail = |message: String| Error::in_file(file, None, "npus_count", message);
    let mut npus = 1usize;
    let mut links = 0usize;
    for d in &dimensions {
        npus = npus.saturating_mul(d.size);
    }
    for d in &dimensions {
        links = links.saturating_add(npus.saturating_mul(if d.shape == Shape::Full { d.size - 1 } else { 2 }));
    }
    if npus > range::MAX || links > MAX_LINKS {
        return Err(fail(format!("{npus} NPUs with {links} links; {} and {MAX_LINKS} are the most", range::MAX)));
    }
    // Several dimensions of which the last is switched: that is the network, and what is inside is a host.
    let network = dimensions.len() > 1 && dimensions.last().is_some_and(|d| d.shape == Shape::Switch);
    let per_host = if network { npus / dimensions[dimensions.len() - 1].size } else { npus };
    let mut t = Topology::new(file.rsplit('/').next().unwrap_or(file));
    t.source = format!("ASTRA-sim network file {file}");
    let mut ids = Vec::with_capacity(npus);
    for n in 0..npus {
        let (host, index) = (n / per_host, n % per_host);
        let id = if network { format!("host{host}/gpu{index}") } else { format!("gpu{index}") };
        ids.push(t.add_device(Device { host: Some(host), ..Device::new(id, DeviceKind::Gpu, index, file) })?);
    }
    let mut stride = 1;
    for (i, d) in dimensions.iter().enumerate() {
        let last = network && i + 1 == dimensions.len();
        let mut link = Link::new(if last { LinkKind::Ethernet } else { LinkKind::NvLink }, file);
        link.nominal = Some(d.bandwidth);
        if d.latency > 0.0 {
            (link.latency, link.latency_origin) = (d.latency, Origin::Declared);
        }
        for start in (0..npus).filter(|n| n / stride % d.size == 0) {
            let group: Vec<DeviceId> = (0..d.size).map(|k| ids[start + k * stride]).collect();
            join(&mut t, d.shape, &group, &link, last, file)?;
        }
        stride *= d.size;
    }
    t.notice(format!("{file} does not name kinds of links; they are taken to be NVLink, and Ethernet between hosts"));
    Ok(t)
}

fn join(t: &mut Topology, shape: Shape, group: &[DeviceId], link: &Link, network: bool, file: &str) -> Result<()> {
    match shape {
        Shape::Ring => {
            for (k, a) in group.iter().enumerate().filter(|_| group.len() > 1) {
                // A ring of two is one cable.
                if group.len() > 2 || k == 0 {
                    t.connect(*a, group[(k + 1) % group.len()], link.clone());
                }
            }
        }
        Shape::Full => {
            for (k, a) in group.iter().enumerate() {
                group[k + 1..].iter().for_each(|b| t.connect(*a, *b, link.clone()));
            }
        }
        Shape::Switch => {
            let kind = if network { DeviceKind::NetSwitch } else { DeviceKind::NvSwitch };
            let host = if network { None } else { t.device(group[0]).host };
            let index = t.count(kind, host);
            let first = &t.device(group[0]).id;
            let prefix =
                first.rsplit_once('/').filter(|_| !network).map_or(String::new(), |(host, _)| format!("{host}/"));
            let word = if network { "switch" } else { "nvswitch" };
            let device = Device { host, ..Device::new(format!("{prefix}{word}{index}"), kind, index, file) };
            let switch = t.add_device(device)?;
            group.iter().for_each(|a| t.connect(*a, switch, link.clone()));
        }
    }
    Ok(())
}

fn dimensions(root: &yaml::Node, file: &str) -> Result<Vec<Dimension>> {
    let fail = |line: usize, field: &str, message: String| Error::in_file(file, Some(line), field, message);
    let list =
        |key: &str| root.get(key).map(yaml::Node::items).ok_or_else(|| fail(root.line, key, "it is missing".into()));
    let (shapes, sizes, rates, times) = (list("topology")?, list("npus_count")?, list("bandwidth")?, list("latency")?);
    for (key, items) in [("npus_count", sizes), ("bandwidth", rates), ("latency", times)] {
        if items.len() != shapes.len() {
            let why = format!("{} value(s) for {} dimension(s)", items.len(), shapes.len());
            return Err(fail(items.first().map_or(root.line, |i| i.line), key, why));
        }
    }
    let number = |node: &yaml::Node, key: &str, least: f64| {
        let text = node.text().unwrap_or_default();
        let value = text.parse::<f64>().ok().filter(|n| n.is_finite() && *n >= least);
        value.ok_or_else(|| fail(node.line, key, format!("found `{text}`, expected a number from {least}")))
    };
    let mut out = Vec::new();
    for (i, shape) in shapes.iter().enumerate() {
        let shape = match shape.text() {
            Some("Ring") => Shape::Ring,
            Some("FullyConnected") => Shape::Full,
            Some("Switch") => Shape::Switch,
            other => {
                let found = other.unwrap_or("a list");
                let why = format!("found `{found}`, expected Ring, FullyConnected or Switch");
                return Err(fail(shape.line, "topology", why));
            }
        };
        let size = number(&sizes[i], "npus_count", 1.0)?;
        let bandwidth = number(&rates[i], "bandwidth", 1e-9)? * 1e9;
        let latency = number(&times[i], "latency", 0.0)? * 1e-9;
        out.push(Dimension { shape, size: size as usize, bandwidth, latency });
    }
    if out.is_empty() { Err(fail(root.line, "topology", "it has no dimension".into())) } else { Ok(out) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "# three dimensions\ntopology: [ Ring, FullyConnected, Switch ]\nnpus_count: [ 2, 4, 3 ]  # 24\nbandwidth: [ 200.0, 100.0, 50.0 ]  # GB/s\nlatency: [ 50.0, 500.0, 2000.0 ]  # ns\n";

    #[test]
    fn dimensions_become_links() {
        assert!(looks_like(FILE));
        let t = read(FILE, "f").unwrap();
        assert_eq!((t.hosts(), t.of_kind(DeviceKind::Gpu).len()), (3, 24));
        let count = |rate: f64| t.links().filter(|(.., l)| l.nominal == Some(rate)).count();
        // Both directions: 12 rings of two, 6 meshes of four, 8 switches of three.
        assert_eq!((count(200e9), count(100e9), count(50e9)), (24, 72, 48));
        let route = |a: &str, b: &str| t.route(t.find(a).unwrap(), t.find(b).unwrap()).unwrap();
        let near = route("host0/gpu0", "host0/gpu1");
        assert_eq!((near.links.len(), near.bandwidth, (near.latency * 1e9).round()), (1, 200e9, 50.0));
        assert_eq!(route("host0/gpu3", "host2/gpu3").bandwidth, 50e9);
        let flat = read("topology: [Switch]\nnpus_count: [8]\nbandwidth: [400]\nlatency: [0]\n", "f").unwrap();
        assert_eq!((flat.hosts(), flat.of_kind(DeviceKind::NvSwitch).len()), (1, 1));
    }

    #[test]
    fn what_is_wrong_says_where() {
        for (from, to, word) in [
            ("Ring", "Torus", "f:2: `topology`: found `Torus`"),
            ("[ 2, 4, 3 ]", "[ 2, 4 ]", "`npus_count`: 2 value(s) for 3"),
            ("[ 2, 4, 3 ]", "[ 2, 0, 3 ]", "found `0`"),
            ("[ 2, 4, 3 ]", "[ 2, 400000, 3 ]", "are the most"),
            ("latency", "tardiness", "`latency`: it is missing"),
            ("200.0", "fast", "found `fast`"),
        ] {
            let error = read(&FILE.replacen(from, to, 1), "f").unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
    }
}
