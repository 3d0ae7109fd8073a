//! CPUs, memory, caches and the PCI tree, through hwloc's own export. `HWLOC_XMLFILE` and its like work as in any hwloc
//! program.

use hwlocality::Topology as Hwloc;
use hwlocality::topology::builder::TypeFilter;
use hwlocality::topology::export::xml::XMLExportFlags;

use crate::topology::{Topology, formats};
use crate::{Error, Result};

/// `root`: where the files are a copy of another machine's, whose processor is then not this one.
pub(super) fn detect(root: Option<&str>) -> Result<Topology> {
    let fail = |e: &dyn std::fmt::Display| {
        let from = root.map(|r| format!(" (HWLOC_FSROOT={r})")).unwrap_or_default();
        Error::Detect(format!("hwloc cannot see this machine{from}: {e}"))
    };
    let mut builder = Hwloc::builder().with_io_type_filter(TypeFilter::KeepImportant).map_err(|e| fail(&e))?;
    if root.is_some() {
        builder = builder.without_component("x86").map_err(|e| fail(&e))?;
    }
    let hwloc = builder.build().map_err(|e| fail(&e))?;
    let xml = hwloc.export_xml(XMLExportFlags::empty()).map_err(|e| fail(&e))?;
    let copied = root.and_then(|r| r.trim_end_matches('/').rsplit('/').next());
    let name = copied.map_or_else(host_name, String::from);
    formats::read_hwloc(xml.as_ref(), &name, "hwloc").map_err(|e| fail(&e))
}

fn host_name() -> String {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    if name.is_empty() { "this machine".into() } else { name }
}
