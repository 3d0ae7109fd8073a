//! Detection from end to end: a process that sees the files of a machine and a driver that are not this one's.

mod host;

use std::process::Command;

use host::Host;
use topocoll::topology::{Device, DeviceId, DeviceKind, Link, LinkKind, Topology};

const NVIDIA: u16 = 0x10de;
const MELLANOX: u16 = 0x15b3;
const GEN5: host::Link = (32.0, 16, 32.0, 16);

/// What was found, and what was remarked.
struct Seen {
    t: Topology,
    notices: String,
}

impl Seen {
    fn device(&self, bus: &str) -> (DeviceId, &Device) {
        let found = self.t.devices().find(|(_, d)| d.bus.as_deref() == Some(bus));
        found.unwrap_or_else(|| panic!("{bus} is not in\n{}", self.t.to_tree(true)))
    }

    fn class(&self, a: &str, b: &str) -> String {
        let id = |d: &str| self.t.find(d).unwrap_or_else(|| self.device(d).0);
        self.t.route(id(a), id(b)).map_or("none".into(), |r| r.class.to_string())
    }

    /// The link of a device to the network, or to what it hangs on.
    fn link(&self, id: DeviceId, network: bool) -> Option<&Link> {
        let mut links = self.t.links();
        let nvlink = |k| matches!(k, LinkKind::NvLink | LinkKind::NvLinkC2c);
        links.find(|(_, a, _, l)| *a == id && l.kind.is_network() == network && !nvlink(l.kind)).map(|(.., l)| l)
    }

    fn has(&self, word: &str) {
        assert!(self.notices.contains(word), "`{word}` is not in\n{}", self.notices);
    }
}

fn detect(host: &Host, machine: Option<&str>, env: &[(&str, &str)]) -> Seen {
    detect_by("libnvidia-ml.so.1", host, machine, env)
}

/// With the stand-in under one library's name only.
fn detect_by(library: &str, host: &Host, machine: Option<&str>, env: &[(&str, &str)]) -> Seen {
    let mut command = Command::new(env!("CARGO_BIN_EXE_detect"));
    command.env("HWLOC_FSROOT", &host.root).env_remove("CUDA_VISIBLE_DEVICES").env_remove("TOPOCOLL_TOPOLOGY");
    if let Some(text) = machine {
        host.file("machine.toml", text);
        let driver = host.root.join("driver");
        let driver = if driver.is_dir() { driver } else { host::driver(host, library) };
        command.env("VIRTUAL_CUDA_TOPOLOGY", host.root.join("machine.toml"));
        command.env("HWLOC_THISSYSTEM", "1").env("LD_LIBRARY_PATH", driver);
    }
    let out = command.envs(env.iter().copied()).output().unwrap();
    let text = String::from_utf8(out.stdout).unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let notices = text.lines().filter_map(|l| l.strip_prefix("# ")).collect::<Vec<_>>().join("\n");
    Seen { t: Topology::from_toml(&text, "detected").unwrap(), notices }
}

