//! A machine as files: what the kernel would show of it below `/sys` and `/proc`.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

/// A folder that is removed at the end.
pub struct Host {
    pub root: PathBuf,
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.root);
    }
}

/// What a PCI function trained to: GT/s and lanes, now and at most.
pub type Link = (f64, u32, f64, u32);

impl Host {
    /// `nodes` sockets, each a NUMA node of two cores.
    pub fn new(name: &str, nodes: usize) -> Self {
        let root = std::env::temp_dir().join(format!("virtual-host-{}/{name}", std::process::id()));
        let host = Self { root };
        let cores = 2 * nodes;
        let mask = |first: usize, count: usize| format!("{:08x}", ((1u64 << count) - 1) << first);
        host.file("proc/meminfo", "MemTotal: 8388608 kB\n");
        host.file("proc/mounts", "");
        host.file("proc/stat", "btime 0\n");
        host.file("sys/devices/system/cpu/possible", &format!("0-{}\n", cores - 1));
        host.file("sys/devices/system/cpu/online", &format!("0-{}\n", cores - 1));
        host.file("sys/devices/system/node/online", &format!("0-{}\n", nodes - 1));
        let mut info = String::new();
        for cpu in 0..cores {
            let (at, socket) = (format!("sys/devices/system/cpu/cpu{cpu}"), cpu / 2);
            for (file, text) in [
                ("topology/physical_package_id", socket.to_string()),
                ("topology/core_id", (cpu % 2).to_string()),
                ("topology/core_cpus", mask(cpu, 1)),
                ("topology/thread_siblings", mask(cpu, 1)),
                ("topology/package_cpus", mask(socket * 2, 2)),
                ("topology/core_siblings", mask(socket * 2, 2)),
                ("online", "1".into()),
            ] {
                host.file(&format!("{at}/{file}"), &text);
            }
            info += &format!("processor\t: {cpu}\nvendor_id\t: GenuineIntel\nmodel name\t: A Processor\n\n");
        }
        host.file("proc/cpuinfo", &info);
        for node in 0..nodes {
            let at = format!("sys/devices/system/node/node{node}");
            host.file(&format!("{at}/cpumap"), &mask(node * 2, 2));
            host.file(&format!("{at}/meminfo"), &format!("Node {node} MemTotal: 4194304 kB\n"));
        }
        host
    }

    pub fn file(&self, path: &str, text: &str) {
        self.bytes(path, text.as_bytes());
    }

    fn bytes(&self, path: &str, bytes: &[u8]) {
        let path = self.root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }

    pub fn link(&self, path: &str, to: &str) {
        let path = self.root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        symlink(to, path).unwrap();
    }

    /// A PCI function at `path` below `sys/devices`, whose last part is its address. `below`: first and last bus of a
    /// bridge.
    pub fn pci(&self, path: &str, class: u32, vendor: u16, node: i32, link: Option<Link>, below: Option<(u8, u8)>) {
        let (at, bus) = (format!("sys/devices/{path}"), path.rsplit('/').next().unwrap());
        let mut config = vec![0u8; 4096];
        config[0..2].copy_from_slice(&vendor.to_le_bytes());
        config[2..4].copy_from_slice(&0x1234u16.to_le_bytes());
        config[9..12].copy_from_slice(&class.to_le_bytes()[..3]);
        if let Some((first, last)) = below {
            config[0x0e] = 1;
            config[0x19] = first;
            config[0x1a] = last;
        }
        self.bytes(&format!("{at}/config"), &config);
        let cpus = if node < 0 { "0000000f".into() } else { format!("{:08x}", 3 << (2 * node)) };
        for (file, text) in [
            ("vendor", format!("{vendor:#06x}")),
            ("device", "0x1234".into()),
            ("subsystem_vendor", "0x0000".into()),
            ("subsystem_device", "0x0000".into()),
            ("class", format!("{class:#08x}")),
            ("revision", "0x01".into()),
            ("numa_node", node.to_string()),
            ("local_cpus", cpus),
            ("uevent", format!("PCI_SLOT_NAME={bus}")),
        ] {
            self.file(&format!("{at}/{file}"), &format!("{text}\n"));
        }
        if let Some((speed, width, most, widest)) = link {
            self.file(&format!("{at}/current_link_speed"), &format!("{speed:.1} GT/s PCIe\n"));
            self.file(&format!("{at}/current_link_width"), &format!("{width}\n"));
            self.file(&format!("{at}/max_link_speed"), &format!("{most:.1} GT/s PCIe\n"));
            self.file(&format!("{at}/max_link_width"), &format!("{widest}\n"));
        }
        self.link(&format!("sys/bus/pci/devices/{bus}"), &format!("../../../devices/{path}"));
    }

    /// Turns access control services on at a bridge: peers' traffic goes up.
    pub fn redirect(&self, bridge: &str) {
        let path = self.root.join(format!("sys/bus/pci/devices/{bridge}/config"));
        let mut config = fs::read(&path).unwrap();
        config[0x100..0x104].copy_from_slice(&(0x000du32 | 1 << 16).to_le_bytes());
        config[0x106] = 0x1d;
        fs::write(path, config).unwrap();
    }

    /// A network interface of a PCI function.
    pub fn net(&self, path: &str, name: &str, mbit: i64, up: bool) {
        let at = format!("sys/devices/{path}/net/{name}");
        self.file(&format!("{at}/speed"), &format!("{mbit}\n"));
        self.file(&format!("{at}/operstate"), if up { "up\n" } else { "down\n" });
        self.file(&format!("{at}/address"), "00:11:22:33:44:55\n");
        self.link(&format!("sys/class/net/{name}"), &format!("../../devices/{path}/net/{name}"));
        self.link(&format!("{at}/device"), &format!("../../../{}", path.rsplit('/').next().unwrap()));
    }

    /// An RDMA device of a PCI function, with its ports: link layer, rate, state.
    pub fn rdma(&self, path: &str, name: &str, ports: &[(&str, &str, &str)]) {
        let at = format!("sys/devices/{path}/infiniband/{name}");
        for (i, (layer, rate, state)) in ports.iter().enumerate() {
            for (file, text) in [("link_layer", layer), ("rate", rate), ("state", state)] {
                self.file(&format!("{at}/ports/{}/{file}", i + 1), &format!("{text}\n"));
            }
        }
        self.file(&format!("{at}/node_guid"), "0011:2233:4455:6677\n");
        self.link(&format!("sys/class/infiniband/{name}"), &format!("../../devices/{path}/infiniband/{name}"));
        self.link(&format!("{at}/device"), &format!("../../../{}", path.rsplit('/').next().unwrap()));
    }
}

/// Where the stand-in library was built.
pub fn library() -> PathBuf {
    let beside = std::env::current_exe().unwrap();
    beside.parent().unwrap().join("libvirtual_cuda.so")
}

/// A folder with the stand-in under the real library's name.
pub fn driver(host: &Host, name: &str) -> PathBuf {
    let dir = host.root.join("driver");
    fs::create_dir_all(&dir).unwrap();
    let library = library();
    assert!(library.is_file(), "{} was not built", library.display());
    symlink(library, dir.join(name)).unwrap();
    dir
}
