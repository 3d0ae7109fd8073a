//! From trees to programs.
//!
//! The steps of all trees are gone through in one order in which everything could happen one after the other. Each
//! step adds instructions to lanes, and what must come before what follows from the memory they touch: an instruction
//! waits for the last writer of what it reads, and for the readers of what it overwrites. As lanes keep to that order,
//! no lanes can wait for each other in a circle, however small the channels.

use std::collections::{BTreeSet, VecDeque};

use rustc_hash::{FxHashMap as HashMap, FxHashSet as HashSet};

use crate::plan::builders::Request;
use crate::plan::builders::tree::{Edge, Tree};
use crate::plan::{Blocks, Buffer, Instruction, Lane, Parts, Plan, Program, Span};

/// How finely the work of a rank is cut into lanes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Lanes {
    /// One for each level on the way in and out, the outermost being the same: for cores, which do one thing at a time.
    Coarse,
    /// One for each peer and direction as well: for GPUs, whose links are all to be busy.
    Fine,
}

impl std::str::FromStr for Lanes {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        match text.trim() {
            "coarse" => Ok(Self::Coarse),
            "fine" => Ok(Self::Fine),
            _ => Err(format!("{text:?} are no lanes; coarse or fine is expected")),
        }
    }
}

/// What a lane is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Purpose {
    /// All that one level does.
    Level(u32),
    Share {
        out: bool,
        stage: u8,
    },
    Join {
        stage: u8,
        stream: u16,
    },
    /// Peers, and whether data goes to them.
    Peer {
        out: bool,
        to: bool,
        peer: u32,
        stage: u8,
        stream: u16,
    },
    Deliver,
}

/// A place in memory, as far as order is concerned: a part of the user's buffers, which may be one, or of scratch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Cell {
    User(u32, u32),
    Scratch(u32, u32),
}

/// An instruction of a lane, by their indices.
type At = (u32, u32);

struct Op {
    instruction: Instruction,
    awaits: Vec<At>,
}

#[derive(Default)]
struct LaneDraft {
    rank: u32,
    ops: Vec<Op>,
    /// Up to which instruction another lane is known to have come.
    seen: HashMap<u32, u32>,
}

#[derive(Default)]
struct Accesses {
    first_write: Option<At>,
    last_write: Option<At>,
    since: Vec<At>,
    /// By lane, the last one.
    all: HashMap<u32, u32>,
}

/// Programs being written.
pub(super) struct Weaver<'a> {
    request: Request<'a>,
    blocks: Blocks,
    parts: usize,
    lanes: Vec<LaneDraft>,
    by_purpose: HashMap<(u32, Purpose), u32>,
    scratch: Vec<u32>,
    cells: HashMap<Cell, Accesses>,
    /// Where the current value of a part is at a rank, once it is not in the input.
    pub home: HashMap<(u32, u32), Span>,
    top: u32,
    reduces: bool,
}

/// A plan in which each part of `ins` is reduced along its tree, then each of `outs` spreads along its own.
pub(super) fn weave(request: Request<'_>, algorithm: String, parts: usize, ins: &[Tree], outs: &[Tree]) -> Plan {
    let stages = ins.iter().chain(outs).flat_map(|t| &t.edges).map(|e| u32::from(e.stage));
    let mut w = Weaver::new(request, parts, stages.max().unwrap_or(0), !ins.is_empty());
    let mapped = |a: u32, b: u32| request.hosts[a as usize] == request.hosts[b as usize];
    // Whose value of which part peers read.
    let shown_in: HashSet<(u32, u32)> = pairs(ins, |e| mapped(e.parent, e.child).then_some(e.child));
    let shown_out: HashSet<(u32, u32)> = pairs(outs, |e| mapped(e.parent, e.child).then_some(e.parent));
    w.gather(ins, &shown_in, &shown_out);
    w.spread(outs, &shown_out);
    if outs.is_empty() {
        for t in ins {
            w.deliver(t.root, t.part, Purpose::Level(w.top));
        }
    }
    w.finish(algorithm)
}

fn pairs(trees: &[Tree], of: impl Fn(&Edge) -> Option<u32>) -> HashSet<(u32, u32)> {
    trees.iter().flat_map(|t| t.edges.iter().filter_map(|e| Some((of(e)?, t.part)))).collect()
}