/// Two sockets. Below one a switch with two GPUs and an InfiniBand card; below the other a bridge that a hypervisor made
/// up, with a GPU and a RoCE card that has a virtual function. And everything else that hosts have.
fn host(name: &str) -> Host {
    let h = Host::new(name, 2);
    let ports = |h: &Host, root: &str, switch: (&str, host::Link), node| {
        let bus = |b: &str| u8::from_str_radix(b, 16).unwrap();
        let first = bus(&switch.0[5..7]);
        h.pci(root, 0x060400, 0x8086, node, Some(GEN5), Some((first, first + 8)));
        h.pci(&format!("{root}/{}", switch.0), 0x060400, 0x1000, node, Some(switch.1), Some((first + 1, first + 8)));
        for i in 0..3u8 {
            let port = format!("{root}/{}/0000:{:02x}:{i:02x}.0", switch.0, first + 1);
            h.pci(&port, 0x060400, 0x1000, node, Some(GEN5), Some((first + 2 + i, first + 2 + i)));
        }
    };
    let near = "pci0000:00/0000:00:01.0";
    ports(&h, near, ("0000:01:00.0", GEN5), 0);
    let far = "pci0000:80/0000:80:01.0";
    ports(&h, far, ("0000:81:00.0", (2.5, 1, 2.5, 1)), 1);
    for (path, width) in [
        (format!("{near}/0000:01:00.0/0000:02:00.0/0000:03:00.0"), 16),
        (format!("{near}/0000:01:00.0/0000:02:01.0/0000:04:00.0"), 8),
        (format!("{far}/0000:81:00.0/0000:82:00.0/0000:83:00.0"), 16),
    ] {
        h.pci(&path, 0x030200, NVIDIA, 0, Some((2.5, width, 32.0, 16)), None);
    }
    let ib = format!("{near}/0000:01:00.0/0000:02:02.0/0000:05:00.0");
    h.pci(&ib, 0x020700, MELLANOX, 0, Some(GEN5), None);
    h.rdma(&ib, "mlx5_0", &[("InfiniBand", "400 Gb/sec (4X NDR)", "4: ACTIVE")]);
    let roce = format!("{far}/0000:81:00.0/0000:82:01.0/0000:84:00");
    for (function, rdma, net) in [(0, "mlx5_1", "eth4"), (1, "mlx5_2", "eth5")] {
        let path = format!("{roce}.{function}");
        h.pci(&path, 0x020000, MELLANOX, 1, Some(GEN5), None);
        h.rdma(&path, rdma, &[("Ethernet", "200 Gb/sec (4X HDR)", "4: ACTIVE")]);
        h.net(&path, net, 200_000, true);
    }
    h.link(&format!("sys/devices/{roce}.1/physfn"), "../0000:84:00.0");
    // Two ports in a bond, over which there is one RDMA device.
    h.pci("pci0000:00/0000:00:02.0", 0x060400, 0x8086, 0, Some(GEN5), Some((0x10, 0x10)));
    for function in 0..2 {
        let path = format!("pci0000:00/0000:00:02.0/0000:10:00.{function}");
        h.pci(&path, 0x020000, MELLANOX, 0, Some((16.0, 8, 16.0, 16)), None);
        h.net(&path, &format!("eth{function}"), 25_000, true);
        h.link(&format!("sys/devices/{path}/net/eth{function}/master"), "../../../../../virtual/net/bond0");
    }
    h.rdma("pci0000:00/0000:00:02.0/0000:10:00.0", "mlx5_bond_0", &[("Ethernet", "25 Gb/sec (1X EDR)", "4: ACTIVE")]);
    h.file("sys/devices/virtual/net/bond0/bonding/slaves", "eth0 eth1");
    h.link("sys/class/net/bond0", "../../devices/virtual/net/bond0");
    // A card of two ports, of which one is down; management Ethernet; EFA; a card without a driver.
    h.pci("pci0000:00/0000:00:03.0", 0x020700, MELLANOX, 0, Some(GEN5), None);
    let two = [("InfiniBand", "100 Gb/sec (4X EDR)", "4: ACTIVE"), ("InfiniBand", "10 Gb/sec (4X SDR)", "1: DOWN")];
    h.rdma("pci0000:00/0000:00:03.0", "mlx4_0", &two);
    h.pci("pci0000:00/0000:00:04.0", 0x020000, 0x8086, 0, None, None);
    h.net("pci0000:00/0000:00:04.0", "eth2", 1000, true);
    h.pci("pci0000:00/0000:00:05.0", 0x020000, 0x1d0f, 0, None, None);
    h.rdma("pci0000:00/0000:00:05.0", "rdmap5s0", &[("Unspecified", "100 Gb/sec (4X EDR)", "4: ACTIVE")]);
    h.link("sys/devices/pci0000:00/0000:00:05.0/driver", "../../../bus/pci/drivers/efa");
    h.pci("pci0000:00/0000:00:06.0", 0x020000, 0x8086, 0, None, None);
    h.redirect("0000:02:00.0");
    h.redirect("0000:02:01.0");
    // RDMA in software: one that hangs on a real card's path, one that is virtual.
    h.rdma("pci0000:00/0000:00:04.0", "rxe0", &[("Ethernet", "1 Gb/sec (1X)", "4: ACTIVE")]);
    h.file("sys/devices/pci0000:00/0000:00:04.0/infiniband/rxe0/parent", "eth2\n");
    h.rdma("virtual", "siw_lo", &[("Ethernet", "", "4: ACTIVE")]);
    h
}

