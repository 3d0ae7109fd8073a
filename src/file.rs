//! A file's text, within bounds.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use crate::{Error, Result};

/// What a file is to be.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Expected {
    /// As in "a topology file".
    pub what: &'static str,
    /// The most bytes that it may have.
    pub most: u64,
}

impl Expected {
    fn too_large(self) -> String {
        format!("larger than {} MiB, the most that {} may have", self.most >> 20, self.what)
    }

    /// Opens a regular file that is not too large.
    pub fn open(self, path: &Path) -> Result<File> {
        let fail = |message: String| Error::File { path: path.into(), message };
        // Looked at before it is opened: opening a FIFO would wait for its writer.
        let about = std::fs::metadata(path).map_err(|e| fail(e.to_string()))?;
        if !about.is_file() {
            return Err(fail(format!("this is no regular file; {} is expected", self.what)));
        }
        if about.len() > self.most {
            return Err(fail(self.too_large()));
        }
        File::open(path).map_err(|e| fail(e.to_string()))
    }

    /// All of `input`, which is at `path`, as text; `no_text` makes the error of what is none at a line.
    pub fn text(self, input: impl Read, path: &Path, no_text: impl Fn(usize, String) -> Error) -> Result<String> {
        let fail = |message: String| Error::File { path: path.into(), message };
        let mut bytes = Vec::new();
        // What is in /proc says it is empty, and a file may grow.
        input.take(self.most + 1).read_to_end(&mut bytes).map_err(|e| fail(e.to_string()))?;
        if bytes.len() as u64 > self.most {
            return Err(fail(self.too_large()));
        }
        decode(bytes).map_err(|line| {
            no_text(line, format!("this is no UTF-8 text (nor UTF-16 with a mark of it); {} is expected", self.what))
        })
    }
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
