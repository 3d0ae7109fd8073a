//! The shared memory of one communicator on one host.
//!
//! It is a memfd, so nothing is left behind after a crash and `/dev/shm` plays no part. One page of header, then a
//! block of control words a rank, then the flags and credits of every pair of ranks, then each rank's staging.
#![allow(unsafe_code)]

use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};

use super::bell::Bell;
use super::liveness;
use crate::{Error, Result};

/// Flags, and channels, between a pair of ranks in each direction.
pub(crate) const CELLS: usize = 8;

/// Ranks that a segment is made for at most: its control words grow with their square.
pub(crate) const MAX_RANKS: usize = 1024;

const MAGIC: u64 = 0x746f_706f_636f_6c31;
const PAGE: usize = 4096;

/// What one rank asks for, for the others to compare.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Descriptor(pub [u64; 6]);

/// Why a rank will not come any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Gone {
    /// It dropped its communicator.
    Left = 1,
    /// Its process ended.
    Ended = 2,
    /// Nobody waits for it any longer.
    Late = 3,
}

#[repr(C)]
struct Header {
    magic: AtomicU64,
    ranks: AtomicU64,
    staging: AtomicU64,
    /// 0, or why and through whom the communicator failed.
    failure: AtomicU64,
}

#[repr(C, align(64))]
struct Asked {
    /// The collective's number plus one; written last.
    sequence: AtomicU64,
    words: [AtomicU64; 6],
}

#[repr(C, align(64))]
struct Rank {
    /// Alternating: a rank is at most one collective ahead of the slowest reader.
    asked: [Asked; 2],
    bell: Bell,
    left: AtomicU32,
    /// Grows while the rank waits for others, so that those can tell a rank that waits from one that is missing.
    pulse: AtomicU32,
}

/// Cells that one rank writes and another reads, in one cache line.
#[repr(C, align(64))]
struct Pair([AtomicU64; CELLS]);

/// A mapped segment. All ranks of a process share one.
pub(crate) struct Segment {
    base: NonNull<u8>,
    len: usize,
    file: OwnedFd,
    ranks: usize,
    staging: usize,
    here: Vec<bool>,
}

// SAFETY: the mapping lives as long as the Segment; control words are atomics, and staging is handed out as raw
// pointers whose use is ordered by verified plans.
unsafe impl Send for Segment {}
// SAFETY: as above.
unsafe impl Sync for Segment {}