/// The driver's side: two of the three GPUs joined by two NVLinks, one of them with a third that is down.
const MACHINE: &str = r#"
name = "three GPUs"
[[device]]
kind = "gpu"
id = "gpu0"
name = "NVIDIA H100"
bus = "0000:03:00.0"
extra = { uuid = "GPU-0a", "gpu.sm" = "90", memory = "85899345920", nvlinks = "3", "p2p.denied" = "0000:83:00.0" }
[[device]]
kind = "gpu"
id = "gpu1"
name = "NVIDIA H100"
bus = "0000:04:00.0"
extra = { uuid = "GPU-1b", "gpu.sm" = "90", memory = "85899345920" }
[[device]]
kind = "gpu"
id = "gpu2"
name = "NVIDIA H100"
bus = "0000:83:00.0"
extra = { uuid = "GPU-2c", "gpu.sm" = "90", "p2p.denied" = "0000:03:00.0" }
[[link]]
kind = "nvlink"
from = "gpu0"
to = "gpu1"
lanes = 2
"#;

#[test]
fn a_host_is_seen_as_it_is() {
    let h = host("whole");
    let seen = detect(&h, Some(MACHINE), &[]);
    let t = &seen.t;
    assert_eq!(t.of_kind(DeviceKind::Gpu).len(), 3, "{}", t.to_tree(true));
    let (gpu, facts) = seen.device("0000:03:00.0");
    assert_eq!((facts.id.as_str(), facts.name.as_str()), ("gpu0", "NVIDIA H100"));
    assert_eq!((facts.extra["uuid"].as_str(), facts.extra["memory"].as_str()), ("GPU-0a", "85899345920"));
    // At rest a GPU trains down; what it can is taken, in the width that it has.
    let up = seen.link(gpu, false).unwrap();
    assert_eq!((up.lanes, up.nominal), (16, Some(63_015_384_615.0)));
    assert_eq!(seen.link(seen.device("0000:04:00.0").0, false).unwrap().lanes, 8);
    assert_eq!(seen.class("gpu0", "gpu1"), "NV2");
    let nvlink = t.route(gpu, t.find("gpu1").unwrap()).unwrap();
    assert_eq!((nvlink.links.len(), nvlink.bandwidth), (1, 2.0 * 20.6e9));
    assert_eq!(seen.class("gpu0", "0000:05:00.0"), "PIX");
    assert_eq!(seen.class("gpu0", "gpu2"), "SYS");
    seen.has("1 of 3 NVLinks of gpu0 are down");
    seen.has("gpu0 and gpu2 may not reach each other directly: the chipset");
    assert_eq!(facts.extra["p2p.denied"], "0000:83:00.0");

    // The bridge that a hypervisor made up.
    let (bridge, _) = seen.device("0000:81:00.0");
    assert_eq!(seen.link(bridge, false).unwrap().nominal, Some(63_015_384_615.0));
    seen.has("claims 2.5 GT/s x1 above devices that train faster");

    // Two functions of one card need no switch.
    assert_eq!(t.of_kind(DeviceKind::PciSwitch).len(), 2);

    // Their ports send what the two GPUs tell each other up to the CPU.
    assert_eq!((facts.extra["acs"].as_str(), seen.device("0000:05:00.0").1.extra.get("acs")), ("0000:02:00.0", None));
    let found = topocoll::plan::check::check(t);
    let said: Vec<&str> = found.iter().map(|f| f.what.as_str()).collect();
    for word in [
        "ACS at 0000:02:00.0 sends what gpu0, gpu1",
        "plx1 claims PCIe 2.5 GT/s x1",
        "gpu1 trained to PCIe x8",
        "gpu0 has 2 of 3 NVLinks up",
        "gpu0 and gpu2 may not reach each other",
        "the NICs are unequal",
        "the port of nic9 (mlx4_0:2) is DOWN",
        "trained to PCIe x8 at 15.8",
    ] {
        assert!(said.iter().any(|s| s.contains(word)), "`{word}` is not in {said:#?}");
    }

    // Ports.
    let port = |bus: &str| {
        let (id, d) = seen.device(bus);
        seen.link(id, true).map(|l| (d.name.clone(), l.kind, l.nominal))
    };
    assert_eq!(port("0000:05:00.0"), Some(("mlx5_0".into(), LinkKind::InfiniBand, Some(50e9))));
    assert_eq!(port("0000:84:00.0"), Some(("mlx5_1".into(), LinkKind::RoCe, Some(25e9))));
    assert_eq!(port("0000:00:05.0"), Some(("rdmap5s0".into(), LinkKind::Efa, Some(12.5e9))));
    assert_eq!(port("0000:10:00.0"), Some(("mlx5_bond_0".into(), LinkKind::RoCe, Some(6.25e9))));
    assert_eq!(port("0000:00:03.0"), Some(("mlx4_0:1".into(), LinkKind::InfiniBand, Some(12.5e9))));
    seen.has("port 2 of mlx4_0 is DOWN");
    seen.has("eth0 and eth1 are bonded as bond0");
    let why = |bus: &str| seen.device(bus).1.extra.get("no-rail").cloned().unwrap_or_default();
    assert_eq!(why("0000:84:00.1"), "a virtual function of 0000:84:00.0, whose port it shares");
    assert!(why("0000:10:00.1").starts_with("in bond0 with 0000:10:00.0"), "{}", why("0000:10:00.1"));
    assert_eq!(why("0000:00:04.0"), "plain Ethernet beside RDMA");
    assert!(why("0000:00:06.0").contains("no network interface"));
    seen.has("rxe0 is RDMA in software over eth2; it is no rail");
    seen.has("siw_lo is RDMA in software; it is no rail");
    assert_eq!(t.rails().len(), 5, "{}", t.to_tree(true));
    // A cluster of it is joined by its rails alone.
    assert_eq!(t.cluster_over(2, "rails".parse().unwrap()).unwrap().of_kind(DeviceKind::NetSwitch).len(), 5);
}