/// Reductions of a tree's children at one parent, in one step.
struct Join {
    stage: u8,
    step: u32,
    tree: u32,
    parent: u32,
    stream: u16,
    children: Vec<u32>,
}

impl<'a> Weaver<'a> {
    pub fn new(request: Request<'a>, parts: usize, top: u32, reduces: bool) -> Self {
        Self {
            request,
            blocks: Blocks::new(request.collective, request.ranks(), parts),
            parts,
            lanes: Vec::new(),
            by_purpose: HashMap::default(),
            scratch: vec![0; request.ranks()],
            cells: HashMap::default(),
            home: HashMap::default(),
            top,
            reduces,
        }
    }

    pub fn mapped(&self, a: u32, b: u32) -> bool {
        self.request.hosts[a as usize] == self.request.hosts[b as usize]
    }

    fn gather(&mut self, trees: &[Tree], shown: &HashSet<(u32, u32)>, shown_out: &HashSet<(u32, u32)>) {
        let mut joins: Vec<Join> = Vec::new();
        let mut open: HashMap<(u32, u8), usize> = HashMap::default();
        for (i, t) in trees.iter().enumerate() {
            open.clear();
            for e in &t.edges {
                if e.joined && self.mapped(e.parent, e.child) {
                    if let Some(&j) = open.get(&(e.parent, e.stage)) {
                        joins[j].step = joins[j].step.min(e.step);
                        joins[j].children.push(e.child);
                        continue;
                    }
                    open.insert((e.parent, e.stage), joins.len());
                }
                let (stage, step, stream) = (e.stage, e.step, e.stream);
                joins.push(Join { stage, step, tree: i as u32, parent: e.parent, stream, children: vec![e.child] });
            }
        }
        joins.sort_by_key(|j| (j.stage, std::cmp::Reverse(j.step), j.tree));
        // The last reduction at a root finishes.
        let mut left: Vec<usize> =
            trees.iter().map(|t| t.edges.iter().filter(|e| e.parent == t.root).count()).collect();
        let mut at = 0;
        while at < joins.len() {
            let stage = joins[at].stage;
            let end = at + joins[at..].iter().take_while(|j| j.stage == stage).count();
            self.show_leaves(&joins[at..end], trees);
            for join in &joins[at..end] {
                let tree = &trees[join.tree as usize];
                let (v, part) = (join.parent, tree.part);
                let root = v == tree.root;
                if root {
                    left[join.tree as usize] -= join.children.len();
                }
                let finish = root && left[join.tree as usize] == 0;
                let seen = shown.contains(&(v, part)) || (root && shown_out.contains(&(v, part)));
                self.join(join, part, finish, seen);
            }
            at = end;
        }
    }

    /// Inputs that peers are to read go where they can, those of the first to come first.
    fn show_leaves(&mut self, joins: &[Join], trees: &[Tree]) {
        let n = self.request.ranks() as u32;
        let part = |join: &Join| trees[join.tree as usize].part;
        let inner: HashSet<(u32, u32)> = joins.iter().map(|j| (j.parent, part(j))).collect();
        let mut leaves: Vec<(u32, u32, u32, u8)> = Vec::new();
        for join in joins {
            let leaf = |c: &&u32| self.mapped(**c, join.parent) && !inner.contains(&(**c, part(join)));
            let near = |c: &u32| (*c, (join.parent + n - c) % n, part(join), join.stage);
            leaves.extend(join.children.iter().filter(leaf).map(near));
        }
        leaves.sort_unstable();
        for (rank, _, part, stage) in leaves {
            self.share(rank, part, false, stage);
        }
    }

