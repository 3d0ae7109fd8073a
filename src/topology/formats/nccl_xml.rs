//! The topology files of NCCL and RCCL: what `NCCL_TOPO_DUMP_FILE` writes and `NCCL_TOPO_FILE` reads.
//!
//! `system > cpu > pci > {pci, gpu > nvlink | xgmi, nic > net}`. Files that people write by hand hold `pci` elements of a
//! class only, without `gpu` or `nic` inside; those count too.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;

use roxmltree::{Document, Node};

use crate::topology::figures;
use crate::topology::{CpuInfo, Device, DeviceId, DeviceKind, Link, LinkKind, Topology};
use crate::{Error, Result};

/// How deep elements may be nested: a PCI tree has a handful of levels.
const MAX_DEPTH: usize = 64;

/// NUMA nodes of a machine; each is joined with each.
const MAX_CPUS: usize = 1024;

pub(super) fn read(text: &str, file: &str) -> Result<Topology> {
    let fail = |line, field: &str, message: String| Error::in_file(file, line, field, message);
    let doc = Document::parse(text)
        .map_err(|e| fail(Some(e.pos().row as usize), "", format!("this is no well-formed XML: {e}")))?;
    let root = doc.root_element();
    if root.tag_name().name() != "system" {
        let found = root.tag_name().name();
        return Err(fail(Some(1), "", format!("found <{found}>, expected NCCL's <system>")));
    }
    let mut reader = Reader {
        t: Topology::new(file.rsplit('/').next().unwrap_or(file)),
        file,
        starts: std::iter::once(0).chain(text.match_indices('\n').map(|(i, _)| i + 1)).collect(),
        by_bus: HashMap::new(),
        cpu: None,
        nvlinks: Vec::new(),
        switches: 0,
    };
    reader.t.source = format!("NCCL topology file {file}");
    let mut cpus = 0;
    for (i, cpu) in root.children().filter(|n| n.has_tag_name("cpu")).enumerate() {
        if i >= MAX_CPUS {
            return Err(fail(Some(reader.line(cpu)), "cpu", format!("more than {MAX_CPUS} of them")));
        }
        reader.cpu(cpu, i)?;
        cpus += 1;
    }
    if cpus == 0 {
        return Err(fail(Some(1), "system", "there is no <cpu> in it".into()));
    }
    reader.interconnect();
    reader.nvlink()?;
    Ok(reader.t)
}

struct Reader<'a> {
    t: Topology,
    file: &'a str,
    /// Where each line begins.
    starts: Vec<usize>,
    by_bus: HashMap<String, DeviceId>,
    /// The CPU that is being read.
    cpu: Option<DeviceId>,
    nvlinks: Vec<NvLink>,
    switches: usize,
}

/// A GPU's links to one other, of which the other may come later in the file.
struct NvLink {
    from: DeviceId,
    kind: LinkKind,
    count: u32,
    to: Target,
    /// Bytes per second of each, where the file says so.
    rate: Option<f64>,
    line: usize,
}

enum Target {
    Bus(String),
    Switch,
    Cpu(DeviceId),
}

impl<'a> Reader<'a> {
    fn line(&self, node: Node<'_, '_>) -> usize {
        // The document's own way to a line reads all before it.
        self.starts.partition_point(|start| *start <= node.range().start)
    }

    fn error(&self, node: Node<'_, '_>, attribute: &str, message: String) -> Error {
        Error::TopologyFile {
            file: self.file.into(),
            line: Some(self.line(node)),
            field: Some(format!("{}.{attribute}", node.tag_name().name())),
            message,
        }
    }

    /// A number, or `None` where it is missing or empty.
    fn number(&self, node: Node<'_, '_>, name: &str) -> Result<Option<i64>> {
        let Some(text) = node.attribute(name).map(str::trim).filter(|t| !t.is_empty()) else { return Ok(None) };
        let parsed = text.strip_prefix("0x").map_or_else(|| text.parse(), |hex| i64::from_str_radix(hex, 16));
        parsed.map(Some).map_err(|_| self.error(node, name, format!("found {text:?}, expected a whole number")))
    }

