//! Real topology files, where the corpus is at hand, and small ones of each format that are always here.

use std::path::{Path, PathBuf};

use topocoll::topology::{DeviceKind, Format, LinkKind, Topology};

/// The folder of real files, or `None` where it is not.
fn corpus() -> Option<PathBuf> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/corpus");
    if dir.join("INDEX.tsv").is_file() {
        return Some(dir);
    }
    println!("SKIPPED: no corpus at {}", dir.display());
    None
}

/// Files of one folder of the corpus, with what the index says of each.
fn files(dir: &Path, folder: &str) -> Vec<(PathBuf, String)> {
    let index = std::fs::read_to_string(dir.join("INDEX.tsv")).unwrap();
    let rows = index.lines().filter(|l| l.starts_with(folder)).map(|l| {
        let fields: Vec<&str> = l.split('\t').collect();
        (dir.join(fields[0]), fields[3].to_string())
    });
    let files: Vec<_> = rows.collect();
    assert!(!files.is_empty(), "{folder}");
    files
}

/// `gpu=8` in the words of the index.
fn stated(words: &str, key: &str) -> usize {
    let found = words.split([' ', ';', ',']).find_map(|w| w.strip_prefix(&format!("{key}="))?.parse().ok());
    found.unwrap_or_else(|| panic!("{key} is not in {words}"))
}

fn count(t: &Topology, kind: DeviceKind) -> usize {
    t.of_kind(kind).len()
}

#[test]
fn nccl_and_rccl_files_hold_what_the_index_says() {
    let Some(dir) = corpus() else { return };
    for (path, words) in files(&dir, "nccl-xml").into_iter().chain(files(&dir, "rccl-xml")) {
        let t = Topology::read(&path).unwrap();
        let name = path.file_name().unwrap().to_str().unwrap();
        let class = |c: &str| {
            words.split(c).nth(1).map_or(0, |w| w[1..].split([',', ';', ' ']).next().unwrap().parse().unwrap())
        };
        // Where the file has no gpu elements, GPUs are pci elements of a class.
        let gpus = match stated(&words, "gpu") {
            0 => class("0x030200"),
            n => n,
        };
        let nics = match stated(&words, "net") {
            0 => class("0x020000") + class("0x020700"),
            n => n,
        };
        assert_eq!(count(&t, DeviceKind::Cpu), stated(&words, "cpu"), "{name}");
        assert_eq!(count(&t, DeviceKind::Gpu), gpus, "{name}");
        assert_eq!(count(&t, DeviceKind::Nic), nics, "{name}");
        let of = |kind| t.links().filter(|(.., l)| l.kind == kind).count();
        assert_eq!(of(LinkKind::Xgmi), stated(&words, "xgmi"), "{name}");
        // azure-ncv4 says of each GPU that its NVLinks lead to itself, which cannot be: noticed and left out.
        let impossible = t.notices().iter().filter(|n| n.contains("its own nvlink neighbour")).count();
        assert_eq!(of(LinkKind::NvLink) + impossible, stated(&words, "nvlink"), "{name}");
        assert_eq!(impossible, if name == "azure-ncv4-topo.xml" { 4 } else { 0 }, "{name}");
        // Nothing is cut off.
        let gpus = t.of_kind(DeviceKind::Gpu);
        for a in &gpus {
            assert!(gpus.iter().all(|b| t.route(*a, *b).is_some()), "{name}");
        }
        round_trip(&t, name);
    }
}

/// A topology as one line a device and link, in an order of its own.
fn facts(t: &Topology) -> Vec<String> {
    let id = |d| t.device(d).bus.clone().unwrap_or_else(|| t.device(d).name.clone());
    let mut facts: Vec<String> =
        t.devices().filter(|(_, d)| d.kind != DeviceKind::Cpu).map(|(i, d)| format!("{} {}", d.kind, id(i))).collect();
    facts.extend(
        t.links()
            .map(|(_, a, b, l)| format!("{} {} {} x{} {:?} {:?}", l.kind, id(a), id(b), l.lanes, l.nominal, l.usable)),
    );
    facts.sort();
    facts
}

