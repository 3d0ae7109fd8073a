//! Topologies from files.

use std::io::Read;
use std::path::Path;

use crate::file::Expected;
use crate::topology::Topology;
use crate::topology::formats::Format;
use crate::{Error, Result};

const FILE: Expected = Expected { what: "a topology file", most: 16 << 20 };

impl Topology {
    /// Reads a topology file in any [`Format`], told from its content.
    ///
    /// # Errors
    /// [`Error::File`] where it cannot be read, is no regular file or is larger than 16 MiB, and
    /// [`Error::TopologyFile`] with line and field where it is not right.
    pub fn read(path: &Path) -> Result<Self> {
        Self::read_as(path, None)
    }

    /// As [`Topology::read`], in a format given.
    ///
    /// # Errors
    /// As [`Topology::read`].
    pub fn read_as(path: &Path, format: Option<Format>) -> Result<Self> {
        Self::read_from(FILE.open(path)?, path, format)
    }

    /// As [`Topology::read_as`], from whatever gives bytes, such as the standard input; `path` is what errors call it.
    ///
    /// # Errors
    /// As [`Topology::read`].
    pub fn read_from(input: impl Read, path: &Path, format: Option<Format>) -> Result<Self> {
        let name = path.display().to_string();
        let text = FILE.text(input, path, |line, why| Error::in_file(&name, Some(line), "", why))?;
        Self::parse(&text, &name, format)
    }
}
