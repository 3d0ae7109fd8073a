//! A plan being written: who has which part where, which flags are taken.

use std::collections::HashMap;

use crate::plan::builders::Request;
use crate::plan::{Blocks, Buffer, Instruction, Lane, Parts, Plan, Program, Span};

/// Ranks that do a phase together, and the parts that each has after a reduce-scatter or before an all-gather.
pub(super) struct Group {
    pub ranks: Vec<usize>,
    pub shares: Vec<Vec<u32>>,
}

impl Group {
    /// The members but `i`, starting after it, so that no rank is everyone's first.
    pub fn others(&self, i: usize) -> impl Iterator<Item = usize> + use<> {
        let n = self.ranks.len();
        (1..n).map(move |step| (i + step) % n)
    }
}

/// The programs so far, and where the current value of each part is at each rank.
pub(super) struct Draft<'a> {
    pub request: Request<'a>,
    programs: Vec<Program>,
    home: HashMap<(usize, u32), Span>,
    flags: HashMap<(usize, usize), u32>,
    parts: usize,
    blocks: Blocks,
}

impl<'a> Draft<'a> {
    pub fn new(request: Request<'a>, parts: usize, lanes: usize) -> Self {
        let program = Program { scratch: 0, lanes: vec![Lane::default(); lanes] };
        Self {
            request,
            programs: vec![program; request.ranks()],
            home: HashMap::new(),
            flags: HashMap::new(),
            parts,
            blocks: Blocks::new(request.collective, request.ranks(), parts),
        }
    }

    pub fn push(&mut self, rank: usize, lane: usize, instruction: Instruction) {
        self.programs[rank].lanes[lane].0.push(instruction);
    }

    /// Whether these ranks can read each other's scratch.
    pub fn mapped(&self, ranks: &[usize]) -> bool {
        ranks.windows(2).all(|w| self.request.hosts[w[0]] == self.request.hosts[w[1]])
    }

    /// The place in the user's input that holds `part` at `rank`, if its input has that part.
    fn input(&self, rank: usize, part: u32) -> Option<Span> {
        self.user(Buffer::Input, rank, part)
    }

    /// The place in the user's output for `part` at `rank`, if its output has that part.
    pub fn output(&self, rank: usize, part: u32) -> Option<Span> {
        self.user(Buffer::Output, rank, part)
    }

    fn user(&self, buffer: Buffer, rank: usize, part: u32) -> Option<Span> {
        let at = self.blocks.at(rank, buffer, part as usize)?;
        Some(Span { buffer, owner: None, at: at as u32 })
    }

    /// Where `part`'s current value is at `rank`.
    pub fn home(&self, rank: usize, part: u32) -> Option<Span> {
        self.home.get(&(rank, part)).copied().or_else(|| self.input(rank, part))
    }

    pub fn set_home(&mut self, rank: usize, part: u32, at: Span) {
        self.home.insert((rank, part), at);
    }

    /// Fresh scratch for `count` parts.
    pub fn scratch(&mut self, rank: usize, count: u32) -> Span {
        let at = self.programs[rank].scratch as u32;
        self.programs[rank].scratch += count as usize;
        Span { buffer: Buffer::Scratch, owner: None, at }
    }

    /// A place for a result: shared with the host's ranks, or in the output where it has room for it.
    pub fn place(&mut self, rank: usize, part: u32, shared: bool) -> Span {
        match self.output(rank, part) {
            Some(out) if !shared => out,
            _ => self.scratch(rank, 1),
        }
    }

    /// A fresh flag from `from` to `to`.
    pub fn flag(&mut self, from: usize, to: usize) -> u32 {
        let next = self.flags.entry((from, to)).or_default();
        *next += 1;
        *next - 1
    }

    pub fn notify(&mut self, rank: usize, lane: usize, to: usize, flag: u32) {
        self.push(rank, lane, Instruction::Notify { to: to as u32, flag });
    }