fn round_trip(t: &Topology, name: &str) {
    assert_eq!(Topology::from_toml(&t.to_toml(), "again").unwrap(), *t, "{name}");
    let xml = t.to_nccl_xml().unwrap();
    let again = Topology::parse(&xml, "again.xml", None).unwrap_or_else(|e| panic!("{name}: {e}\n{xml}"));
    let (before, after) = (facts(t), facts(&again));
    for (a, b) in before.iter().zip(&after) {
        assert_eq!(a, b, "{name}");
    }
    assert_eq!(before.len(), after.len(), "{name}");
}

#[test]
fn hwloc_files_are_read_by_hwloc() {
    let Some(dir) = corpus() else { return };
    for (path, words) in files(&dir, "hwloc-xml") {
        let name = path.file_name().unwrap().to_str().unwrap().to_string();
        let t = Topology::read(&path).unwrap_or_else(|e| panic!("{name}: {e}"));
        let pus: usize = t.of_kind(DeviceKind::Cpu).iter().map(|c| t.device(*c).cpu.as_ref().unwrap().pus.len()).sum();
        assert_eq!(pus, stated(&words, "PU"), "{name}");
        // NUMANode counts elements of the file; nodes without cores hold no ranks, which is noticed.
        let bare = t.notices().iter().filter(|n| n.contains("no cores of its own")).count();
        assert!(count(&t, DeviceKind::Cpu) + bare <= stated(&words, "NUMANode"), "{name}");
        assert_eq!(Topology::from_toml(&t.to_toml(), "again").unwrap(), t, "{name}");
    }
    let dgx2 = Topology::read(&dir.join("hwloc-xml/nvidiaDGX2.xml")).unwrap();
    assert_eq!(count(&dgx2, DeviceKind::Gpu), 16, "{}", dgx2.to_tree(false));
    let class = |a: &str, b: &str| dgx2.route(dgx2.find(a).unwrap(), dgx2.find(b).unwrap()).unwrap().class.to_string();
    // Two GPUs a switch, two such switches below another.
    assert_eq!((class("gpu0", "gpu1"), class("gpu0", "gpu2")), ("PIX".into(), "PXB".into()));
}

/// Machines of `topologies/` against what is known of real ones: the class of every pair by PCIe, and xGMI.
#[test]
fn machines_are_as_real_ones_are() {
    let Some(dir) = corpus() else { return };
    let ours =
        |name: &str| Topology::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("topologies").join(name)).unwrap();
    // Without the fast links, since these files do not show them.
    let plain = |t: &Topology| {
        let text: Vec<String> = t.to_toml().split("\n[[link]]").map(String::from).collect();
        let kept: Vec<String> = text.into_iter().filter(|l| !l.starts_with("\nkind = \"nvlink\"")).collect();
        Topology::from_toml(&kept.join("\n[[link]]"), "plain").unwrap()
    };
    for (name, real) in [
        ("azure-ndv4.toml", "nccl-xml/azure-ndv4-topo.xml"),
        ("aws-p4d.toml", "nccl-xml/aws-p4d-24xl-topo.xml"),
        ("dgx-2.toml", "hwloc-xml/nvidiaDGX2.xml"),
    ] {
        let (a, b) = (plain(&ours(name)), Topology::read(&dir.join(real)).unwrap());
        let ids = |t: &Topology, kind| t.of_kind(kind);
        for kind in [DeviceKind::Gpu, DeviceKind::Nic] {
            // The DGX-2's NICs are not in its export.
            if name == "dgx-2.toml" && kind == DeviceKind::Nic {
                continue;
            }
            assert_eq!(ids(&a, kind).len(), ids(&b, kind).len(), "{name}");
        }
        let class = |t: &Topology, i: usize, j: usize, kind| {
            let route = t.route(ids(t, DeviceKind::Gpu)[i], ids(t, kind)[j]).unwrap();
            // NCCL's files do not say which NUMA nodes are of one socket.
            route.class.to_string().replace("NODE", "SYS")
        };
        let gpus = ids(&a, DeviceKind::Gpu).len();
        for i in 0..gpus {
            for j in (0..gpus).filter(|j| *j != i) {
                assert_eq!(class(&a, i, j, DeviceKind::Gpu), class(&b, i, j, DeviceKind::Gpu), "{name} {i} {j}");
            }
            if name != "dgx-2.toml" {
                let near = |t: &Topology| {
                    (0..ids(t, DeviceKind::Nic).len()).filter(|j| class(t, i, *j, DeviceKind::Nic) == "PIX").count()
                };
                assert_eq!(near(&a), near(&b), "{name} {i}");
            }
        }
    }
    let (a, b) = (ours("mi250x.toml"), Topology::read(&dir.join("rccl-xml/topo_16p1h.xml")).unwrap());
    let xgmi = |t: &Topology| {
        let links = t.links().filter(|(.., l)| l.kind == LinkKind::Xgmi);
        let mut all: Vec<_> = links.map(|(_, x, y, l)| (t.device(x).index, t.device(y).index, l.lanes)).collect();
        all.sort_unstable();
        all
    };
    assert_eq!(xgmi(&a), xgmi(&b));
}

