//! A plan made ready for one rank: spans resolved to staging units, flags to counters.

use std::collections::HashMap;
use std::sync::Arc;

use crate::plan::{Buffer, Instruction, Parts, Plan, Span};
use crate::runtime::wire::shm::CELLS;
use crate::{Error, Result};

/// Parts that a channel holds.
pub(crate) const CHANNEL_DEPTH: usize = 2;

/// A place whose address follows from chunk and message.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Place {
    Input(u32),
    Output(u32),
    /// In `rank`'s staging, `unit` parts in, and `stride` more each generation.
    Staging {
        rank: u32,
        unit: u32,
        stride: u32,
    },
}

/// One end of a channel.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Port {
    pub peer: u32,
    pub cell: u32,
    pub counter: u32,
    /// Where in the sender's staging its slots start.
    pub unit: u32,
}

/// One end of a flag.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Signal {
    pub peer: u32,
    pub cell: u32,
    pub counter: u32,
}

#[derive(Debug, Clone)]
pub(crate) enum Op {
    Copy { parts: Parts, src: Place, dst: Place },
    Reduce { parts: Parts, srcs: Box<[Place]>, dst: Place, finish: bool },
    Send { part: u32, src: Place, to: Port },
    Recv { part: u32, from: Port, dst: Place },
    RecvReduce { part: u32, from: Port, src: Place, dst: Place, finish: bool },
    Notify { to: Signal },
    Await { from: Signal, lag: u32 },
}

/// One rank's program, ready to run.
#[derive(Debug)]
pub(crate) struct Code {
    pub plan: Arc<Plan>,
    pub rank: usize,
    pub lanes: Vec<Vec<Op>>,
    /// How many counters its flags and channels need.
    pub counters: usize,
    /// Parts of staging that the rank with the most needs at once.
    pub units: usize,
    /// Puts a chunk on the busiest flag or channel end of this rank, for the range of a counter.
    pub busiest: u64,
}

impl Code {
    /// `rank`'s part of a verified plan.
    pub fn new(plan: Arc<Plan>, rank: usize) -> Result<Self> {
        let channels: Vec<HashMap<(u32, u32), u32>> = plan.programs.iter().map(outgoing).collect();
        let base = |r: usize| plan.depth * plan.programs[r].scratch;
        let units = (0..plan.ranks()).map(|r| base(r) + channels[r].len() * CHANNEL_DEPTH).max().unwrap_or(0);
        if u32::try_from(units).is_err() {
            return Err(Error::Plan(format!("a rank would need {units} parts of staging")));
        }
        let mut counters: HashMap<(u8, u32, u32), u32> = HashMap::new();
        let mut uses: Vec<u64> = Vec::new();
        let mut counter = |kind: u8, peer: u32, id: u32| -> Result<u32> {
            if id as usize >= CELLS {
                return Err(Error::Plan(format!("flag or channel {id}: a pair of ranks has {CELLS}, from 0")));
            }
            let next = counters.len() as u32;
            let c = *counters.entry((kind, peer, id)).or_insert(next);
            uses.resize(uses.len().max(c as usize + 1), 0);
            uses[c as usize] += 1;
            Ok(c)
        };
        let place = |s: Span| match s.buffer {
            Buffer::Input => Place::Input(s.at),
            Buffer::Output => Place::Output(s.at),
            Buffer::Scratch => {
                let rank = s.owner.unwrap_or(rank as u32);
                Place::Staging { rank, unit: s.at, stride: plan.programs[rank as usize].scratch as u32 }
            }
        };
        let slots = |sender: usize, key: (u32, u32)| {
            (base(sender) + channels[sender].get(&key).map_or(0, |c| *c as usize) * CHANNEL_DEPTH) as u32
        };
        let me = rank as u32;
        let mut lanes = Vec::new();
        for lane in &plan.programs[rank].lanes {
            let mut code = Vec::with_capacity(lane.0.len());
            for i in &lane.0 {
                code.push(match i {
                    Instruction::Copy { parts, src, dst } => {
                        Op::Copy { parts: *parts, src: place(*src), dst: place(*dst) }
                    }
                    Instruction::Reduce { parts, srcs, dst, finish } => Op::Reduce {
                        parts: *parts,
                        srcs: srcs.iter().map(|s| place(*s)).collect(),
                        dst: place(*dst),
                        finish: *finish,
                    },
                    Instruction::Send { parts, to, channel, src } => {
                        let counter = counter(0, *to, *channel)?;
                        let unit = slots(rank, (*to, *channel));
                        let to = Port { peer: *to, cell: *channel, counter, unit };
                        Op::Send { part: parts.first, src: place(*src), to }
                    }
                    Instruction::Recv { parts, from, channel, dst } => {
                        let counter = counter(1, *from, *channel)?;
                        let unit = slots(*from as usize, (me, *channel));
                        let from = Port { peer: *from, cell: *channel, counter, unit };
                        Op::Recv { part: parts.first, from, dst: place(*dst) }
                    }
                    Instruction::RecvReduce { parts, from, channel, src, dst, finish } => {
                        let counter = counter(1, *from, *channel)?;
                        let unit = slots(*from as usize, (me, *channel));
                        let from = Port { peer: *from, cell: *channel, counter, unit };
                        let (part, src, dst) = (parts.first, place(*src), place(*dst));
                        Op::RecvReduce { part, from, src, dst, finish: *finish }
                    }
                    Instruction::Notify { to, flag } => {
                        Op::Notify { to: Signal { peer: *to, cell: *flag, counter: counter(2, *to, *flag)? } }
                    }
                    Instruction::Await { from, flag, lag } => Op::Await {
                        from: Signal { peer: *from, cell: *flag, counter: counter(3, *from, *flag)? },
                        lag: *lag,
                    },
                });
            }
            lanes.push(code);
        }
        let busiest = uses.iter().copied().max().unwrap_or(0);
        Ok(Self { rank, lanes, counters: uses.len(), units, busiest, plan: plan.clone() })
    }
}

/// The channels that a program sends on, numbered.
fn outgoing(program: &crate::plan::Program) -> HashMap<(u32, u32), u32> {
    let mut channels = HashMap::new();
    for i in program.lanes.iter().flat_map(|l| &l.0) {
        if let Instruction::Send { to, channel, .. } = i {
            let next = channels.len() as u32;
            channels.entry((*to, *channel)).or_insert(next);
        }
    }
    channels
}