    fn add(&mut self, node: Node<'_, '_>, kind: DeviceKind, id: String, numa: Option<usize>) -> Result<DeviceId> {
        let index = self.t.count(kind, Some(0));
        // What the file says beyond what a device holds is kept, for writing it again.
        let used = ["busid", "numaid", "link_speed", "link_width", "name", "speed"];
        let extra: BTreeMap<String, String> = node
            .attributes()
            .filter(|a| !used.contains(&a.name()))
            .map(|a| (a.name().to_string(), a.value().to_string()))
            .collect();
        let device = Device {
            name: node.attribute("name").unwrap_or_default().into(),
            bus: node.attribute("busid").map(String::from),
            numa,
            extra,
            ..Device::new(id, kind, index, self.file)
        };
        self.t.add_device(device).map_err(|e| self.error(node, "busid", e.to_string()))
    }

    fn cpu(&mut self, node: Node<'_, '_>, i: usize) -> Result<()> {
        let numa = self.number(node, "numaid")?.and_then(|n| usize::try_from(n).ok());
        let id = self.add(node, DeviceKind::Cpu, format!("cpu{i}"), Some(numa.unwrap_or(i)))?;
        // NCCL has no notion of sockets: each of its cpu elements is a NUMA node.
        self.t.device_mut(id).cpu = Some(CpuInfo { package: i, ..CpuInfo::default() });
        self.cpu = Some(id);
        self.children(node, id, numa.unwrap_or(i), 0)
    }

    fn children(&mut self, node: Node<'_, '_>, parent: DeviceId, numa: usize, depth: usize) -> Result<()> {
        if depth > MAX_DEPTH {
            return Err(self.error(node, "", format!("more than {MAX_DEPTH} levels of elements")));
        }
        for child in node.children().filter(Node::is_element) {
            match child.tag_name().name() {
                "pci" => self.pci(child, parent, numa, depth)?,
                "nic" => self.nic(child, parent, numa, None)?,
                "nvlink" | "xgmi" | "net" | "gpu" | "c2c" | "pcilink" => {}
                other => {
                    let line = self.line(child);
                    self.t.notice(format!("{}:{line}: <{other}> is not known and left out", self.file));
                }
            }
        }
        Ok(())
    }

    fn pci(&mut self, node: Node<'_, '_>, parent: DeviceId, numa: usize, depth: usize) -> Result<()> {
        let bus = node.attribute("busid").unwrap_or_default().to_ascii_lowercase();
        if bus.is_empty() {
            return Err(self.error(node, "busid", "it is missing; a PCI device has one".into()));
        }
        if self.by_bus.contains_key(&bus) {
            return Err(self.error(node, "busid", format!("two devices have bus id {bus}")));
        }
        let class = node.attribute("class").unwrap_or_default();
        let link = self.pcie(node)?;
        let gpu = node.children().find(|n| n.has_tag_name("gpu"));
        let nic = node.children().find(|n| n.has_tag_name("nic"));
        // A <nic> inside a bridge is not the bridge's.
        let nic = nic.filter(|_| !class.starts_with("0x0604"));
        let id = if gpu.is_some() || nic.is_none() && is_gpu(class) {
            let count = self.t.count(DeviceKind::Gpu, Some(0));
            let id = self.add(node, DeviceKind::Gpu, format!("gpu{count}"), Some(numa))?;
            if let Some(gpu) = gpu {
                self.gpu(gpu, id)?;
            }
            id
        } else if nic.is_some() || class.starts_with("0x0207") || class.starts_with("0x0200") {
            let count = self.t.count(DeviceKind::Nic, Some(0));
            if let Some(nic) = nic {
                return self.nic(nic, parent, numa, Some((node, bus, link)));
            }
            self.add(node, DeviceKind::Nic, format!("nic{count}"), Some(numa))?
        } else {
            self.switches += 1;
            let id = format!("plx{}", self.switches - 1);
            self.add(node, DeviceKind::PciSwitch, id, Some(numa))?
        };
        self.by_bus.insert(bus, id);
        self.t.connect(id, parent, link);
        self.children(node, id, numa, depth + 1)
    }

