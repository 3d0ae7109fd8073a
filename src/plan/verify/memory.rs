//! Symbolic memory: what is where, who wrote and read it, and whether that was in order.

use crate::plan::verify::sums::Sums;
use crate::plan::verify::{Fault, Lanes, Location, Refusal};
use crate::plan::{Blocks, Buffer, Collective, Plan, Span};

/// Contributions of a set of ranks to one part of one chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Value {
    part: u32,
    /// Which ranks, in which order: one of [`Sums`].
    sum: u32,
    chunk: u8,
    finished: bool,
}

/// Who touches memory, and what it knows of the lanes of its host.
#[derive(Clone, Copy)]
pub(super) struct Access<'a> {
    pub at: Location,
    pub chunk: usize,
    pub event: Event,
    pub clock: &'a [u32],
}

impl Access<'_> {
    fn knows(&self, e: Event) -> bool {
        self.event.lane == e.lane || self.clock[e.lane as usize] >= e.time
    }
}

/// An instruction of a lane of the host: how many the lane had run with it, from 1.
#[derive(Clone, Copy, Default)]
pub(super) struct Event {
    pub lane: u16,
    pub time: u32,
}

#[derive(Clone, Copy, Default)]
struct Cell {
    value: Option<Value>,
    /// At time 0 if never.
    written: Event,
    /// Since the last write: the first of a list, see [`Readers`].
    readers: u32,
}

/// Lists of reads, by number from 1.
#[derive(Default)]
struct Readers {
    all: Vec<(Event, u32)>,
    free: u32,
}

impl Readers {
    fn iter(&self, mut list: u32) -> impl Iterator<Item = (usize, Event)> {
        std::iter::from_fn(move || {
            let at = list.checked_sub(1)? as usize;
            let (event, next) = self.all[at];
            list = next;
            Some((at, event))
        })
    }

    /// The list with the read of `a`, which replaces one that it comes after.
    fn with(&mut self, list: u32, a: &Access<'_>) -> u32 {
        let before = self.iter(list).find(|(_, e)| a.knows(*e));
        if let Some((at, _)) = before {
            self.all[at].0 = a.event;
            return list;
        }
        match self.free {
            0 => {
                self.all.push((a.event, list));
                self.all.len() as u32
            }
            free => {
                let slot = &mut self.all[free as usize - 1];
                self.free = slot.1;
                *slot = (a.event, list);
                free
            }
        }
    }

    fn clear(&mut self, list: u32) {
        if let Some((last, _)) = self.iter(list).last() {
            self.all[last].1 = self.free;
            self.free = list;
        }
    }
}

/// Where a rank's cells start.
struct Room {
    input: usize,
    output: usize,
    scratch: usize,
}

/// All memory of a run out of place, which is looked at as if it were in place at the same time: in place, the places
/// of an input and of an output that hold the same part are one. Nobody writes to an input.
pub(super) struct Memory<'a> {
    plan: &'a Plan,
    lanes: &'a Lanes,
    blocks: Blocks,
    chunks: usize,
    in_place: bool,
    /// The first fault that is one in place only. What is wrong out of place too is said first.
    only_in_place: Option<Refusal>,
    rooms: Vec<Room>,
    /// Outputs (chunk major) and scratch (generation major), rank by rank.
    cells: Vec<Cell>,
    /// Readers of inputs since the place was written as an output.
    inputs: Vec<u32>,
    readers: Readers,
    sums: Sums,
}

impl<'a> Memory<'a> {
    pub fn new(plan: &'a Plan, lanes: &'a Lanes, chunks: usize) -> Self {
        let blocks = Blocks::of(plan);
        let (mut inputs, mut cells) = (0, 0);
        let rooms = plan.programs.iter().enumerate().map(|(rank, program)| {
            let scratch = cells + blocks.size(rank, Buffer::Output) * chunks;
            let room = Room { input: inputs, output: cells, scratch };
            inputs += blocks.size(rank, Buffer::Input) * chunks;
            cells = scratch + program.scratch * plan.depth;
            room
        });
        let rooms = rooms.collect();
        Self {
            plan,
            lanes,
            blocks,
            chunks,
            in_place: plan.collective != Collective::AllToAll,
            only_in_place: None,
            rooms,
            cells: vec![Cell::default(); cells],
            inputs: vec![0; inputs],
            readers: Readers::default(),
            sums: Sums::new(plan.ranks()),
        }
    }

