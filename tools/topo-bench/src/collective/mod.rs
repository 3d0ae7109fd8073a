//! The collectives, in nccl-tests' manner: the same flags, the same columns, the same meaning.

mod check;
mod measure;
mod report;

use clap::ValueEnum;
use topocoll::bootstrap::World;
use topocoll::plan::Collective;
use topocoll::plan::choose::Wish;
use topocoll::{Communicator, DType, ReduceOp};

use crate::{Result, sizes, spawn};
use report::Report;

#[derive(clap::Args, Clone)]
pub struct Args {
    /// The smallest size in bytes.
    #[arg(short = 'b', long = "minbytes", value_name = "SIZE", default_value = "8", value_parser = sizes::parse)]
    min: u64,
    /// The largest size in bytes.
    #[arg(short = 'e', long = "maxbytes", value_name = "SIZE", default_value = "64M", value_parser = sizes::parse)]
    max: u64,
    /// Each size is this many times the one before.
    #[arg(short = 'f', long = "stepfactor", value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u64).range(2..))]
    factor: u64,
    /// Each size is this many bytes more than the one before, instead of -f.
    #[arg(short = 'i', long = "stepbytes", value_name = "SIZE", value_parser = sizes::parse)]
    step: Option<u64>,
    /// Measured calls of each size.
    #[arg(short = 'n', long = "iters", value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    iterations: u32,
    /// Calls before those.
    #[arg(short = 'w', long = "warmup", value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    warmup: u32,
    /// Check the results of so many calls of each size, on fresh random data.
    #[arg(short = 'c', long = "check", value_name = "N", default_value_t = 1)]
    check: u32,
    /// The element type, or `all`.
    #[arg(short = 'd', long = "datatype", value_name = "TYPE", default_value = "f32")]
    dtype: String,
    /// The reduction (sum, prod, min, max, avg), or `all`.
    #[arg(short = 'o', long = "op", value_name = "OP", default_value = "sum")]
    op: String,
    /// The root of a broadcast or a reduce.
    #[arg(short = 'r', long = "root", value_name = "RANK", default_value_t = 0)]
    root: usize,
    /// Over the ranks, a call's time is this.
    #[arg(short = 'a', long = "average", value_enum, default_value_t = Over::Avg)]
    over: Over,
    /// How many ranks to start; under a launcher it is the launcher's. One a core otherwise, at least two.
    #[arg(long, value_name = "N")]
    ranks: Option<usize>,
    /// Ranks as threads of one process instead of processes.
    #[arg(long)]
    threads: bool,
    /// one-shot, two-shot, direct, ring, tree, halving-doubling, forest or hierarchical, instead of the best.
    #[arg(long, value_name = "NAME")]
    algorithm: Option<String>,
    /// As JSON, an object a size: to FILE, or to the standard output.
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    json: Option<String>,
    /// No table.
    #[arg(long)]
    quiet: bool,
}

/// What a call's time is over the ranks, as nccl-tests numbers it too.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Over {
    /// Rank 0's.
    #[value(alias = "0")]
    Rank0,
    /// The mean.
    #[value(alias = "1")]
    Avg,
    /// The least.
    #[value(alias = "2")]
    Min,
    /// The greatest.
    #[value(alias = "3")]
    Max,
}

/// Which collective.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    AllReduce,
    ReduceScatter,
    AllGather,
    Broadcast,
    Reduce,
    AllToAll,
}

impl Kind {
    /// Whether one rank is the root.
    fn rooted(self) -> bool {
        matches!(self, Self::Broadcast | Self::Reduce)
    }

    fn collective(self, root: usize) -> Collective {
        match self {
            Self::AllReduce => Collective::AllReduce,
            Self::ReduceScatter => Collective::ReduceScatter,
            Self::AllGather => Collective::AllGather,
            Self::Broadcast => Collective::Broadcast { root },
            Self::Reduce => Collective::Reduce { root },
            Self::AllToAll => Collective::AllToAll,
        }
    }
}

/// Ranks without a number of them: one a core, at least two.
pub fn default_ranks() -> usize {
    std::thread::available_parallelism().map_or(2, usize::from).clamp(2, 64)
}

