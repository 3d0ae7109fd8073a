//! From a collective to programs.
//!
//! An algorithm is a [`Shape`]: the trees along which the members of a group bring data together and spread it.
//! [`hierarchical`] strings shapes together over the levels of a machine, the flat algorithms being its case of one
//! level, and `weave` makes programs of the trees.

mod hierarchical;
mod one_shot;
mod tree;
mod weave;

pub use hierarchical::{Nest, hierarchical, steps};
pub use one_shot::one_shot;
pub(in crate::plan) use tree::Step;
pub use tree::{Edge, Shape, Tree};
pub use weave::Lanes;

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
    /// How finely work is cut into lanes.
    pub lanes: Lanes,
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

/// All ranks as one group, in rank order, that works together as `shape` says.
///
/// # Errors
/// As [`hierarchical`].
pub fn flat(request: Request<'_>, shape: Shape) -> Result<Plan> {
    hierarchical(request, &Nest::even(&[(request.ranks(), shape.into())]), false)
}

/// Reduce-scatter and all-gather in one group: every rank ends with its share, then every rank with all.
///
/// # Errors
/// As [`hierarchical`].
pub fn two_shot(request: Request<'_>) -> Result<Plan> {
    hierarchical(request, &Nest::even(&[(request.ranks(), Shape::Direct.into())]), true)
}

/// The builders that a user can name.
pub const NAMES: [&str; 8] =
    ["one-shot", "two-shot", "direct", "ring", "tree", "halving-doubling", "forest", "hierarchical"];