/// What `topologies/` describes survives NCCL's format too.
#[test]
fn machines_go_through_nccls_format() {
    for file in std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("topologies")).unwrap() {
        let path = file.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        let t = Topology::read(&path).unwrap();
        // The format holds one host.
        if t.hosts() > 1 {
            continue;
        }
        let xml = t.to_nccl_xml().unwrap();
        let again = Topology::parse(&xml, "again.xml", None).unwrap();
        for kind in [DeviceKind::Gpu, DeviceKind::Nic, DeviceKind::Cpu, DeviceKind::PciSwitch, DeviceKind::NvSwitch] {
            assert_eq!(count(&t, kind), count(&again, kind), "{name} {kind}");
        }
        let rates = |t: &Topology, kind: LinkKind| {
            let mut all: Vec<_> = t
                .links()
                .filter(|(.., l)| l.kind == kind)
                .map(|(.., l)| (l.lanes, l.nominal.map(|r| (r / 1e8).round())))
                .collect();
            all.sort_by(|a, b| a.partial_cmp(b).unwrap());
            all
        };
        for kind in [LinkKind::NvLink, LinkKind::Pcie] {
            assert_eq!(rates(&t, kind), rates(&again, kind), "{name} {kind}");
        }
    }
}

const NCCL: &str = r#"<system version="1">
  <cpu numaid="0" affinity="000000ff" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="85">
    <pci busid="0000:01:00.0" class="0x060400" link_speed="16 GT/s" link_width="16">
      <pci busid="0000:02:00.0" class="0x030200" link_speed="16.0 GT/s PCIe" link_width="16">
        <gpu dev="0" sm="80" rank="0" gdr="1"><nvlink target="0000:03:00.0" count="12" tclass="0x030200"/></gpu>
      </pci>
      <pci busid="0000:03:00.0" class="0x030200" link_speed="16 GT/s" link_width="16">
        <gpu dev="1" sm="80" rank="1" gdr="1"><nvlink target="0000:02:00.0" count="12" tclass="0x030200"/></gpu>
      </pci>
      <pci busid="0000:04:00.0" class="0x020700" link_speed="16 GT/s" link_width="8">
        <nic><net name="mlx5_0" dev="0" speed="200000" port="1" guid="0x1" maxconn="131072" gdr="1"/></nic>
      </pci>
    </pci>
  </cpu>
</system>"#;

#[test]
fn nccl_files_that_are_wrong_say_where() {
    let t = Topology::parse(NCCL, "f.xml", None).unwrap();
    let route = t.route(t.find("gpu0").unwrap(), t.find("gpu1").unwrap()).unwrap();
    assert_eq!((route.class.to_string().as_str(), route.bandwidth), ("NV12", 240e9));
    assert_eq!(t.route(t.find("gpu0").unwrap(), t.find("nic0").unwrap()).unwrap().class.to_string(), "PIX");
    round_trip(&t, "small");
    let windows = Topology::parse(&NCCL.replace('\n', "\r\n"), "f.xml", None).unwrap();
    assert_eq!(windows, t);
    for (from, to, word) in [
        ("</system>", "", "no well-formed XML"),
        ("0000:03:00.0\" class", "0000:02:00.0\" class", "f.xml:7"),
        ("count=\"12\"", "count=\"-1\"", "nvlink.count"),
        ("numaid=\"0\"", "numaid=\"x\"", "cpu.numaid"),
        ("busid=\"0000:04:00.0\" ", "", "pci.busid"),
        ("<system version=\"1\">", "<!DOCTYPE a [<!ENTITY b \"c\">]><system>", "XML"),
    ] {
        let text = NCCL.replacen(from, to, 1);
        let error = Topology::parse(&text, "f.xml", None).unwrap_err().to_string();
        assert!(error.contains(word), "`{word}` is not in: {error}");
    }
    let deep = format!("<system><cpu>{}{}</cpu></system>", "<pci busid=\"1\">", "<x>".repeat(100_000));
    assert!(Topology::parse(&deep, "f.xml", None).is_err());
    let lost = NCCL.replace("target=\"0000:03:00.0\"", "target=\"0000:09:00.0\"");
    let t = Topology::parse(&lost, "f.xml", None).unwrap();
    assert!(t.notices().iter().any(|n| n.contains("f.xml:5") && n.contains("not there")), "{:?}", t.notices());
}