#[test]
fn gpus_are_those_that_the_process_may_use() {
    let h = host("visible");
    let ids = |seen: &Seen| -> Vec<String> {
        seen.t.of_kind(DeviceKind::Gpu).iter().map(|g| seen.t.device(*g).bus.clone().unwrap_or_default()).collect()
    };
    let seen = detect(&h, Some(MACHINE), &[("CUDA_VISIBLE_DEVICES", "2,0")]);
    assert_eq!(ids(&seen), ["0000:83:00.0", "0000:03:00.0"]);
    seen.has("2 NVLink(s) of gpu1 lead to 0000:04:00.0, which this process does not see");
    let seen = detect(&h, Some(MACHINE), &[("CUDA_VISIBLE_DEVICES", "GPU-1b")]);
    assert_eq!(ids(&seen), ["0000:04:00.0"]);
    let seen = detect(&h, Some(MACHINE), &[("CUDA_VISIBLE_DEVICES", "")]);
    assert!(ids(&seen).is_empty());
    // The driver does not list what a container hides.
    let two =
        MACHINE.split("[[device]]").filter(|d| !d.contains("bus = \"0000:83")).collect::<Vec<_>>().join("[[device]]");
    let link = "[[link]]\nkind = 'nvlink'\nfrom = 'gpu0'\nto = 'gpu1'\nlanes = 2\n";
    let seen = detect(&h, Some(&format!("{two}\n{link}")), &[]);
    assert_eq!(ids(&seen), ["0000:03:00.0", "0000:04:00.0"]);
    seen.has("0000:83:00.0: on the PCI bus, but NVML");
    let split = MACHINE.replace("uuid = \"GPU-1b\",", "uuid = \"GPU-1b\", mig = \"1\",");
    let seen = detect(&h, Some(&split), &[]);
    assert_eq!(ids(&seen), ["0000:03:00.0", "0000:83:00.0"]);
    seen.has("GPU 0000:04:00.0 is split by MIG");
}

#[test]
fn switches_cpus_and_fabrics_at_the_end_of_nvlinks() {
    let h = host("ends");
    let switched = r#"
name = "switched"
[[device]]
kind = "gpu"
id = "gpu[0-1]"
bus = ["0000:03:00.0", "0000:83:00.0"]
name = "NVIDIA GH200"
extra = { "gpu.sm" = "90", c2c = "1", clique = "7" }
[[device]]
kind = "nv-switch"
id = "nvswitch0"
bus = "0000:c0:00.0"
[[link]]
kind = "nvlink"
from = "gpu[0-1]"
to = "nvswitch0"
lanes = 18
"#;
    let seen = detect(&h, Some(switched), &[]);
    assert_eq!((seen.class("gpu0", "gpu1"), seen.t.of_kind(DeviceKind::NvSwitch).len()), ("NV18".into(), 1));
    assert_eq!(seen.class("gpu0", "cpu0"), "C2C");
    let fabric = &seen.device("0000:03:00.0").1.extra["fabric"];
    assert!(fabric.ends_with("clique 7") && fabric.starts_with("c1c1"), "{fabric}");
    let power = r#"
name = "POWER9"
[[device]]
kind = "gpu"
id = "gpu[0-1]"
bus = ["0000:03:00.0", "0000:04:00.0"]
name = "Tesla V100"
extra = { "gpu.sm" = "70" }
[[device]]
kind = "cpu"
id = "cpu0"
[[link]]
kind = "nvlink"
from = "gpu[0-1]"
to = "cpu0"
lanes = 3
"#;
    let seen = detect(&h, Some(power), &[]);
    let route = seen.t.route(seen.t.find("gpu0").unwrap(), seen.t.find("cpu0").unwrap()).unwrap();
    assert_eq!((route.links.len(), route.bandwidth), (1, 60e9));
    // Through a CPU is no NVLink between the GPUs.
    assert_eq!(seen.class("gpu0", "gpu1"), "PHB");
}

