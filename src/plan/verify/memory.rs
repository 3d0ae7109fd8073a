//! Symbolic memory: what is where, who wrote and read it, and whether that was in order.

use std::collections::HashMap;

use crate::plan::verify::{Fault, Location, Refusal};
use crate::plan::{Blocks, Buffer, Collective, Plan, Span};

/// Contributions of a set of ranks to one part of one chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Value {
    chunk: u32,
    part: u32,
    /// Index into the table of rank sets.
    ranks: u32,
    /// Names the order of combination.
    tree: u64,
    finished: bool,
}

/// Who touches memory, and what it knows.
#[derive(Clone, Copy)]
pub(super) struct Access<'a> {
    pub at: Location,
    pub lane: usize,
    pub chunk: usize,
    pub clock: &'a [u32],
}

impl Access<'_> {
    fn knows(&self, e: &Event) -> bool {
        self.clock[e.lane] >= e.time
    }

    fn event(&self) -> Event {
        Event { at: self.at, lane: self.lane, time: self.clock[self.lane] }
    }
}

#[derive(Clone, Copy)]
struct Event {
    at: Location,
    lane: usize,
    time: u32,
}

#[derive(Clone, Default)]
struct Cell {
    value: Option<Value>,
    written: Option<Event>,
    /// Since the last write.
    reads: Vec<Event>,
}

pub(super) struct Memory<'a> {
    plan: &'a Plan,
    chunks: usize,
    in_place: bool,
    blocks: Blocks,
    /// By rank; input, output, scratch one after the other, chunk (or generation) major.
    cells: Vec<Vec<Cell>>,
    sets: Vec<Box<[u64]>>,
    unions: HashMap<(u32, u32), u32>,
}

impl<'a> Memory<'a> {
    pub fn new(plan: &'a Plan, chunks: usize, in_place: bool) -> Self {
        let n = plan.ranks();
        let blocks = Blocks::of(plan);
        let sets = (0..n)
            .map(|r| {
                let mut set = vec![0u64; n.div_ceil(64)].into_boxed_slice();
                set[r / 64] = 1 << (r % 64);
                set
            })
            .collect();
        let mut memory = Self { plan, chunks, in_place, blocks, cells: Vec::new(), sets, unions: HashMap::new() };
        for rank in 0..n {
            let size = memory.size(rank, Buffer::Input) * chunks
                + memory.size(rank, Buffer::Output) * chunks
                + memory.size(rank, Buffer::Scratch) * plan.depth;
            memory.cells.push(vec![Cell::default(); size]);
            if matches!(plan.collective, Collective::Broadcast { root } if root != rank) {
                continue;
            }
            for chunk in 0..chunks {
                for at in 0..memory.size(rank, Buffer::Input) {
                    let part = blocks.part(rank, Buffer::Input, at) as u32;
                    let cell = memory.cell(rank, Span { buffer: Buffer::Input, owner: None, at: at as u32 }, 0, chunk);
                    memory.cells[rank][cell].value = Some(Value {
                        chunk: chunk as u32,
                        part,
                        ranks: rank as u32,
                        tree: mix(1, rank as u64),
                        finished: false,
                    });
                }
            }
        }
        memory
    }

    fn size(&self, rank: usize, buffer: Buffer) -> usize {
        match buffer {
            Buffer::Input | Buffer::Output => self.blocks.size(rank, buffer),
            Buffer::Scratch => self.plan.programs[rank].scratch,
        }
    }

