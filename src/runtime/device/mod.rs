//! Where instructions run.

pub(crate) mod host;