    fn join(&mut self, join: &Join, part: u32, finish: bool, shown: bool) {
        let (v, stage) = (join.parent, join.stage);
        let Some(own) = self.home(v, part) else { return };
        let place = |w: &mut Self| match (own.buffer, w.output(v, part)) {
            (Buffer::Scratch, _) if shown => own,
            (_, Some(out)) if !shown => out,
            _ => w.fresh(v),
        };
        let one = Parts { first: part, count: 1 };
        if join.children.iter().all(|c| self.mapped(v, *c)) {
            let mut owners: Vec<u32> = join.children.clone();
            owners.push(v);
            owners.sort_unstable();
            for &c in &join.children {
                if !matches!(self.home(c, part), Some(Span { buffer: Buffer::Scratch, .. })) {
                    self.share(c, part, false, stage);
                }
            }
            let srcs: Vec<Span> = owners.iter().filter_map(|&o| Some(seen_by(v, o, self.home(o, part)?))).collect();
            let dst = place(self);
            let purpose = match join.children[..] {
                [peer] => Purpose::Peer { out: false, to: false, peer, stage, stream: join.stream },
                _ => Purpose::Join { stage, stream: join.stream },
            };
            let lane = self.lane(v, false, stage, purpose);
            let reads: Vec<Cell> =
                owners.iter().filter_map(|&o| Some(self.cell(o, part, self.home(o, part)?))).collect();
            let writes = self.cell(v, part, dst);
            self.emit(lane, Instruction::Reduce { parts: one, srcs, dst, finish }, &reads, Some(writes));
            self.home.insert((v, part), dst);
            return;
        }
        // What is sent is received at once: a channel may hold one part only.
        for (i, &c) in join.children.iter().enumerate() {
            let (Some(src), Some(own)) = (self.home(c, part), self.home(v, part)) else { continue };
            let peer = |to, peer| Purpose::Peer { out: false, to, peer, stage, stream: join.stream };
            let out = self.lane(c, false, stage, peer(true, v));
            let reads = [self.cell(c, part, src)];
            self.emit(out, Instruction::Send { parts: one, to: v, channel: out, src }, &reads, None);
            let dst = place(self);
            let lane = self.lane(v, false, stage, peer(false, c));
            let (reads, writes) = ([self.cell(v, part, own)], self.cell(v, part, dst));
            let finish = finish && i + 1 == join.children.len();
            let receive = Instruction::RecvReduce { parts: one, from: c, channel: out, src: own, dst, finish };
            self.emit(lane, receive, &reads, Some(writes));
            self.home.insert((v, part), dst);
        }
    }

    fn spread(&mut self, trees: &[Tree], shown: &HashSet<(u32, u32)>) {
        for t in trees {
            if shown.contains(&(t.root, t.part)) {
                let stage = t.edges.first().map_or(0, |e| e.stage);
                self.share(t.root, t.part, true, stage);
            }
        }
        for t in trees {
            self.deliver(t.root, t.part, Purpose::Level(self.level(true, t.edges.first().map_or(0, |e| e.stage))));
        }
        let mut steps: Vec<_> =
            trees.iter().enumerate().flat_map(|(i, t)| t.edges.iter().map(move |e| (i, e))).collect();
        steps.sort_by_key(|(i, e)| (std::cmp::Reverse(e.stage), e.step, *i));
        for (i, e) in steps {
            let (part, u, v, stage, stream) = (trees[i].part, e.parent, e.child, e.stage, e.stream);
            let Some(src) = self.home(u, part) else { continue };
            let one = Parts { first: part, count: 1 };
            let dst = match self.output(v, part) {
                Some(out) if !shown.contains(&(v, part)) => out,
                _ => self.fresh(v),
            };
            let writes = self.cell(v, part, dst);
            let lane = self.lane(v, true, stage, Purpose::Peer { out: true, to: false, peer: u, stage, stream });
            if self.mapped(u, v) {
                self.share(u, part, true, stage);
                let Some(src) = self.home(u, part) else { continue };
                let reads = [self.cell(u, part, src)];
                let copy = Instruction::Copy { parts: one, src: seen_by(v, u, src), dst };
                self.emit(lane, copy, &reads, Some(writes));
            } else {
                let out = self.lane(u, true, stage, Purpose::Peer { out: true, to: true, peer: v, stage, stream });
                let reads = [self.cell(u, part, src)];
                self.emit(out, Instruction::Send { parts: one, to: v, channel: out, src }, &reads, None);
                self.emit(lane, Instruction::Recv { parts: one, from: u, channel: out, dst }, &[], Some(writes));
            }
            self.home.insert((v, part), dst);
            self.deliver(v, part, Purpose::Level(self.level(true, stage)));
        }
    }

