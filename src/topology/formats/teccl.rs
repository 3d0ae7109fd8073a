//! Inputs of TE-CCL: a machine by name and how many of it. The links of each name are those that TE-CCL builds.

use serde::Deserialize;

use crate::topology::formats::matrix;
use crate::topology::{Device, DeviceId, DeviceKind, Link, LinkKind, Topology};
use crate::{Error, Result};

/// Chassis, and a mesh's side, at most.
const MAX: usize = 256;

/// Whether a text looks like such an input.
pub(super) fn looks_like(text: &str) -> bool {
    text.trim_start().starts_with('{') && text.contains("\"TopologyParams\"")
}

#[derive(Deserialize)]
struct Input {
    #[serde(rename = "TopologyParams")]
    topology: Params,
}

#[derive(Deserialize)]
struct Params {
    name: String,
    #[serde(default = "one")]
    chassis: usize,
    #[serde(default)]
    alpha: Vec<f64>,
    #[serde(default = "four")]
    side_length: usize,
}

fn one() -> usize {
    1
}

fn four() -> usize {
    4
}

/// The links of an MI250X node's dies, in xGMI links of 50 GB/s: RCCL's 16-die model.
const MI250: [(usize, usize, u32); 28] = [
    (0, 1, 4),
    (0, 4, 2),
    (0, 8, 1),
    (1, 5, 1),
    (1, 9, 1),
    (1, 10, 1),
    (2, 3, 4),
    (2, 6, 1),
    (2, 9, 1),
    (2, 10, 1),
    (3, 7, 2),
    (3, 11, 1),
    (4, 5, 4),
    (4, 6, 1),
    (5, 6, 1),
    (5, 7, 1),
    (6, 7, 4),
    (8, 9, 4),
    (8, 12, 2),
    (9, 13, 1),
    (10, 11, 4),
    (10, 14, 1),
    (11, 15, 2),
    (12, 13, 4),
    (12, 14, 1),
    (13, 14, 1),
    (13, 15, 1),
    (14, 15, 4),
];

pub(super) fn read(text: &str, file: &str) -> Result<Topology> {
    let fail = |field: &str, message: String| Error::in_file(file, None, field, message);
    let input: Input = serde_json::from_str(text)
        .map_err(|e| Error::in_file(file, Some(e.line()), "", format!("this is no TE-CCL input: {e}")))?;
    let p = input.topology;
    for (field, n) in [("chassis", p.chassis), ("side_length", p.side_length)] {
        if !(1..=MAX).contains(&n) {
            return Err(fail(&format!("TopologyParams.{field}"), format!("found {n}, expected 1 to {MAX}")));
        }
    }
    let alpha = p.alpha.first().copied().filter(|a| a.is_finite() && *a > 0.0).unwrap_or(0.0);
    let mut t = Topology::new(&format!("{} x {}", p.chassis, p.name));
    t.source = format!("TE-CCL input {file}");
    let build = Build { file, hosts: p.chassis };
    match p.name.as_str() {
        "DGX1" if p.chassis == 1 => build.mesh(&mut t, 25e9, alpha, 8, matrix::cube_mesh)?,
        "NDv2" => {
            build.mesh(&mut t, 25e9, 0.7e-6, 8, matrix::cube_mesh)?;
            // One GPU of a chassis sends, another receives.
            build.network(&mut t, &[(0, 1)], 12.5e9, 1.3e-6)?;
        }
        "DGX2" => {
            build.switched(&mut t, 16, 125e9, 0.35e-6)?;
            let pairs: Vec<(usize, usize)> = (0..8).map(|k| (2 * k + 1, 2 * k)).collect();
            build.network(&mut t, &pairs, 12.5e9, 2.6e-6)?;
        }
        "AMD" if p.chassis == 1 => {
            build.mesh(&mut t, 50e9, alpha, 16, || MI250.iter().flat_map(|(a, b, n)| [(*a, *b, *n), (*b, *a, *n)]))?;
        }
        "Mesh" if p.chassis == 1 => {
            let (side, n) = (p.side_length, p.side_length * p.side_length);
            // Neighbours by number, as TE-CCL has it: the end of a row is next to the beginning of the following.
            let steps = if side == 1 { vec![] } else { vec![1, side] };
            let next = |i: usize| steps.iter().map(move |d| (i, i + d)).filter(move |(_, j)| *j < n);
            build.mesh(&mut t, 100e9, alpha, n, || (0..n).flat_map(next).flat_map(|(i, j)| [(i, j, 1), (j, i, 1)]))?;
        }
        other => {
            let why = format!(
                "`{other}` of {} chassis is not known; DGX1, AMD and Mesh of one are, NDv2 and DGX2 of any",
                p.chassis
            );
            return Err(fail("TopologyParams.name", why));
        }
    }
    Ok(t)
}

