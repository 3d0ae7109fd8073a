//! One size: timed out of place and in place, then checked on fresh data.

use std::time::Instant;

use topocoll::plan::choose::Wish;
use topocoll::{Communicator, DType, ReduceOp, bf16, f16};

use crate::Result;
use crate::collective::check::{Sample, fill, wrong_copies, wrong_reductions};
use crate::collective::{Args, Kind, Over};
use crate::output::Spread;

/// A line of the report.
pub struct Row {
    /// Bytes of the larger buffer.
    pub size: u64,
    /// Elements of it, as nccl-tests counts: of a rank's share where it is larger than that.
    pub count: u64,
    pub dtype: DType,
    pub op: Option<ReduceOp>,
    pub out_of_place: Timing,
    /// None of an all-to-all.
    pub in_place: Option<Timing>,
}

pub struct Timing {
    /// Seconds a call.
    pub seconds: Spread,
    /// Elements that were wrong, all ranks together; none where nothing was checked.
    pub wrong: Option<u64>,
}

/// Measures and checks `bytes` of the larger buffer.
pub fn size(
    kind: Kind,
    args: &Args,
    comm: &Communicator,
    wish: &Wish,
    dtype: DType,
    op: Option<ReduceOp>,
    bytes: u64,
) -> Result<Row> {
    match dtype {
        DType::F32 => typed::<f32>(kind, args, comm, wish, op, bytes),
        DType::F64 => typed::<f64>(kind, args, comm, wish, op, bytes),
        DType::F16 => typed::<f16>(kind, args, comm, wish, op, bytes),
        DType::Bf16 => typed::<bf16>(kind, args, comm, wish, op, bytes),
        DType::I8 => typed::<i8>(kind, args, comm, wish, op, bytes),
        DType::U8 => typed::<u8>(kind, args, comm, wish, op, bytes),
        DType::I32 => typed::<i32>(kind, args, comm, wish, op, bytes),
        DType::U32 => typed::<u32>(kind, args, comm, wish, op, bytes),
        DType::I64 => typed::<i64>(kind, args, comm, wish, op, bytes),
        DType::U64 => typed::<u64>(kind, args, comm, wish, op, bytes),
    }
}

/// The buffers of one size and what is done with them.
struct Bench<'a, T> {
    kind: Kind,
    comm: &'a Communicator,
    /// For what is measured; what is done around it takes the best plan.
    wish: &'a Wish,
    op: ReduceOp,
    root: usize,
    /// Elements of a block, and of the larger buffer.
    block: usize,
    whole: usize,
    input: Vec<T>,
    output: Vec<T>,
    spare: Vec<T>,
}

fn typed<T: Sample>(
    kind: Kind,
    args: &Args,
    comm: &Communicator,
    wish: &Wish,
    op: Option<ReduceOp>,
    bytes: u64,
) -> Result<Row> {
    let elements = (bytes / size_of::<T>() as u64) as usize;
    let (block, whole) = match kind {
        Kind::AllReduce | Kind::Broadcast | Kind::Reduce => (elements, elements),
        // The larger buffer is a whole number of blocks.
        Kind::ReduceScatter | Kind::AllGather | Kind::AllToAll => {
            (elements / comm.size(), elements / comm.size() * comm.size())
        }
    };
    let (inputs, outputs) = match kind {
        Kind::AllReduce | Kind::Broadcast | Kind::AllToAll => (whole, whole),
        Kind::Reduce => (whole, if comm.rank() == args.root { whole } else { 0 }),
        Kind::ReduceScatter => (whole, block),
        Kind::AllGather => (block, whole),
    };
    let vector = |n: usize| -> Result<Vec<T>> {
        let mut v = Vec::new();
        v.try_reserve_exact(n).map_err(|e| format!("{} bytes for a buffer: {e}", n as u64 * size_of::<T>() as u64))?;
        v.resize(n, T::default());
        Ok(v)
    };
    let mut bench = Bench {
        kind,
        comm,
        wish,
        op: op.unwrap_or(ReduceOp::Sum),
        root: args.root,
        block,
        whole,
        input: vector(inputs)?,
        output: vector(outputs)?,
        spare: vector(if kind == Kind::AllToAll { 0 } else { whole })?,
    };
    comm.prefer(Wish::default());
    let mut timings = Vec::with_capacity(2);
    let places = if kind == Kind::AllToAll { &[false][..] } else { &[false, true] };
    for &in_place in places {
        let mut seconds = bench.time(args, in_place)?;
        gather(comm, &mut seconds, args.over)?;
        let mut wrong = (args.check > 0).then_some(0);
        for _ in 0..args.check {
            let mine = bench.check(in_place)?;
            let mut all = [mine];
            comm.all_reduce_in_place(&mut all, ReduceOp::Sum)?;
            wrong = wrong.map(|w| w + all[0]);
        }
        timings.push(Timing { seconds: Spread::of(&seconds), wrong });
    }
    let mut timings = timings.into_iter();
    let Some(out_of_place) = timings.next() else { return Err("nothing was measured".into()) };
    let in_place = timings.next();
    let op = op.filter(|_| kind.collective(args.root).reduces());
    Ok(Row {
        size: whole as u64 * size_of::<T>() as u64,
        count: block as u64,
        dtype: T::DTYPE,
        op,
        out_of_place,
        in_place,
    })
}