    fn cell(&self, owner: usize, span: Span, i: usize, chunk: usize) -> usize {
        let (mut buffer, mut at) = (span.buffer, span.at as usize + i);
        if self.in_place && buffer != Buffer::Scratch {
            // The smaller buffer is the rank's own block of the larger one.
            let larger = if self.size(owner, Buffer::Input) > self.size(owner, Buffer::Output) {
                Buffer::Input
            } else {
                Buffer::Output
            };
            at = self.blocks.at(owner, larger, self.blocks.part(owner, buffer, at)).unwrap_or(at);
            buffer = larger;
        }
        let inputs = self.size(owner, Buffer::Input);
        let outputs = self.size(owner, Buffer::Output);
        match buffer {
            Buffer::Input => inputs * chunk + at,
            Buffer::Output => inputs * self.chunks + outputs * chunk + at,
            Buffer::Scratch => {
                (inputs + outputs) * self.chunks + self.size(owner, buffer) * (chunk % self.plan.depth) + at
            }
        }
    }

    fn refuse(&self, fault: Fault, at: Location, why: String) -> Refusal {
        Refusal::new(self.plan, fault, Some(at), format!("{why}{}", if self.in_place { ", in place" } else { "" }))
    }

    pub fn read(&mut self, a: Access<'_>, rank: usize, span: Span, i: usize, part: u32) -> Result<Value, Refusal> {
        let owner = span.owner.map_or(rank, |o| o as usize);
        let cell = self.cell(owner, span, i, a.chunk);
        let c = &self.cells[owner][cell];
        let Some(value) = c.value else {
            return Err(self.refuse(
                Fault::ReadBeforeWrite,
                a.at,
                format!("{span} is read before anything is written there"),
            ));
        };
        if let Some(w) = c.written.filter(|w| !a.knows(w)) {
            let why = format!("reads {span} and nothing orders that after its write by {}", w.at);
            return Err(self.refuse(Fault::UnorderedRead, a.at, why));
        }
        let event = a.event();
        let reads = &mut self.cells[owner][cell].reads;
        match reads.iter_mut().find(|r| r.lane == event.lane) {
            Some(read) => *read = event,
            None => reads.push(event),
        }
        self.expect(a.at, value, a.chunk, part)
    }

    /// That this is the part the instruction says it moves.
    pub fn expect(&self, at: Location, value: Value, chunk: usize, part: u32) -> Result<Value, Refusal> {
        if value.part != part || value.chunk as usize != chunk {
            let behind = chunk as i64 - i64::from(value.chunk);
            let of = if behind == 0 { String::new() } else { format!(" of {behind} chunk(s) before") };
            return Err(self.refuse(
                Fault::WrongData,
                at,
                format!("finds part {}{of} where part {part} should be", value.part),
            ));
        }
        Ok(value)
    }

    pub fn write(&mut self, a: Access<'_>, rank: usize, span: Span, i: usize, value: Value) -> Result<(), Refusal> {
        let cell = self.cell(rank, span, i, a.chunk);
        let c = &self.cells[rank][cell];
        if let Some(w) = c.written.filter(|w| !a.knows(w)) {
            let why = format!("writes {span} and nothing orders that after the write by {}", w.at);
            return Err(self.refuse(Fault::UnorderedWrites, a.at, why));
        }
        if let Some(r) = c.reads.iter().find(|r| !a.knows(r)) {
            let why = format!("overwrites {span} and nothing orders that after the read by {}", r.at);
            return Err(self.refuse(Fault::UnorderedRead, a.at, why));
        }
        let event = a.event();
        let c = &mut self.cells[rank][cell];
        c.value = Some(value);
        c.written = Some(event);
        c.reads.clear();
        Ok(())
    }

    /// The reduction of `values` in this order.
    pub fn combine(&mut self, at: Location, values: &[Value], finish: bool) -> Result<Value, Refusal> {
        let mut out = values[0];
        for v in values {
            if v.finished {
                return Err(self.refuse(
                    Fault::Doubled,
                    at,
                    format!("part {} is finished already and reduced again", v.part),
                ));
            }
        }
        for v in &values[1..] {
            out.ranks = self.union(out.ranks, v.ranks).ok_or_else(|| {
                let (a, b) = (self.members(out.ranks), self.members(v.ranks));
                let twice: Vec<usize> = a.into_iter().filter(|r| b.contains(r)).collect();
                let why = format!("counts part {} of rank {} twice", v.part, crate::text::list(&twice));
                self.refuse(Fault::Doubled, at, why)
            })?;
            out.tree = mix(out.tree, v.tree);
        }
        if finish {
            let missing = self.missing(out.ranks);
            if !missing.is_empty() {
                let why = format!("finishes part {} without rank {}", out.part, crate::text::list(&missing));
                return Err(self.refuse(Fault::Dropped, at, why));
            }
            out.finished = true;
        }
        Ok(out)
    }