    fn gpu(&mut self, node: Node<'_, '_>, id: DeviceId) -> Result<()> {
        for a in node.attributes() {
            self.t.device_mut(id).extra.insert(format!("gpu.{}", a.name()), a.value().into());
        }
        for link in node.children().filter(Node::is_element) {
            let kind = match link.tag_name().name() {
                "nvlink" => LinkKind::NvLink,
                "xgmi" => LinkKind::Xgmi,
                "c2c" => LinkKind::NvLinkC2c,
                _ => continue,
            };
            let count = self.number(link, "count")?.unwrap_or(1);
            let count = u32::try_from(count).ok().filter(|c| (1..=1024).contains(c));
            let count = count.ok_or_else(|| self.error(link, "count", "expected 1 to 1024 links".into()))?;
            let class = link.attribute("tclass").unwrap_or_default();
            let to = match self.cpu {
                // POWER9's NPU stands for the CPU; a chip-to-chip link leads nowhere else.
                Some(cpu) if class.starts_with("0x068001") || kind == LinkKind::NvLinkC2c => Target::Cpu(cpu),
                _ if class.starts_with("0x0680") => Target::Switch,
                _ => Target::Bus(link.attribute("target").unwrap_or_default().to_ascii_lowercase()),
            };
            // MB/s.
            let rate = self.number(link, "bw")?.filter(|bw| *bw > 0).map(|bw| bw as f64 * 1e6);
            let line = self.line(link);
            self.nvlinks.push(NvLink { from: id, kind, count, to, rate, line });
        }
        Ok(())
    }

    /// A card with its ports; each port is a device with a way into the host and a way out.
    fn nic(
        &mut self,
        node: Node<'_, '_>,
        parent: DeviceId,
        numa: usize,
        pci: Option<(Node<'_, '_>, String, Link)>,
    ) -> Result<()> {
        let ports: Vec<_> = node.children().filter(|n| n.has_tag_name("net")).collect();
        let class = pci.as_ref().and_then(|(n, ..)| n.attribute("class")).unwrap_or_default().to_string();
        let mut first = true;
        for net in ports {
            let count = self.t.count(DeviceKind::Nic, Some(0));
            let id = self.add(net, DeviceKind::Nic, format!("nic{count}"), Some(numa))?;
            let inward = match &pci {
                Some((card, bus, link)) => {
                    let device = self.t.device_mut(id);
                    device.bus = Some(bus.clone());
                    for a in card.attributes().filter(|a| !["busid", "link_speed", "link_width"].contains(&a.name())) {
                        device.extra.insert(format!("pci.{}", a.name()), a.value().into());
                    }
                    if std::mem::take(&mut first) {
                        self.by_bus.insert(bus.clone(), id);
                    }
                    link.clone()
                }
                // A NIC outside the PCI tree, which NCCL attaches to the CPU.
                None => Link::new(LinkKind::Pcie, &format!("{}: not in the PCI tree", self.file)),
            };
            self.t.connect(id, parent, inward);
            let kind = if class.starts_with("0x0207") { LinkKind::InfiniBand } else { LinkKind::Ethernet };
            let mut outward = Link::new(kind, &format!("{}: net.speed", self.file));
            // Mbit/s.
            let speed = self.number(net, "speed")?.filter(|s| *s > 0);
            outward.nominal = speed.map(|s| s as f64 * 125e3);
            let source = "assumed: the file says nothing of the network";
            let switch = Device::new(format!("rail{count}"), DeviceKind::NetSwitch, count, source);
            let switch = self.t.add_device(switch)?;
            self.t.connect(id, switch, outward);
        }
        Ok(())
    }

    /// The PCIe link of an element to the one above.
    fn pcie(&mut self, node: Node<'_, '_>) -> Result<Link> {
        let line = self.line(node);
        let mut link = Link::new(LinkKind::Pcie, &format!("{}:{line}", self.file));
        let width = self.number(node, "link_width")?.and_then(|w| u32::try_from(w).ok()).filter(|w| *w > 0);
        let speed = node.attribute("link_speed").unwrap_or_default();
        let transfers = speed.split_whitespace().next().and_then(|n| n.parse::<f64>().ok()).filter(|s| *s > 0.0);
        link.lanes = width.unwrap_or(1);
        match (transfers, width) {
            (Some(speed), Some(width)) => link.nominal = Some(figures::pcie(speed, width)),
            _ => {
                let bus = node.attribute("busid").unwrap_or("?");
                self.t.notice(format!("{}:{line}: the PCIe speed of {bus} is not given and is assumed", self.file));
            }
        }
        Ok(link)
    }

    /// The file does not say how NUMA nodes are joined.
    fn interconnect(&mut self) {
        let cpus = self.t.of_kind(DeviceKind::Cpu);
        for (i, a) in cpus.iter().enumerate() {
            for b in &cpus[i + 1..] {
                let link = Link::new(LinkKind::CpuInterconnect, "assumed: the file has no figure");
                self.t.connect(*a, *b, link);
            }
        }
    }

