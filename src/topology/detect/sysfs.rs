//! The kernel's files, below a root that may be a copy of another machine's.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// Where `/sys` and `/proc` are.
pub(super) struct Sysfs {
    root: PathBuf,
}

impl Sysfs {
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    fn at(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    /// A small file's text without the space around it; none where it is not there, or says nothing.
    pub fn text(&self, path: &str) -> Option<String> {
        let mut text = String::new();
        File::open(self.at(path)).ok()?.take(1 << 16).read_to_string(&mut text).ok()?;
        Some(text.trim().to_string()).filter(|t| !t.is_empty())
    }

    /// A small file's bytes.
    pub fn bytes(&self, path: &str) -> Vec<u8> {
        let mut bytes = Vec::new();
        if let Ok(file) = File::open(self.at(path)) {
            // What was read before an error is not used.
            if file.take(1 << 16).read_to_end(&mut bytes).is_err() {
                bytes.clear();
            }
        }
        bytes
    }

    pub fn number<T: std::str::FromStr>(&self, path: &str) -> Option<T> {
        self.text(path)?.split_whitespace().next()?.parse().ok()
    }

    pub fn exists(&self, path: &str) -> bool {
        std::fs::symlink_metadata(self.at(path)).is_ok()
    }

    /// Names in a folder, in the order that people count them; none where it is not there.
    pub fn list(&self, path: &str) -> Vec<String> {
        let entries = std::fs::read_dir(self.at(path)).into_iter().flatten().flatten();
        let mut names: Vec<String> = entries.filter_map(|e| e.file_name().into_string().ok()).collect();
        names.sort_by_key(|n| crate::text::natural(n));
        names
    }

    /// What a symbolic link says, as it says it: links of a copied tree may lead nowhere.
    pub fn link(&self, path: &str) -> Option<PathBuf> {
        std::fs::read_link(self.at(path)).ok()
    }

    /// The PCI address of a device of a class, such as `class/net/eth0`.
    pub fn bus_of(&self, class: &str) -> Option<String> {
        let name = class.rsplit('/').next()?;
        // .../0000:3b:00.0/net/eth0, or with a layer such as virtio2 between.
        let in_path = |p: &Path| {
            let parts = p.components().rev().filter_map(|c| c.as_os_str().to_str());
            parts.filter(|c| *c != name).find_map(bus)
        };
        let whole = self.link(&format!("/sys/{class}"));
        let device = || self.link(&format!("/sys/{class}/device"));
        let said = || {
            let text = self.text(&format!("/sys/{class}/device/uevent"))?;
            text.lines().find_map(|l| l.strip_prefix("PCI_SLOT_NAME=")).and_then(bus)
        };
        whole.as_deref().and_then(in_path).or_else(|| device().as_deref().and_then(in_path)).or_else(said)
    }

    /// The NUMA nodes and hardware threads that a PCI device is near, as far as the kernel knows.
    pub fn near(&self, bus: &str) -> (Option<usize>, Vec<usize>) {
        let at = format!("/sys/bus/pci/devices/{bus}");
        let numa = self.number::<i64>(&format!("{at}/numa_node")).and_then(|n| usize::try_from(n).ok());
        let cpus = self.text(&format!("{at}/local_cpus")).map(|m| mask(&m)).unwrap_or_default();
        (numa, cpus)
    }
}

/// `0000:3b:00.0` from any spelling of it (`00000000:3B:00.0`, as NVML and CUDA say).
pub(super) fn bus(text: &str) -> Option<String> {
    let text = text.trim().to_ascii_lowercase();
    let parts: Vec<&str> = text.split([':', '.']).collect();
    let [domain, bus, device, function] = parts[..] else { return None };
    let hex = |s: &str| u32::from_str_radix(s, 16).ok();
    let ok = text.matches(':').count() == 2 && domain.len() >= 4 && bus.len() == 2 && device.len() == 2;
    let (domain, bus, device, function) = (hex(domain)?, hex(bus)?, hex(device)?, hex(function)?);
    (ok && function < 8).then(|| format!("{domain:04x}:{bus:02x}:{device:02x}.{function:x}"))
}

/// Hardware threads of `0000000f,000000ff`: words of 32 bits, the highest first.
fn mask(text: &str) -> Vec<usize> {
    let words = text.trim().rsplit(',').take(1 << 11).enumerate();
    let bits = words.flat_map(|(i, w)| {
        let word = u32::from_str_radix(w.trim(), 16).unwrap_or(0);
        (0..32).filter(move |b| word >> b & 1 == 1).map(move |b| i * 32 + b)
    });
    bits.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_however_they_are_spelt() {
        assert_eq!(bus("00000000:3B:00.0").as_deref(), Some("0000:3b:00.0"));
        assert_eq!(bus("10001:00:1f.7").as_deref(), Some("10001:00:1f.7"));
        for none in ["", "virtio2", "pci0000:00", "0000:3b:00", "0000:3b:00.9", "a:b.c:d", "net"] {
            assert_eq!(bus(none), None, "{none}");
        }
        assert_eq!(mask("00000001,80000003"), [0, 1, 31, 32]);
    }
}