/// Links to the CPU: Grace's, whose rate the file says, and POWER9's, whose class does.
#[test]
fn nccl_files_with_links_to_the_cpu_are_read_and_written() {
    let text = NCCL.replace(
        "<nvlink target=\"0000:03:00.0\" count=\"12\" tclass=\"0x030200\"/>",
        "<c2c bw=\"45000\" count=\"10\"/>",
    );
    let text = text.replace(
        "target=\"0000:02:00.0\" count=\"12\" tclass=\"0x030200\"",
        "target=\"0004:04:00.0\" count=\"3\" tclass=\"0x068001\"",
    );
    let t = Topology::parse(&text, "f.xml", None).unwrap();
    assert!(t.notices().is_empty(), "{:?}", t.notices());
    let to_cpu = |id: &str| t.route(t.find(id).unwrap(), t.find("cpu0").unwrap()).unwrap();
    assert_eq!((to_cpu("gpu0").class.to_string().as_str(), to_cpu("gpu0").bandwidth), ("C2C", 450e9));
    assert_eq!((to_cpu("gpu1").class.to_string().as_str(), to_cpu("gpu1").links.len()), ("NV3", 1));
    assert_eq!(count(&t, DeviceKind::NvSwitch), 0);
    round_trip(&t, "links to the CPU");
}

#[test]
fn formats_are_told_from_content() {
    for (text, format) in [
        ("name = \"x\"", Format::Toml),
        ("  <!-- c --><system version=\"1\">", Format::NcclXml),
        ("\n{ \"name\": \"x\", \"gpus_per_node\": 8 }", Format::Taccl),
        ("{ \"TopologyParams\": { \"name\": \"DGX1\" } }", Format::TeCcl),
        ("# c\ntopology: [ Ring ]\nnpus_count: [ 4 ]\n", Format::AstraSim),
        ("- topology: t\n  tree:\n    switches: []\n", Format::SlurmYaml),
        ("SwitchName=s Nodes=n\n", Format::SlurmConf),
        ("== Link Type between two GPUs ==\n", Format::RocmSmi),
        (
            "<?xml version=\"1.0\"?><!DOCTYPE topology SYSTEM \"hwloc2.dtd\"><topology version=\"2.0\">",
            Format::HwlocXml,
        ),
    ] {
        assert_eq!(Format::of(text), format, "{text}");
    }
    // A format's name is what `--from` takes.
    assert!(Format::ALL.iter().all(|f| f.name().parse::<Format>().is_ok_and(|g| g == *f)));
    assert!("fish".parse::<Format>().unwrap_err().to_string().contains("nccl-xml"));
}

