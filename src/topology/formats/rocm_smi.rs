//! The tables of `rocm-smi --showtopo` and `amd-smi topology`: how many hops, and by what, from each GPU to each.

use std::collections::{BTreeMap, HashMap};

use crate::topology::{CpuInfo, Device, DeviceKind, Link, LinkKind, Topology};
use crate::{Error, Result};

/// GPUs of one table.
const MAX: usize = 1024;

/// Whether a text looks like such tables.
pub(super) fn looks_like(text: &str) -> bool {
    text.lines().take(500).any(|l| section(l) == Some(Section::Type))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Section {
    Type,
    Hops,
    Numa,
    Other,
}

/// What a heading such as `=== Link Type between two GPUs ===` or `LINK TYPE TABLE:` begins.
fn section(line: &str) -> Option<Section> {
    let words = line.trim().trim_matches(['=', ':', ' ']).to_ascii_lowercase();
    match words.as_str() {
        "link type between two gpus" | "link type table" => Some(Section::Type),
        "hops between two gpus" | "hops table" => Some(Section::Hops),
        "numa nodes" | "numa bw table" => Some(Section::Numa),
        other if line.trim().starts_with("==") || other.ends_with(" table") => Some(Section::Other),
        _ => None,
    }
}

/// `GPU3`, or a bus id.
fn is_gpu(word: &str) -> bool {
    let numbered = word.strip_prefix("GPU").is_some_and(|n| n.parse::<u32>().is_ok());
    numbered || word.len() >= 12 && word.matches(':').count() == 2 && word.contains('.')
}

pub(super) fn read(text: &str, file: &str) -> Result<Topology> {
    let fail = |line: Option<usize>, message: String| Error::in_file(file, line, "", message);
    let mut header: Vec<String> = Vec::new();
    let mut cells: Cells = HashMap::new();
    let mut numa: HashMap<usize, usize> = HashMap::new();
    let mut at = Section::Other;
    let mut notices = Vec::new();
    for (i, line) in text.lines().enumerate() {
        if let Some(next) = section(line) {
            at = next;
            continue;
        }
        let words: Vec<&str> = line.split_whitespace().collect();
        match at {
            Section::Numa => {
                // `GPU[0] : (Topology) Numa Affinity: 2`.
                let number = line.split(['[', ']']).nth(1).and_then(|n| n.trim().parse().ok());
                let node = line.rsplit(':').next().and_then(|n| n.trim().parse().ok());
                if let (Some(gpu), Some(node), true) = (number, node, line.contains("Numa Affinity")) {
                    numa.insert(gpu, node);
                }
            }
            Section::Type | Section::Hops if words.first().is_some_and(|w| is_gpu(w)) => {
                if words.iter().all(|w| is_gpu(w)) && words.len() > usize::from(!header.is_empty()) {
                    if header.is_empty() {
                        header = words.iter().map(|w| w.to_string()).collect();
                    }
                    if header.len() > MAX {
                        return Err(fail(Some(i + 1), format!("{} GPUs; {MAX} are the most", header.len())));
                    }
                    continue;
                }
                let Some(row) = header.iter().position(|h| h == words[0]) else {
                    notices.push(format!("{file}:{}: {} is not in the header and is left out", i + 1, words[0]));
                    continue;
                };
                if words.len() - 1 < header.len() {
                    let (n, all) = (words.len() - 1, header.len());
                    notices.push(format!("{file}:{}: the row of {} has {n} cells of {all}", i + 1, words[0]));
                }
                for (column, word) in words[1..].iter().enumerate().take(header.len()) {
                    cells.insert((at == Section::Type, row, column), word.to_string());
                }
            }
            _ => {}
        }
    }
    if header.is_empty() || !cells.keys().any(|(types, ..)| *types) {
        return Err(fail(
            None,
            "no table of link types between GPUs is in it, as `rocm-smi --showtopo` prints it".into(),
        ));
    }
    let mut t = Topology::new(file.rsplit('/').next().unwrap_or(file));
    t.source = format!("rocm-smi --showtopo, {file}");
    notices.into_iter().for_each(|n| t.notice(n));
    build(&mut t, &header, &cells, &numa, file)?;
    Ok(t)
}

/// What stands in row and column of the table of types, or else of hops.
type Cells = HashMap<(bool, usize, usize), String>;

fn build(t: &mut Topology, header: &[String], cells: &Cells, numa: &HashMap<usize, usize>, file: &str) -> Result<()> {
    let n = header.len();
    let mut cpus = BTreeMap::new();
    for node in (0..n).map(|g| numa.get(&g).copied().unwrap_or(0)) {
        if !cpus.contains_key(&node) {
            let index = cpus.len();
            let info = CpuInfo { package: index, ..CpuInfo::default() };
            let cpu = Device {
                numa: Some(node),
                cpu: Some(info),
                ..Device::new(format!("cpu{index}"), DeviceKind::Cpu, index, file)
            };
            cpus.insert(node, t.add_device(cpu)?);
        }
    }
    let mut ids = Vec::new();
    for (i, word) in header.iter().enumerate() {
        let node = numa.get(&i).copied();
        let bus = word.contains(':').then(|| word.to_ascii_lowercase());
        let device = Device { numa: node, bus, ..Device::new(format!("gpu{i}"), DeviceKind::Gpu, i, file) };
        let id = t.add_device(device)?;
        t.connect(id, cpus[&node.unwrap_or(0)], Link::new(LinkKind::Pcie, "assumed: the tables have no figures"));
        ids.push(id);
    }
    let nodes: Vec<_> = cpus.values().copied().collect();
    for (i, a) in nodes.iter().enumerate() {
        for b in &nodes[i + 1..] {
            t.connect(*a, *b, Link::new(LinkKind::CpuInterconnect, "assumed: the tables have no figures"));
        }
    }
    let get = |types: bool, i: usize, j: usize| cells.get(&(types, i, j)).or_else(|| cells.get(&(types, j, i)));
    let mut odd = 0;
    for i in 0..n {
        for j in i + 1..n {
            let xgmi = get(true, i, j).is_some_and(|w| w == "XGMI");
            odd += usize::from(cells.get(&(true, i, j)) != cells.get(&(true, j, i)));
            // Further than one hop leads through other GPUs.
            let hops = get(false, i, j).and_then(|w| w.parse::<u32>().ok());
            if xgmi && hops.is_none_or(|h| h <= 1) {
                t.connect(ids[i], ids[j], Link::new(LinkKind::Xgmi, "assumed: the tables have no figures"));
            }
        }
    }
    if odd > 0 {
        t.notice(format!("{file}: {odd} pair(s) are not the same in both directions; what is said first is taken"));
    }
    if numa.is_empty() {
        t.notice(format!("{file} does not say which NUMA nodes GPUs are near; one is assumed"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLES: &str = "
============================ ROCm System Management Interface ============================
================================ Hops between two GPUs ===================================
       GPU0         GPU1         GPU2         GPU3
GPU0   0            1            1            2
GPU1   1            0            2            1
GPU2   1            2            0            1
GPU3   2            1            1            0
=============================== Link Type between two GPUs ===============================
       GPU0         GPU1         GPU2         GPU3
GPU0   0            XGMI         XGMI         XGMI
GPU1   XGMI         0            XGMI         XGMI
GPU2   XGMI         XGMI         0            PCIE
GPU3   XGMI         XGMI         PCIE         0
======================================= Numa Nodes =======================================
GPU[0]          : (Topology) Numa Node: 0
GPU[0]          : (Topology) Numa Affinity: 0
GPU[1]          : (Topology) Numa Affinity: 0
GPU[2]          : (Topology) Numa Affinity: 1
GPU[3]          : (Topology) Numa Affinity: 1
================================== End of ROCm SMI Log ===================================
";

    #[test]
    fn tables_become_links() {
        assert!(looks_like(TABLES));
        let t = read(TABLES, "f").unwrap();
        let pairs: Vec<(String, String)> = t
            .links()
            .filter(|(_, a, b, l)| l.kind == LinkKind::Xgmi && a < b)
            .map(|(_, a, b, _)| (t.device(a).id.clone(), t.device(b).id.clone()))
            .collect();
        let expected = [("gpu0", "gpu1"), ("gpu0", "gpu2"), ("gpu1", "gpu3")];
        assert_eq!(pairs, expected.map(|(a, b)| (a.to_string(), b.to_string())));
        let class = |a: &str, b: &str| t.route(t.find(a).unwrap(), t.find(b).unwrap()).unwrap().class.to_string();
        assert_eq!((class("gpu0", "gpu3").as_str(), t.of_kind(DeviceKind::Cpu).len()), ("NVB", 2));
        // amd-smi names GPUs by address and has no hops to themselves.
        let amd = "LINK TYPE TABLE:\n 0000:0c:00.0 0000:22:00.0\n0000:0c:00.0 SELF XGMI\n0000:22:00.0 XGMI SELF\n";
        let t = read(amd, "f").unwrap();
        assert_eq!(t.device(t.find("gpu1").unwrap()).bus.as_deref(), Some("0000:22:00.0"));
        assert!(t.links().any(|(.., l)| l.kind == LinkKind::Xgmi));
    }

    #[test]
    fn what_is_wrong_is_said() {
        let cut = TABLES.replace("GPU3   XGMI         XGMI         PCIE         0", "GPU3   XGMI");
        let t = read(&cut, "f").unwrap();
        assert!(t.notices().iter().any(|n| n.contains("f:14: the row of GPU3 has 1 cells of 4")), "{:?}", t.notices());
        let odd = TABLES.replacen("GPU1   XGMI", "GPU1   PCIE", 1);
        assert!(read(&odd, "f").unwrap().notices().iter().any(|n| n.contains("1 pair(s) are not the same")));
        assert!(
            read("=== Link Type between two GPUs ===\n", "f")
                .unwrap_err()
                .to_string()
                .contains("no table of link types")
        );
    }
}
