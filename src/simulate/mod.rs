//! What a plan takes on a machine, event by event.
//!
//! Lanes run as the engine runs them: in order, chunk after chunk, each ahead of the others as far as notices and
//! channels let it. What moves data is a *flow* over the links of its route, and over the cores where CPUs move it.
//! All flows under way share links and cores max-min fairly (Bertsekas and Gallager, "Data Networks", 1992, 6.5.2), the
//! fluid model of SimGrid (Casanova et al., 2014): rates change only when a flow begins or ends, and only for flows
//! that have a link in common with it, directly or by way of others.
//!
//! A plan does the same for every chunk, so some chunks are run and the pace they settle to is taken for the rest.
//!
//! ```
//! use topocoll::plan::builders::{self, Lanes, Request};
//! use topocoll::plan::{Collective, Placement};
//! use topocoll::simulate::Machine;
//! use topocoll::topology::Topology;
//!
//! # fn main() -> topocoll::Result<()> {
//! let file = concat!(env!("CARGO_MANIFEST_DIR"), "/topologies/dgx-h100.toml");
//! let topology = Topology::read(std::path::Path::new(file))?;
//! let gpus = Placement::gpus(&topology)?;
//! let request = Request {
//!     collective: Collective::AllReduce,
//!     hosts: gpus.hosts(),
//!     chunk_bytes: 32 << 20,
//!     lanes: Lanes::Fine,
//! };
//! let run = Machine::new(&topology, &gpus).run(&builders::two_shot(request)?, 256 << 20)?;
//! assert!(run.seconds > 1e-3 && run.seconds < 2e-3);
//! assert!(run.limit.starts_with("link gpu"), "{}", run.limit);
//! # Ok(())
//! # }
//! ```

mod fluid;
mod machine;
mod program;
mod run;
#[cfg(test)]
mod tests;
mod trace;

pub use machine::Machine;
pub use program::Program;
pub use run::{Run, Step};
pub use trace::{Counter, Trace};
