//! Algorithms of MSCCL's runtime: `algo > gpu > tb > step`.
//!
//! A threadblock (`tb`) runs its steps in order, sends to one rank at most and receives from one at most, on one
//! channel. A step may wait for one step of another threadblock of its rank (`depid`, `deps`); `nop` steps wait for
//! more. The program runs once for each piece of `nchunksperloop` chunks of the larger buffer, and what is scratch for
//! one piece is not for the next.

mod read;
mod write;

pub(super) use read::read;
pub(super) use write::write;

use crate::plan::{Buffer, Collective};

/// What a step does. `recv` and `send` stand in the name where there is one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Send,
    Recv,
    RecvCopySend,
    RecvReduceSend,
    RecvReduceCopy,
    RecvReduceCopySend,
    Copy,
    Reduce,
    Nop,
}

impl Kind {
    const ALL: [(Self, &str); 9] = [
        (Self::Send, "s"),
        (Self::Recv, "r"),
        (Self::RecvCopySend, "rcs"),
        (Self::RecvReduceSend, "rrs"),
        (Self::RecvReduceCopy, "rrc"),
        (Self::RecvReduceCopySend, "rrcs"),
        (Self::Copy, "cpy"),
        (Self::Reduce, "re"),
        (Self::Nop, "nop"),
    ];

    fn name(self) -> &'static str {
        Self::ALL.iter().find(|(k, _)| *k == self).map_or("nop", |(_, name)| name)
    }

    fn sends(self) -> bool {
        matches!(self, Self::Send | Self::RecvCopySend | Self::RecvReduceSend | Self::RecvReduceCopySend)
    }

    fn receives(self) -> bool {
        !matches!(self, Self::Send | Self::Copy | Self::Reduce | Self::Nop)
    }

    fn reads(self) -> bool {
        !matches!(self, Self::Recv | Self::RecvCopySend | Self::Nop)
    }

    fn writes(self) -> bool {
        !matches!(self, Self::Send | Self::RecvReduceSend | Self::Nop)
    }
}

fn letter(buffer: Buffer) -> &'static str {
    match buffer {
        Buffer::Input => "i",
        Buffer::Output => "o",
        Buffer::Scratch => "s",
    }
}

/// The word for a collective that RCCL's runtime takes.
fn word(collective: Collective) -> &'static str {
    match collective {
        Collective::AllReduce => "allreduce",
        Collective::ReduceScatter => "reducescatter",
        Collective::AllGather => "allgather",
        Collective::Broadcast { .. } => "broadcast",
        Collective::Reduce { .. } => "reduce",
        Collective::AllToAll => "alltoall",
    }
}
