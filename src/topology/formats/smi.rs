//! The matrix of `nvidia-smi topo -m`, as people paste it, and the same matrix written.
//!
//! Drivers lay it out differently, mails and tickets shift it, and cells may be missing. So nothing is taken from
//! columns' positions: a device row is a device's name and then path symbols, in the order of the header's devices.

use std::collections::{BTreeMap, HashMap};

use crate::topology::device::HOST_BRIDGE;
use crate::topology::route::PathClass;
use crate::topology::{CpuInfo, Device, DeviceId, DeviceKind, Link, LinkKind, Topology};
use crate::{Error, Result};

/// Devices of one matrix.
const MAX: usize = 1024;

/// NVLinks that no GPU has more of: what goes beyond is a switch.
const MAX_NVLINKS: u32 = 18;

/// How near two devices are by PCIe, nearest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Near {
    Pix,
    Pxb,
    Phb,
    Node,
    Sys,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cell {
    Own,
    NvLink(u32),
    Pcie(Near),
    Unknown,
}

/// A path symbol; anything else is none.
fn cell(word: &str) -> Option<Cell> {
    Some(match word {
        "X" => Cell::Own,
        "PIX" => Cell::Pcie(Near::Pix),
        "PXB" => Cell::Pcie(Near::Pxb),
        "PHB" => Cell::Pcie(Near::Phb),
        "NODE" => Cell::Pcie(Near::Node),
        // SOC is what drivers before 2017 call SYS.
        "SYS" | "SOC" => Cell::Pcie(Near::Sys),
        "N/A" | "-" => Cell::Unknown,
        _ => Cell::NvLink(word.strip_prefix("NV")?.parse().ok().filter(|n| (1..=64).contains(n))?),
    })
}

/// Whether a word names a device of the matrix rather than being a title or an affinity.
fn is_device(word: &str) -> bool {
    let numbered = |prefix: &str| word.strip_prefix(prefix).is_some_and(|n| n.parse::<u32>().is_ok());
    numbered("GPU")
        || numbered("NIC")
        || word.contains('_') && word.chars().any(|c| c.is_ascii_digit()) && !word.contains('/')
}

/// Whether a text looks like such a matrix.
pub(super) fn looks_like(text: &str) -> bool {
    text.lines().take(200).any(|l| {
        let words: Vec<String> = words(l);
        words.first().is_some_and(|w| is_device(w)) && words.get(1).and_then(|w| cell(w)).is_some()
    })
}

/// Words of a line without terminal colours and other control sequences.
fn words(line: &str) -> Vec<String> {
    let mut plain = String::with_capacity(line.len());
    let mut chars = line.chars();
    while let Some(c) = chars.next() {
        if c == '\u{1b}' {
            // ESC [ parameters letter.
            let _ = chars.by_ref().find(char::is_ascii_alphabetic);
        } else {
            plain.push(if c == '|' { ' ' } else { c });
        }
    }
    plain.split_whitespace().map(String::from).collect()
}

struct Row {
    line: usize,
    device: String,
    cells: Vec<Cell>,
    numa: Option<usize>,
}

pub(super) fn read(text: &str, file: &str) -> Result<Topology> {
    let fail = |line: Option<usize>, message: String| Error::in_file(file, line, "", message);
    let mut header: Vec<String> = Vec::new();
    let mut rows: Vec<Row> = Vec::new();
    let mut names: HashMap<String, String> = HashMap::new();
    for (i, line) in text.lines().enumerate() {
        let words = words(line);
        let Some(first) = words.first() else { continue };
        // `NIC0: mlx5_0` in the legend.
        if let (Some(device), [_, name]) = (first.strip_suffix(':'), words.as_slice())
            && is_device(device)
        {
            names.insert(device.into(), name.clone());
            continue;
        }
        let symbols = words.get(1).is_some_and(|w| cell(w).is_some());
        if is_device(first) && symbols && !header.is_empty() {
            let cells: Vec<Cell> = words[1..].iter().map_while(|w| cell(w)).take(header.len()).collect();
            // After the cells come CPU affinity, NUMA affinity and, in newer drivers, the GPU's own node.
            let rest = &words[1 + cells.len()..];
            let numa = rest.iter().find_map(|w| w.parse().ok()).filter(|_| cells.len() == header.len());
            rows.push(Row { line: i + 1, device: first.clone(), cells, numa });
        } else if rows.is_empty() && words.iter().any(|w| is_device(w)) && !symbols {
            // The header, on one line or wrapped to several.
            header.extend(words.iter().filter(|w| is_device(w)).cloned());
        } else if let Some(last) = rows.last_mut().filter(|r| r.cells.len() < header.len() && cell(first).is_some()) {
            // A wrapped row goes on.
            let more = words.iter().map_while(|w| cell(w)).take(header.len() - last.cells.len());
            last.cells.extend(more.collect::<Vec<_>>());
        }
    }
    if header.is_empty() || rows.is_empty() {
        return Err(fail(
            None,
            "no matrix of `nvidia-smi topo -m` is in it: a header of devices and a row for each".into(),
        ));
    }
    if header.len() > MAX {
        return Err(fail(None, format!("{} devices; {MAX} are the most", header.len())));
    }
    let mut t = Topology::new(file.rsplit('/').next().unwrap_or(file));
    t.source = format!("nvidia-smi topo -m, {file}");
    build(&mut t, &header, &rows, &names, file).map_err(|(line, why)| fail(line, why))?;
    Ok(t)
}