struct Build<'a> {
    file: &'a str,
    hosts: usize,
}

impl Build<'_> {
    fn source(&self) -> String {
        format!("{}: as TE-CCL builds it", self.file)
    }

    /// Hosts of `n` GPUs, each with `links` (from, to, how many) of `rate`.
    fn mesh<I: Iterator<Item = (usize, usize, u32)>>(
        &self,
        t: &mut Topology,
        rate: f64,
        alpha: f64,
        n: usize,
        links: impl Fn() -> I,
    ) -> Result<()> {
        let like = matrix::link(LinkKind::NvLink, rate, alpha, &self.source());
        for host in 0..self.hosts {
            let ids = matrix::gpus(t, host, self.hosts, n, self.file)?;
            matrix::join(t, &ids, &like, links().map(|(i, j, lanes)| (i, j, lanes, rate * f64::from(lanes))));
        }
        Ok(())
    }

    fn switched(&self, t: &mut Topology, n: usize, rate: f64, alpha: f64) -> Result<()> {
        for host in 0..self.hosts {
            let ids = matrix::gpus(t, host, self.hosts, n, self.file)?;
            let id = if self.hosts > 1 { format!("host{host}/nvswitch0") } else { "nvswitch0".into() };
            let switch = Device { host: Some(host), ..Device::new(id, DeviceKind::NvSwitch, 0, self.file) };
            let switch = t.add_device(switch)?;
            let link = matrix::link(LinkKind::NvLink, rate, alpha, &self.source());
            ids.iter().for_each(|g| t.connect(*g, switch, link.clone()));
        }
        Ok(())
    }

    /// Between chassis: for each pair a rail, to which the first GPU sends and from which the second receives.
    fn network(&self, t: &mut Topology, pairs: &[(usize, usize)], rate: f64, alpha: f64) -> Result<()> {
        for (i, (sender, receiver)) in pairs.iter().enumerate().filter(|_| self.hosts > 1) {
            let rail = t.add_device(Device::new(format!("rail{i}"), DeviceKind::NetSwitch, i, self.file))?;
            let link: Link = matrix::link(LinkKind::InfiniBand, rate, alpha, &self.source());
            for host in 0..self.hosts {
                let gpu = |k: usize| t.find(&format!("host{host}/gpu{k}"));
                let ends: (Option<DeviceId>, Option<DeviceId>) = (gpu(*sender), gpu(*receiver));
                if let (Some(out), Some(back)) = ends {
                    t.add_link(out, rail, link.clone());
                    t.add_link(rail, back, link.clone());
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn input(name: &str, chassis: usize) -> String {
        format!(
            "{{\n \"TopologyParams\": {{\"name\": \"{name}\", \"chassis\": {chassis}, \"chunk_size\": 1.0, \"side_length\": 3}},\n \"InstanceParams\": {{}}\n}}"
        )
    }

    #[test]
    fn machines_are_built_by_name() {
        let read = |name: &str, chassis: usize| read(&input(name, chassis), "f").unwrap();
        let out = |t: &Topology, id: &str| {
            let gpu = t.find(id).unwrap();
            t.links().filter(|(_, a, ..)| *a == gpu).filter_map(|(.., l)| l.nominal).sum::<f64>() / 1e9
        };
        let dgx1 = read("DGX1", 1);
        assert!((0..8).all(|g| out(&dgx1, &format!("gpu{g}")) == 150.0));
        let ndv2 = read("NDv2", 3);
        assert_eq!((ndv2.hosts(), out(&ndv2, "host2/gpu0"), out(&ndv2, "host2/gpu1")), (3, 162.5, 150.0));
        assert!(ndv2.route(ndv2.find("host0/gpu0").unwrap(), ndv2.find("host1/gpu1").unwrap()).is_some());
        let dgx2 = read("DGX2", 2);
        assert_eq!((dgx2.of_kind(DeviceKind::Gpu).len(), dgx2.of_kind(DeviceKind::NetSwitch).len()), (32, 8));
        let amd = read("AMD", 1);
        assert_eq!((out(&amd, "gpu0"), out(&amd, "gpu1")), (350.0, 350.0));
        let mesh = read("Mesh", 1);
        assert_eq!((mesh.of_kind(DeviceKind::Gpu).len(), out(&mesh, "gpu0"), out(&mesh, "gpu4")), (9, 200.0, 400.0));
    }

    #[test]
    fn what_is_wrong_says_where() {
        for (text, word) in [
            (input("TPU", 1), "`TopologyParams.name`: `TPU` of 1 chassis is not known"),
            (input("DGX1", 0), "`TopologyParams.chassis`: found 0"),
            (input("DGX1", 1).replace("chassis\":", "chassis\" "), "f:2: this is no TE-CCL input"),
        ] {
            let error = read(&text, "f").unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
    }
}