#[test]
fn without_a_driver_the_bus_tells() {
    let h = host("bare");
    let seen = detect(&h, None, &[]);
    assert_eq!(seen.t.of_kind(DeviceKind::Gpu).len(), 3);
    assert_eq!(seen.class("gpu0", "gpu1"), "PIX");
    // A library is asked for only where the files are this machine's.
    assert!(!seen.notices.contains("NVML"), "{}", seen.notices);
    let seen = detect(&h, None, &[("HWLOC_THISSYSTEM", "1"), ("CUDA_VISIBLE_DEVICES", "1")]);
    assert_eq!(seen.t.of_kind(DeviceKind::Gpu).len(), 1);
    seen.has("NVML does not answer");
    // The driver's own files name models.
    h.file("proc/driver/nvidia/gpus/0000:83:00.0/information", "Model: \t\t Tesla T4\nGPU UUID: \t GPU-ff\n");
    let seen = detect(&h, None, &[]);
    assert_eq!(seen.device("0000:83:00.0").1.name, "Tesla T4");
}

/// CUDA knows the GPUs and applies CUDA_VISIBLE_DEVICES itself, but sees no NVLink.
#[test]
fn without_nvml_cuda_names_the_gpus() {
    let h = host("cuda");
    let two =
        MACHINE.split("[[device]]").filter(|d| !d.contains("bus = \"0000:83")).collect::<Vec<_>>().join("[[device]]");
    let seen = detect_by("libcuda.so.1", &h, Some(&two), &[("CUDA_VISIBLE_DEVICES", "1,0")]);
    assert_eq!(seen.t.of_kind(DeviceKind::Gpu).len(), 2, "{}", seen.notices);
    let (_, facts) = seen.device("0000:03:00.0");
    assert_eq!((facts.name.as_str(), facts.extra["gpu.sm"].as_str()), ("NVIDIA H100", "90"));
    assert_eq!(facts.extra["memory"], "85899345920");
    assert_eq!(seen.class("gpu0", "gpu1"), "PIX");
    seen.has("NVLinks cannot be seen");
    seen.has("0000:83:00.0: on the PCI bus, but the CUDA driver does not give it");
}

/// Trees captured by hwloc's authors, where they are at hand.
#[test]
fn captured_trees_are_read() {
    let dir = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/corpus/sysfs");
    if !dir.is_dir() {
        println!("SKIPPED: no captured trees at {}", dir.display());
        return;
    }
    for (name, cpus, gpus) in [("nvidia-dgx-gb10", 1, 0), ("nvidiagpunumanodes", 2, 6)] {
        let h = Host { root: std::env::temp_dir().join(format!("captured-{}-{name}", std::process::id())) };
        std::fs::create_dir_all(&h.root).unwrap();
        let tar = dir.join(format!("{name}.tar.bz2"));
        let packed = bzip2::read::BzDecoder::new(std::fs::File::open(tar).unwrap());
        tar::Archive::new(packed).unpack(&h.root).unwrap();
        let inner = Host { root: h.root.join(name) };
        let seen = detect(&inner, None, &[]);
        assert_eq!(seen.t.of_kind(DeviceKind::Cpu).len(), cpus, "{name}\n{}", seen.t.to_tree(true));
        assert_eq!(seen.t.of_kind(DeviceKind::Gpu).len(), gpus, "{name}\n{}", seen.t.to_tree(true));
        if gpus > 0 {
            // Three on each socket, by the threads they are near.
            let numa: Vec<_> = seen.t.of_kind(DeviceKind::Gpu).iter().map(|g| seen.t.device(*g).numa).collect();
            assert_eq!(numa, [Some(0), Some(0), Some(0), Some(8), Some(8), Some(8)]);
        }
    }
}