/// One socket with two cores, a switch with two GPUs and a NIC, as versions 1 and 3 say it.
fn hwloc(version: u32) -> String {
    let (package, cache, root) = match version {
        1 => ("Socket", "type=\"Cache\" depth=\"2\"", "<topology>"),
        _ => ("Package", "type=\"L2Cache\" depth=\"2\"", "<topology version=\"3.0\">"),
    };
    let bridge = |bus: &str, inside: String| {
        format!(
            "<object type=\"Bridge\" bridge_type=\"1-1\" pci_busid=\"{bus}\" pci_type=\"0604 [10b5:9781] [0:0] b0 00\" pci_link_speed=\"15.75\">{inside}</object>"
        )
    };
    let device = |bus: &str, kind: &str, inside: &str| {
        format!(
            "<object type=\"PCIDev\" pci_busid=\"{bus}\" pci_type=\"{kind} [0:0] a1 00\" pci_link_speed=\"15.75\">{inside}</object>"
        )
    };
    let net = "<object type=\"OSDev\" name=\"eth7\" osdev_type=\"2\"><info name=\"Address\" value=\"00:11\"/></object>";
    let gpus = [("03", "0302 [10de:1db8]", ""), ("04", "0302 [10de:1db8]", ""), ("05", "0200 [15b3:1013]", net)].map(
        |(bus, kind, inside)| bridge(&format!("0000:02:{bus}.0"), device(&format!("0000:{bus}:00.0"), kind, inside)),
    );
    let tree = bridge("0000:00:01.0", bridge("0000:01:00.0", gpus.concat()));
    let cores: String = (0..2)
        .map(|c| {
            let set = 1 << c;
            format!("<object {cache} cpuset=\"{set:#x}\" cache_size=\"1048576\"><object type=\"Core\" cpuset=\"{set:#x}\"><object type=\"PU\" os_index=\"{c}\" cpuset=\"{set:#x}\"/></object></object>")
        })
        .collect();
    let inside = format!(
        "<object type=\"{package}\" cpuset=\"0x3\" nodeset=\"0x1\"><info name=\"CPUModel\" value=\"a model\"/>{cores}</object>\
         <object type=\"Bridge\" bridge_type=\"0-1\">{tree}</object>"
    );
    let node = "type=\"NUMANode\" os_index=\"0\" cpuset=\"0x3\" nodeset=\"0x1\" local_memory=\"4096\"";
    let machine = match version {
        1 => format!("<object {node}>{inside}</object>"),
        _ => format!("<object {node}/>{inside}"),
    };
    format!(
        "<?xml version=\"1.0\"?><!DOCTYPE topology SYSTEM \"hwloc.dtd\">{root}\
         <object type=\"Machine\" cpuset=\"0x3\" nodeset=\"0x1\" allowed_cpuset=\"0x3\">{machine}</object></topology>"
    )
}

#[test]
fn versions_of_hwloc_say_the_same() {
    let (old, new) =
        (Topology::parse(&hwloc(1), "m.xml", None).unwrap(), Topology::parse(&hwloc(3), "m.xml", None).unwrap());
    assert_eq!(old, new, "{}\n{}", old.to_toml(), new.to_toml());
    let cpu = new.device(new.find("cpu0").unwrap());
    let info = cpu.cpu.as_ref().unwrap();
    assert_eq!((cpu.name.as_str(), info.cores, info.l2, info.memory), ("a model", 2, Some(1 << 20), Some(4096)));
    assert_eq!((count(&new, DeviceKind::Gpu), count(&new, DeviceKind::PciSwitch)), (2, 1));
    let nic = new.find("nic0").unwrap();
    assert_eq!(new.device(nic).name, "eth7");
    assert_eq!(new.route(new.find("gpu0").unwrap(), nic).unwrap().class.to_string(), "PIX");
    for bad in [
        "<topology><object",
        "<topology/>",
        "<topology><object type=\"Machine\" cpuset=\"0xzz\"/></topology>",
        "<topology><!ENTITY a \"b\"></topology>",
    ] {
        let error = Topology::parse(bad, "m.xml", Some(Format::HwlocXml)).unwrap_err().to_string();
        assert!(error.contains("m.xml"), "{error}");
    }
}

/// Rows of a matrix: the device and its cells.
fn cells(text: &str) -> Vec<Vec<String>> {
    let rows = text.lines().map(|l| l.split_whitespace().map(String::from).collect::<Vec<_>>());
    let symbol = |w: &str| matches!(w, "X" | "PIX" | "PXB" | "PHB" | "NODE" | "SYS" | "N/A") || w.starts_with("NV");
    rows.filter(|r| r.len() > 1 && symbol(&r[1]))
        .map(|r| r.into_iter().skip(1).take_while(|w| symbol(w)).collect())
        .collect()
}

