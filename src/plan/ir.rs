//! The instruction set.
//!
//! A message is cut into *chunks* that go through the program one after the other, each chunk into *parts*, which
//! are what instructions move. The program is written once and runs once a chunk, so its size does not depend on the
//! message's.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::plan::Blocks;

/// What is to be computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Collective {
    /// Every rank gets the reduction of all inputs.
    AllReduce,
    /// Rank `r` gets block `r` of the reduction; the input is `ranks` blocks.
    ReduceScatter,
    /// Every rank gets the concatenation of all inputs; the output is `ranks` blocks.
    AllGather,
    /// Every rank gets the root's input.
    Broadcast {
        /// The rank that has the data.
        root: usize,
    },
    /// The root gets the reduction of all inputs; the others' output is empty.
    Reduce {
        /// The rank that gets the result.
        root: usize,
    },
    /// Rank `r` gets block `r` of every rank's input; input and output are `ranks` blocks.
    AllToAll,
}

impl Collective {
    /// All there are, those that have a root with this one.
    pub fn every(root: usize) -> [Self; 6] {
        [
            Self::AllReduce,
            Self::ReduceScatter,
            Self::AllGather,
            Self::Broadcast { root },
            Self::Reduce { root },
            Self::AllToAll,
        ]
    }

    /// Blocks in the input and in the output of the rank with the most, for a world of `ranks`.
    pub fn blocks(self, ranks: usize) -> (usize, usize) {
        match self {
            Self::AllReduce | Self::Broadcast { .. } | Self::Reduce { .. } => (1, 1),
            Self::ReduceScatter => (ranks, 1),
            Self::AllGather => (1, ranks),
            Self::AllToAll => (ranks, ranks),
        }
    }

    /// Blocks of all ranks together that differ; a plan's parts are a multiple. All-to-all has one for each pair, so
    /// that there are no plans for it among more than 65,535 ranks: parts are counted in 32 bits.
    pub fn distinct(self, ranks: usize) -> usize {
        match self {
            Self::AllToAll => ranks.saturating_mul(ranks),
            _ => self.blocks(ranks).0.max(self.blocks(ranks).1),
        }
    }

    /// The rank that has, or gets, what the others do not.
    pub fn root(self) -> Option<usize> {
        match self {
            Self::Broadcast { root } | Self::Reduce { root } => Some(root),
            Self::AllReduce | Self::ReduceScatter | Self::AllGather | Self::AllToAll => None,
        }
    }

    /// Whether inputs are combined.
    pub fn reduces(self) -> bool {
        matches!(self, Self::AllReduce | Self::ReduceScatter | Self::Reduce { .. })
    }

    /// What nccl-tests multiplies algbw with to get busbw, the rate that a link must carry.
    pub fn bus_factor(self, ranks: usize) -> f64 {
        let n = ranks as f64;
        match self {
            Self::AllReduce => 2.0 * (n - 1.0) / n,
            Self::ReduceScatter | Self::AllGather | Self::AllToAll => (n - 1.0) / n,
            Self::Broadcast { .. } | Self::Reduce { .. } => 1.0,
        }
    }
}

impl fmt::Display for Collective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::AllReduce => "all-reduce",
            Self::ReduceScatter => "reduce-scatter",
            Self::AllGather => "all-gather",
            Self::Broadcast { .. } => "broadcast",
            Self::Reduce { .. } => "reduce",
            Self::AllToAll => "all-to-all",
        })
    }
}

/// A collective as a program for every rank.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// The name a user knows it by, such as `two-shot` or `hierarchical(direct 8, ring 4)`.
    pub algorithm: String,
    /// What it computes.
    pub collective: Collective,
    /// Parts of a chunk, of all ranks together; a multiple of [`Collective::distinct`].
    pub parts: usize,
    /// The most bytes of the message (of its larger buffer) in one chunk.
    pub chunk_bytes: u64,
    /// How many chunks have scratch of their own at a time: chunk `k` uses generation `k % depth`.
    pub depth: usize,
    /// One program a rank.
    pub programs: Vec<Program>,
}

/// What one rank does for one chunk.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Program {
    /// Parts of scratch memory, which peers on the same host can read.
    pub scratch: usize,
    /// Lanes run beside each other.
    pub lanes: Vec<Lane>,
}

/// Instructions in order. It becomes a CUDA stream, or an in-order queue on the host.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Lane(pub Vec<Instruction>);

/// The parts `first..first + count` of a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Parts {
    /// The first part.
    pub first: u32,
    /// How many.
    pub count: u32,
}

/// Which memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Buffer {
    /// The user's input, private to its rank.
    Input,
    /// The user's output, private to its rank; the input itself where the call is in place.
    Output,
    /// Memory that peers on the host can read.
    Scratch,
}

/// A place for as many parts as the instruction moves, the first at index `at`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Span {
    /// Which memory.
    pub buffer: Buffer,
    /// Whose: `None` is the rank itself, else a peer whose scratch is mapped here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<u32>,
    /// Index of the first part in that memory.
    pub at: u32,
}

