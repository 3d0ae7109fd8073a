//! Collectives that know the machine.
//!
//! topocoll sees the machine as a graph, plans each collective as a program over it, proves the program right, and
//! runs it. Data goes one way, each module knowing only those below it:
//!
//! - [`comm`]: what a user holds. A [`Communicator`] does all-reduce, reduce-scatter, all-gather, broadcast,
//!   reduce, all-to-all and barrier, blocking or as a [`Request`].
//! - [`bootstrap`]: how ranks find each other: the launchers' environments and the rendezvous.
//! - `runtime`: the engine that interprets a plan, the devices it runs on and the wires between ranks.
//! - [`simulate`]: what a plan takes on a machine, event by event, with all traffic sharing the links.
//! - [`plan`]: the instruction set, the builders, the proof, the cost model, the bound, the choice and its reasons.
//! - [`topology`]: devices and links, detection, files, routes.
//! - [`error`]: the one error type; [`text`]: figures as people read them.
//!
//! ```
//! use topocoll::{Communicator, ReduceOp};
//!
//! # fn main() -> topocoll::Result<()> {
//! // Two ranks in this process, a thread each; `Communicator::from_env()` is one rank of a launcher's.
//! let ranks = Communicator::local(2)?;
//! std::thread::scope(|s| {
//!     for comm in ranks {
//!         s.spawn(move || -> topocoll::Result<()> {
//!             let mut gradients = vec![comm.rank() as f32; 1000];
//!             comm.all_reduce_in_place(&mut gradients, ReduceOp::Avg)?;
//!             assert!(gradients.iter().all(|g| *g == 0.5));
//!             Ok(())
//!         });
//!     }
//! });
//! # Ok(())
//! # }
//! ```

pub mod bootstrap;
pub mod comm;
pub mod error;
mod file;
pub mod plan;
mod runtime;
pub mod simulate;
pub mod text;
pub mod topology;

pub use comm::{Communicator, Request};
pub use error::{Error, Result};
pub use half::{bf16, f16};
pub use runtime::{DType, Element, ReduceOp};

/// FNV-1a, 64 bits: names that must be the same in every process and every build.
pub(crate) fn fnv(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x0000_0100_0000_01b3))
}

/// The README's example, compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

/// The plan files' example must be right.
#[cfg(test)]
#[test]
fn the_documented_plan_is_right() {
    let text = include_str!("../docs/plan-files.md");
    let example = text.split("```json\n").nth(1).and_then(|t| t.split("```").next()).unwrap();
    let plan = plan::Plan::parse(example, "docs/plan-files.md").unwrap();
    plan::verify(&plan, &[0, 1]).unwrap();
    assert_eq!(plan.collective, plan::Collective::AllGather);
}

/// The topology files' example must be one.
#[cfg(test)]
#[test]
fn the_documented_topology_is_one() {
    let text = include_str!("../docs/topology-files.md");
    let example = text.split("```toml\n").nth(1).and_then(|t| t.split("```").next()).unwrap();
    let t = topology::Topology::from_toml(example, "docs/topology-files.md").unwrap();
    assert_eq!((t.hosts(), t.of_kind(topology::DeviceKind::Gpu).len()), (2, 8));
}
