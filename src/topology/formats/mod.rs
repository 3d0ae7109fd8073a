//! One file a format. What a text is in is told from its content.

mod astra_sim;
mod dot;
mod hwloc_xml;
mod ib;
mod json;
mod matrix;
mod nccl_xml;
mod range;
mod read;
mod rocm_smi;
mod slurm;
mod smi;
mod svg;
mod taccl;
mod teccl;
mod toml;
mod tree;
mod units;
mod yaml;

pub(super) use hwloc_xml::read as read_hwloc;

use std::fmt;
use std::str::FromStr;

use crate::topology::Topology;
use crate::{Error, Result};

/// What a topology can be read from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// topocoll's own.
    Toml,
    /// NCCL's and RCCL's topology files.
    NcclXml,
    /// hwloc's exports, of versions 1 to 3.
    HwlocXml,
    /// The matrix that `nvidia-smi topo -m` prints.
    SmiTopo,
    /// An InfiniBand fabric as `ibnetdiscover` prints it.
    IbNetDiscover,
    /// The tables of `rocm-smi --showtopo` and `amd-smi topology`.
    RocmSmi,
    /// Slurm's `topology.conf`, a tree or blocks.
    SlurmConf,
    /// Slurm's `topology.yaml`.
    SlurmYaml,
    /// A topology profile of TACCL.
    Taccl,
    /// An input of TE-CCL.
    TeCcl,
    /// A network file of ASTRA-sim's analytical backend.
    AstraSim,
}

impl Format {
    /// All of them.
    pub const ALL: [Self; 11] = [
        Self::Toml,
        Self::NcclXml,
        Self::HwlocXml,
        Self::SmiTopo,
        Self::RocmSmi,
        Self::IbNetDiscover,
        Self::SlurmConf,
        Self::SlurmYaml,
        Self::Taccl,
        Self::TeCcl,
        Self::AstraSim,
    ];

    /// The word for `--from`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Toml => "toml",
            Self::NcclXml => "nccl-xml",
            Self::HwlocXml => "hwloc-xml",
            Self::SmiTopo => "smi-topo",
            Self::RocmSmi => "rocm-smi",
            Self::IbNetDiscover => "ibnetdiscover",
            Self::SlurmConf => "slurm-conf",
            Self::SlurmYaml => "slurm-yaml",
            Self::Taccl => "taccl",
            Self::TeCcl => "te-ccl",
            Self::AstraSim => "astra-sim",
        }
    }

    /// The format of a text, told from its content.
    pub fn of(text: &str) -> Self {
        let start: String = text.chars().take(1 << 16).collect();
        if !start.trim_start().starts_with('<') {
            match () {
                () if taccl::looks_like(&start) => Self::Taccl,
                () if teccl::looks_like(&start) => Self::TeCcl,
                () if ib::looks_like(&start) => Self::IbNetDiscover,
                () if slurm::looks_like_yaml(&start) => Self::SlurmYaml,
                () if slurm::looks_like(&start) => Self::SlurmConf,
                () if astra_sim::looks_like(&start) => Self::AstraSim,
                () if rocm_smi::looks_like(&start) => Self::RocmSmi,
                () if smi::looks_like(&start) => Self::SmiTopo,
                () => Self::Toml,
            }
        } else if start.contains("<topology") || start.contains("hwloc") && !start.contains("<system") {
            Self::HwlocXml
        } else {
            Self::NcclXml
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Format {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|f| f.name() == text).ok_or_else(|| {
            let names: Vec<&str> = Self::ALL.iter().map(|f| f.name()).collect();
            Error::Argument(format!("`{text}` is no topology format; one of {} is", names.join(", ")))
        })
    }
}

impl Topology {
    /// Reads `text`, in the format that its content tells, or in the one given. `file` is what errors call it.
    ///
    /// # Errors
    /// [`Error::TopologyFile`] with the place, what was found and what was expected.
    pub fn parse(text: &str, file: &str, format: Option<Format>) -> Result<Self> {
        match format.unwrap_or_else(|| Format::of(text)) {
            // TOML is what is left where nothing else fits, and then its complaint alone misleads.
            Format::Toml if format.is_none() && !text.contains("[[device]]") => {
                Self::from_toml(text, file).map_err(|e| match e {
                    Error::TopologyFile { file, line, field, message } => {
                        let names: Vec<&str> = Format::ALL.iter().map(|f| f.name()).collect();
                        let why = format!("it looks like none of {}; as toml: {message}", names.join(", "));
                        Error::TopologyFile { file, line, field, message: why }
                    }
                    other => other,
                })
            }
            Format::Toml => Self::from_toml(text, file),
            Format::NcclXml => nccl_xml::read(text, file),
            Format::SmiTopo => smi::read(text, file),
            Format::IbNetDiscover => ib::read(text, file),
            Format::RocmSmi => rocm_smi::read(text, file),
            Format::SlurmConf => slurm::read(text, file),
            Format::SlurmYaml => slurm::read_yaml(text, file),
            Format::Taccl => taccl::read(text, file),
            Format::TeCcl => teccl::read(text, file),
            Format::AstraSim => astra_sim::read(text, file),
            Format::HwlocXml => hwloc_xml::read(text, file.rsplit('/').next().unwrap_or(file), file),
        }
    }
}
