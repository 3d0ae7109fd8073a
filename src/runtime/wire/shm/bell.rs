//! Sleeping until something may have changed, without a system call where nobody sleeps.
//!
//! The sleeper announces itself, then looks once more, then sleeps. The ringer changes things, then looks whether
//! anyone announced. With a fence between the two steps on either side, one of them sees the other (Dekker).
//!
//! The sleeper also says whom it waits for, so that only that one wakes it: where ranks share cores, a rank that is
//! woken for nothing takes the core from one that has something to do.

#[cfg(not(all(loom, test)))]
use std::sync::atomic::{AtomicU32, Ordering, fence};
use std::time::Duration;

#[cfg(all(loom, test))]
use loom::sync::atomic::{AtomicU32, Ordering, fence};

const AWAKE: u32 = 0;
const ANYONE: u32 = 1;

/// The mark of one who waits for `rank` alone.
fn only(rank: usize) -> u32 {
    rank as u32 + 2
}

/// In shared memory; all zeros is a bell nobody waits for.
#[repr(C, align(64))]
pub(crate) struct Bell {
    rung: AtomicU32,
    /// Whom the sleeper waits for.
    sleeping: AtomicU32,
    #[cfg(all(loom, test))]
    futex: loom_futex::Futex,
}

impl Bell {
    /// Wakes the sleeper if it waits for `by`, or for anyone, or if `by` is `None`. Call after what it waits for has
    /// been stored.
    #[inline]
    pub fn ring(&self, by: Option<usize>) {
        fence(Ordering::SeqCst);
        let waits_for = self.sleeping.load(Ordering::Relaxed);
        if waits_for != AWAKE && (waits_for == ANYONE || by.is_none_or(|rank| waits_for == only(rank))) {
            self.rung.fetch_add(1, Ordering::Release);
            self.wake();
        }
    }

    /// Sleeps until rung by `by` (`None`: by anyone) or until `timeout`, unless `ready` says yes once the intention to
    /// sleep is public. It may also return early. One sleeper at a time.
    pub fn sleep(&self, by: Option<usize>, timeout: Duration, ready: impl FnOnce() -> bool) {
        let before = self.rung.load(Ordering::Acquire);
        self.sleeping.store(by.map_or(ANYONE, only), Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if !ready() {
            self.wait(before, timeout);
        }
        self.sleeping.store(AWAKE, Ordering::Relaxed);
    }

    #[cfg(not(all(loom, test)))]
    fn wake(&self) {
        use rustix::thread::futex;
        // An error would mean a bad address, which a reference is not.
        let _ = futex::wake(&self.rung, futex::Flags::empty(), 1);
    }

    #[cfg(not(all(loom, test)))]
    fn wait(&self, before: u32, timeout: Duration) {
        use rustix::thread::futex;
        let timeout = rustix::time::Timespec {
            tv_sec: timeout.as_secs().min(i64::MAX as u64) as i64,
            tv_nsec: i64::from(timeout.subsec_nanos()),
        };
        // Rung meanwhile, interrupted, timed out or woken: in each case the caller looks again.
        let _ = futex::wait(&self.rung, futex::Flags::empty(), before, Some(&timeout));
    }
}

/// What the kernel's futex does, for the model checker: compare and sleep in one step.
#[cfg(all(loom, test))]
mod loom_futex {
    use super::*;
    use loom::sync::{Condvar, Mutex};

    #[derive(Default)]
    pub struct Futex(Mutex<()>, Condvar);

    impl Bell {
        fn new() -> Self {
            Self { rung: AtomicU32::new(0), sleeping: AtomicU32::new(0), futex: Futex::default() }
        }

        pub(super) fn wake(&self) {
            drop(self.futex.0.lock().unwrap());
            self.futex.1.notify_one();
        }

        /// Never times out: a lost wake-up is a deadlock that loom reports.
        pub(super) fn wait(&self, before: u32, _: Duration) {
            let guard = self.futex.0.lock().unwrap();
            if self.rung.load(Ordering::Acquire) == before {
                drop(self.futex.1.wait(guard).unwrap());
            }
        }
    }

    /// Run with `RUSTFLAGS="--cfg loom" cargo test --lib bell`.
    #[test]
    fn no_wake_up_is_lost() {
        let mut model = loom::model::Builder::new();
        // Every order with at most three switches of the processor: in minutes more, all orders pass too.
        model.preemption_bound = Some(3);
        model.check(|| {
            let shared = loom::sync::Arc::new((Bell::new(), AtomicU32::new(0)));
            let other = shared.clone();
            let ringer = loom::thread::spawn(move || {
                for i in 1..=2 {
                    other.1.store(i, Ordering::Release);
                    other.0.ring(Some(3));
                }
            });
            for i in 1..=2 {
                while shared.1.load(Ordering::Acquire) < i {
                    shared.0.sleep((i == 1).then_some(3), Duration::MAX, || shared.1.load(Ordering::Acquire) >= i);
                }
            }
            ringer.join().unwrap();
        });
    }
}