    /// NVLinks last, when all their ends are known. Each GPU lists its own direction.
    fn nvlink(&mut self) -> Result<()> {
        for NvLink { from, kind, count, to, rate, line } in std::mem::take(&mut self.nvlinks) {
            let to = match to {
                Target::Cpu(cpu) => cpu,
                Target::Switch => match self.t.find("nvswitch0") {
                    Some(id) => id,
                    None => self.t.add_device(nv_switch(self.file))?,
                },
                Target::Bus(bus) => match self.by_bus.get(&bus) {
                    Some(id) => *id,
                    None => {
                        let id = &self.t.device(from).id;
                        let text = format!("{}:{line}: {kind} of {id} leads to {bus}, which is not there", self.file);
                        self.t.notice(text);
                        continue;
                    }
                },
            };
            if to == from {
                let id = &self.t.device(from).id;
                let text = format!("{}:{line}: {id} is its own {kind} neighbour, which cannot be; left out", self.file);
                self.t.notice(text);
                continue;
            }
            let mut link = Link::new(kind, &format!("{}:{line}, {}", self.file, rate_source(kind)));
            let device = self.t.device(from);
            let (nominal, usable) = per_link(kind, &device.extra);
            link.lanes = count;
            link.nominal = rate.or(nominal).map(|r| r * f64::from(count));
            link.usable = usable.map(|r| r * f64::from(count));
            self.t.add_link(from, to, link.clone());
            if self.t.device(to).kind != DeviceKind::Gpu {
                // A switch or a CPU lists nothing.
                self.t.add_link(to, from, link);
            }
        }
        Ok(())
    }
}

fn nv_switch(file: &str) -> Device {
    let source = format!("{file}: the switches that NVLinks lead to, as one");
    Device::new("nvswitch0", DeviceKind::NvSwitch, 0, &source)
}

/// Display controllers of any make, and AMD's accelerator class.
fn is_gpu(class: &str) -> bool {
    ["0x0300", "0x0302", "0x0380", "0x1200"].iter().any(|c| class.starts_with(c))
}

/// Nominal and usable bytes per second of one link of this GPU.
fn per_link(kind: LinkKind, extra: &BTreeMap<String, String>) -> (Option<f64>, Option<f64>) {
    let sm = || extra.get("gpu.sm").and_then(|v| v.parse().ok()).unwrap_or(0);
    match kind {
        LinkKind::NvLink => figures::nvlink(sm()).unzip(),
        LinkKind::Xgmi => (extra.get("gpu.gcn").and_then(|gcn| figures::xgmi(gcn)), None),
        LinkKind::NvLinkC2c => (figures::nvlink_c2c(sm()), None),
        _ => (None, None),
    }
}

fn rate_source(kind: LinkKind) -> &'static str {
    match kind {
        LinkKind::NvLink => figures::NVLINK_SOURCE,
        LinkKind::Xgmi => "nominal: AMD's data sheet of the accelerator",
        LinkKind::NvLinkC2c => "nominal: NVIDIA's white paper of the superchip",
        _ => "rate not known",
    }
}

impl Topology {
    /// One host as an NCCL topology file. What the topology does not know is written as NCCL's own dumps write it.
    ///
    /// # Errors
    /// [`Error::Topology`] where it is of several hosts or has no CPU, which such a file cannot say.
    pub fn to_nccl_xml(&self) -> Result<String> {
        if self.hosts() > 1 {
            let why = format!("{} is {} hosts, and an NCCL topology file holds one", self.name, self.hosts());
            return Err(Error::Topology(why));
        }
        if self.of_kind(DeviceKind::Cpu).is_empty() {
            let why = format!("{} has no CPU, to which an NCCL topology file attaches everything", self.name);
            return Err(Error::Topology(why));
        }
        let depths = self.pcie_depths();
        let mut out = String::from("<system version=\"1\">\n");
        for cpu in self.of_kind(DeviceKind::Cpu) {
            let d = self.device(cpu);
            let get = |key: &str, default: &str| d.extra.get(key).map_or(default.into(), |v| escape(v));
            put(
                &mut out,
                1,
                &format!(
                    "<cpu numaid=\"{}\" affinity=\"{}\" arch=\"{}\" vendor=\"{}\" familyid=\"{}\" modelid=\"{}\">",
                    d.numa.unwrap_or(d.index),
                    get("affinity", &affinity(d)),
                    get("arch", "x86_64"),
                    get("vendor", vendor(&d.name)),
                    get("familyid", "6"),
                    get("modelid", "85"),
                ),
            );
            self.below(&mut out, &depths, cpu, 2);
            put(&mut out, 1, "</cpu>");
        }
        out.push_str("</system>\n");
        Ok(out)
    }

