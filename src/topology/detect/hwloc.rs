//! CPUs, memory, caches and the PCI tree of this machine, through hwloc's own export. `HWLOC_XMLFILE` and its like work
//! as in any hwloc program.

use hwlocality::Topology as Hwloc;
use hwlocality::topology::builder::TypeFilter;
use hwlocality::topology::export::xml::XMLExportFlags;

use crate::topology::{Topology, formats};
use crate::{Error, Result};

pub(super) fn detect() -> Result<Topology> {
    let fail = |e: &dyn std::fmt::Display| {
        let from = std::env::var("HWLOC_XMLFILE").map(|f| format!(" (HWLOC_XMLFILE={f})")).unwrap_or_default();
        Error::Detect(format!("hwloc cannot see this machine{from}: {e}"))
    };
    let builder = Hwloc::builder().with_io_type_filter(TypeFilter::KeepImportant).map_err(|e| fail(&e))?;
    let hwloc = builder.build().map_err(|e| fail(&e))?;
    let xml = hwloc.export_xml(XMLExportFlags::empty()).map_err(|e| fail(&e))?;
    formats::read_hwloc(xml.as_ref(), &host_name(), "hwloc").map_err(|e| fail(&e))
}

fn host_name() -> String {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    if name.is_empty() { "this machine".into() } else { name }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::DeviceKind;

    #[test]
    fn this_machine_is_seen() {
        let t = detect().unwrap();
        let cpus = t.of_kind(DeviceKind::Cpu);
        assert!(!cpus.is_empty());
        let pus: usize = cpus.iter().filter_map(|c| t.device(*c).cpu.as_ref()).map(|c| c.pus.len()).sum();
        assert!(pus >= 1);
        let route = t.route(cpus[0], cpus[0]).unwrap();
        assert_eq!(route.links.len(), 1);
        for (_, d) in t.devices() {
            assert!(t.route(cpus[0], t.find(&d.id).unwrap()).is_some(), "{} is cut off", d.id);
        }
    }
}
