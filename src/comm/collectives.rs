//! The calls.
#![allow(unsafe_code)]

use crate::comm::request::{Job, Progress};
use crate::comm::{Communicator, Core, Request, State};
use crate::plan::choose::Choice;
use crate::plan::{Collective, message_bytes};
use crate::runtime::agreement::Asked;
use crate::runtime::engine::{Call, Run};
use crate::runtime::{DType, Element, ReduceOp};
use crate::{Error, Result};
use std::sync::PoisonError;

/// A call with its buffers as addresses.
#[derive(Clone, Copy)]
pub(super) struct Raw {
    collective: Option<Collective>,
    input: *const u8,
    output: *mut u8,
    /// Elements of a block.
    count: usize,
    dtype: DType,
    op: Option<ReduceOp>,
}

// SAFETY: the addresses are of `Element`s, which any thread may touch; who makes a Raw keeps them valid.
unsafe impl Send for Raw {}

impl Raw {
    fn new<T: Element>(
        collective: Collective,
        input: *const T,
        output: *mut T,
        count: usize,
        op: Option<ReduceOp>,
    ) -> Self {
        Self { collective: Some(collective), input: input.cast(), output: output.cast(), count, dtype: T::DTYPE, op }
    }
}

impl Communicator {
    /// `output` becomes the reduction of every rank's `input`, the same bits on every rank. Both have the same length
    /// on all ranks, which may be 0.
    ///
    /// # Errors
    /// [`Error::Argument`] where the lengths differ here, [`Error::Disagreement`] where they differ between ranks,
    /// and those of a lost peer.
    pub fn all_reduce<T: Element>(&self, input: &[T], output: &mut [T], op: ReduceOp) -> Result<()> {
        let ok = same_length("all-reduce", input.len(), output.len());
        // SAFETY: two slices of `count` elements that the borrows keep alive and apart.
        unsafe {
            self.call(ok, Raw::new(Collective::AllReduce, input.as_ptr(), output.as_mut_ptr(), input.len(), Some(op)))
        }
    }

    /// As [`Communicator::all_reduce`] with the result in place of the input.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`].
    pub fn all_reduce_in_place<T: Element>(&self, buffer: &mut [T], op: ReduceOp) -> Result<()> {
        let p = buffer.as_mut_ptr();
        // SAFETY: one slice of `count` elements, input and output both.
        unsafe { self.call(Ok(()), Raw::new(Collective::AllReduce, p, p, buffer.len(), Some(op))) }
    }

    /// `output` becomes block `rank` of the reduction of every rank's `input`, which is `size` blocks of the length
    /// of `output`.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`].
    pub fn reduce_scatter<T: Element>(&self, input: &[T], output: &mut [T], op: ReduceOp) -> Result<()> {
        let ok = blocks("reduce-scatter", "input", input.len(), "output", output.len(), self.size());
        // SAFETY: an input of `size` blocks and an output of one, checked above, kept alive and apart by the borrows.
        unsafe {
            let (i, o) = (input.as_ptr(), output.as_mut_ptr());
            self.call(ok, Raw::new(Collective::ReduceScatter, i, o, output.len(), Some(op)))
        }
    }

    /// `output` becomes the concatenation of every rank's `input`: `size` blocks of its length.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`].
    pub fn all_gather<T: Element>(&self, input: &[T], output: &mut [T]) -> Result<()> {
        let ok = blocks("all-gather", "output", output.len(), "input", input.len(), self.size());
        // SAFETY: an input of one block and an output of `size`, checked above, kept alive and apart by the borrows.
        unsafe {
            let (i, o) = (input.as_ptr(), output.as_mut_ptr());
            self.call(ok, Raw::new(Collective::AllGather, i, o, input.len(), None))
        }
    }

    /// As [`Communicator::reduce_scatter`] with the result in place of block `rank` of `buffer`. The other blocks
    /// keep their values or are overwritten with partial results.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`].
    pub fn reduce_scatter_in_place<T: Element>(&self, buffer: &mut [T], op: ReduceOp) -> Result<()> {
        let count = buffer.len() / self.size();
        let ok = blocks("reduce-scatter", "buffer", buffer.len(), "block", count, self.size());
        let p = buffer.as_mut_ptr();
        // SAFETY: `size` blocks, checked above, of which the output is this rank's.
        unsafe { self.call(ok, Raw::new(Collective::ReduceScatter, p, p.add(count * self.rank()), count, Some(op))) }
    }