    fn below(&self, out: &mut String, depths: &[Option<u32>], parent: DeviceId, depth: usize) {
        let mut seen: Vec<String> = Vec::new();
        let depth_of = |id: DeviceId| depths[id.0.index()];
        for (_, child, link) in self.links_from(parent) {
            let d = self.device(child);
            // A GPU that a chip-to-chip link alone joins with its CPU has a place in NCCL's tree all the same.
            let below = match link.kind {
                LinkKind::Pcie => depth_of(child) > depth_of(parent),
                LinkKind::NvLinkC2c => depth_of(child).is_none(),
                _ => false,
            };
            if !below {
                continue;
            }
            let bus = d.bus.clone().unwrap_or_else(|| made_up_bus(d));
            let trained = link.nominal.filter(|_| link.kind == LinkKind::Pcie);
            let speed = trained.map(|r| pcie_words(r, link.lanes)).unwrap_or_default();
            let class = match d.kind {
                DeviceKind::Gpu => "0x030200",
                DeviceKind::Nic => "0x020000",
                _ => "0x060400",
            };
            let prefix = if d.kind == DeviceKind::Nic { "pci." } else { "" };
            let extra = |key: &str, default: &str| {
                d.extra.get(&format!("{prefix}{key}")).map_or(default.to_string(), |v| escape(v))
            };
            if d.kind == DeviceKind::Nic {
                // One outside the PCI tree has no figure of it; NCCL knows such only with a port.
                let bare = d.bus.is_none() && link.nominal.is_none() && self.port_link(child).is_some();
                if bare && self.device(parent).kind == DeviceKind::Cpu {
                    put(out, depth, "<nic>");
                    self.net(out, child, depth + 1);
                    put(out, depth, "</nic>");
                    continue;
                }
                if seen.contains(&bus) {
                    continue;
                }
                seen.push(bus.clone());
            }
            let width = if trained.is_some() { link.lanes } else { 0 };
            let mut head = format!("<pci busid=\"{}\" class=\"{}\"", escape(&bus), extra("class", class));
            for key in ["vendor", "device", "subsystem_vendor", "subsystem_device"] {
                if let Some(value) = d.extra.get(&format!("{prefix}{key}")) {
                    let _ = write!(head, " {key}=\"{}\"", escape(value));
                }
            }
            put(out, depth, &format!("{head} link_speed=\"{speed}\" link_width=\"{width}\">"));
            match d.kind {
                DeviceKind::Gpu => self.gpu(out, child, depth + 1),
                DeviceKind::Nic => {
                    // A card's ports share its bus id.
                    let ports: Vec<DeviceId> = self
                        .of_kind(DeviceKind::Nic)
                        .into_iter()
                        .filter(|n| *n == child || d.bus.is_some() && self.device(*n).bus == d.bus)
                        .filter(|n| self.port_link(*n).is_some())
                        .collect();
                    if !ports.is_empty() {
                        put(out, depth + 1, "<nic>");
                        ports.into_iter().for_each(|port| self.net(out, port, depth + 2));
                        put(out, depth + 1, "</nic>");
                    }
                }
                _ => self.below(out, depths, child, depth + 1),
            }
            put(out, depth, "</pci>");
        }
    }