type Wrong = (Option<usize>, String);

fn build(
    t: &mut Topology,
    header: &[String],
    rows: &[Row],
    names: &HashMap<String, String>,
    file: &str,
) -> std::result::Result<(), Wrong> {
    let n = header.len();
    let index: HashMap<&str, usize> = header.iter().enumerate().map(|(i, d)| (d.as_str(), i)).collect();
    if index.len() != n {
        return Err((None, "a device is twice in the header".into()));
    }
    let mut matrix = vec![vec![Cell::Unknown; n]; n];
    let mut numa = vec![None; n];
    let mut seen = vec![false; n];
    for row in rows {
        let Some(&i) = index.get(row.device.as_str()) else {
            t.notice(format!("{file}:{}: {} is not in the header and is left out", row.line, row.device));
            continue;
        };
        if std::mem::replace(&mut seen[i], true) {
            return Err((Some(row.line), format!("there are two rows for {}", row.device)));
        }
        if row.cells.len() < n {
            t.notice(format!("{file}:{}: the row of {} has {} cells of {n}", row.line, row.device, row.cells.len()));
        }
        matrix[i][..row.cells.len()].copy_from_slice(&row.cells);
        numa[i] = row.numa;
    }
    // Each pair is said twice; what is said once holds, what is said differently is noticed, and the nearer is believed.
    for i in 0..n {
        for j in i + 1..n {
            let pair = match (matrix[i][j], matrix[j][i]) {
                (a, Cell::Unknown) => a,
                (Cell::Unknown, b) => b,
                (a, b) if a == b => a,
                (a, b) => {
                    let (x, y) = (&header[i], &header[j]);
                    t.notice(format!("{file}: {x} to {y} and {y} to {x} are not the same; the nearer is taken"));
                    match (a, b) {
                        (Cell::NvLink(p), Cell::NvLink(q)) => Cell::NvLink(p.min(q)),
                        (Cell::NvLink(_), _) => a,
                        (_, Cell::NvLink(_)) => b,
                        (Cell::Pcie(p), Cell::Pcie(q)) => Cell::Pcie(p.min(q)),
                        _ => a,
                    }
                }
            };
            (matrix[i][j], matrix[j][i]) = (pair, pair);
        }
    }
    let place = Placing { file, header, names, matrix: &matrix, numa: &numa };
    let devices = place.devices(t)?;
    place.pcie(t, &devices)?;
    place.nvlink(t, &devices)
}

struct Placing<'a> {
    file: &'a str,
    header: &'a [String],
    names: &'a HashMap<String, String>,
    matrix: &'a [Vec<Cell>],
    numa: &'a [Option<usize>],
}