    /// Index of a place of an output or of scratch.
    fn cell(&self, rank: usize, buffer: Buffer, at: usize, chunk: usize) -> usize {
        let room = &self.rooms[rank];
        match buffer {
            Buffer::Scratch => room.scratch + self.plan.programs[rank].scratch * (chunk % self.plan.depth) + at,
            user => room.output + self.blocks.size(rank, user) * chunk + at,
        }
    }

    fn input(&self, rank: usize, at: usize, chunk: usize) -> usize {
        self.rooms[rank].input + self.blocks.size(rank, Buffer::Input) * chunk + at
    }

    /// The place of the other user buffer that is this one in place.
    fn alias(&self, rank: usize, buffer: Buffer, at: usize) -> Option<usize> {
        let other = if buffer == Buffer::Input { Buffer::Output } else { Buffer::Input };
        let part = || self.blocks.part(rank, buffer, at);
        (self.in_place && buffer != Buffer::Scratch).then(part).and_then(|part| self.blocks.at(rank, other, part))
    }

    fn refuse(&self, fault: Fault, at: Location, why: String) -> Refusal {
        Refusal::new(self.plan, fault, Some(at), why)
    }

    fn not_in_place(&mut self, fault: Refusal) {
        self.only_in_place = Some(fault);
        self.in_place = false;
    }

    pub fn read(&mut self, a: Access<'_>, rank: usize, span: &Span, i: usize, part: u32) -> Result<Value, Refusal> {
        let at = span.at as usize + i;
        let value = if span.buffer == Buffer::Input {
            self.read_input(&a, rank, span, at)?
        } else {
            let owner = span.owner.map_or(rank, |o| o as usize);
            let cell = self.cell(owner, span.buffer, at, a.chunk);
            let c = self.cells[cell];
            let Some(value) = c.value else {
                let why = format!("{span} is read before anything is written there");
                return Err(self.refuse(Fault::ReadBeforeWrite, a.at, why));
            };
            if !a.knows(c.written) {
                let writer = self.lanes.locate(self.plan, owner, c.written);
                let why = format!("reads {span} and nothing orders that after its write by {writer}");
                return Err(self.refuse(Fault::UnorderedRead, a.at, why));
            }
            self.cells[cell].readers = self.readers.with(c.readers, &a);
            value
        };
        self.expect(a.at, value, a.chunk, part)
    }

