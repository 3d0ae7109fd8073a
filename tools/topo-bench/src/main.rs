//! topo-bench: what the links of this machine really do, and what collectives make of them.

mod check;
mod collective;
mod detect;
mod diff;
mod links;
mod output;
mod plan;
mod sizes;
mod spawn;
mod tour;
mod verify;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Measures links and collectives, and shows topologies and plans.
///
/// Without a command: looks at this machine, measures its links, plans an all-reduce for it, runs and checks it, and
/// says what was found. Rates are GB/s of 10^9 bytes; sizes take K, M, G of 1024.
#[derive(Parser)]
#[command(
    version,
    after_help = "Environment: TOPOCOLL_TOPOLOGY=FILE is used instead of looking at this machine; \
TOPOCOLL_ALGO, TOPOCOLL_CHUNKS and TOPOCOLL_LANES force a plan; TOPOCOLL_TIMEOUT is in seconds."
)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    /// As JSON: to FILE, or to the standard output.
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    json: Option<String>,
}

#[derive(Subcommand)]
enum Command {
    /// Shows the topology of this machine or of a file.
    Detect(detect::Args),
    /// Looks for what makes this machine slower than it could be, what that costs and what to do.
    Check(check::Args),
    /// Shows what changed between two topologies.
    Diff(diff::Args),
    /// Measures latency and bandwidth between all places where a rank can be.
    Links(links::Args),
    /// Shows the plan for a collective, its prediction and its bound.
    Plan(plan::Args),
    /// Proves a plan that is in a file, or says what is wrong with it.
    Verify(verify::Args),
    /// Every rank gets the reduction of all inputs.
    AllReduce(collective::Args),
    /// Rank r gets block r of the reduction.
    ReduceScatter(collective::Args),
    /// Every rank gets the concatenation of all inputs.
    AllGather(collective::Args),
    /// Every rank gets the root's data.
    Broadcast(collective::Args),
    /// The root gets the reduction of all inputs.
    Reduce(collective::Args),
    /// Rank r gets block r of every rank's data.
    AllToAll(collective::Args),
}

/// What the commands fail with: words for people.
type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let done = match &cli.command {
        None => tour::run(cli.json.as_deref()),
        Some(Command::Detect(args)) => detect::run(args).map(|()| true),
        Some(Command::Check(args)) => check::run(args),
        Some(Command::Diff(args)) => diff::run(args),
        Some(Command::Links(args)) => links::run(args).map(|()| true),
        Some(Command::Plan(args)) => plan::run(args).map(|()| true),
        Some(Command::Verify(args)) => verify::run(args).map(|()| true),
        Some(Command::AllReduce(args)) => collective::run(collective::Kind::AllReduce, args),
        Some(Command::ReduceScatter(args)) => collective::run(collective::Kind::ReduceScatter, args),
        Some(Command::AllGather(args)) => collective::run(collective::Kind::AllGather, args),
        Some(Command::Broadcast(args)) => collective::run(collective::Kind::Broadcast, args),
        Some(Command::Reduce(args)) => collective::run(collective::Kind::Reduce, args),
        Some(Command::AllToAll(args)) => collective::run(collective::Kind::AllToAll, args),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        // What was wrong has been shown.
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("topo-bench: {error}");
            ExitCode::FAILURE
        }
    }
}
