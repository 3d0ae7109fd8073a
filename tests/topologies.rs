//! The machines in `topologies/` have what their vendors say.

use std::path::Path;

use topocoll::topology::{DeviceKind, LinkKind, PathClass, Topology};

fn machine(name: &str) -> Topology {
    Topology::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("topologies").join(name)).unwrap()
}

/// NVLinks of each GPU.
fn nvlinks(t: &Topology) -> Vec<u32> {
    let of = |g| t.links().filter(|(_, a, _, l)| *a == g && l.kind == LinkKind::NvLink).map(|(.., l)| l.lanes).sum();
    t.of_kind(DeviceKind::Gpu).into_iter().map(of).collect()
}

fn class(t: &Topology, a: &str, b: &str) -> PathClass {
    t.route(t.find(a).unwrap(), t.find(b).unwrap()).unwrap().class
}

/// Classes of all pairs of GPUs.
fn pairs(t: &Topology) -> Vec<PathClass> {
    let gpus = t.of_kind(DeviceKind::Gpu);
    let mut out = Vec::new();
    for &a in &gpus {
        out.extend(gpus.iter().filter(|b| **b != a).map(|b| t.route(a, *b).unwrap().class));
    }
    out
}

#[test]
fn every_file_is_read_and_written_back_equal() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("topologies");
    let mut seen = 0;
    for file in std::fs::read_dir(dir).unwrap() {
        let path = file.unwrap().path();
        let t = Topology::read(&path).unwrap();
        assert_eq!(Topology::from_toml(&t.to_toml(), "again").unwrap(), t, "{}", path.display());
        let two = t.cluster(2).unwrap();
        assert_eq!(Topology::from_toml(&two.to_toml(), "again").unwrap(), two);
        assert!(t.links().all(|(.., l)| !l.source.is_empty()));
        seen += 1;
    }
    assert!(seen >= 3);
}

#[test]
fn dgx_1() {
    let t = machine("dgx-1.toml");
    assert_eq!(nvlinks(&t), [6; 8]);
    assert_eq!(t.of_kind(DeviceKind::Nic).len(), 4);
    let p = pairs(&t);
    assert_eq!(p.len(), 56);
    let count = |c| p.iter().filter(|x| **x == c).count();
    // 16 linked pairs in each direction, of which 8 have two links; the others are one GPU away.
    assert_eq!((count(PathClass::NvLink(1)), count(PathClass::NvLink(2)), count(PathClass::Nvb)), (16, 16, 24));
    assert_eq!(class(&t, "gpu0", "nic0"), PathClass::Pix);
    // The other switch of the socket: through the CPU, or over NVLink to a GPU that has the NIC beside it.
    assert!(matches!(class(&t, "gpu0", "nic1"), PathClass::Pxn | PathClass::Phb));
}

#[test]
fn dgx_a100() {
    let t = machine("dgx-a100.toml");
    assert_eq!(nvlinks(&t), [12; 8]);
    assert!(pairs(&t).iter().all(|c| *c == PathClass::NvLink(12)));
    let route = t.route(t.find("gpu0").unwrap(), t.find("gpu7").unwrap()).unwrap();
    assert_eq!((route.links.len(), route.bandwidth), (2, 240e9));
    for i in 0..8 {
        for j in 0..8 {
            let class = class(&t, &format!("gpu{i}"), &format!("nic{j}"));
            assert_eq!(class == PathClass::Pxb, i / 2 == j / 2, "gpu{i} nic{j} {class}");
        }
    }
    assert_eq!(class(&t, "cpu0", "cpu1"), PathClass::Node);
    assert_eq!(class(&t, "cpu0", "cpu4"), PathClass::Sys);
}

#[test]
fn dgx_h100() {
    let t = machine("dgx-h100.toml");
    assert_eq!(nvlinks(&t), [18; 8]);
    assert!(pairs(&t).iter().all(|c| *c == PathClass::NvLink(18)));
    for i in 0..8 {
        assert_eq!(class(&t, &format!("gpu{i}"), &format!("nic{i}")), PathClass::Pxb);
    }
    let two = t.cluster(2).unwrap();
    assert_eq!((two.hosts(), two.of_kind(DeviceKind::Gpu).len(), two.of_kind(DeviceKind::NetSwitch).len()), (2, 16, 8));
    let route = two.route(two.find("host0/gpu3").unwrap(), two.find("host1/gpu3").unwrap()).unwrap();
    assert_eq!((route.class, route.bandwidth), (PathClass::Net, 50e9));
    let names: Vec<String> = route.links.iter().map(|l| two.device(two.endpoints(*l).1).id.clone()).collect();
    assert!(names.contains(&"rail3".to_string()), "{names:?}");
    // Nothing goes through another host's GPUs.
    let far = two.route(two.find("host0/gpu0").unwrap(), two.find("host1/gpu5").unwrap()).unwrap();
    let foreign = far.links.iter().skip(1).map(|l| two.device(two.endpoints(*l).0));
    assert!(foreign.filter(|d| d.kind == DeviceKind::Gpu).all(|d| d.host == Some(0)));
    assert!(two.cluster(3).unwrap_err().to_string().contains("one host can be repeated"));
}