impl<T: Sample> Bench<'_, T> {
    fn call(&mut self, in_place: bool) -> Result<()> {
        let (comm, op) = (self.comm, self.op);
        let whole = &mut self.spare[..];
        match (self.kind, in_place) {
            (Kind::AllReduce, false) => comm.all_reduce(&self.input, &mut self.output, op)?,
            (Kind::AllReduce, true) => comm.all_reduce_in_place(whole, op)?,
            (Kind::ReduceScatter, false) => comm.reduce_scatter(&self.input, &mut self.output, op)?,
            (Kind::ReduceScatter, true) => comm.reduce_scatter_in_place(whole, op)?,
            (Kind::AllGather, false) => comm.all_gather(&self.input, &mut self.output)?,
            (Kind::AllGather, true) => comm.all_gather_in_place(whole)?,
            (Kind::Broadcast, false) => comm.broadcast(&mut self.output, self.root)?,
            (Kind::Broadcast, true) => comm.broadcast(whole, self.root)?,
            (Kind::Reduce, false) => comm.reduce(&self.input, &mut self.output, self.root, op)?,
            (Kind::Reduce, true) => comm.reduce_in_place(whole, self.root, op)?,
            (Kind::AllToAll, _) => comm.all_to_all(&self.input, &mut self.output)?,
        }
        Ok(())
    }

    /// The range of the in-place buffer that is this rank's input.
    fn own(&self) -> std::ops::Range<usize> {
        match self.kind {
            Kind::AllGather => self.comm.rank() * self.block..(self.comm.rank() + 1) * self.block,
            _ => 0..self.whole,
        }
    }

    /// Fresh data, the same seed on every rank.
    fn fresh(&mut self) -> Result<u64> {
        let mut seed = [rand::random::<u64>()];
        self.comm.broadcast(&mut seed, 0)?;
        fill(&mut self.input, seed[0], self.comm.rank(), 0);
        Ok(seed[0])
    }

    /// Puts the input where the call wants it and spoils the output.
    fn prepare(&mut self, in_place: bool) {
        let own = self.own();
        if in_place {
            if self.kind == Kind::AllGather {
                self.spare.fill(T::default());
            }
            self.spare[own].copy_from_slice(&self.input);
        } else if self.kind == Kind::Broadcast {
            self.output.copy_from_slice(&self.input);
        }
    }

    /// Seconds of each call.
    fn time(&mut self, args: &Args, in_place: bool) -> Result<Vec<f64>> {
        self.fresh()?;
        self.prepare(in_place);
        self.comm.prefer(self.wish.clone());
        for _ in 0..args.warmup {
            self.call(in_place)?;
        }
        let mut seconds = Vec::with_capacity(args.iterations as usize);
        for _ in 0..args.iterations {
            if in_place && self.op == ReduceOp::Prod {
                // Products of products fade to subnormals, which the processor is slow at.
                self.prepare(in_place);
            }
            let begun = Instant::now();
            self.call(in_place)?;
            seconds.push(begun.elapsed().as_secs_f64());
        }
        self.comm.prefer(Wish::default());
        Ok(seconds)
    }

    /// One call on fresh data: how many elements of this rank are wrong.
    fn check(&mut self, in_place: bool) -> Result<u64> {
        let seed = self.fresh()?;
        self.output.fill(T::default());
        self.prepare(in_place);
        self.comm.prefer(self.wish.clone());
        self.call(in_place)?;
        self.comm.prefer(Wish::default());
        let (rank, ranks, block) = (self.comm.rank(), self.comm.size(), self.block);
        let got = match (in_place, self.kind) {
            (false, _) => &self.output[..],
            (true, Kind::ReduceScatter) => &self.spare[rank * block..(rank + 1) * block],
            (true, _) => &self.spare[..],
        };
        Ok(match self.kind {
            Kind::AllReduce => wrong_reductions(got, seed, ranks, 0, self.op),
            Kind::ReduceScatter => wrong_reductions(got, seed, ranks, rank * block, self.op),
            Kind::AllGather => got.chunks(block.max(1)).enumerate().map(|(r, b)| wrong_copies(b, seed, 0, r)).sum(),
            Kind::Broadcast => wrong_copies(got, seed, 0, self.root),
            Kind::Reduce if rank == self.root => wrong_reductions(got, seed, ranks, 0, self.op),
            // What is not the root's to get stays as it was.
            Kind::Reduce if in_place => wrong_copies(got, seed, 0, rank),
            Kind::Reduce => 0,
            Kind::AllToAll => {
                let from = |(r, b): (usize, &[T])| wrong_copies(b, seed, rank * block, r);
                got.chunks(block.max(1)).enumerate().map(from).sum()
            }
        })
    }
}

/// Each call's time over the ranks.
fn gather(comm: &Communicator, seconds: &mut [f64], over: Over) -> Result<()> {
    match over {
        Over::Avg => comm.all_reduce_in_place(seconds, ReduceOp::Avg)?,
        Over::Min => comm.all_reduce_in_place(seconds, ReduceOp::Min)?,
        Over::Max => comm.all_reduce_in_place(seconds, ReduceOp::Max)?,
        Over::Rank0 => comm.broadcast(seconds, 0)?,
    }
    Ok(())
}