    /// As [`Communicator::all_gather`] where this rank's input is already block `rank` of `buffer`.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`].
    pub fn all_gather_in_place<T: Element>(&self, buffer: &mut [T]) -> Result<()> {
        let count = buffer.len() / self.size();
        let ok = blocks("all-gather", "buffer", buffer.len(), "block", count, self.size());
        let p = buffer.as_mut_ptr();
        // SAFETY: `size` blocks, checked above, of which the input is this rank's.
        unsafe { self.call(ok, Raw::new(Collective::AllGather, p.add(count * self.rank()), p, count, None)) }
    }

    /// `buffer` becomes `root`'s on every rank.
    ///
    /// # Errors
    /// [`Error::Argument`] where there is no rank `root`; else as [`Communicator::all_reduce`].
    pub fn broadcast<T: Element>(&self, buffer: &mut [T], root: usize) -> Result<()> {
        let ok = rooted("broadcast", root, self.size());
        let p = buffer.as_mut_ptr();
        // SAFETY: one slice, input and output both.
        unsafe { self.call(ok, Raw::new(Collective::Broadcast { root }, p, p, buffer.len(), None)) }
    }

    /// The `output` of rank `root` becomes the reduction of every rank's `input`, which has the same length on all
    /// ranks. The other ranks' `output` is not touched and may be empty.
    ///
    /// # Errors
    /// [`Error::Argument`] where there is no rank `root`, or at the root where the lengths differ; else as
    /// [`Communicator::all_reduce`].
    pub fn reduce<T: Element>(&self, input: &[T], output: &mut [T], root: usize, op: ReduceOp) -> Result<()> {
        let ok = reduction(self.rank(), root, self.size(), input.len(), output.len());
        // SAFETY: two slices that the borrows keep alive and apart; only the root's output is written, and has `count`
        // elements as checked above.
        unsafe {
            let (i, o) = (input.as_ptr(), output.as_mut_ptr());
            self.call(ok, Raw::new(Collective::Reduce { root }, i, o, input.len(), Some(op)))
        }
    }

    /// As [`Communicator::reduce`] with the result in place of the root's input. The other ranks' keep their values.
    ///
    /// # Errors
    /// As [`Communicator::reduce`].
    pub fn reduce_in_place<T: Element>(&self, buffer: &mut [T], root: usize, op: ReduceOp) -> Result<()> {
        let ok = rooted("reduce", root, self.size());
        let p = buffer.as_mut_ptr();
        // SAFETY: one slice of `count` elements, input and output both.
        unsafe { self.call(ok, Raw::new(Collective::Reduce { root }, p, p, buffer.len(), Some(op))) }
    }

    /// Block `s` of `output` becomes block `rank` of rank `s`'s `input`. Both are `size` blocks of one length. As in
    /// NCCL there is no form of it in place.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`].
    pub fn all_to_all<T: Element>(&self, input: &[T], output: &mut [T]) -> Result<()> {
        let (ok, count) = exchange(input.len(), output.len(), self.size());
        // SAFETY: two slices of `size` blocks, checked above, kept alive and apart by the borrows.
        unsafe {
            let (i, o) = (input.as_ptr(), output.as_mut_ptr());
            self.call(ok, Raw::new(Collective::AllToAll, i, o, count, None))
        }
    }

    /// Returns when every rank has called it.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`].
    pub fn barrier(&self) -> Result<()> {
        // SAFETY: no memory is involved.
        unsafe { self.call(Ok(()), BARRIER) }
    }

    /// Starts [`Communicator::all_reduce_in_place`] on a buffer that is given back by the request.
    pub fn all_reduce_async<T: Element>(&self, buffer: Vec<T>, op: ReduceOp) -> Request<Vec<T>> {
        self.start(buffer, |b| {
            let p = b.as_mut_ptr();
            (Ok(()), Raw::new(Collective::AllReduce, p, p, b.len(), Some(op)))
        })
    }

