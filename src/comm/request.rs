//! Collectives that go on while the caller does something else: one progress thread a communicator, started with the
//! first of them.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread::JoinHandle;

use crate::Result;

pub(super) type Job = Box<dyn FnOnce() + Send>;

/// A collective that was started. It goes on whether or not anyone waits; dropped, its buffers are freed when it is
/// done. It is also a future.
#[must_use = "the buffers come back through it"]
pub struct Request<B> {
    slot: Arc<Slot<B>>,
}

struct Slot<B> {
    outcome: Mutex<Outcome<B>>,
    done: Condvar,
}

struct Outcome<B> {
    result: Option<Result<B>>,
    waker: Option<Waker>,
}

impl<B: Send + 'static> Request<B> {
    pub(super) fn new() -> (Self, impl FnOnce(Result<B>) + Send) {
        let slot = Arc::new(Slot { outcome: Mutex::new(Outcome { result: None, waker: None }), done: Condvar::new() });
        let other = slot.clone();
        let finish = move |result| {
            let mut outcome = guard(&other.outcome);
            outcome.result = Some(result);
            other.done.notify_all();
            if let Some(waker) = outcome.waker.take() {
                waker.wake();
            }
        };
        (Self { slot }, finish)
    }

    /// Whether it is over, well or not; then [`Request::wait`] returns at once.
    pub fn is_done(&self) -> bool {
        guard(&self.slot.outcome).result.is_some()
    }

    /// Waits for the end and gives the buffers back.
    ///
    /// # Errors
    /// Those of the blocking call. The buffers are then gone.
    pub fn wait(self) -> Result<B> {
        let mut outcome = guard(&self.slot.outcome);
        loop {
            if let Some(result) = outcome.result.take() {
                return result;
            }
            outcome = self.slot.done.wait(outcome).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl<B> Future for Request<B> {
    type Output = Result<B>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<B>> {
        let mut outcome = guard(&self.slot.outcome);
        match outcome.result.take() {
            Some(result) => Poll::Ready(result),
            None => {
                outcome.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

/// The progress thread and what it has to do, in order.
pub(super) struct Progress {
    queue: Arc<Queue>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Queue {
    jobs: Mutex<Jobs>,
    changed: Condvar,
}

#[derive(Default)]
struct Jobs {
    waiting: VecDeque<Job>,
    running: bool,
    closed: bool,
}

impl Progress {
    pub fn new(rank: usize) -> Self {
        let queue = Arc::new(Queue::default());
        let other = queue.clone();
        let thread = std::thread::Builder::new().name(format!("topocoll {rank}")).spawn(move || other.work());
        // Without a thread, what is submitted runs at once in the caller's.
        if let Err(e) = &thread {
            tracing::warn!("no progress thread ({e}); asynchronous collectives run in the caller's thread");
        }
        Self { queue, thread: thread.ok() }
    }

    pub fn submit(&self, job: Job) {
        if self.thread.is_none() {
            return job();
        }
        guard(&self.queue.jobs).waiting.push_back(job);
        self.queue.changed.notify_all();
    }

    /// Waits until nothing is left to do.
    pub fn drain(&self) {
        let mut jobs = guard(&self.queue.jobs);
        while jobs.running || !jobs.waiting.is_empty() {
            jobs = self.queue.changed.wait(jobs).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Queue {
    fn work(&self) {
        let mut jobs = guard(&self.jobs);
        loop {
            if let Some(job) = jobs.waiting.pop_front() {
                jobs.running = true;
                drop(jobs);
                job();
                jobs = guard(&self.jobs);
                jobs.running = false;
                self.changed.notify_all();
            } else if jobs.closed {
                return;
            } else {
                jobs = self.changed.wait(jobs).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        guard(&self.queue.jobs).closed = true;
        self.queue.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            // A panic there was reported there.
            let _ = thread.join();
        }
    }
}

fn guard<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
