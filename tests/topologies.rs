//! The machines in `topologies/` have what their vendors say.

use std::path::Path;

use topocoll::topology::{DeviceKind, Fabric, LinkKind, PathClass, Topology};

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
        if t.hosts() == 1 {
            let two = t.cluster(2).unwrap();
            assert_eq!(Topology::from_toml(&two.to_toml(), "again").unwrap(), two);
        }
        // Figures without a source of their own would name the file.
        assert!(
            t.links().all(|(.., l)| !l.source.ends_with(".toml") && l.nominal.or(l.usable).is_some()),
            "{}",
            path.display()
        );
        assert_eq!(topocoll::plan::check::check(&t), [], "{}", path.display());
        seen += 1;
    }
    assert_eq!(seen, MACHINES.len());
}

/// What vendors state: links of each GPU to others, GB/s of all of them in one direction, GB/s between the first half of
/// the GPUs and the second, NICs a GPU (as a fraction), the class from a GPU to its nearest NIC, and how many ordered pairs
/// of a host's GPUs are of each class.
type Machine = (&'static str, u32, f64, f64, (usize, usize), &'static str, &'static [(&'static str, usize)]);

const MACHINES: &[Machine] = &[
    ("aws-p4d", 12, 300.0, 1200.0, (1, 2), "PIX", &[("NV12", 56)]),
    ("aws-p5", 18, 450.0, 1800.0, (4, 1), "PIX", &[("NV18", 56)]),
    ("azure-ndv4", 12, 300.0, 1200.0, (1, 1), "PIX", &[("NV12", 56)]),
    ("azure-ndv5", 18, 450.0, 1800.0, (1, 1), "PIX", &[("NV18", 56)]),
    ("desktop-2xrtx3090-nvlink", 4, 56.25, 56.25, (1, 2), "PHB", &[("NV4", 2)]),
    ("desktop-2xrtx4090", 0, 0.0, 0.0, (1, 2), "PHB", &[("PHB", 2)]),
    ("dgx-1-p100", 4, 80.0, 80.0, (1, 2), "PIX", &[("NV1", 32), ("NVB", 24)]),
    ("dgx-1", 6, 150.0, 150.0, (1, 2), "PIX", &[("NV1", 16), ("NV2", 16), ("NVB", 24)]),
    ("dgx-2", 6, 150.0, 1200.0, (1, 2), "PIX", &[("NV6", 240)]),
    ("dgx-a100", 12, 300.0, 1200.0, (1, 1), "PXB", &[("NV12", 56)]),
    ("dgx-b200", 18, 900.0, 3600.0, (1, 1), "PXB", &[("NV18", 56)]),
    ("dgx-h100", 18, 450.0, 1800.0, (1, 1), "PXB", &[("NV18", 56)]),
    ("gb200-nvl72", 18, 900.0, 32400.0, (1, 1), "P2C", &[("NV18", 12)]),
    ("google-a3", 18, 450.0, 1800.0, (1, 2), "PIX", &[("NV18", 56)]),
    ("mi250x", 7, 350.0, 300.0, (1, 2), "PIX", &[("NV4", 16), ("NV2", 8), ("NV1", 32), ("NVB", 184)]),
    ("mi300x", 7, 448.0, 1024.0, (1, 1), "PIX", &[("NV1", 56)]),
    ("pcie-4xa10", 0, 0.0, 0.0, (1, 2), "PHB", &[("PHB", 4), ("SYS", 8)]),
    ("pcie-8xl40s", 0, 0.0, 0.0, (1, 4), "PIX", &[("PIX", 24), ("SYS", 32)]),
];