    /// Brings a value where the host's ranks can read it, if it is not there.
    pub fn share(&mut self, rank: u32, part: u32, out: bool, stage: u8) {
        let Some(src) = self.home(rank, part).filter(|s| s.buffer != Buffer::Scratch) else { return };
        let dst = self.fresh(rank);
        let lane = self.lane(rank, out, stage, Purpose::Share { out, stage });
        let (reads, writes) = ([self.cell(rank, part, src)], self.cell(rank, part, dst));
        self.emit(lane, Instruction::Copy { parts: Parts { first: part, count: 1 }, src, dst }, &reads, Some(writes));
        self.home.insert((rank, part), dst);
    }

    /// Writes a value to the output, if it belongs there and is not there.
    pub fn deliver(&mut self, rank: u32, part: u32, level: Purpose) {
        let (Some(src), Some(dst)) = (self.home(rank, part), self.output(rank, part)) else { return };
        if src == dst {
            return;
        }
        let purpose = if self.request.lanes == Lanes::Fine { Purpose::Deliver } else { level };
        let lane = self.find_lane(rank, purpose);
        let (reads, writes) = ([self.cell(rank, part, src)], self.cell(rank, part, dst));
        self.emit(lane, Instruction::Copy { parts: Parts { first: part, count: 1 }, src, dst }, &reads, Some(writes));
    }

    /// Scattering goes through the levels from the innermost, gathering comes back.
    fn level(&self, out: bool, stage: u8) -> u32 {
        match (out, self.reduces) {
            (false, _) => u32::from(stage),
            (true, true) => 2 * self.top - u32::from(stage),
            (true, false) => self.top - u32::from(stage),
        }
    }

    pub fn lane(&mut self, rank: u32, out: bool, stage: u8, purpose: Purpose) -> u32 {
        let level = Purpose::Level(self.level(out, stage));
        self.find_lane(rank, if self.request.lanes == Lanes::Fine { purpose } else { level })
    }

    pub fn find_lane(&mut self, rank: u32, purpose: Purpose) -> u32 {
        *self.by_purpose.entry((rank, purpose)).or_insert_with(|| {
            self.lanes.push(LaneDraft { rank, ..LaneDraft::default() });
            self.lanes.len() as u32 - 1
        })
    }

    pub fn fresh(&mut self, rank: u32) -> Span {
        let at = self.scratch[rank as usize];
        self.scratch[rank as usize] += 1;
        Span { buffer: Buffer::Scratch, owner: None, at }
    }

    pub fn home(&self, rank: u32, part: u32) -> Option<Span> {
        self.home.get(&(rank, part)).copied().or_else(|| self.user(Buffer::Input, rank, part))
    }

    pub fn output(&self, rank: u32, part: u32) -> Option<Span> {
        self.user(Buffer::Output, rank, part)
    }

    fn user(&self, buffer: Buffer, rank: u32, part: u32) -> Option<Span> {
        let at = self.blocks.at(rank as usize, buffer, part as usize)?;
        Some(Span { buffer, owner: None, at: at as u32 })
    }

    pub fn cell(&self, rank: u32, part: u32, span: Span) -> Cell {
        match span.buffer {
            Buffer::Scratch => Cell::Scratch(rank, span.at),
            _ => Cell::User(rank, part),
        }
    }

    pub fn emit(&mut self, lane: u32, instruction: Instruction, reads: &[Cell], writes: Option<Cell>) {
        let mut before: HashMap<u32, u32> = HashMap::default();
        let mut need = |(l, i): At| {
            if l != lane {
                before.entry(l).and_modify(|p| *p = (*p).max(i)).or_insert(i);
            }
        };
        for cell in reads {
            self.cells.get(cell).and_then(|a| a.last_write).into_iter().for_each(&mut need);
        }
        if let Some(a) = writes.and_then(|w| self.cells.get(&w)) {
            a.last_write.into_iter().chain(a.since.iter().copied()).for_each(&mut need);
        }
        let draft = &mut self.lanes[lane as usize];
        before.retain(|l, i| draft.seen.get(l).is_none_or(|s| s < i));
        draft.seen.extend(&before);
        let mut awaits: Vec<At> = before.into_iter().collect();
        awaits.sort_unstable();
        // A rank's own lanes first, then the next peers first, so that no rank is the first of all.
        let n = self.request.ranks() as u32;
        let rank = draft.rank;
        let lanes = &self.lanes;
        awaits.sort_by_key(|(l, _)| (lanes[*l as usize].rank + n - rank) % n);
        let draft = &mut self.lanes[lane as usize];
        let merged =
            awaits.is_empty() && draft.ops.last_mut().is_some_and(|last| extend(&mut last.instruction, &instruction));
        if !merged {
            draft.ops.push(Op { instruction, awaits });
        }
        let at = (lane, draft.ops.len() as u32 - 1);
        for cell in reads {
            let a = self.cells.entry(*cell).or_default();
            a.since.push(at);
            a.all.insert(at.0, at.1);
        }
        if let Some(cell) = writes {
            let a = self.cells.entry(cell).or_default();
            a.first_write.get_or_insert(at);
            a.last_write = Some(at);
            a.since.clear();
            a.all.insert(at.0, at.1);
        }
    }

