//! What carries notices and data between ranks.

pub(crate) mod shm;
