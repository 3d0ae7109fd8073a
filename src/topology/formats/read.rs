//! A file's text, within bounds.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use crate::topology::Topology;
use crate::topology::formats::Format;
use crate::{Error, Result};

/// The largest file that is read.
const MAX_BYTES: u64 = 16 << 20;

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
        let fail = |message: String| Error::File { path: path.into(), message };
        // Looked at before it is opened: opening a FIFO would wait for its writer.
        let about = std::fs::metadata(path).map_err(|e| fail(e.to_string()))?;
        if !about.is_file() {
            return Err(fail("this is no regular file; a topology file is expected".into()));
        }
        if about.len() > MAX_BYTES {
            return Err(fail(too_large()));
        }
        let file = File::open(path).map_err(|e| fail(e.to_string()))?;
        Self::read_from(file, path, format)
    }

    /// As [`Topology::read_as`], from whatever gives bytes, such as the standard input; `path` is what errors call it.
    ///
    /// # Errors
    /// As [`Topology::read`].
    pub fn read_from(input: impl Read, path: &Path, format: Option<Format>) -> Result<Self> {
        let fail = |message: String| Error::File { path: path.into(), message };
        let mut bytes = Vec::new();
        // What is in /proc says it is empty, and a file may grow.
        input.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(|e| fail(e.to_string()))?;
        if bytes.len() as u64 > MAX_BYTES {
            return Err(fail(too_large()));
        }
        let text = decode(bytes).map_err(|line| {
            let why = "this is no UTF-8 text (nor UTF-16 with a mark of it); a topology file is expected";
            Error::in_file(&path.display().to_string(), Some(line), "", why)
        })?;
        Self::parse(&text, &path.display().to_string(), format)
    }
}

fn too_large() -> String {
    format!("larger than {} MiB, the most that a topology file may have", MAX_BYTES >> 20)
}

/// UTF-8, or UTF-16 with a byte order mark, as PowerShell's `>` writes; else the line where it is neither.
fn decode(bytes: Vec<u8>) -> std::result::Result<String, usize> {
    let wide = |order: fn([u8; 2]) -> u16| {
        let units: Vec<u16> = bytes[2..].chunks_exact(2).map(|c| order([c[0], c[1]])).collect();
        String::from_utf16(&units).map_err(|_| 1)
    };
    match bytes.as_slice() {
        [0xff, 0xfe, ..] => wide(u16::from_le_bytes),
        [0xfe, 0xff, ..] => wide(u16::from_be_bytes),
        _ => {
            let text = String::from_utf8(bytes).map_err(|e| {
                let good = &e.as_bytes()[..e.utf8_error().valid_up_to()];
                good.iter().filter(|b| **b == b'\n').count() + 1
            })?;
            Ok(text.strip_prefix('\u{feff}').map(String::from).unwrap_or(text))
        }
    }
}
