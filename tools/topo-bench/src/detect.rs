//! `topo-bench detect`.

use std::path::PathBuf;

use clap::ValueEnum;
use topocoll::topology::{Format as FileFormat, Topology};

use crate::{Result, output};

#[derive(clap::Args)]
pub struct Args {
    /// A topology file to show instead of this machine.
    #[arg(long, value_name = "FILE")]
    topology: Option<PathBuf>,
    /// The file's format where its content does not tell: toml, nccl-xml, hwloc-xml,
    /// smi-topo, ibnetdiscover or slurm-conf.
    #[arg(long, value_name = "FORMAT", requires = "topology")]
    from: Option<FileFormat>,
    /// So many of it, joined by its network.
    #[arg(long, value_name = "N")]
    hosts: Option<usize>,
    /// How to show it.
    #[arg(long, value_enum, default_value_t = Format::Tree)]
    format: Format,
    /// With the source of each fact.
    #[arg(long)]
    explain: bool,
    /// As `--format json`, to FILE or to the standard output.
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    json: Option<String>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Format {
    /// For people.
    Tree,
    /// For programs.
    Json,
    /// For Graphviz.
    Dot,
    /// To keep and to edit.
    Toml,
    /// For NCCL_TOPO_FILE.
    NcclXml,
    /// As `nvidia-smi topo -m` prints it.
    Matrix,
}

/// A file's topology or this machine's.
pub fn topology(file: Option<&PathBuf>, from: Option<FileFormat>, hosts: Option<usize>) -> Result<Topology> {
    let one = match file {
        Some(path) => Topology::read_as(path, from)?,
        None => Topology::detect()?,
    };
    Ok(match hosts {
        Some(n) => one.cluster(n)?,
        None => one,
    })
}

pub fn run(args: &Args) -> Result<()> {
    let t = topology(args.topology.as_ref(), args.from, args.hosts)?;
    match (&args.json, args.format) {
        (Some(to), _) => return output::json(&t.to_json(), to),
        (None, Format::Json) => return output::json(&t.to_json(), "-"),
        (None, Format::Tree) => output::print(&t.to_tree(args.explain)),
        (None, Format::Dot) => output::print(&t.to_dot()),
        (None, Format::Toml) => output::print(&t.to_toml()),
        (None, Format::Matrix) => output::print(&t.to_matrix()?),
        (None, Format::NcclXml) => output::print(&t.to_nccl_xml()?),
    }
    Ok(())
}