    pub fn wait(&mut self, rank: usize, lane: usize, from: usize, flag: u32) {
        self.push(rank, lane, Instruction::Await { from: from as u32, flag, lag: 0 });
    }

    /// Sends `parts` from where they are.
    pub fn send(&mut self, rank: usize, lane: usize, to: usize, channel: u32, parts: &[u32]) {
        for &part in parts {
            if let Some(src) = self.home(rank, part) {
                let parts = Parts { first: part, count: 1 };
                self.push(rank, lane, Instruction::Send { parts, to: to as u32, channel, src });
            }
        }
    }

    /// Receives `parts` into fresh places, which become their home.
    pub fn recv(&mut self, rank: usize, lane: usize, from: usize, channel: u32, parts: &[u32], shared: bool) {
        for &part in parts {
            let dst = self.place(rank, part, shared);
            let parts = Parts { first: part, count: 1 };
            self.push(rank, lane, Instruction::Recv { parts, from: from as u32, channel, dst });
            self.set_home(rank, part, dst);
        }
    }

    /// Makes lane `after` start where lane `before` of the same rank stands now.
    pub fn order(&mut self, rank: usize, before: usize, after: usize, lag: u32) {
        let flag = self.flag(rank, rank);
        self.notify(rank, before, rank, flag);
        let wait = Instruction::Await { from: rank as u32, flag, lag };
        match lag {
            0 => self.push(rank, after, wait),
            // Back pressure holds a chunk before it begins.
            _ => self.programs[rank].lanes[after].0.insert(0, wait),
        }
    }

    /// Copies parts from where they are to where `to` says, joining neighbours into one instruction.
    pub fn copy(&mut self, rank: usize, lane: usize, moves: impl IntoIterator<Item = (u32, Span, Span)>) {
        let mut run: Option<(Parts, Span, Span)> = None;
        for (part, src, dst) in moves {
            if src == dst {
                continue;
            }
            match &mut run {
                Some((parts, s, d))
                    if part == parts.first + parts.count
                        && follows(*s, parts.count, src)
                        && follows(*d, parts.count, dst) =>
                {
                    parts.count += 1;
                }
                _ => {
                    if let Some((parts, src, dst)) = run.take() {
                        self.push(rank, lane, Instruction::Copy { parts, src, dst });
                    }
                    run = Some((Parts { first: part, count: 1 }, src, dst));
                }
            }
        }
        if let Some((parts, src, dst)) = run {
            self.push(rank, lane, Instruction::Copy { parts, src, dst });
        }
    }

    /// Brings `parts` of `rank` where its host can read them, and tells where.
    pub fn share(&mut self, rank: usize, lane: usize, parts: &[u32]) {
        let mut moves = Vec::with_capacity(parts.len());
        for &part in parts {
            match self.home(rank, part) {
                Some(home) if home.buffer != Buffer::Scratch => {
                    let dst = self.scratch(rank, 1);
                    moves.push((part, home, dst));
                    self.set_home(rank, part, dst);
                }
                _ => {}
            }
        }
        self.copy(rank, lane, moves);
    }

    /// Writes to the output whatever belongs there and is not there yet.
    pub fn deliver(&mut self, rank: usize, lane: usize, parts: &[u32]) {
        let moves: Vec<_> =
            parts.iter().filter_map(|&p| Some((p, self.home(rank, p)?, self.output(rank, p)?))).collect();
        self.copy(rank, lane, moves);
    }

    pub fn finish(self, algorithm: String, depth: usize) -> Plan {
        Plan {
            algorithm,
            collective: self.request.collective,
            parts: self.parts,
            chunk_bytes: self.request.chunk_bytes.max(1),
            depth,
            programs: self.programs,
        }
    }
}

fn follows(first: Span, count: u32, next: Span) -> bool {
    first.buffer == next.buffer && first.owner == next.owner && first.at + count == next.at
}

/// The same place, seen from another rank of the host.
pub(super) fn seen_by(viewer: usize, owner: usize, span: Span) -> Span {
    Span { owner: (viewer != owner).then_some(owner as u32), ..span }
}
