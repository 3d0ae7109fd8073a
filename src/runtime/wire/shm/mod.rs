//! Ranks of one host: a memory segment that all of them map.

mod bell;
mod liveness;
mod segment;

pub(crate) use segment::{CELLS, Descriptor, Gone, MAX_RANKS, Segment};