    fn union(&mut self, a: u32, b: u32) -> Option<u32> {
        if let Some(known) = self.unions.get(&(a, b)) {
            return Some(*known);
        }
        let (x, y) = (&self.sets[a as usize], &self.sets[b as usize]);
        if x.iter().zip(y).any(|(p, q)| p & q != 0) {
            return None;
        }
        let both = x.iter().zip(y).map(|(p, q)| p | q).collect();
        self.sets.push(both);
        let id = self.sets.len() as u32 - 1;
        self.unions.insert((a, b), id);
        Some(id)
    }

    fn members(&self, set: u32) -> Vec<usize> {
        (0..self.plan.ranks()).filter(|r| self.sets[set as usize][r / 64] >> (r % 64) & 1 == 1).collect()
    }

    fn missing(&self, set: u32) -> Vec<usize> {
        (0..self.plan.ranks()).filter(|r| self.sets[set as usize][r / 64] >> (r % 64) & 1 == 0).collect()
    }

    /// That every output holds what the collective promises.
    pub fn outputs(&self) -> Result<(), Refusal> {
        let n = self.plan.ranks();
        for chunk in 0..self.chunks {
            // The order of combination that the first rank saw, by part.
            let mut trees: HashMap<u32, (usize, u64)> = HashMap::new();
            for rank in 0..n {
                for at in 0..self.size(rank, Buffer::Output) {
                    let span = Span { buffer: Buffer::Output, owner: None, at: at as u32 };
                    let cell = &self.cells[rank][self.cell(rank, span, 0, chunk)];
                    let part = self.blocks.part(rank, Buffer::Output, at) as u32;
                    let last = cell.written.map(|w| w.at);
                    let wrong = |fault, why: String| {
                        let place = if self.in_place { ", in place" } else { "" };
                        Err(Refusal::new(self.plan, fault, last, format!("rank {rank} ends {why}{place}")))
                    };
                    let Some(v) = cell.value else {
                        return wrong(Fault::Dropped, format!("with nothing in part {part} of its output"));
                    };
                    if v.part != part || v.chunk as usize != chunk {
                        return wrong(Fault::WrongData, format!("with part {} where part {part} should be", v.part));
                    }
                    match self.blocks.source(part as usize) {
                        None => {
                            let missing = self.missing(v.ranks);
                            if !missing.is_empty() {
                                let without = crate::text::list(&missing);
                                return wrong(
                                    Fault::Dropped,
                                    format!("with part {part} of its output lacking rank {without}"),
                                );
                            }
                            if n > 1 && !v.finished {
                                return wrong(Fault::Dropped, format!("with part {part} of its output not finished"));
                            }
                            let (first, tree) = *trees.entry(part).or_insert((rank, v.tree));
                            if tree != v.tree {
                                let why = format!("with part {part} combined in another order than rank {first}'s");
                                return wrong(Fault::DifferentBits, why);
                            }
                        }
                        Some(owner) => {
                            if v.ranks as usize != owner {
                                return wrong(
                                    Fault::WrongData,
                                    format!("with part {part} not from rank {owner} alone"),
                                );
                            }
                        }
                    }
                }
            }
        }
        Ok(())
    }
}

/// One round of a 64-bit mixer (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014).
fn mix(a: u64, b: u64) -> u64 {
    let mut z = a.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(b);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