    fn gpu(&self, out: &mut String, gpu: DeviceId, depth: usize) {
        let d = self.device(gpu);
        let get = |key: &str, default: String| d.extra.get(&format!("gpu.{key}")).map_or(default, |v| escape(v));
        let mut head = format!(
            "<gpu dev=\"{}\" sm=\"{}\"",
            get("dev", d.index.to_string()),
            get("sm", figures::sm_of(&d.name).to_string())
        );
        for key in ["gcn", "arch"] {
            if let Some(value) = d.extra.get(&format!("gpu.{key}")) {
                let _ = write!(head, " {key}=\"{}\"", escape(value));
            }
        }
        let (rank, gdr) = (get("rank", d.index.to_string()), get("gdr", "1".into()));
        put(out, depth, &format!("{head} rank=\"{rank}\" gdr=\"{gdr}\">"));
        for (_, to, link) in self.links_from(gpu) {
            if link.kind == LinkKind::NvLinkC2c {
                let each = link.nominal.map_or(0.0, |r| (r / f64::from(link.lanes) / 1e6).round());
                put(out, depth + 1, &format!("<c2c bw=\"{each}\" count=\"{}\"/>", link.lanes));
            }
            let (tag, class) = match (link.kind, self.device(to).kind) {
                (LinkKind::NvLink, DeviceKind::NvSwitch) => ("nvlink", "0x068000"),
                (LinkKind::NvLink, DeviceKind::Cpu) => ("nvlink", "0x068001"),
                (LinkKind::NvLink, _) => ("nvlink", "0x030200"),
                (LinkKind::Xgmi, _) => ("xgmi", "0x038000"),
                _ => continue,
            };
            let target = self.device(to).bus.clone().unwrap_or_else(|| made_up_bus(self.device(to)));
            let class = self.device(to).extra.get("class").map_or(class, String::as_str);
            let (target, count) = (escape(&target), link.lanes);
            put(out, depth + 1, &format!("<{tag} target=\"{target}\" count=\"{count}\" tclass=\"{class}\"/>"));
        }
        put(out, depth, "</gpu>");
    }

    /// The link of a port to the network.
    fn port_link(&self, nic: DeviceId) -> Option<&Link> {
        self.links_from(nic).map(|(.., l)| l).find(|l| l.kind.is_network())
    }

    fn net(&self, out: &mut String, nic: DeviceId, depth: usize) {
        let d = self.device(nic);
        let Some(link) = self.port_link(nic) else { return };
        let get = |key: &str, default: String| d.extra.get(key).map_or(default, |v| escape(v));
        let speed = link.nominal.map_or(0.0, |r| (r / 125e3).round());
        let name = if d.name.is_empty() { &d.id } else { &d.name };
        let mut line = format!(
            "<net name=\"{}\" dev=\"{}\" speed=\"{speed}\" port=\"{}\"",
            escape(name),
            get("dev", d.index.to_string()),
            get("port", "1".into()),
        );
        if let Some(latency) = d.extra.get("latency") {
            let _ = write!(line, " latency=\"{}\"", escape(latency));
        }
        let (guid, maxconn, gdr) =
            (get("guid", format!("{:#x}", d.index + 1)), get("maxconn", "131072".into()), get("gdr", "1".into()));
        put(out, depth, &format!("{line} guid=\"{guid}\" maxconn=\"{maxconn}\" gdr=\"{gdr}\"/>"));
    }
}

fn put(out: &mut String, depth: usize, line: &str) {
    let _ = writeln!(out, "{}{line}", "  ".repeat(depth));
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('"', "&quot;")
}

/// A bus id for what has none, different for each device.
fn made_up_bus(d: &Device) -> String {
    let kind = match d.kind {
        DeviceKind::Gpu => 0,
        DeviceKind::Nic => 1,
        DeviceKind::PciSwitch => 2,
        _ => 3,
    };
    format!("fff{kind}:{:02x}:{:02x}.0", d.index / 32 % 256, d.index % 32)
}

/// `16 GT/s` and its like, as the kernel writes it.
fn pcie_words(rate: f64, width: u32) -> String {
    let speeds = [2.5, 5.0, 8.0, 16.0, 32.0, 64.0];
    let off = |speed: &f64| (figures::pcie(*speed, width.max(1)) - rate).abs();
    let best = speeds.iter().min_by(|a, b| off(a).total_cmp(&off(b))).copied().unwrap_or(8.0);
    if best == 2.5 { "2.5 GT/s".into() } else { format!("{best:.0} GT/s") }
}

/// Hardware threads as NCCL's mask: groups of 32 bits, the highest first.
fn affinity(d: &Device) -> String {
    let pus = d.cpu.as_ref().map(|c| c.pus.as_slice()).unwrap_or_default();
    let groups = pus.iter().max().map_or(1, |m| m / 32 + 1).min(1 << 10);
    let mut masks = vec![0u32; groups];
    for pu in pus.iter().filter(|p| **p / 32 < groups) {
        masks[pu / 32] |= 1 << (pu % 32);
    }
    let words: Vec<String> = masks.iter().rev().map(|m| format!("{m:08x}")).collect();
    words.join(",")
}

fn vendor(model: &str) -> &'static str {
    if model.contains("EPYC") || model.contains("AMD") { "AuthenticAMD" } else { "GenuineIntel" }
}