    pub fn finish(mut self, algorithm: String) -> Plan {
        let mut links: HashMap<u32, BTreeSet<u32>> = HashMap::default();
        let mut signals: Vec<(u32, u32, u32, u32)> = Vec::new();
        for (l, lane) in self.lanes.iter().enumerate() {
            for (i, op) in lane.ops.iter().enumerate() {
                for &(from, at) in &op.awaits {
                    links.entry(from).or_default().insert(l as u32);
                    signals.push((from, at, l as u32, i as u32));
                }
            }
        }
        let (depth, credits) = self.credits(&links, &signals);
        // Flags and channels are numbered by pair of ranks.
        let mut numbers: HashMap<(u32, u32), u32> = HashMap::default();
        let mut flags: HashMap<(u32, u32, bool), u32> = HashMap::default();
        let ranks: Vec<u32> = self.lanes.iter().map(|l| l.rank).collect();
        let mut flag = |from: u32, to: u32, back: bool| {
            *flags.entry((from, to, back)).or_insert_with(|| {
                let next = numbers.entry((ranks[from as usize], ranks[to as usize])).or_default();
                *next += 1;
                *next - 1
            })
        };
        let mut notices: Vec<Vec<(u32, Instruction)>> = vec![Vec::new(); self.lanes.len()];
        let mut waits: Vec<Vec<Vec<Instruction>>> = self.lanes.iter().map(|l| vec![Vec::new(); l.ops.len()]).collect();
        for &(from, at, to, before) in &signals {
            let f = flag(from, to, false);
            notices[from as usize].push((at, Instruction::Notify { to: ranks[to as usize], flag: f }));
            waits[to as usize][before as usize].push(Instruction::Await {
                from: ranks[from as usize],
                flag: f,
                lag: 0,
            });
        }
        for &(reader, writer) in &credits {
            let f = flag(reader, writer, true);
            notices[reader as usize].push((u32::MAX, Instruction::Notify { to: ranks[writer as usize], flag: f }));
            let wait = Instruction::Await { from: ranks[reader as usize], flag: f, lag: depth as u32 };
            waits[writer as usize][0].insert(0, wait);
        }
        // Until here a channel goes by the lane that sends.
        let mut channels: HashMap<(u32, u32), u32> = HashMap::default();
        let mut per_pair: HashMap<(u32, u32), u32> = HashMap::default();
        let mut number = |from: u32, to: u32, channel: &mut u32| {
            *channel = *channels.entry((*channel, to)).or_insert_with(|| {
                let next = per_pair.entry((from, to)).or_default();
                *next += 1;
                *next - 1
            });
        };
        for lane in &mut self.lanes {
            for op in &mut lane.ops {
                match &mut op.instruction {
                    Instruction::Send { to, channel, .. } => number(lane.rank, *to, channel),
                    Instruction::Recv { from, channel, .. } | Instruction::RecvReduce { from, channel, .. } => {
                        number(*from, lane.rank, channel);
                    }
                    _ => {}
                }
            }
        }
        let mut programs: Vec<Program> =
            self.scratch.iter().map(|s| Program { scratch: *s as usize, lanes: vec![] }).collect();
        for ((lane, mut notices), waits) in self.lanes.into_iter().zip(notices).zip(waits) {
            notices.sort_by_key(|(at, _)| *at);
            let mut notices = notices.into_iter().peekable();
            let mut code = Vec::with_capacity(lane.ops.len());
            for ((i, op), waits) in lane.ops.into_iter().enumerate().zip(waits) {
                code.extend(waits);
                code.push(op.instruction);
                while let Some((_, notice)) = notices.next_if(|(at, _)| *at as usize == i) {
                    code.push(notice);
                }
            }
            code.extend(notices.map(|(_, n)| n));
            programs[lane.rank as usize].lanes.push(Lane(code));
        }
        Plan {
            algorithm,
            collective: self.request.collective,
            parts: self.parts,
            chunk_bytes: self.request.chunk_bytes.max(1),
            depth,
            programs,
        }
    }