/// One step. Instructions that move data name the parts, whose sizes they get from the message's [`Layout`].
///
/// [`Layout`]: crate::plan::Layout
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Instruction {
    /// Copy `parts` from `src` to `dst`.
    Copy {
        /// What is moved.
        parts: Parts,
        /// From where.
        src: Span,
        /// To where.
        dst: Span,
    },
    /// Combine `srcs`, in this order, into `dst`.
    Reduce {
        /// What is combined.
        parts: Parts,
        /// From where, at least one.
        srcs: Vec<Span>,
        /// To where; may be one of `srcs`.
        dst: Span,
        /// The result is complete: apply the operator's last step (the division of an average).
        finish: bool,
    },
    /// Send one part to a peer. Complete when `src` may be written again; a channel holds at least one part.
    Send {
        /// What is sent.
        parts: Parts,
        /// To whom.
        to: u32,
        /// One of the channels from here to there; each is in order.
        channel: u32,
        /// From where.
        src: Span,
    },
    /// Receive one part from a peer.
    Recv {
        /// What is received.
        parts: Parts,
        /// From whom.
        from: u32,
        /// One of the channels from there to here.
        channel: u32,
        /// To where.
        dst: Span,
    },
    /// Receive one part and combine: the received one first, then `src`.
    RecvReduce {
        /// What is received.
        parts: Parts,
        /// From whom.
        from: u32,
        /// One of the channels from there to here.
        channel: u32,
        /// The other operand.
        src: Span,
        /// To where; may be `src`.
        dst: Span,
        /// As in [`Instruction::Reduce`].
        finish: bool,
    },
    /// Tell a rank (or another lane of this one) that all before this in the lane is done.
    Notify {
        /// Whom.
        to: u32,
        /// One of the flags from here to there; counted, with one lane at each end.
        flag: u32,
    },
    /// Wait for the [`Instruction::Notify`] that pairs with this in order.
    Await {
        /// From whom.
        from: u32,
        /// One of the flags from there to here.
        flag: u32,
        /// Wait for the notice of that many chunks ago; not at all in the first `lag` chunks.
        #[serde(default)]
        lag: u32,
    },
}

impl Plan {
    /// How many ranks.
    pub fn ranks(&self) -> usize {
        self.programs.len()
    }

    /// The most lanes of any rank.
    pub fn lanes(&self) -> usize {
        self.programs.iter().map(|p| p.lanes.len()).max().unwrap_or(0)
    }

    /// Chunks for a message of `bytes` (of its larger buffer).
    pub fn chunks(&self, bytes: u64) -> u64 {
        bytes.div_ceil(self.chunk_bytes.max(1)).max(1)
    }

    /// Parts of a chunk in the larger buffer of a rank: all of them, except of an all-to-all.
    pub fn parts_a_rank(&self) -> usize {
        let (inputs, outputs) = self.collective.blocks(self.ranks());
        Blocks::of(self).per_block() * inputs.max(outputs)
    }

    /// Whether each result is made in one instruction from the ranks' own inputs, so that it can be accumulated in a
    /// wider type than the message's.
    pub fn single_step(&self) -> bool {
        let n = self.ranks();
        let mut all = self.programs.iter().flat_map(|p| &p.lanes).flat_map(|l| &l.0);
        all.all(|i| match i {
            Instruction::Reduce { srcs, finish, .. } => *finish && srcs.len() == n,
            Instruction::RecvReduce { .. } => false,
            _ => true,
        })
    }
}

impl Parts {
    /// The part indices.
    pub fn iter(self) -> impl Iterator<Item = u32> {
        self.first..self.first.saturating_add(self.count)
    }
}

impl Instruction {
    /// The parts it moves; `None` where it only orders.
    pub fn parts(&self) -> Option<Parts> {
        match self {
            Self::Copy { parts, .. }
            | Self::Reduce { parts, .. }
            | Self::Send { parts, .. }
            | Self::Recv { parts, .. }
            | Self::RecvReduce { parts, .. } => Some(*parts),
            Self::Notify { .. } | Self::Await { .. } => None,
        }
    }
}

impl fmt::Display for Parts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.count {
            1 => write!(f, "part {}", self.first),
            n => write!(f, "parts {}..{}", self.first, u64::from(self.first) + u64::from(n)),
        }
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let buffer = match self.buffer {
            Buffer::Input => "input",
            Buffer::Output => "output",
            Buffer::Scratch => "scratch",
        };
        match self.owner {
            None => write!(f, "{buffer}[{}]", self.at),
            Some(r) => write!(f, "rank {r}'s {buffer}[{}]", self.at),
        }
    }
}

impl fmt::Display for Instruction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Copy { parts, src, dst } => write!(f, "copy {parts} from {src} to {dst}"),
            Self::Reduce { parts, srcs, dst, finish } => {
                write!(f, "reduce {parts} of ")?;
                for (i, s) in srcs.iter().enumerate() {
                    write!(f, "{}{s}", if i == 0 { "" } else { ", " })?;
                }
                write!(f, " to {dst}{}", if *finish { " and finish" } else { "" })
            }
            Self::Send { parts, to, channel, src } => {
                write!(f, "send {parts} from {src} to rank {to} on channel {channel}")
            }
            Self::Recv { parts, from, channel, dst } => {
                write!(f, "receive {parts} from rank {from} on channel {channel} to {dst}")
            }
            Self::RecvReduce { parts, from, channel, src, dst, finish } => write!(
                f,
                "receive {parts} from rank {from} on channel {channel}, reduce with {src} to {dst}{}",
                if *finish { " and finish" } else { "" }
            ),
            Self::Notify { to, flag } => write!(f, "notify rank {to} by flag {flag}"),
            Self::Await { from, flag, lag: 0 } => write!(f, "await rank {from} by flag {flag}"),
            Self::Await { from, flag, lag } => {
                write!(f, "await rank {from} by flag {flag}, {lag} chunks behind")
            }
        }
    }
}
