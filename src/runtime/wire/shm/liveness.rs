//! Whether a rank's process still lives.
//!
//! Each process holds a record lock on its ranks' bytes of the segment's file. The kernel lets go of it when the
//! process ends, however it ends; it is not inherited by children, and it can be asked about from another PID
//! namespace.
#![allow(unsafe_code)]

use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::Errno;

use crate::{Error, Result};

fn record(rank: usize) -> libc::flock {
    // SAFETY: flock is plain integers, for which zeros are valid.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = libc::F_WRLCK as i16;
    lock.l_whence = libc::SEEK_SET as i16;
    lock.l_start = rank as i64;
    lock.l_len = 1;
    lock
}

/// Takes this process's lock for `rank`. Closing any descriptor of the file in this process would drop it.
pub(super) fn hold(file: BorrowedFd<'_>, rank: usize) -> Result<()> {
    let lock = record(rank);
    // SAFETY: the descriptor is open and the record outlives the call.
    if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLK, &raw const lock) } == 0 {
        return Ok(());
    }
    let source = Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO);
    Err(Error::Os { what: format!("locking the presence record of rank {rank}"), source })
}

/// Whether a process other than this one holds `rank`.
pub(super) fn held_by_another(file: BorrowedFd<'_>, rank: usize) -> bool {
    let mut lock = record(rank);
    // SAFETY: as above; the kernel writes the record.
    let asked = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETLK, &raw mut lock) };
    // A failed question is no proof of death.
    asked != 0 || i32::from(lock.l_type) != libc::F_UNLCK
}