impl Segment {
    /// Memory for `ranks` ranks with `staging` bytes each, of which `here` are in this process. All of it is reserved
    /// now: later there could only be a SIGBUS.
    pub fn create(ranks: usize, staging: usize, here: &[usize]) -> Result<Self> {
        if ranks == 0 || ranks > MAX_RANKS {
            return Err(Error::Argument(format!(
                "{ranks} ranks on one host: 1 to {MAX_RANKS} can share its memory; start fewer, one for each core or GPU"
            )));
        }
        let len = offsets(ranks, staging).total;
        let what = || format!("reserving {} MiB of shared memory for {ranks} ranks", len.div_ceil(1 << 20));
        let file = rustix::fs::memfd_create("topocoll", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
            .map_err(Error::os("creating a memfd"))?;
        rustix::fs::ftruncate(&file, len as u64).map_err(Error::os(what()))?;
        rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, len as u64).map_err(Error::os(what()))?;
        // Nobody can shrink what others have mapped.
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)
            .map_err(Error::os("sealing the memfd"))?;
        let segment = Self::map(file, len, ranks, staging, here)?;
        let header = segment.header();
        header.ranks.store(ranks as u64, Ordering::Relaxed);
        header.staging.store(staging as u64, Ordering::Relaxed);
        header.magic.store(MAGIC, Ordering::Release);
        Ok(segment)
    }

    /// Maps a segment that another process made. Its size and header are checked before anything is believed.
    pub fn open(file: OwnedFd, ranks: usize, here: &[usize]) -> Result<Self> {
        let bad = |why: &str| Error::Bootstrap(format!("the shared memory received is not this job's: {why}"));
        let size = rustix::fs::fstat(&file).map_err(Error::os("fstat of the memfd"))?.st_size;
        let seals = rustix::fs::fcntl_get_seals(&file).map_err(|_| bad("it is no memfd"))?;
        if !seals.contains(SealFlags::SHRINK) {
            return Err(bad("it could shrink"));
        }
        let control = offsets(ranks, 0).total;
        let staging = usize::try_from(size).ok().and_then(|s| s.checked_sub(control)).map(|s| s / ranks);
        let Some(staging) = staging.filter(|_| ranks > 0 && ranks <= MAX_RANKS) else {
            return Err(bad("its size is wrong"));
        };
        let len = offsets(ranks, staging).total;
        if len as i64 != size {
            return Err(bad("its size is wrong"));
        }
        let segment = Self::map(file, len, ranks, staging, here)?;
        let header = segment.header();
        if header.magic.load(Ordering::Acquire) != MAGIC
            || header.ranks.load(Ordering::Relaxed) != ranks as u64
            || header.staging.load(Ordering::Relaxed) != staging as u64
        {
            return Err(bad("its header is wrong"));
        }
        Ok(segment)
    }

    fn map(file: OwnedFd, len: usize, ranks: usize, staging: usize, here: &[usize]) -> Result<Self> {
        // SAFETY: a fresh mapping of a file that is at least `len` long and cannot shrink.
        let base = unsafe {
            rustix::mm::mmap(std::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, &file, 0)
        };
        let base = base.map_err(Error::os(format!("mapping {} MiB of shared memory", len.div_ceil(1 << 20))))?;
        let base = NonNull::new(base.cast()).ok_or_else(|| Error::Bootstrap("mmap gave a null address".into()))?;
        let mut is_here = vec![false; ranks];
        let segment = {
            for rank in here {
                is_here[*rank] = true;
            }
            Self { base, len, file, ranks, staging, here: is_here }
        };
        for rank in here {
            liveness::hold(segment.file.as_fd(), *rank)?;
        }
        Ok(segment)
    }

    pub fn file(&self) -> &OwnedFd {
        &self.file
    }

    pub fn ranks(&self) -> usize {
        self.ranks
    }

    /// Bytes of staging of each rank.
    pub fn staging_len(&self) -> usize {
        self.staging
    }

    /// First byte of `rank`'s staging, page-aligned.
    pub fn staging(&self, rank: usize) -> *mut u8 {
        assert!(rank < self.ranks);
        // SAFETY: within the mapping, by `offsets`.
        unsafe { self.base.as_ptr().add(offsets(self.ranks, self.staging).staging + rank * self.staging) }
    }

    /// Counts what `from` has given to `to`; only `from` writes.
    pub fn flag(&self, from: usize, to: usize, cell: usize) -> &AtomicU64 {
        let at = offsets(self.ranks, self.staging).flags;
        &self.at::<Pair>(at, to * self.ranks + from, self.ranks * self.ranks).0[cell]
    }

    /// Counts what `to` has taken of what `from` sent; only `to` writes.
    pub fn credit(&self, from: usize, to: usize, cell: usize) -> &AtomicU64 {
        let at = offsets(self.ranks, self.staging).credits;
        &self.at::<Pair>(at, from * self.ranks + to, self.ranks * self.ranks).0[cell]
    }

    fn header(&self) -> &Header {
        self.at::<Header>(0, 0, 1)
    }

    fn rank(&self, rank: usize) -> &Rank {
        self.at::<Rank>(PAGE, rank, self.ranks)
    }

    fn at<T>(&self, offset: usize, index: usize, count: usize) -> &T {
        assert!(index < count);
        // SAFETY: `offsets` placed `count` of T here, aligned; T is made of atomics, valid for any bytes.
        unsafe { &*self.base.as_ptr().add(offset).cast::<T>().add(index) }
    }

    /// Publishes what `rank` asks for as its collective `sequence`.
    pub fn ask(&self, rank: usize, sequence: u64, asked: Descriptor) {
        let slot = &self.rank(rank).asked[(sequence & 1) as usize];
        for (word, value) in slot.words.iter().zip(asked.0) {
            word.store(value, Ordering::Relaxed);
        }
        slot.sequence.store(sequence + 1, Ordering::Release);
    }

    /// What `rank` asks for as its collective `sequence`, once it has.
    pub fn asked(&self, rank: usize, sequence: u64) -> Option<Descriptor> {
        let slot = &self.rank(rank).asked[(sequence & 1) as usize];
        (slot.sequence.load(Ordering::Acquire) == sequence + 1)
            .then(|| Descriptor(std::array::from_fn(|i| slot.words[i].load(Ordering::Relaxed))))
    }

    /// Wakes `rank` if it waits for `by`. Call after storing what it waits for.
    #[inline]
    pub fn wake(&self, rank: usize, by: usize) {
        self.rank(rank).bell.ring(Some(by));
    }

    /// Sleeps as `rank` until woken by `by` (`None`: by anyone), until `timeout`, or not at all if `ready`.
    pub fn sleep(&self, rank: usize, by: Option<usize>, timeout: Duration, ready: impl FnOnce() -> bool) {
        self.rank(rank).bell.sleep(by, timeout, ready);
    }

    /// Shows that `rank` is here and waits.
    pub fn beat(&self, rank: usize) {
        self.rank(rank).pulse.fetch_add(1, Ordering::Relaxed);
    }

    /// How often `rank` has shown that.
    pub fn beats(&self, rank: usize) -> u32 {
        self.rank(rank).pulse.load(Ordering::Relaxed)
    }

    /// The first failure that anyone declared, and the rank it is about.
    pub fn failure(&self) -> Option<(Gone, usize)> {
        let word = self.header().failure.load(Ordering::Acquire);
        let gone = match word >> 32 {
            0 => return None,
            1 => Gone::Left,
            2 => Gone::Ended,
            _ => Gone::Late,
        };
        Some((gone, (word & u64::from(u32::MAX)) as usize))
    }

    /// Declares a failure, unless there is one already, and wakes everybody.
    pub fn fail(&self, gone: Gone, rank: usize) {
        let word = (gone as u64) << 32 | rank as u64;
        // Another's failure that came first stands.
        let _ = self.header().failure.compare_exchange(0, word, Ordering::AcqRel, Ordering::Relaxed);
        self.wake_all();
    }

    fn wake_all(&self) {
        for rank in 0..self.ranks {
            self.rank(rank).bell.ring(None);
        }
    }

    /// Says that `rank` leaves in good order.
    pub fn leave(&self, rank: usize) {
        self.rank(rank).left.store(1, Ordering::Release);
        self.wake_all();
    }

    /// Why `rank` will not come any more, if so.
    pub fn gone(&self, rank: usize) -> Option<Gone> {
        if self.rank(rank).left.load(Ordering::Acquire) != 0 {
            return Some(Gone::Left);
        }
        (!self.here[rank] && !liveness::held_by_another(self.file.as_fd(), rank)).then_some(Gone::Ended)
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `map`, to which no reference is left. Failing to unmap leaks it, no more.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

struct Offsets {
    flags: usize,
    credits: usize,
    staging: usize,
    total: usize,
}

fn offsets(ranks: usize, staging: usize) -> Offsets {
    let pairs = ranks * ranks * size_of::<Pair>();
    let flags = PAGE + ranks * size_of::<Rank>();
    let credits = flags + pairs;
    let start = (credits + pairs).next_multiple_of(PAGE);
    Offsets { flags, credits, staging: start, total: start + ranks * staging }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_maps_another_sees() {
        let a = Segment::create(3, 8192, &[0]).unwrap();
        let b = Segment::open(a.file().try_clone().unwrap(), 3, &[1]).unwrap();
        a.flag(0, 1, 7).store(42, Ordering::Release);
        assert_eq!(b.flag(0, 1, 7).load(Ordering::Acquire), 42);
        assert_eq!(b.flag(1, 0, 7).load(Ordering::Acquire), 0);
        assert_eq!(b.credit(0, 1, 7).load(Ordering::Acquire), 0);
        a.ask(0, 5, Descriptor([1, 2, 3, 4, 5, 6]));
        assert_eq!(b.asked(0, 5), Some(Descriptor([1, 2, 3, 4, 5, 6])));
        assert_eq!((b.asked(0, 3), b.asked(0, 7), b.asked(1, 5)), (None, None, None));
        assert_eq!(b.staging_len(), 8192);
        assert!(a.gone(0).is_none());
        assert_eq!(a.gone(2), Some(Gone::Ended));
        b.fail(Gone::Late, 2);
        a.fail(Gone::Left, 1);
        assert_eq!(a.failure(), Some((Gone::Late, 2)));
    }

    #[test]
    fn a_foreign_file_is_refused() {
        let a = Segment::create(2, 4096, &[0]).unwrap();
        assert!(Segment::open(a.file().try_clone().unwrap(), 3, &[0]).is_err());
        let plain = std::fs::File::open("/dev/null").unwrap();
        assert!(Segment::open(plain.into(), 2, &[0]).is_err());
        let loose = rustix::fs::memfd_create("x", MemfdFlags::ALLOW_SEALING).unwrap();
        assert!(Segment::open(loose, 2, &[0]).is_err());
    }

    #[test]
    fn too_many_ranks_are_refused() {
        for ranks in [0, MAX_RANKS + 1, usize::MAX] {
            assert!(Segment::create(ranks, 4096, &[]).is_err());
        }
    }
}
