//! Plans as files: our own JSON, which says all, and the XML that MSCCL's runtime takes. What a text is in is told
//! from its content.

mod json;
mod msccl_xml;

use std::fs::File;
use std::io::Read;
use std::path::Path;

use crate::plan::Plan;
use crate::{Error, Result};

/// The largest file that is read.
const MAX_BYTES: u64 = 64 << 20;

impl Plan {
    /// Reads `text`, in the format that its content tells. `file` is what errors call it. What is read has the right
    /// form; that it is right is for [`verify`](crate::plan::verify()) to say.
    ///
    /// # Errors
    /// [`Error::PlanFile`] with the place, what was found and what was expected.
    pub fn parse(text: &str, file: &str) -> Result<Self> {
        let start = text.trim_start_matches('\u{feff}').trim_start();
        if start.starts_with('<') {
            msccl_xml::read(start, text.len() - start.len(), text, file)
        } else {
            json::read(start, file)
        }
    }

    /// Reads a plan file.
    ///
    /// # Errors
    /// [`Error::File`] where it cannot be read, is no regular file or is larger than 64 MiB, else as [`Plan::parse`].
    pub fn read(path: &Path) -> Result<Self> {
        let fail = |message: String| Error::File { path: path.into(), message };
        // Looked at before it is opened: opening a FIFO would wait for its writer.
        let about = std::fs::metadata(path).map_err(|e| fail(e.to_string()))?;
        if !about.is_file() {
            return Err(fail("this is no regular file; a plan file is expected".into()));
        }
        if about.len() > MAX_BYTES {
            return Err(fail(too_large()));
        }
        Self::read_from(File::open(path).map_err(|e| fail(e.to_string()))?, path)
    }

    /// As [`Plan::read`], from whatever gives bytes, such as the standard input; `path` is what errors call it.
    ///
    /// # Errors
    /// As [`Plan::read`].
    pub fn read_from(input: impl Read, path: &Path) -> Result<Self> {
        let fail = |message: String| Error::File { path: path.into(), message };
        let mut bytes = Vec::new();
        input.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(|e| fail(e.to_string()))?;
        if bytes.len() as u64 > MAX_BYTES {
            return Err(fail(too_large()));
        }
        let text =
            String::from_utf8(bytes).map_err(|_| fail("this is no UTF-8 text; a plan file is expected".into()))?;
        Self::parse(&text, &path.display().to_string())
    }

    /// The plan as JSON, whole: what [`Plan::parse`] reads of it is equal.
    ///
    /// # Errors
    /// [`Error::Plan`] where it cannot be written.
    pub fn to_json(&self) -> Result<String> {
        json::write(self)
    }

    /// The plan as an algorithm for MSCCL's runtime. Its ranks share no memory, so what one reads of another is sent,
    /// and a reduction of many becomes a chain of two each, in the same order on all ranks. Chunk size and generations
    /// of scratch are the runtime's.
    ///
    /// # Errors
    /// [`Error::Verify`] where the plan is not right.
    pub fn to_msccl_xml(&self) -> Result<String> {
        msccl_xml::write(self)
    }
}

fn too_large() -> String {
    format!("larger than {} MiB, the most that a plan file may have", MAX_BYTES >> 20)
}

#[cfg(test)]
mod tests;
