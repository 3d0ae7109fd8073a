//! `topo-bench verify`.

use std::path::PathBuf;

use topocoll::plan::{Plan, verify};

use crate::{Result, output};

/// Exits with 1 if it is not right for every message, whatever the timing, out of place and in place.
#[derive(clap::Args)]
pub struct Args {
    /// A plan as `topo-bench plan --format json` writes it, or an algorithm of MSCCL; `-` is the standard input.
    file: PathBuf,
    /// Its ranks are on so many hosts, as many on each, in order. Ranks of one host can share memory.
    #[arg(long, value_name = "N", default_value_t = 1)]
    hosts: usize,
}

pub fn run(args: &Args) -> Result<()> {
    let plan = match args.file.to_str() {
        Some("-") => Plan::read_from(std::io::stdin().lock(), "standard input".as_ref())?,
        _ => Plan::read(&args.file)?,
    };
    let ranks = plan.ranks();
    if args.hosts == 0 || !ranks.is_multiple_of(args.hosts) {
        return Err(format!("--hosts {}: {ranks} ranks cannot be shared out to them evenly", args.hosts).into());
    }
    let each = (ranks / args.hosts).max(1);
    let hosts: Vec<usize> = (0..ranks).map(|r| r / each).collect();
    verify(&plan, &hosts)?;
    let instructions: usize = plan.programs.iter().flat_map(|p| &p.lanes).map(|l| l.0.len()).sum();
    let root = plan.collective.root().map(|r| format!(" with root {r}")).unwrap_or_default();
    output::print(&format!(
        "proved: {}, {}{root} among {ranks} ranks on {} host{}, {} lane(s) a rank, {instructions} instructions\n",
        plan.algorithm,
        plan.collective,
        args.hosts,
        if args.hosts == 1 { "" } else { "s" },
        plan.lanes(),
    ));
    Ok(())
}