#[test]
fn pasted_matrices_come_out_as_they_went_in() {
    let Some(dir) = corpus() else { return };
    for (path, _) in files(&dir, "smi-topo") {
        let name = path.file_name().unwrap().to_str().unwrap().to_string();
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(Format::of(&text), Format::SmiTopo, "{name}");
        let t = Topology::read(&path).unwrap();
        let matrix = t.to_matrix().unwrap();
        let devices = count(&t, DeviceKind::Gpu) + count(&t, DeviceKind::Nic);
        let (before, after) = (cells(&text), cells(&matrix));
        assert_eq!((before.len(), after.len()), (devices, devices), "{name}");
        for (a, b) in before.iter().zip(&after) {
            assert_eq!(a[..devices], b[..devices], "{name}\n{matrix}");
        }
        assert_eq!(Topology::from_toml(&t.to_toml(), "again").unwrap(), t, "{name}");
    }
    let a100 = Topology::read(&dir.join("smi-topo/dgx-a100-12nic.txt")).unwrap();
    assert_eq!(
        (count(&a100, DeviceKind::Gpu), count(&a100, DeviceKind::Nic), count(&a100, DeviceKind::NvSwitch)),
        (8, 12, 1)
    );
    let numa: std::collections::BTreeSet<_> =
        a100.of_kind(DeviceKind::Gpu).iter().map(|g| a100.device(*g).numa).collect();
    assert_eq!(numa.len(), 4);
    assert!(a100.device(a100.find("nic3").unwrap()).name == "mlx5_3");
}

const MATRIX: &str = "\tGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\nGPU0\t X \tNV4\tPIX\t0-3\t0\nGPU1\tNV4\t X \tSYS\t4-7\t1\nNIC0\tPIX\tSYS\t X\n\nLegend:\n\n  NV#  = Connection\n\nNIC Legend:\n\n  NIC0: mlx5_7\n";

#[test]
fn matrices_are_read_however_they_were_pasted() {
    let plain = Topology::parse(MATRIX, "m", None).unwrap();
    assert_eq!(plain.device(plain.find("nic0").unwrap()).name, "mlx5_7");
    let indented: String = MATRIX.lines().map(|l| format!("    {l}\r\n")).collect();
    let coloured = MATRIX.replace("GPU0", "\u{1b}[4mGPU0\u{1b}[0m");
    let wrapped = MATRIX.replace("GPU1\tNIC0", "GPU1\n\tNIC0").replace("NV4\tPIX", "NV4\n PIX");
    let spaces = MATRIX.replace('\t', "     ");
    for text in [&indented, &coloured, &wrapped, &spaces] {
        let t = Topology::parse(text, "m", None).unwrap();
        assert_eq!(cells(&t.to_matrix().unwrap()), cells(&plain.to_matrix().unwrap()), "{text}");
    }
    // A row cut short and a cell that is not known: the other direction says it.
    let cut = MATRIX.replace("GPU0\t X \tNV4\tPIX\t0-3\t0", "GPU0\t X \tN/A");
    let t = Topology::parse(&cut, "m", None).unwrap();
    assert_eq!(cells(&t.to_matrix().unwrap()), cells(MATRIX));
    assert!(t.notices().iter().any(|n| n.contains("m:2") && n.contains("2 cells of 3")), "{:?}", t.notices());
    let odd = Topology::parse(&MATRIX.replace("NIC0\tPIX", "NIC0\tSYS"), "m", None).unwrap();
    assert!(odd.notices().iter().any(|n| n.contains("not the same")), "{:?}", odd.notices());
    for (text, word) in [
        ("GPU0\tX", "no matrix"),
        ("\tGPU0\tGPU0\nGPU0\tX\tX", "twice in the header"),
        ("\tGPU0\tGPU1\nGPU0\tX\tSYS\nGPU0\tX\tSYS", "m:3"),
    ] {
        let error = Topology::parse(text, "m", Some(Format::SmiTopo)).unwrap_err().to_string();
        assert!(error.contains(word), "{error}");
    }
}