    /// Starts [`Communicator::reduce_scatter`]; the request gives back input and output.
    pub fn reduce_scatter_async<T: Element>(
        &self,
        input: Vec<T>,
        output: Vec<T>,
        op: ReduceOp,
    ) -> Request<(Vec<T>, Vec<T>)> {
        let size = self.size();
        self.start((input, output), |(i, o)| {
            let ok = blocks("reduce-scatter", "input", i.len(), "output", o.len(), size);
            (ok, Raw::new(Collective::ReduceScatter, i.as_ptr(), o.as_mut_ptr(), o.len(), Some(op)))
        })
    }

    /// Starts [`Communicator::all_gather`]; the request gives back input and output.
    pub fn all_gather_async<T: Element>(&self, input: Vec<T>, output: Vec<T>) -> Request<(Vec<T>, Vec<T>)> {
        let size = self.size();
        self.start((input, output), |(i, o)| {
            let ok = blocks("all-gather", "output", o.len(), "input", i.len(), size);
            (ok, Raw::new(Collective::AllGather, i.as_ptr(), o.as_mut_ptr(), i.len(), None))
        })
    }

    /// Starts [`Communicator::broadcast`] on a buffer that is given back by the request.
    pub fn broadcast_async<T: Element>(&self, buffer: Vec<T>, root: usize) -> Request<Vec<T>> {
        let size = self.size();
        self.start(buffer, |b| {
            let p = b.as_mut_ptr();
            (rooted("broadcast", root, size), Raw::new(Collective::Broadcast { root }, p, p, b.len(), None))
        })
    }

    /// Starts [`Communicator::reduce`]; the request gives back input and output.
    pub fn reduce_async<T: Element>(
        &self,
        input: Vec<T>,
        output: Vec<T>,
        root: usize,
        op: ReduceOp,
    ) -> Request<(Vec<T>, Vec<T>)> {
        let (rank, size) = (self.rank(), self.size());
        self.start((input, output), |(i, o)| {
            let ok = reduction(rank, root, size, i.len(), o.len());
            (ok, Raw::new(Collective::Reduce { root }, i.as_ptr(), o.as_mut_ptr(), i.len(), Some(op)))
        })
    }

    /// Starts [`Communicator::all_to_all`]; the request gives back input and output.
    pub fn all_to_all_async<T: Element>(&self, input: Vec<T>, output: Vec<T>) -> Request<(Vec<T>, Vec<T>)> {
        let size = self.size();
        self.start((input, output), |(i, o)| {
            let (ok, count) = exchange(i.len(), o.len(), size);
            (ok, Raw::new(Collective::AllToAll, i.as_ptr(), o.as_mut_ptr(), count, None))
        })
    }

    /// Starts [`Communicator::barrier`].
    pub fn barrier_async(&self) -> Request<()> {
        self.start((), |()| (Ok(()), BARRIER))
    }

    /// The plan for a message of `bytes` (of the larger buffer) with its reasons; what the collectives use.
    ///
    /// # Errors
    /// [`Error::Plan`] where there is none.
    pub fn plan(&self, collective: Collective, bytes: u64, dtype: DType, op: Option<ReduceOp>) -> Result<Choice> {
        self.core.state().plans.explain(&self.core.topology, collective, bytes, dtype, op)
    }

    /// # Safety
    /// The buffers of `raw` must be valid for its collective if `ok` is.
    unsafe fn call(&self, ok: Result<()>, raw: Raw) -> Result<()> {
        // What was started before comes first. The lock keeps other threads' calls in an order of their own.
        let progress = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(progress) = &*progress {
            progress.drain();
        }
        // SAFETY: the caller's promise.
        unsafe { self.core.run(ok, raw) }
    }

    fn start<B: Send + 'static>(&self, mut buffers: B, raw: impl FnOnce(&mut B) -> (Result<()>, Raw)) -> Request<B> {
        // The heap blocks that the addresses are of do not move with `buffers`.
        let (ok, raw) = raw(&mut buffers);
        let core = self.core.clone();
        let (request, finish) = Request::new();
        let job: Job = Box::new(move || {
            // SAFETY: `buffers` lives until the run is over.
            let result = unsafe { { raw }.run(&core, ok) };
            finish(result.map(|()| buffers));
        });
        let mut progress = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
        progress.get_or_insert_with(|| Progress::new(self.core.rank)).submit(job);
        request
    }
}