    /// How many generations of scratch there are, and which lanes must tell which that they have read it: all, but
    /// those of which the other hears anyway.
    fn credits(
        &self,
        links: &HashMap<u32, BTreeSet<u32>>,
        signals: &[(u32, u32, u32, u32)],
    ) -> (usize, Vec<(u32, u32)>) {
        // (reader, its last access) to (writer, its first write), of other lanes.
        let mut uses: HashMap<(u32, u32), (u32, u32)> = HashMap::default();
        for (cell, a) in &self.cells {
            let (Cell::Scratch(..), Some((writer, first))) = (cell, a.first_write) else { continue };
            for (&lane, &last) in a.all.iter().filter(|(l, _)| **l != writer) {
                let u = uses.entry((lane, writer)).or_insert((last, first));
                *u = (u.0.max(last), u.1.min(first));
            }
        }
        let levels = 2 * self.top as usize + 1;
        let single = self.request.lanes == Lanes::Coarse && levels == 1;
        if single {
            // With one generation, a notice must come after the last access, or be awaited before the first write.
            let heard = |(reader, writer): (u32, u32), (last, first): (u32, u32)| {
                signals.iter().any(|&(f, at, t, before)| f == reader && t == writer && (at >= last || before <= first))
            };
            let few = signals.len() * uses.len() < 1 << 24;
            if few && uses.iter().all(|(pair, at)| heard(*pair, *at)) {
                return (1, vec![]);
            }
        }
        let depth = match self.request.lanes {
            Lanes::Coarse if single => 2,
            Lanes::Coarse => levels + 1,
            Lanes::Fine => 4,
        };
        // A notice of chunk k + 1 tells that chunk k is done; each lane in between adds a chunk.
        let mut credits: Vec<(u32, u32)> = Vec::new();
        let mut by_reader: HashMap<u32, Vec<u32>> = HashMap::default();
        for &(reader, writer) in uses.keys() {
            by_reader.entry(reader).or_default().push(writer);
        }
        for (reader, writers) in by_reader {
            let mut near: HashMap<u32, usize> = HashMap::from_iter([(reader, 0)]);
            let mut open = VecDeque::from([reader]);
            while let Some(l) = open.pop_front() {
                let hops = near[&l] + 1;
                if hops < depth {
                    for &next in links.get(&l).into_iter().flatten() {
                        near.entry(next).or_insert_with(|| {
                            open.push_back(next);
                            hops
                        });
                    }
                }
            }
            credits.extend(writers.into_iter().filter(|w| !near.contains_key(w)).map(|w| (reader, w)));
        }
        credits.sort_unstable();
        (depth, credits)
    }
}

/// Makes one instruction of two that move neighbouring parts between neighbouring places.
fn extend(last: &mut Instruction, next: &Instruction) -> bool {
    let follows = |a: &Span, n: u32, b: &Span| a.buffer == b.buffer && a.owner == b.owner && a.at + n == b.at;
    match (last, next) {
        (Instruction::Copy { parts, src, dst }, Instruction::Copy { parts: p, src: s, dst: d }) => {
            let fits =
                parts.first + parts.count == p.first && follows(src, parts.count, s) && follows(dst, parts.count, d);
            parts.count += if fits { p.count } else { 0 };
            fits
        }
        (
            Instruction::Reduce { parts, srcs, dst, finish },
            Instruction::Reduce { parts: p, srcs: ss, dst: d, finish: f },
        ) => {
            let n = parts.count;
            let fits = parts.first + n == p.first
                && finish == f
                && srcs.len() == ss.len()
                && follows(dst, n, d)
                && srcs.iter().zip(ss).all(|(a, b)| follows(a, n, b));
            parts.count += if fits { p.count } else { 0 };
            fits
        }
        _ => false,
    }
}

/// The same place, seen from another rank of the host.
pub(super) fn seen_by(viewer: u32, owner: u32, span: Span) -> Span {
    Span { owner: (viewer != owner).then_some(owner), ..span }
}