impl Placing<'_> {
    fn device(&self, id: String, kind: DeviceKind, index: usize, name: &str, numa: Option<usize>) -> Device {
        Device { name: name.into(), numa, ..Device::new(id, kind, index, self.file) }
    }

    fn add(t: &mut Topology, device: Device) -> std::result::Result<DeviceId, Wrong> {
        t.add_device(device).map_err(|e| (None, e.to_string()))
    }

    fn devices(&self, t: &mut Topology) -> std::result::Result<Vec<DeviceId>, Wrong> {
        let (mut gpus, mut nics) = (0, 0);
        let mut ids = Vec::with_capacity(self.header.len());
        for (i, word) in self.header.iter().enumerate() {
            let (id, kind, index) = match word.strip_prefix("GPU") {
                Some(number) => {
                    gpus += 1;
                    (format!("gpu{number}"), DeviceKind::Gpu, gpus - 1)
                }
                None => {
                    nics += 1;
                    (format!("nic{}", nics - 1), DeviceKind::Nic, nics - 1)
                }
            };
            let own = if kind == DeviceKind::Nic { word.as_str() } else { "" };
            let name = self.names.get(word).map_or(own, String::as_str);
            ids.push(Self::add(t, self.device(id, kind, index, name, self.numa[i]))?);
        }
        Ok(ids)
    }

    /// Groups of devices that are at least this near to each other, directly or through others.
    fn groups(&self, near: Near) -> Vec<usize> {
        let n = self.header.len();
        let mut group: Vec<usize> = (0..n).collect();
        for i in 0..n {
            for j in 0..n {
                if matches!(self.matrix[i][j], Cell::Pcie(p) if p <= near) && group[i] != group[j] {
                    let (from, to) = (group[i].max(group[j]), group[i].min(group[j]));
                    group.iter_mut().filter(|g| **g == from).for_each(|g| *g = to);
                }
            }
        }
        group
    }

    /// CPUs, host bridges and switches as the matrix implies them, and every device on its own.
    fn pcie(&self, t: &mut Topology, devices: &[DeviceId]) -> std::result::Result<(), Wrong> {
        let n = self.header.len();
        let link = || Link::new(LinkKind::Pcie, "assumed: the matrix has no figures");
        let mut node = self.groups(Near::Node);
        // What is joined by NVLink has no PCIe word: the NUMA node tells where it is.
        for i in 0..n {
            let alone = |g: &[usize], i: usize| g.iter().filter(|x| **x == g[i]).count() == 1;
            let said = (0..n).any(|j| j != i && matches!(self.matrix[i][j], Cell::Pcie(_)));
            let peer = (0..n).find(|&j| j != i && self.numa[j].is_some() && self.numa[j] == self.numa[i]);
            if let Some(j) =
                peer.filter(|j| alone(&node, i) && (!said || matches!(self.matrix[i][*j], Cell::NvLink(_))))
            {
                let (from, to) = (node[i], node[j]);
                node.iter_mut().filter(|g| **g == from).for_each(|g| *g = to);
            }
        }
        let (bridge, tree, switch) = (self.groups(Near::Phb), self.groups(Near::Pxb), self.groups(Near::Pix));
        let members = |group: &[usize], g: usize| (0..n).filter(|i| group[*i] == g).count();
        let mut cpus: BTreeMap<usize, DeviceId> = BTreeMap::new();
        for i in 0..n {
            if !cpus.contains_key(&node[i]) {
                let index = cpus.len();
                let numa = (0..n).filter(|j| node[*j] == node[i]).find_map(|j| self.numa[j]);
                let mut cpu = self.device(format!("cpu{index}"), DeviceKind::Cpu, index, "", numa);
                cpu.cpu = Some(CpuInfo { package: index, ..CpuInfo::default() });
                cpus.insert(node[i], Self::add(t, cpu)?);
            }
        }
        let mut made: HashMap<(u8, usize), DeviceId> = HashMap::new();
        let mut switches = 0;
        for i in 0..n {
            let mut above = cpus[&node[i]];
            let bridges =
                (0..n).filter(|j| node[*j] == node[i]).map(|j| bridge[j]).collect::<std::collections::BTreeSet<_>>();
            // From the CPU down; a level that would hold one device alone, or that divides nothing, is left out.
            let levels = [
                (0u8, bridge[i], bridges.len() > 1, HOST_BRIDGE),
                (1, tree[i], members(&tree, tree[i]) > members(&switch, switch[i]), ""),
                (2, switch[i], members(&switch, switch[i]) > 1 || members(&tree, tree[i]) > 1, ""),
            ];
            for (level, group, wanted, name) in levels {
                if !wanted {
                    continue;
                }
                above = match made.get(&(level, group)) {
                    Some(id) => *id,
                    None => {
                        let numa = self.numa[i];
                        let device = self.device(format!("plx{switches}"), DeviceKind::PciSwitch, switches, name, numa);
                        switches += 1;
                        let id = Self::add(t, device)?;
                        t.connect(id, above, link());
                        made.insert((level, group), id);
                        id
                    }
                };
            }
            t.connect(devices[i], above, link());
        }
        let cpus: Vec<DeviceId> = cpus.into_values().collect();
        for (i, a) in cpus.iter().enumerate() {
            for b in &cpus[i + 1..] {
                t.connect(*a, *b, Link::new(LinkKind::CpuInterconnect, "assumed: the matrix has no figures"));
            }
        }
        Ok(())
    }

    fn nvlink(&self, t: &mut Topology, devices: &[DeviceId]) -> std::result::Result<(), Wrong> {
        let n = self.header.len();
        let lanes = |i: usize, j: usize| match self.matrix[i][j] {
            Cell::NvLink(lanes) => Some(lanes),
            _ => None,
        };
        let link = |lanes: u32| {
            let mut link = Link::new(LinkKind::NvLink, "assumed: the matrix has no figures");
            link.lanes = lanes;
            link
        };
        let total = |i: usize| (0..n).filter_map(|j| lanes(i, j)).sum::<u32>();
        let switched: Vec<usize> = (0..n).filter(|i| total(*i) > MAX_NVLINKS).collect();
        if !switched.is_empty() {
            let name = "the NVSwitches, as one";
            let id = Self::add(t, self.device("nvswitch0".into(), DeviceKind::NvSwitch, 0, name, None))?;
            for &i in &switched {
                let most = (0..n).filter_map(|j| lanes(i, j)).max().unwrap_or(1);
                t.connect(devices[i], id, link(most));
            }
        }
        for i in 0..n {
            for j in i + 1..n {
                if let Some(lanes) = lanes(i, j).filter(|_| !(switched.contains(&i) && switched.contains(&j))) {
                    t.connect(devices[i], devices[j], link(lanes));
                }
            }
        }
        Ok(())
    }
}