#[test]
fn machines_have_what_their_vendors_state() {
    for (name, lanes, rate, bisection, (nics, per_gpus), near, classes) in MACHINES {
        let t = machine(&format!("{name}.toml"));
        let gpus = t.of_kind(DeviceKind::Gpu);
        let fast = |k: LinkKind| matches!(k, LinkKind::NvLink | LinkKind::Xgmi);
        let out = |g| {
            t.links().filter(move |(_, a, _, l)| *a == g && fast(l.kind)).map(|(.., l)| (l.lanes, l.nominal.unwrap()))
        };
        for g in &gpus {
            let all: Vec<_> = out(*g).collect();
            assert_eq!(all.iter().map(|(n, _)| n).sum::<u32>(), *lanes, "{name}");
            assert_eq!(all.iter().map(|(_, r)| r).sum::<f64>(), rate * 1e9, "{name}");
        }
        // Straight across, or, by a switch that never blocks, all that half of them can send.
        let half = &gpus[..gpus.len() / 2];
        let across = t.links().filter(|(_, a, b, l)| fast(l.kind) && half.contains(a) && !half.contains(b));
        assert_eq!(across.map(|(.., l)| l.nominal.unwrap()).sum::<f64>(), bisection * 1e9, "{name}");
        assert_eq!(t.rails().len() * per_gpus, gpus.len() * nics, "{name}");
        for g in &gpus {
            let mine = |n: &topocoll::topology::DeviceId| t.device(*n).host == t.device(*g).host;
            let best = t.rails().into_iter().filter(mine).filter_map(|n| Some(t.route(*g, n)?.class)).min().unwrap();
            assert_eq!(best.to_string(), *near, "{name}: {}", t.device(*g).id);
        }
        let mut counts = std::collections::BTreeMap::new();
        let first: Vec<_> = gpus.iter().filter(|g| t.device(**g).host == Some(0)).collect();
        for a in &first {
            for b in first.iter().filter(|b| **b != *a) {
                *counts.entry(t.route(**a, **b).unwrap().class.to_string()).or_insert(0) += 1;
            }
        }
        let stated: std::collections::BTreeMap<_, _> = classes.iter().map(|(c, n)| (c.to_string(), *n)).collect();
        assert_eq!(counts, stated, "{name}");
    }
}

