//! From a collective to programs, one file an algorithm.
//!
//! An algorithm is written as *phases*: a reduce-scatter and an all-gather among a group of ranks. [`hierarchical`]
//! strings phases together, and the flat algorithms are its case of one level.

mod direct;
mod draft;
mod hierarchical;
mod ring;

pub use direct::{broadcast, one_shot};
pub use hierarchical::{Level, Method, hierarchical};

use crate::plan::{Collective, Plan};
use crate::{Error, Result};

/// What every builder needs to know.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// What to compute.
    pub collective: Collective,
    /// The host of each rank. Ranks of one host map each other's scratch, others send.
    pub hosts: &'a [usize],
    /// Bytes of the message in one chunk at most.
    pub chunk_bytes: u64,
}

impl Request<'_> {
    fn ranks(&self) -> usize {
        self.hosts.len()
    }

    fn check(&self) -> Result<()> {
        if self.hosts.is_empty() {
            return Err(Error::Plan("there are 0 ranks, at least 1 is needed".into()));
        }
        if u32::try_from(self.hosts.len()).is_err() {
            return Err(Error::Plan(format!("{} ranks are more than the 2^32 - 1 a plan can name", self.hosts.len())));
        }
        if let Some(root) = self.collective.root().filter(|root| *root >= self.hosts.len()) {
            return Err(Error::Plan(format!("root {root} is not one of the {} ranks", self.hosts.len())));
        }
        Ok(())
    }
}

/// Reduce-scatter and all-gather in one group: every rank ends with its share, then every rank with all.
pub fn two_shot(request: Request<'_>) -> Result<Plan> {
    hierarchical(request, &[Level { ranks: request.ranks(), method: Method::Direct }])
}

/// A ring in rank order, each step passing one part on.
pub fn ring(request: Request<'_>) -> Result<Plan> {
    hierarchical(request, &[Level { ranks: request.ranks(), method: Method::Ring }])
}

/// The builders that a user can name.
pub const NAMES: [&str; 5] = ["one-shot", "two-shot", "direct", "ring", "hierarchical"];