impl Topology {
    /// The matrix of `nvidia-smi topo -m` for one host: GPUs, then NICs.
    ///
    /// # Errors
    /// [`Error::Topology`] where it is of several hosts.
    pub fn to_matrix(&self) -> Result<String> {
        if self.hosts() > 1 {
            return Err(Error::Topology(format!("{} is {} hosts; a matrix shows one", self.name, self.hosts())));
        }
        let mut devices = self.of_kind(DeviceKind::Gpu);
        let gpus = devices.len();
        devices.extend(self.of_kind(DeviceKind::Nic));
        let title = |i: usize| {
            if i < gpus { format!("GPU{}", self.device(devices[i]).index) } else { format!("NIC{}", i - gpus) }
        };
        let mut out = String::from("\t");
        let heads: Vec<String> = (0..devices.len()).map(title).collect();
        out.push_str(&format!("{}\tCPU Affinity\tNUMA Affinity\n", heads.join("\t")));
        for (i, a) in devices.iter().enumerate() {
            let wired = self.routes_from(*a);
            let plain = self.routes_by_pcie(*a);
            let mut row = vec![title(i)];
            for (j, b) in devices.iter().enumerate() {
                let at = b.0.index();
                row.push(match (i == j, &wired[at], &plain[at]) {
                    (true, ..) => " X ".into(),
                    (_, Some(r), _) if matches!(r.class, PathClass::NvLink(_)) => r.class.to_string(),
                    (_, _, Some(r)) => r.class.to_string(),
                    (_, _, None) => "N/A".into(),
                });
            }
            let numa = self.device(*a).numa.filter(|_| i < gpus);
            let cpu =
                self.of_kind(DeviceKind::Cpu).into_iter().find(|c| self.device(*c).numa == numa && numa.is_some());
            let pus =
                cpu.and_then(|c| self.device(c).cpu.as_ref()).map(|c| crate::text::list(&c.pus).replace(", ", ","));
            row.push(pus.unwrap_or_default());
            row.push(numa.map(|n| n.to_string()).unwrap_or_default());
            out.push_str(row.join("\t").trim_end());
            out.push('\n');
        }
        let nics: Vec<String> = devices[gpus..]
            .iter()
            .enumerate()
            .filter(|(_, d)| !self.device(**d).name.is_empty() && !self.device(**d).name.contains(' '))
            .map(|(i, d)| format!("  NIC{i}: {}\n", self.device(*d).name))
            .collect();
        if !nics.is_empty() {
            out.push_str(&format!("\nNIC Legend:\n\n{}", nics.concat()));
        }
        Ok(out)
    }
}