/// Runs the collective; false if any result was wrong or any rank failed.
pub fn run(kind: Kind, args: &Args) -> Result<bool> {
    let types = types(args)?;
    if let Some(name) = &args.algorithm {
        // Checked here, so that it is said once and not by every rank.
        if !topocoll::plan::builders::NAMES.contains(&name.as_str()) {
            let names = topocoll::plan::builders::NAMES.join(", ");
            return Err(format!("there is no algorithm `{name}`; {names} are").into());
        }
    }
    if spawn::is_rank()? {
        return rank(kind, args, &types, &Communicator::from_env()?);
    }
    let launched = args.ranks.is_none() && World::from_env().is_ok();
    let ranks = match launched {
        true => World::from_env()?.size,
        false => args.ranks.unwrap_or_else(default_ranks),
    };
    if ranks == 0 || ranks > 1024 {
        return Err(format!("--ranks {ranks}: 1 to 1024 can share a host; start one for each core or GPU").into());
    }
    let widest = types.iter().map(|(d, _)| d.width()).max().unwrap_or(1);
    sizes_of(args, widest as u64)?;
    fits(args.max, ranks)?;
    if kind.rooted() && args.root >= ranks {
        return Err(format!("--root {}: ranks are 0 to {}", args.root, ranks - 1).into());
    }
    if launched {
        return rank(kind, args, &types, &Communicator::from_env()?);
    }
    if !args.threads {
        let again: Vec<String> = std::env::args().skip(1).collect();
        return spawn::ranks(ranks, &again, &[]);
    }
    let comms = Communicator::local(ranks)?;
    std::thread::scope(|s| {
        let types = &types;
        let threads: Vec<_> = comms.into_iter().map(|c| s.spawn(move || rank(kind, args, types, &c))).collect();
        let mut all = true;
        for thread in threads {
            all &= thread.join().map_err(|_| "a rank's thread panicked")??;
        }
        Ok(all)
    })
}

/// One rank's part; rank 0 reports.
fn rank(kind: Kind, args: &Args, types: &[(DType, Option<ReduceOp>)], comm: &Communicator) -> Result<bool> {
    let env = Wish::from_env()?;
    let wish = Wish { algorithm: args.algorithm.clone().or(env.algorithm.clone()), ..env };
    let mut report = Report::new(kind, args, comm);
    for (dtype, op) in types {
        for size in sizes_of(args, dtype.width() as u64)? {
            let row = measure::size(kind, args, comm, &wish, *dtype, *op, size)?;
            report.row(row);
        }
    }
    report.end()
}

/// Types and operators asked for.
fn types(args: &Args) -> Result<Vec<(DType, Option<ReduceOp>)>> {
    let dtypes = if args.dtype == "all" { DType::ALL.to_vec() } else { vec![args.dtype.parse()?] };
    let ops = if args.op == "all" { ReduceOp::ALL.to_vec() } else { vec![args.op.parse()?] };
    Ok(dtypes.iter().flat_map(|d| ops.iter().map(|o| (*d, Some(*o)))).collect())
}

/// The sizes to measure, each a whole number of elements.
fn sizes_of(args: &Args, width: u64) -> Result<Vec<u64>> {
    if args.min == 0 {
        return Err("-b 0: there is nothing to measure in 0 bytes, and sizes would not grow".into());
    }
    if args.max < args.min {
        return Err(format!("-e {} is less than -b {}", args.max, args.min).into());
    }
    if args.max < width {
        return Err(format!("-e {}: an element has {width} bytes, so that is the smallest size", args.max).into());
    }
    if args.step == Some(0) {
        return Err("-i 0: the sizes would never end; give at least 1".into());
    }
    let mut sizes = Vec::new();
    // What is less than one element is taken as one.
    let mut size = args.min.max(width);
    loop {
        let whole = size / width * width;
        if sizes.last() != Some(&whole) {
            sizes.push(whole);
        }
        let next = args.step.map_or_else(|| size.checked_mul(args.factor), |step| size.checked_add(step));
        match next {
            Some(next) if next <= args.max && sizes.len() < 100_000 => size = next,
            _ => return Ok(sizes),
        }
    }
}

/// Input, output and a copy of the input for every rank.
fn fits(bytes: u64, ranks: usize) -> Result<()> {
    let info = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kib =
        info.lines().find_map(|l| l.strip_prefix("MemAvailable:")?.trim().strip_suffix("kB")?.trim().parse().ok());
    let Some(kib): Option<u64> = kib else { return Ok(()) };
    let available = u128::from(kib) * 1024;
    let need = u128::from(bytes) * 3 * ranks as u128;
    if need > available {
        let gib = |n: u128| n as f64 / (1u64 << 30) as f64;
        return Err(format!(
            "-e {bytes}: three buffers of that for each of {ranks} ranks are {:.1} GiB, and {:.1} GiB are available",
            gib(need),
            gib(available)
        )
        .into());
    }
    Ok(())
}
