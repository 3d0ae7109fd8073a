//! The machine this runs on.

mod hwloc;

use crate::Result;
use crate::topology::Topology;

pub(super) fn detect() -> Result<Topology> {
    hwloc::detect()
}
