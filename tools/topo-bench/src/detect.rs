//! `topo-bench detect`.

use std::path::{Path, PathBuf};

use clap::ValueEnum;
use topocoll::topology::{Format as FileFormat, Topology};

use crate::{Result, output};

/// Which topology: this machine, a file, or a cluster of either.
#[derive(clap::Args)]
pub struct Source {
    /// A topology file instead of this machine, in any format; - is the standard input.
    #[arg(value_name = "FILE", conflicts_with = "topology")]
    file: Option<PathBuf>,
    /// The same, by name.
    #[arg(long, value_name = "FILE")]
    topology: Option<PathBuf>,
    /// The file's format where its content does not tell: toml, nccl-xml, hwloc-xml, smi-topo, rocm-smi,
    /// ibnetdiscover, slurm-conf, slurm-yaml, taccl, te-ccl or astra-sim.
    #[arg(long, value_name = "FORMAT")]
    from: Option<FileFormat>,
    /// So many of it, joined by its network.
    #[arg(long, value_name = "N")]
    hosts: Option<usize>,
    /// What joins the hosts: rails, rails:leaf=N,spines=N, leaf-spine:leaf=N,spines=N,
    /// dragonfly:groups=N,routers=N (each with oversubscription=X if wanted; leaf is hosts a leaf),
    /// or a file that ibnetdiscover wrote, whose hosts it then is.
    #[arg(long, value_name = "FABRIC")]
    fabric: Option<String>,
}

impl Source {
    /// The topology that is meant.
    pub fn load(&self) -> Result<Topology> {
        let one = match (self.file.as_ref().or(self.topology.as_ref()), self.from) {
            (Some(path), from) if path.as_os_str() == "-" => {
                Topology::read_from(std::io::stdin().lock(), Path::new("standard input"), from)?
            }
            (Some(path), from) => Topology::read_as(path, from)?,
            (None, Some(from)) => return Err(format!("--from {from}: no file is named; give one").into()),
            (None, None) => Topology::detect()?,
        };
        Ok(match (&self.fabric, self.hosts) {
            (None, None) => one,
            (None, Some(n)) => one.cluster(n)?,
            (Some(fabric), hosts) if Path::new(fabric).is_file() => {
                if hosts.is_some() {
                    return Err("--hosts and a fabric's file: the file says how many hosts there are".into());
                }
                one.cluster_in(&Topology::read(Path::new(fabric))?)?
            }
            (Some(fabric), hosts) => one.cluster_over(hosts.unwrap_or(1), fabric.parse()?)?,
        })
    }
}

#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    source: Source,
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
    /// A picture.
    Svg,
    /// To keep and to edit.
    Toml,
    /// For NCCL_TOPO_FILE.
    NcclXml,
    /// As `nvidia-smi topo -m` prints it.
    Matrix,
}

pub fn run(args: &Args) -> Result<()> {
    let t = args.source.load()?;
    match (&args.json, args.format) {
        (Some(to), _) => return output::json(&t, to),
        (None, Format::Json) => return output::json(&t, "-"),
        (None, Format::Tree) => output::print(&t.to_tree(args.explain)),
        (None, Format::Dot) => output::print(&t.to_dot()),
        (None, Format::Svg) => output::print(&t.to_svg()),
        (None, Format::Toml) => output::print(&t.to_toml()),
        (None, Format::Matrix) => output::print(&t.to_matrix()?),
        (None, Format::NcclXml) => output::print(&t.to_nccl_xml()?),
    }
    Ok(())
}
