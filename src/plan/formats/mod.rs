//! Plans as files: our own JSON, which says all, and the XML that MSCCL's runtime takes. What a text is in is told
//! from its content.

mod json;
mod msccl_xml;

use std::io::Read;
use std::path::Path;

use crate::file::Expected;
use crate::plan::Plan;
use crate::{Error, Result};

const FILE: Expected = Expected { what: "a plan file", most: 64 << 20 };

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
        Self::read_from(FILE.open(path)?, path)
    }

    /// As [`Plan::read`], from whatever gives bytes, such as the standard input; `path` is what errors call it.
    ///
    /// # Errors
    /// As [`Plan::read`].
    pub fn read_from(input: impl Read, path: &Path) -> Result<Self> {
        let file = path.display().to_string();
        let no_text = |line, message| Error::PlanFile { file: file.clone(), line: Some(line), message };
        let text = FILE.text(input, path, no_text)?;
        Self::parse(&text, &file)
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

#[cfg(test)]
mod tests;
