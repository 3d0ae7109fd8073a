//! Topology profiles of TACCL: GPUs of a node, and for each link alpha (us) and beta (us for a megabyte).

use serde::Deserialize;

use crate::topology::formats::matrix;
use crate::topology::{Device, DeviceId, DeviceKind, Link, LinkKind, Topology};
use crate::{Error, Result};

/// The most GPUs of a node.
const MAX: usize = 1024;

/// Whether a text looks like such a profile.
pub(super) fn looks_like(text: &str) -> bool {
    text.trim_start().starts_with('{') && text.contains("\"gpus_per_node\"")
}

#[derive(Deserialize)]
struct Profile {
    name: String,
    gpus_per_node: usize,
    nics_per_node: Option<i64>,
    #[serde(default)]
    alpha: f64,
    #[serde(default)]
    node_betas_list: Vec<f64>,
    links: Option<Vec<Vec<f64>>>,
    betas: Option<Vec<Vec<f64>>>,
    remote_alpha: Option<f64>,
    remote_beta: Option<f64>,
}

pub(super) fn read(text: &str, file: &str) -> Result<Topology> {
    let fail = |field: &str, message: String| Error::in_file(file, None, field, message);
    let p: Profile = serde_json::from_str(text)
        .map_err(|e| Error::in_file(file, Some(e.line()), "", format!("this is no TACCL profile: {e}")))?;
    let n = p.gpus_per_node;
    if !(1..=MAX).contains(&n) {
        return Err(fail("gpus_per_node", format!("found {n}, expected 1 to {MAX}")));
    }
    let rate = |field: &str, beta: f64| match beta.is_finite() && beta > 0.0 {
        true => Ok(1e12 / beta),
        false => Err(fail(field, format!("found {beta}, expected microseconds for a megabyte, above 0"))),
    };
    let mut t = Topology::new(&p.name);
    t.source = format!("TACCL profile {file}");
    let ids = matrix::gpus(&mut t, 0, 1, n, file)?;
    let like = matrix::link(LinkKind::NvLink, 1.0, p.alpha * 1e-6, &format!("{file}: beta of the link"));
    match (&p.links, &p.betas, p.node_betas_list.as_slice()) {
        (Some(links), Some(betas), _) => {
            for (field, rows) in [("links", links), ("betas", betas)] {
                if rows.len() != n || rows.iter().any(|r| r.len() != n) {
                    return Err(fail(field, format!("expected {n} rows of {n}, for {n} GPUs")));
                }
            }
            for to in 0..n {
                for from in (0..n).filter(|from| *from != to && links[to][*from] > 0.0) {
                    // Rows are destinations.
                    let rate = rate("betas", betas[to][from])? * links[to][from];
                    t.add_link(ids[from], ids[to], Link { nominal: Some(rate), ..like.clone() });
                }
            }
        }
        (None, _, [one]) => {
            let rate = rate("node_betas_list", *one)?;
            let switch = Device::new("nvswitch0", DeviceKind::NvSwitch, 0, file);
            let switch = t.add_device(switch)?;
            ids.iter().for_each(|g| t.connect(*g, switch, Link { nominal: Some(rate), ..like.clone() }));
            t.notice(format!("{file} lists no links; its GPUs are taken to be at one switch"));
        }
        (None, _, [fast, slow]) if n == 8 => {
            let (fast, slow) = (rate("node_betas_list", *fast)?, rate("node_betas_list", *slow)?);
            let links = matrix::cube_mesh().map(|(i, j, n)| (i, j, n, if n == 1 { slow } else { fast }));
            matrix::join(&mut t, &ids, &like, links);
            t.notice(format!("{file} lists no links; eight GPUs of two rates are taken to be the NDv2's cube mesh"));
        }
        _ => {
            let why = "expected `links` and `betas`, or one beta (a switch), or two for eight GPUs (NDv2)";
            return Err(fail("node_betas_list", format!("found {} beta(s); {why}", p.node_betas_list.len())));
        }
    }
    if let (Some(nics), Some(beta)) = (p.nics_per_node.filter(|n| *n > 0), p.remote_beta.filter(|b| *b > 0.0)) {
        let nics = usize::try_from(nics).unwrap_or(MAX).min(n);
        remote(&mut t, &ids, nics, rate("remote_beta", beta)?, p.remote_alpha.unwrap_or(0.0) * 1e-6, file)?;
    }
    t.notice(format!("{file}: betas are taken for a megabyte; TACCL has them multiplied by the size they are for"));
    Ok(t)
}