    fn read_input(&mut self, a: &Access<'_>, rank: usize, span: &Span, at: usize) -> Result<Value, Refusal> {
        if matches!(self.plan.collective, Collective::Broadcast { root } if root != rank) {
            let why = format!("{span} is read, and only the root has an input");
            return Err(self.refuse(Fault::ReadBeforeWrite, a.at, why));
        }
        let part = self.blocks.part(rank, Buffer::Input, at) as u32;
        let value = Value { part, sum: rank as u32, chunk: a.chunk as u8, finished: false };
        if let Some(out) = self.alias(rank, Buffer::Input, at) {
            let c = &self.cells[self.cell(rank, Buffer::Output, out, a.chunk)];
            if c.written.time > 0 && (!a.knows(c.written) || c.value != Some(value)) {
                let fault = if a.knows(c.written) { Fault::WrongData } else { Fault::UnorderedRead };
                let writer = self.lanes.locate(self.plan, rank, c.written);
                let why = format!("reads {span}, which in place is the output that {writer} writes");
                self.not_in_place(self.refuse(fault, a.at, why));
            }
        }
        let input = self.input(rank, at, a.chunk);
        self.inputs[input] = self.readers.with(self.inputs[input], a);
        Ok(value)
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

    pub fn write(&mut self, a: Access<'_>, rank: usize, span: &Span, i: usize, value: Value) -> Result<(), Refusal> {
        let at = span.at as usize + i;
        let cell = self.cell(rank, span.buffer, at, a.chunk);
        let c = self.cells[cell];
        if !a.knows(c.written) {
            let writer = self.lanes.locate(self.plan, rank, c.written);
            let why = format!("writes {span} and nothing orders that after the write by {writer}");
            return Err(self.refuse(Fault::UnorderedWrites, a.at, why));
        }
        self.all_read(&a, rank, span, c.readers, "")?;
        if let Some(input) = self.alias(rank, span.buffer, at) {
            let input = self.input(rank, input, a.chunk);
            if let Err(fault) = self.all_read(&a, rank, span, self.inputs[input], ", which in place is the input,") {
                self.not_in_place(fault);
            }
            self.readers.clear(std::mem::take(&mut self.inputs[input]));
        }
        self.readers.clear(c.readers);
        self.cells[cell] = Cell { value: Some(value), written: a.event, readers: 0 };
        Ok(())
    }

    /// That everyone who reads a place has done so before it is overwritten.
    fn all_read(&self, a: &Access<'_>, rank: usize, span: &Span, readers: u32, what: &str) -> Result<(), Refusal> {
        let Some((_, late)) = self.readers.iter(readers).find(|(_, e)| !a.knows(*e)) else { return Ok(()) };
        let reader = self.lanes.locate(self.plan, rank, late);
        let why = format!("overwrites {span}{what} and nothing orders that after the read by {reader}");
        Err(self.refuse(Fault::UnorderedRead, a.at, why))
    }

    /// Combines `value` into what an instruction has so far. `last`: it rounds the result to the message's type.
    pub fn combine(&mut self, at: Location, so_far: Option<Value>, value: Value, last: bool) -> Result<Value, Refusal> {
        if value.finished {
            let why = format!("part {} is finished already and reduced again", value.part);
            return Err(self.refuse(Fault::Doubled, at, why));
        }
        let Some(a) = so_far else { return Ok(value) };
        if self.sums.full() {
            return Err(self.refuse(Fault::Malformed, at, "too large to be proved: too many different sums".into()));
        }
        match self.sums.join(a.sum, value.sum, last) {
            Some(sum) => Ok(Value { sum, ..value }),
            None => {
                let twice = crate::text::list(&self.sums.common(a.sum, value.sum));
                let why = format!("counts part {} of rank {twice} twice", value.part);
                Err(self.refuse(Fault::Doubled, at, why))
            }
        }
    }

    /// The result with the operator's last step done, which needs all ranks.
    pub fn finish(&self, at: Location, value: Value) -> Result<Value, Refusal> {
        if !self.sums.is_all(value.sum) {
            let missing = crate::text::list(&self.sums.missing(value.sum));
            return Err(self.refuse(
                Fault::Dropped,
                at,
                format!("finishes part {} without rank {missing}", value.part),
            ));
        }
        Ok(Value { finished: true, ..value })
    }

    /// That every output holds what the collective promises.
    pub fn outputs(self) -> Result<(), Refusal> {
        let n = self.plan.ranks();
        for chunk in 0..self.chunks {
            // The rank that had each part first, and its order of combination.
            let mut first: Vec<Option<(u32, u32)>> = vec![None; self.plan.parts];
            for rank in 0..n {
                for at in 0..self.blocks.size(rank, Buffer::Output) {
                    let part = self.blocks.part(rank, Buffer::Output, at);
                    let cell = &self.cells[self.cell(rank, Buffer::Output, at, chunk)];
                    self.output(cell, rank, part, chunk, &mut first[part]).map_err(|(fault, why)| {
                        let written = (cell.written.time > 0).then_some(cell.written);
                        let last = written.map(|w| self.lanes.locate(self.plan, rank, w));
                        Refusal::new(self.plan, fault, last, format!("rank {rank} ends {why}"))
                    })?;
                }
            }
        }
        self.only_in_place.map_or(Ok(()), Err)
    }

    fn output(
        &self,
        cell: &Cell,
        rank: usize,
        part: usize,
        chunk: usize,
        first: &mut Option<(u32, u32)>,
    ) -> Result<(), (Fault, String)> {
        let Some(v) = cell.value else {
            return Err((Fault::Dropped, format!("with nothing in part {part} of its output")));
        };
        if v.part as usize != part || v.chunk as usize != chunk {
            return Err((Fault::WrongData, format!("with part {} where part {part} should be", v.part)));
        }
        match self.blocks.source(part) {
            Some(owner) if v.sum as usize != owner => {
                Err((Fault::WrongData, format!("with part {part} not from rank {owner} alone")))
            }
            Some(_) => Ok(()),
            None if !self.sums.is_all(v.sum) => {
                let missing = crate::text::list(&self.sums.missing(v.sum));
                Err((Fault::Dropped, format!("with part {part} of its output lacking rank {missing}")))
            }
            None if self.plan.ranks() > 1 && !v.finished => {
                Err((Fault::Dropped, format!("with part {part} of its output not finished")))
            }
            None => match *first.get_or_insert((rank as u32, v.sum)) {
                (_, sum) if sum == v.sum => Ok(()),
                (other, _) => {
                    let why = format!("with part {part} combined in another order than rank {other}'s");
                    Err((Fault::DifferentBits, why))
                }
            },
        }
    }
}