#[test]
fn fabrics_and_slurm_files_hold_what_the_index_says() {
    let Some(dir) = corpus() else { return };
    for (path, words) in files(&dir, "ib") {
        let t = Topology::read(&path).unwrap();
        let numbers: Vec<usize> = words.split([' ', ',']).filter_map(|w| w.parse().ok()).collect();
        assert_eq!([count(&t, DeviceKind::NetSwitch), count(&t, DeviceKind::Nic)], numbers[..], "{words}");
        assert!(t.links().all(|(.., l)| l.nominal.is_some()));
        let nics = t.of_kind(DeviceKind::Nic);
        let reached = t.routes_from(nics[0]).into_iter().flatten().count();
        assert!(reached > nics.len() / 2, "{reached}");
        // 109 of its hosts have four adapters, as a DGX-1 has NICs.
        let dgx1 = Path::new(env!("CARGO_MANIFEST_DIR")).join("topologies/dgx-1.toml");
        let placed = Topology::read(&dgx1).unwrap().cluster_in(&t).unwrap();
        assert_eq!((placed.hosts(), count(&placed, DeviceKind::Gpu)), (109, 872));
        let (a, b) = (placed.find("host0/nic0").unwrap(), placed.find("host108/nic0").unwrap());
        assert!(placed.route(a, b).is_some());
    }
    for (path, words) in files(&dir, "slurm") {
        let t = Topology::read(&path).unwrap();
        assert_eq!(count(&t, DeviceKind::Nic), 96, "{words}");
        let nodes = t.of_kind(DeviceKind::Nic);
        let depth = |a: usize, b: usize| t.route(nodes[a], nodes[b]).map(|r| r.links.len());
        if words.contains("tree") {
            // Leaf, spine, core: two, four and six links apart.
            assert_eq!((depth(0, 7), depth(0, 8), depth(0, 95)), (Some(2), Some(4), Some(6)));
        } else {
            assert_eq!((depth(0, 7), depth(0, 8)), (Some(2), None));
        }
    }
}

/// What fuzzing starts from and what it once found: read or refused, and what is written reads equal.
#[test]
fn the_fuzzers_seeds_hold() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus/topology");
    let mut seen = 0;
    for file in std::fs::read_dir(dir).unwrap() {
        let Ok(text) = std::fs::read_to_string(file.unwrap().path()) else { continue };
        seen += 1;
        let Ok(t) = Topology::parse(&text, "seed", None) else { continue };
        assert_eq!(Topology::from_toml(&t.to_toml(), "again").unwrap(), t);
        if let Ok(xml) = t.to_nccl_xml() {
            Topology::parse(&xml, "again.xml", None).unwrap();
        }
    }
    assert!(seen >= 18);
}

/// Every small file of the fuzzer's, cut anywhere and in other clothes: an error that names the file, or a topology.
#[test]
fn cut_and_re_encoded_files_are_read_or_refused() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus/topology");
    let odd = std::env::temp_dir().join(format!("topocoll-odd-{}", std::process::id()));
    let name = odd.display().to_string();
    for file in std::fs::read_dir(dir).unwrap() {
        let path = file.unwrap().path();
        let Ok(text) = std::fs::read_to_string(&path) else { continue };
        let plain = Topology::parse(&text, &name, None);
        let facts = |t: Topology| (t.devices().count(), t.links().count());
        let wide: Vec<u8> = text.encode_utf16().flat_map(u16::to_le_bytes).collect();
        for bytes in [
            [&[0xef, 0xbb, 0xbf], text.as_bytes()].concat(),
            [&[0xff, 0xfe], wide.as_slice()].concat(),
            text.replace('\n', "\r\n").into_bytes(),
        ] {
            std::fs::write(&odd, bytes).unwrap();
            match (Topology::read(&odd), plain.clone()) {
                (Ok(a), Ok(b)) => assert_eq!(facts(a), facts(b), "{}", path.display()),
                (Err(e), Err(_)) => assert!(e.to_string().contains(&name), "{e}"),
                (a, b) => panic!("{}: {:?} {:?}", path.display(), a.err(), b.err()),
            }
        }
        for cut in (0..text.len()).step_by(text.len() / 40 + 1).filter(|c| text.is_char_boundary(*c)) {
            if let Err(e) = Topology::parse(&text[..cut], "cut", None) {
                assert!(e.to_string().starts_with("cut"), "{e}");
            }
        }
    }
    std::fs::write(&odd, b"name = 'x'\nid = '\xe9'\n").unwrap();
    let error = Topology::read(&odd).unwrap_err().to_string();
    assert!(error.contains(":2: this is no UTF-8 text"), "{error}");
    let large = std::fs::File::create(&odd).unwrap();
    large.set_len(1 << 30).unwrap();
    let error = Topology::read(&odd).unwrap_err().to_string();
    assert!(error.contains("larger than 16 MiB"), "{error}");
    std::fs::remove_file(&odd).unwrap();
    // A thousand million laughs, and a file of the host: refused before anything is expanded.
    for bomb in [
        "<!DOCTYPE s [<!ENTITY a \"ha\"><!ENTITY b \"&a;&a;&a;&a;&a;&a;&a;&a;\">]><system><cpu numaid=\"&b;\"/></system>",
        "<!DOCTYPE s [<!ENTITY f SYSTEM \"file:///etc/passwd\">]><topology version=\"2.0\">&f;</topology>",
    ] {
        assert!(Topology::parse(bomb, "bomb", None).unwrap_err().to_string().contains("bomb"));
    }
}

