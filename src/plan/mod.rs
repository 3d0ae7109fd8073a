//! What every rank does in a collective: the program, where it comes from, what it costs and why it is right.
//!
//! A [`Plan`] says nothing of CUDA, shared memory or UCX, and never touches a device. [`builders`] make plans,
//! [`search`] finds shapes for them, [`verify`] proves them, [`cost`] predicts their time, [`bound`] gives the least
//! possible one, [`check`] what makes it worse than it could be, [`choose`] picks and [`explain`] says why. [`Plan::read`] and [`Plan::to_json`] are their way from and to files.

pub mod bound;
pub mod builders;
pub mod check;
pub mod choose;
pub mod cost;
pub mod explain;
mod flow;
mod formats;
mod ir;
mod layout;
mod placement;
pub mod search;
mod verify;

pub use ir::{Buffer, Collective, Instruction, Lane, Parts, Plan, Program, Span};
pub use layout::{Blocks, Layout, message_bytes};
pub use placement::Placement;
pub(crate) use verify::shape as verify_shape;
pub use verify::{Refusal, verify};
