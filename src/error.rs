//! The one error type of the crate.

use std::{path::PathBuf, time::Duration};

use crate::text::list;

/// What can go wrong, with what was found, what was expected and what to do.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A topology file is not what it should be.
    #[error("{file}{}: {}{message}", line.map(|l| format!(":{l}")).unwrap_or_default(), field.as_ref().map(|f| format!("`{f}`: ")).unwrap_or_default())]
    TopologyFile {
        /// The file as the user named it.
        file: String,
        /// The line, counted from 1, where one is known.
        line: Option<usize>,
        /// The field at fault, such as `link[3].bandwidth`.
        field: Option<String>,
        /// What was found, what was expected, what to do.
        message: String,
    },
    /// A plan file is not what it should be.
    #[error("{file}{}: {message}", line.map(|l| format!(":{l}")).unwrap_or_default())]
    PlanFile {
        /// The file as the user named it.
        file: String,
        /// The line, counted from 1, where one is known.
        line: Option<usize>,
        /// What was found, what was expected, what to do.
        message: String,
    },
    /// The machine could not be looked at.
    #[error("topology detection: {0}")]
    Detect(String),
    /// A topology cannot do what was asked of it.
    #[error("topology: {0}")]
    Topology(String),
    /// No plan can be made for this request.
    #[error("plan: {0}")]
    Plan(String),
    /// A plan was refused by the verifier.
    #[error("plan refused: {0}")]
    Verify(#[from] crate::plan::Refusal),
    /// An argument of a call is wrong; nothing was sent.
    #[error("{0}")]
    Argument(String),
    /// The environment that a launcher should have set is missing or contradictory.
    #[error("environment: {0}")]
    Environment(String),
    /// The ranks could not be brought together.
    #[error("bootstrap: {0}")]
    Bootstrap(String),
    /// The ranks asked for different collectives; no output was written.
    #[error("ranks disagree on collective number {sequence}: {}", said.join("; "))]
    Disagreement {
        /// Which collective of this communicator, counted from 0.
        sequence: u64,
        /// One entry for each different request: the ranks and what they asked.
        said: Vec<String>,
    },
    /// A peer is gone. The communicator is of no more use.
    #[error("rank {rank} on {host} is lost ({why})")]
    PeerLost {
        /// The rank that is gone.
        rank: usize,
        /// Its host.
        host: String,
        /// How it was found out.
        why: String,
    },
    /// A peer did not come in time. The communicator is of no more use.
    #[error(
        "waited {waited:?} for rank{} {} in {phase}; set TOPOCOLL_TIMEOUT (seconds) higher if that is expected",
        if ranks.len() == 1 { "" } else { "s" },
        list(ranks)
    )]
    Timeout {
        /// How long.
        waited: Duration,
        /// The ranks waited for.
        ranks: Vec<usize>,
        /// What was being done.
        phase: String,
    },
    /// This communicator failed before and cannot be used again.
    #[error("this communicator has failed before: {0}")]
    Broken(Box<Error>),
    /// The operating system refused something.
    #[error("{what}: {source}")]
    Os {
        /// What was tried.
        what: String,
        /// What the system said.
        source: rustix::io::Errno,
    },
    /// A file could not be read or written.
    #[error("{}: {message}", path.display())]
    File {
        /// Which file.
        path: PathBuf,
        /// What the system said.
        message: String,
    },
}

/// The crate's result.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// A topology file's fault, at a line and in a field where that is known (an empty one is none).
    pub(crate) fn in_file(file: &str, line: Option<usize>, field: &str, message: impl Into<String>) -> Self {
        let field = (!field.is_empty()).then(|| field.into());
        Self::TopologyFile { file: file.into(), line, field, message: message.into() }
    }

    pub(crate) fn os(what: impl Into<String>) -> impl FnOnce(rustix::io::Errno) -> Self {
        let what = what.into();
        move |source| Self::Os { what, source }
    }
}
