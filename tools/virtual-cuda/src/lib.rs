//! A `libnvidia-ml` and a `libcuda` that stand in for the machine in the topology file that `VIRTUAL_CUDA_TOPOLOGY` names, so that what
//! asks it can be tested without a GPU.
//!
//! GPUs need a `bus`. What is asked of them comes from their `extra`: `uuid`, `gpu.sm`, `memory`, `nvlinks` (how many
//! there are; those without a link in the file are down), `p2p.denied` (bus ids), `mig`, `c2c`, `clique`.

// All of this is the far side of an FFI.
#![allow(unsafe_code)]

mod cuda;
mod machine;
mod nvml;
