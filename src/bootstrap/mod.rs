//! How ranks find each other: what the launcher says ([`World`]), and the rendezvous that hands out shared memory.

mod launcher;
mod local;

pub use launcher::World;
pub(crate) use launcher::timeout;
pub(crate) use local::join;