/// NICs, each with its share of the GPUs behind a PCIe switch.
fn remote(t: &mut Topology, gpus: &[DeviceId], nics: usize, rate: f64, alpha: f64, file: &str) -> Result<()> {
    let source = "assumed: the profile does not say which GPUs are near which NIC";
    let cpu = t.add_device(Device::new("cpu0", DeviceKind::Cpu, 0, source))?;
    for i in 0..nics {
        let switch = t.add_device(Device::new(format!("plx{i}"), DeviceKind::PciSwitch, i, source))?;
        let nic = t.add_device(Device::new(format!("nic{i}"), DeviceKind::Nic, i, file))?;
        let rail = t.add_device(Device::new(format!("rail{i}"), DeviceKind::NetSwitch, i, source))?;
        let pcie = Link::new(LinkKind::Pcie, source);
        t.connect(switch, cpu, pcie.clone());
        t.connect(nic, switch, pcie.clone());
        for gpu in &gpus[i * gpus.len() / nics..(i + 1) * gpus.len() / nics] {
            t.connect(*gpu, switch, pcie.clone());
        }
        t.connect(nic, rail, matrix::link(LinkKind::InfiniBand, rate, alpha, &format!("{file}: remote_beta")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const NDV2: &str = r#"{"name": "NDv2_1MB", "gpus_per_node": 8, "nics_per_node": 1, "alpha": 0.3,
 "node_betas_list": [23, 46], "node_invbws_list": [23, 46], "remote_invbw": 107, "remote_alpha": 2.6, "remote_beta": 105}"#;

    #[test]
    fn known_machines_and_matrices_are_read() {
        assert!(looks_like(NDV2));
        let t = read(NDV2, "f").unwrap();
        let class = |a: &str, b: &str| t.route(t.find(a).unwrap(), t.find(b).unwrap()).unwrap();
        assert_eq!(
            (class("gpu0", "gpu1").class.to_string(), class("gpu0", "gpu2").class.to_string()),
            ("NV2".into(), "NV1".into())
        );
        assert_eq!((class("gpu0", "gpu1").bandwidth / 1e8).round(), 435.0);
        let two = t.cluster(2).unwrap();
        let route = two.route(two.find("host0/gpu0").unwrap(), two.find("host1/gpu7").unwrap()).unwrap();
        assert_eq!((route.bandwidth / 1e8).round(), 95.0);
        let dgx2 = NDV2.replace("\"gpus_per_node\": 8", "\"gpus_per_node\": 16").replace("[23, 46]", "[8]");
        assert_eq!(read(&dgx2, "f").unwrap().of_kind(DeviceKind::NvSwitch).len(), 1);
        // Row 1 of `links` is what GPU 1 receives.
        let custom = r#"{"name": "c", "gpus_per_node": 2, "links": [[0, 0], [1, 0]], "betas": [[0, 0], [10, 0]]}"#;
        let t = read(custom, "f").unwrap();
        assert_eq!(
            t.links().map(|(_, a, _, l)| (t.device(a).id.clone(), l.nominal)).collect::<Vec<_>>(),
            [("gpu0".into(), Some(1e11))]
        );
    }

    #[test]
    fn what_is_wrong_says_where() {
        for (from, to, word) in [
            ("\"alpha\": 0.3", "\"alpha\": ", "f:1: this is no TACCL profile"),
            ("\"gpus_per_node\": 8", "\"gpus_per_node\": 0", "`gpus_per_node`: found 0"),
            ("[23, 46]", "[23, 46, 60]", "found 3 beta(s)"),
            ("[23, 46]", "[0, 46]", "`node_betas_list`: found 0"),
            ("\"alpha\"", "\"links\": [[1]], \"betas\": [[1]], \"alpha\"", "`links`: expected 8 rows of 8"),
        ] {
            let error = read(&NDV2.replacen(from, to, 1), "f").unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
    }
}