/// Edge lists with the least all-reduce that an independent tool found: converted, read, and our bound is the same, as far
/// as the figures there are given.
#[test]
fn edge_lists_become_topologies_and_bounds_are_the_truth() {
    use topocoll::plan::{Collective, Placement, bound::bound};
    let Some(dir) = corpus() else { return };
    for (name, exact) in
        [("dgx1", 600.0 / 7.0), ("a100x2", 520.0 / 3.0), ("h100x4", 8000.0 / 31.0), ("mi250x1", 1200.0 / 7.0)]
    {
        let text = std::fs::read_to_string(dir.join(format!("bounds/{name}.json"))).unwrap();
        let json: serde_json::Value = serde_json::from_str(&text).unwrap();
        let list = |key: &str| json[key].as_array().unwrap().clone();
        let host = |id: &str| id.strip_prefix('h').and_then(|r| r.split_once('.')?.0.parse::<usize>().ok());
        let kind = |id: &str| match id {
            s if list("ranks").iter().any(|r| r == s) => "gpu",
            s if s.ends_with("nvswitch") => "nv-switch",
            s if s.contains("nic") => "nic",
            _ => "net-switch",
        };
        let mut toml = format!("name = '{name}'\n");
        for id in list("ranks").iter().chain(&list("switches")).map(|d| d.as_str().unwrap()) {
            toml += &format!("[[device]]\nkind = '{}'\nid = '{id}'\n", kind(id));
            if let Some(host) = host(id) {
                toml += &format!("host = {host}\n");
            }
        }
        for l in list("links_gb_per_s_each_way") {
            let (a, b, rate) = (l[0].as_str().unwrap(), l[1].as_str().unwrap(), l[2].as_f64().unwrap());
            let wire = match (kind(a), kind(b)) {
                (_, "net-switch") | ("net-switch", _) => "infiniband",
                (_, "nic") | ("nic", _) => "pcie",
                _ => "nvlink",
            };
            toml += &format!("[[link]]\nkind = '{wire}'\nfrom = '{a}'\nto = '{b}'\nnominal = '{rate} GB/s'\n");
        }
        let t = Topology::from_toml(&toml, name).unwrap();
        assert_eq!(t.devices().count(), list("ranks").len() + list("switches").len(), "{name}");
        assert_eq!(t.links().count(), 2 * list("links_gb_per_s_each_way").len(), "{name}");
        assert_eq!(Topology::from_toml(&t.to_toml(), "again").unwrap(), t);
        let gpus = t.of_kind(DeviceKind::Gpu);
        assert!(gpus.iter().all(|g| t.route(gpus[0], *g).is_some()), "{name}");
        let least = bound(&t, &Placement::gpus(&t).unwrap(), Collective::AllReduce, 1 << 40).bandwidth;
        let algbw = (1u64 << 40) as f64 / least / 1e9;
        let truth = json["least_all_reduce_algbw_gb_per_s"].as_f64().unwrap();
        assert!((algbw - truth).abs() <= 0.0005, "{name}: {algbw} GB/s, but {truth} is reached");
        assert!((algbw / exact - 1.0).abs() < 1e-9, "{name}: {algbw} GB/s, but {exact} is reached");
    }
}