#[test]
fn an_nvlink_domain_spans_hosts() {
    let t = machine("gb200-nvl72.toml");
    assert_eq!((t.hosts(), t.of_kind(DeviceKind::Gpu).len(), t.of_kind(DeviceKind::NvSwitch).len()), (18, 72, 1));
    let route = t.route(t.find("host0/gpu0").unwrap(), t.find("host17/gpu3").unwrap()).unwrap();
    assert_eq!((route.class.to_string().as_str(), route.links.len(), route.bandwidth), ("NV18", 2, 18.0 * 40.1e9));
    assert_eq!(t.route(t.find("host3/gpu1").unwrap(), t.find("host3/cpu0").unwrap()).unwrap().class, PathClass::C2c);
    assert!(Topology::from_toml("name = 'x'\n[[device]]\nkind = 'gpu'\nid = 'g'\nshared = true\n", "f").is_err());
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

fn fabric(text: &str) -> Fabric {
    text.parse().unwrap()
}

/// Bytes per second of all network links that leave these switches for others.
fn up(t: &Topology, ids: &[String]) -> f64 {
    let inside = |d| ids.contains(&t.device(d).id);
    let switch = |d| t.device(d).kind == DeviceKind::NetSwitch;
    let out = t.links().filter(|(_, a, b, _)| inside(*a) && !inside(*b) && switch(*b));
    out.map(|(.., l)| l.bound_bandwidth()).sum()
}

#[test]
fn fabrics_join_hosts_as_they_say() {
    let host = machine("dgx-h100.toml");
    let class = |t: &Topology, a: &str, b: &str| t.route(t.find(a).unwrap(), t.find(b).unwrap()).unwrap();

    // Twelve hosts, four a leaf: three leaves and two spines on each of eight rails.
    let rails = host.cluster_over(12, fabric("rails:leaf=4,spines=2")).unwrap();
    assert_eq!((rails.hosts(), rails.of_kind(DeviceKind::NetSwitch).len()), (12, 8 * 5));
    assert_eq!(up(&rails, &["rail0/leaf0".into()]), 4.0 * 50e9);
    assert_eq!(class(&rails, "host0/nic3", "host3/nic3").links.len(), 2);
    assert_eq!(class(&rails, "host0/nic3", "host4/nic3").links.len(), 4);

    // All NICs of a host at one leaf; half as much goes up as comes in.
    let clos = host.cluster_over(6, fabric("leaf-spine:leaf=2,spines=4,oversubscription=2")).unwrap();
    assert_eq!(clos.of_kind(DeviceKind::NetSwitch).len(), 3 + 4);
    assert_eq!(up(&clos, &["leaf1".into()]), 2.0 * 8.0 * 50e9 / 2.0);
    assert_eq!(class(&clos, "host0/nic0", "host1/nic7").links.len(), 2);

    // Four groups of two routers, two hosts a router. A half of the groups can send all to the other half.
    let dragonfly = host.cluster_over(16, fabric("dragonfly:groups=4,routers=2")).unwrap();
    let half: Vec<String> = (0..4).map(|i| format!("group{}/router{}", i / 2, i % 2)).collect();
    assert_eq!(up(&dragonfly, &half), 8.0 * 8.0 * 50e9);
    assert!(dragonfly.links().filter(|(.., l)| l.kind == LinkKind::InfiniBand).all(|(.., l)| l.nominal.is_some()));

    for t in [&rails, &clos, &dragonfly] {
        assert_eq!(Topology::from_toml(&t.to_toml(), "again").unwrap(), *t);
        assert_eq!(t.of_kind(DeviceKind::Gpu).len(), 8 * t.hosts());
        let gpus = t.of_kind(DeviceKind::Gpu);
        assert!(gpus.iter().all(|g| t.route(gpus[0], *g).is_some()));
    }
    for (hosts, text, word) in [
        (4, "dragonfly:groups=4,routers=2", "more than 4 hosts"),
        (100_000, "rails", "more than 2000000 devices"),
        (60_000, "leaf-spine:leaf=1,spines=60000", "more than 2000000"),
    ] {
        let error = host.cluster_over(hosts, fabric(text)).unwrap_err().to_string();
        assert!(error.contains(word), "{error}");
    }
}

/// A changed host is no longer like the others, and is written as it is.
#[test]
fn a_link_of_one_host_can_differ() {
    let mut t = machine("dgx-h100.toml").cluster(3).unwrap();
    assert!(t.to_toml().len() < 20_000);
    let nic = t.find("host1/nic2").unwrap();
    let slow = t.links().find(|(_, a, _, l)| *a == nic && l.kind == LinkKind::InfiniBand).unwrap().0;
    t.link_mut(slow).nominal = Some(25e9);
    let again = Topology::from_toml(&t.to_toml(), "again").unwrap();
    assert_eq!(again, t);
    assert!(t.to_tree(false).contains("host 1\n"));
}

const DISCOVERED: &str = r#"
Switch 4 "S-01" # "leaf" lid 1
[1] "H-a0"[1](a0) # "n1 mlx5_0" lid 5 4xHDR
[2] "H-a1"[1](a1) # "n1 mlx5_1" lid 6 4xHDR
[3] "H-b1"[1](b1) # "n2 mlx5_1" lid 7 4xHDR
[4] "H-b0"[1](b0) # "n2 mlx5_0" lid 8 4xEDR
[5] "H-c0"[1](c0) # "n3 mlx5_0" lid 9 4xHDR

Ca 1 "H-a0" # "n1 mlx5_0"
[1](a0) "S-01"[1] # lid 5 4xHDR
Ca 1 "H-a1" # "n1 mlx5_1"
[1](a1) "S-01"[2] # lid 6 4xHDR
Ca 1 "H-b1" # "n2 mlx5_1"
[1](b1) "S-01"[3] # lid 7 4xHDR
Ca 1 "H-b0" # "n2 mlx5_0"
[1](b0) "S-01"[4] # lid 8 4xEDR
Ca 1 "H-c0" # "n3 mlx5_0"
[1](c0) "S-01"[5] # lid 9 4xHDR
"#;

#[test]
fn hosts_are_placed_in_a_fabric_that_was_discovered() {
    let net = Topology::parse(DISCOVERED, "fabric", None).unwrap();
    let text = |names: [&str; 2]| {
        let nic = |i: usize| format!("[[device]]\nkind = 'nic'\nid = 'nic{i}'\nname = '{}'\n", names[i]);
        format!(
            "name = 'm'\n[[device]]\nkind = 'cpu'\nid = 'cpu0'\n{}{}[[link]]\nkind = 'pcie'\nfrom = 'nic[0-1]'\nto = 'cpu0'\n",
            nic(0),
            nic(1)
        )
    };
    // By name, though the machine lists them the other way round; by order where names say nothing.
    for (names, slow) in [(["mlx5_1", "mlx5_0"], "host1/nic1"), (["a", "b"], "host1/nic0")] {
        let host = Topology::from_toml(&text(names), "m").unwrap();
        let t = host.cluster_in(&net).unwrap();
        assert_eq!((t.hosts(), t.of_kind(DeviceKind::Nic).len()), (2, 4));
        assert!(t.notices().iter().any(|n| n.contains("1 host(s) have fewer than 2 adapters") && n.contains("n3")));
        let port = |id: &str| {
            let nic = t.find(id).unwrap();
            t.links().find(|(_, a, _, l)| *a == nic && l.kind == LinkKind::InfiniBand).unwrap().3.nominal
        };
        assert_eq!(port(slow), Some(12.5e9), "{names:?}");
        assert_eq!(port("host0/nic0"), Some(25e9));
        assert_eq!(t.device(t.find("host1/cpu0").unwrap()).extra["host"], "n2");
        assert_eq!(Topology::from_toml(&t.to_toml(), "again").unwrap(), t);
    }
    let wide = machine("dgx-h100.toml").cluster_in(&net).unwrap_err().to_string();
    assert!(wide.contains("no host there has 8 adapters") && wide.contains("2 are the most"), "{wide}");
}
