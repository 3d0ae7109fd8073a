//! `topo-bench diff`.

use std::path::PathBuf;

use topocoll::topology::Topology;

use crate::{Result, output};

/// Exits with 1 if they differ. Devices are told by PCI address, else by id.
#[derive(clap::Args)]
pub struct Args {
    /// A topology file, as it was.
    before: PathBuf,
    /// A topology file, as it is; this machine otherwise.
    after: Option<PathBuf>,
    /// As JSON: to FILE, or to the standard output.
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    json: Option<String>,
}

pub fn run(args: &Args) -> Result<bool> {
    let before = Topology::read(&args.before)?;
    let after = match &args.after {
        Some(file) => Topology::read(file)?,
        None => Topology::detect()?,
    };
    let changes = before.diff(&after);
    match &args.json {
        Some(to) => output::json(&serde_json::json!({ "changes": changes }), to)?,
        None if changes.is_empty() => output::print("no difference\n"),
        None => output::print(&changes.iter().map(|c| format!("{c}\n")).collect::<String>()),
    }
    Ok(changes.is_empty())
}