const BARRIER: Raw = Raw {
    collective: None,
    input: std::ptr::null(),
    output: std::ptr::null_mut(),
    count: 0,
    dtype: DType::U8,
    op: None,
};

impl Raw {
    /// # Safety
    /// As [`Core::run`].
    unsafe fn run(self, core: &Core, ok: Result<()>) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { core.run(ok, self) }
    }
}

impl Core {
    /// # Safety
    /// The buffers of `raw` must be valid for its collective if `ok` is.
    unsafe fn run(&self, ok: Result<()>, raw: Raw) -> Result<()> {
        let mut state = self.state();
        if let Some(error) = &state.broken {
            return Err(Error::Broken(Box::new(error.clone())));
        }
        // SAFETY: the caller's promise.
        let result = unsafe { self.run_in(&mut state, ok, raw) };
        state.sequence += 1;
        if let Err(error @ (Error::PeerLost { .. } | Error::Timeout { .. })) = &result {
            state.broken = Some(error.clone());
        }
        result
    }

    /// # Safety
    /// As [`Core::run`].
    unsafe fn run_in(&self, state: &mut State, ok: Result<()>, raw: Raw) -> Result<()> {
        let ready = ok.and_then(|()| {
            let collective = raw.collective.unwrap_or(Collective::AllReduce);
            let bytes = message_bytes(collective, self.segment.ranks(), raw.count as u64, raw.dtype.width())?;
            state.plans.get(&self.topology, collective, bytes, raw.dtype, raw.op)
        });
        let (code, asked, failed) = match ready {
            Ok(ready) => {
                let plan = if raw.count == 0 { 0 } else { ready.id };
                let (collective, op) = (raw.collective, raw.op);
                (ready, Asked { collective, count: raw.count as u64, dtype: raw.dtype, op, plan }, None)
            }
            // The others are told, and get an error too instead of waiting for what will not come.
            Err(error) => {
                let (collective, op) = (raw.collective, raw.op);
                let asked = Asked { collective, count: u64::MAX, dtype: raw.dtype, op, plan: 0 };
                let ready = state.plans.get(&self.topology, Collective::AllReduce, 0, DType::U8, None)?;
                (ready, asked, Some(error))
            }
        };
        let call = Call {
            sequence: state.sequence,
            asked: asked.encode(),
            input: raw.input,
            output: raw.output,
            count: if failed.is_some() { 0 } else { raw.count as u64 },
            dtype: raw.dtype,
            op: raw.op.unwrap_or(ReduceOp::Sum),
        };
        // SAFETY: the caller's promise; with a count of 0 no memory is touched.
        let result = unsafe { Run::new(&self.segment, &code.code, call) }.and_then(|mut r| r.finish(self.patience));
        match (failed, result) {
            (Some(error), Ok(()) | Err(Error::Disagreement { .. })) => Err(error),
            (_, result) => result,
        }
    }
}

fn same_length(what: &str, input: usize, output: usize) -> Result<()> {
    if input == output {
        return Ok(());
    }
    Err(Error::Argument(format!(
        "{what}: the input has {input} elements and the output {output}; they must be the same"
    )))
}

fn rooted(what: &str, root: usize, size: usize) -> Result<()> {
    if root < size {
        return Ok(());
    }
    Err(Error::Argument(format!("{what}: root {root} is not one of the {size} ranks, which are numbered from 0")))
}

/// Only the root's output counts.
fn reduction(rank: usize, root: usize, size: usize, input: usize, output: usize) -> Result<()> {
    rooted("reduce", root, size)?;
    if rank == root { same_length("reduce at its root", input, output) } else { Ok(()) }
}

/// Whether both are whole blocks, and the elements of one.
fn exchange(input: usize, output: usize, size: usize) -> (Result<()>, usize) {
    let count = input / size;
    let ok = same_length("all-to-all", input, output)
        .and_then(|()| blocks("all-to-all", "input", input, "block", count, size));
    (ok, count)
}

fn blocks(what: &str, large: &str, len: usize, small: &str, block: usize, size: usize) -> Result<()> {
    if block.checked_mul(size) == Some(len) {
        return Ok(());
    }
    Err(Error::Argument(format!(
        "{what} among {size} ranks: the {large} has {len} elements, which is not {size} times the {small}'s {block}"
    )))
}
