//! Runs a plan: the engine interprets a program on a device, wires carry notices and data. It never chooses an
//! algorithm.

pub(crate) mod agreement;
pub(crate) mod code;
pub(crate) mod device;
pub(crate) mod element;
pub(crate) mod engine;
pub(crate) mod wire;

pub use element::{DType, Element, ReduceOp};
