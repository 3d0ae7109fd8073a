//! A plan as XML: its instructions in an order in which they could happen one by one, what peers read made into
//! messages, shared out to threadblocks, and what must wait for what found again from the memory touched. As every
//! threadblock keeps to that order, none can wait for each other in a circle.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::fmt::Write;

use super::{Kind, letter, word};
use crate::Result;
use crate::plan::verify::Location;
use crate::plan::{Blocks, Buffer, Collective, Instruction, Plan, Span, verify};

/// Chunks that a step moves at most: the runtime has room to count to 71.
const MAX_COUNT: u32 = 64;

pub(in crate::plan::formats) fn write(plan: &Plan) -> Result<String> {
    // Where all share a host, a plan is right if it is on any hosts.
    verify(plan, &vec![0; plan.ranks()])?;
    let mut lower = Lower { plan, steps: Vec::new(), conns: Vec::new(), ids: HashMap::new(), scratch: Vec::new() };
    lower.scratch = plan.programs.iter().map(|p| p.scratch as u32).collect();
    for at in order(plan) {
        lower.instruction(at);
    }
    let blocks = Blocks::of(plan);
    let (mut blocks_of, channels) = Threadblocks::assign(plan.ranks(), &lower.conns);
    let mut emit = Emit { blocks, cells: HashMap::new(), seen: HashMap::new() };
    for step in &lower.steps {
        let tb = blocks_of.of(step, &lower.conns);
        emit.step(&mut blocks_of.all, tb, step);
    }
    Ok(text(plan, blocks, &lower.scratch, &blocks_of, channels))
}

/// Sender, receiver, number, and whether it is a channel.
type Queue = (u32, u32, u32, bool);

/// Every instruction of a proved plan in an order in which one chunk could happen.
fn order(plan: &Plan) -> Vec<Location> {
    let lanes: Vec<(usize, usize)> =
        plan.programs.iter().enumerate().flat_map(|(r, p)| (0..p.lanes.len()).map(move |l| (r, l))).collect();
    let mut pc = vec![0; lanes.len()];
    // How many are there, and which lane waits.
    let mut queues: HashMap<Queue, (usize, Option<usize>)> = HashMap::new();
    let mut ready: VecDeque<usize> = (0..lanes.len()).collect();
    let mut out = Vec::new();
    while let Some(l) = ready.pop_front() {
        let (rank, lane) = lanes[l];
        let me = rank as u32;
        let Some(instruction) = plan.programs[rank].lanes[lane].0.get(pc[l]) else { continue };
        let (key, put) = match instruction {
            Instruction::Send { to, channel, .. } => ((me, *to, *channel, true), true),
            Instruction::Recv { from, channel, .. } | Instruction::RecvReduce { from, channel, .. } => {
                ((*from, me, *channel, true), false)
            }
            Instruction::Notify { to, flag } => ((me, *to, *flag, false), true),
            Instruction::Await { from, flag, lag: 0 } => ((*from, me, *flag, false), false),
            _ => {
                out.push(Location { rank, lane, index: pc[l] });
                pc[l] += 1;
                ready.push_back(l);
                continue;
            }
        };
        let queue = queues.entry(key).or_default();
        // A channel holds one part.
        if if put { key.3 && queue.0 > 0 } else { queue.0 == 0 } {
            queue.1 = Some(l);
            continue;
        }
        queue.0 = if put { queue.0 + 1 } else { queue.0 - 1 };
        ready.extend(queue.1.take());
        out.push(Location { rank, lane, index: pc[l] });
        pc[l] += 1;
        ready.push_back(l);
    }
    out
}

/// Memory of the rank itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Place {
    buffer: Buffer,
    at: u32,
}

impl Place {
    fn of(span: &Span) -> Self {
        Self { buffer: span.buffer, at: span.at }
    }

    fn plus(self, by: u32) -> Self {
        Self { at: self.at + by, ..self }
    }
}

/// What becomes a step, apart from what it waits for.
struct Draft {
    rank: u32,
    lane: usize,
    kind: Kind,
    src: Option<Place>,
    dst: Option<Place>,
    count: u32,
    /// Which connection it uses.
    conn: Option<usize>,
}

/// Messages from one threadblock to one other, in order.
struct Conn {
    from: u32,
    to: u32,
    /// The lane that sends, unless it is memory that the receiver read.
    sender: Option<usize>,
    receiver: usize,
}

/// What tells connections apart: a channel of the plan, or a lane that reads.
#[derive(PartialEq, Eq, Hash)]
enum Way {
    Channel(u32, u32, u32),
    Read(u32, u32, usize),
}

struct Lower<'a> {
    plan: &'a Plan,
    steps: Vec<Draft>,
    conns: Vec<Conn>,
    ids: HashMap<Way, usize>,
    /// Parts of scratch by rank; reductions may need more than the plan has.
    scratch: Vec<u32>,
}

impl Lower<'_> {
    fn conn(&mut self, way: Way, from: u32, to: u32) -> usize {
        let conns = &mut self.conns;
        *self.ids.entry(way).or_insert_with(|| {
            conns.push(Conn { from, to, sender: None, receiver: 0 });
            conns.len() - 1
        })
    }

    fn instruction(&mut self, at: Location) {
        let plan = self.plan;
        let rank = at.rank as u32;
        match &plan.programs[at.rank].lanes[at.lane].0[at.index] {
            Instruction::Copy { parts, src, dst } => {
                self.reduce(rank, at.lane, parts.count, std::slice::from_ref(src), Place::of(dst));
            }
            Instruction::Reduce { parts, srcs, dst, .. } => {
                self.reduce(rank, at.lane, parts.count, srcs, Place::of(dst));
            }
            Instruction::Send { to, channel, src, .. } => {
                let conn = self.conn(Way::Channel(rank, *to, *channel), rank, *to);
                self.conns[conn].sender = Some(at.lane);
                let src = Some(Place::of(src));
                self.push(rank, at.lane, Kind::Send, (src, None), 1, Some(conn));
            }
            Instruction::Recv { from, channel, dst, .. } => {
                let conn = self.conn(Way::Channel(*from, rank, *channel), *from, rank);
                self.conns[conn].receiver = at.lane;
                let dst = Some(Place::of(dst));
                self.push(rank, at.lane, Kind::Recv, (None, dst), 1, Some(conn));
            }
            Instruction::RecvReduce { from, channel, src, dst, .. } => {
                let conn = self.conn(Way::Channel(*from, rank, *channel), *from, rank);
                self.conns[conn].receiver = at.lane;
                let places = (Some(Place::of(src)), Some(Place::of(dst)));
                self.push(rank, at.lane, Kind::RecvReduceCopy, places, 1, Some(conn));
            }
            Instruction::Notify { .. } | Instruction::Await { .. } => {}
        }
    }

    fn push(
        &mut self,
        rank: u32,
        lane: usize,
        kind: Kind,
        (src, dst): (Option<Place>, Option<Place>),
        count: u32,
        conn: Option<usize>,
    ) {
        self.steps.push(Draft { rank, lane, kind, src, dst, count, conn });
    }

    /// A message with what `rank` reads of a peer; it is added to `own`.
    fn fetch(&mut self, (rank, lane): (u32, usize), src: &Span, own: Option<Place>, dst: Place, count: u32) {
        let kind = if own.is_some() { Kind::RecvReduceCopy } else { Kind::Recv };
        let owner = src.owner.unwrap_or(rank);
        let conn = self.conn(Way::Read(owner, rank, lane), owner, rank);
        self.conns[conn].receiver = lane;
        self.push(owner, 0, Kind::Send, (Some(Place::of(src)), None), count, Some(conn));
        self.push(rank, lane, kind, (own, Some(dst)), count, Some(conn));
    }

    /// From the last operand to the first, so that every step has the further one first, as the runtime has it.
    fn reduce(&mut self, rank: u32, lane: usize, count: u32, srcs: &[Span], dst: Place) {
        let remote = |s: &Span| s.owner.is_some_and(|o| o != rank);
        let apart = |s: &Span| remote(s) || s.buffer != dst.buffer || s.at == dst.at || s.at.abs_diff(dst.at) >= count;
        if count > 1 && (count > MAX_COUNT || !srcs.iter().all(apart)) {
            // One after the other, as the plan has it.
            let step = if srcs.iter().all(apart) { MAX_COUNT } else { 1 };
            for i in (0..count).step_by(step as usize) {
                let some: Vec<Span> = srcs.iter().map(|s| Span { at: s.at + i, ..*s }).collect();
                self.reduce(rank, lane, step.min(count - i), &some, dst.plus(i));
            }
            return;
        }
        let Some((last, before)) = srcs.split_last() else { return };
        let user = |b: Buffer| b != Buffer::Scratch;
        // In place, input and output are one memory.
        let same = |s: &Span| !remote(s) && (Place::of(s) == dst || (user(s.buffer) && user(dst.buffer)));
        let sum = if before.iter().any(same) {
            let at = self.scratch[rank as usize];
            self.scratch[rank as usize] += count;
            Place { buffer: Buffer::Scratch, at }
        } else {
            dst
        };
        let mut now = if remote(last) {
            let to = if before.is_empty() { dst } else { sum };
            self.fetch((rank, lane), last, None, to, count);
            to
        } else {
            Place::of(last)
        };
        for (i, src) in before.iter().enumerate().rev() {
            if remote(src) {
                let to = if i == 0 { dst } else { sum };
                self.fetch((rank, lane), src, Some(now), to, count);
                now = to;
            } else {
                if now != sum {
                    self.push(rank, lane, Kind::Copy, (Some(now), Some(sum)), count, None);
                }
                self.push(rank, lane, Kind::Reduce, (Some(Place::of(src)), Some(sum)), count, None);
                now = sum;
            }
        }
        if now != dst {
            self.push(rank, lane, Kind::Copy, (Some(now), Some(dst)), count, None);
        }
    }
}

/// A step as it is written.
struct Step {
    kind: Kind,
    src: Option<Place>,
    dst: Option<Place>,
    count: u32,
    /// Threadblock (of all) and step.
    waits: Option<(usize, usize)>,
    awaited: bool,
}

struct Threadblock {
    lane: Option<usize>,
    send: Option<usize>,
    recv: Option<usize>,
    channel: u32,
    steps: Vec<Step>,
}

struct Threadblocks {
    all: Vec<Threadblock>,
    /// Peers by number.
    conns: Vec<(u32, u32)>,
    by_rank: Vec<Vec<usize>>,
    senders: Vec<usize>,
    receivers: Vec<usize>,
    local: HashMap<(u32, usize), usize>,
}

impl Threadblocks {
    /// One for each lane that receives from a rank, which also sends: to the same rank, or what the same lane sends.
    fn assign(ranks: usize, conns: &[Conn]) -> (Self, u32) {
        let mut t = Self {
            all: Vec::new(),
            conns: conns.iter().map(|c| (c.from, c.to)).collect(),
            by_rank: vec![Vec::new(); ranks],
            senders: Vec::new(),
            receivers: Vec::new(),
            local: HashMap::new(),
        };
        for (i, c) in conns.iter().enumerate() {
            let tb = t.add(c.to, Some(c.receiver));
            t.all[tb].recv = Some(i);
            t.receivers.push(tb);
        }
        let ways = t.conns.clone();
        let mut channels = Channels::new(&ways);
        for (i, c) in conns.iter().enumerate() {
            let free = |tb: &&usize| t.all[**tb].send.is_none();
            let peer = |tb: &&usize| t.all[**tb].recv.is_some_and(|r| conns[r].from == c.to);
            let lane = |tb: &&usize| c.sender.is_some() && t.all[**tb].lane == c.sender;
            let of_rank = || t.by_rank[c.from as usize].iter().filter(free);
            let candidates: Vec<usize> = of_rank().filter(peer).chain(of_rank().filter(lane)).copied().collect();
            // Both ends of a threadblock have one channel.
            let fits = candidates.into_iter().find(|tb| t.all[*tb].recv.is_none_or(|r| channels.join(r, i)));
            let tb = fits.unwrap_or_else(|| t.add(c.from, c.sender));
            t.all[tb].send = Some(i);
            t.senders.push(tb);
        }
        let numbers = channels.numbers();
        for tb in &mut t.all {
            tb.channel = tb.send.or(tb.recv).map_or(0, |c| numbers[c]);
        }
        (t, numbers.iter().max().map_or(1, |c| c + 1))
    }

    fn add(&mut self, rank: u32, lane: Option<usize>) -> usize {
        let tb = Threadblock { lane, send: None, recv: None, channel: 0, steps: Vec::new() };
        self.all.push(tb);
        self.by_rank[rank as usize].push(self.all.len() - 1);
        self.all.len() - 1
    }

    fn of(&mut self, step: &Draft, conns: &[Conn]) -> usize {
        match step.conn {
            Some(c) if step.kind == Kind::Send && conns[c].from == step.rank => self.senders[c],
            Some(c) => self.receivers[c],
            None => {
                let key = (step.rank, step.lane);
                if let Some(tb) = self.local.get(&key) {
                    return *tb;
                }
                let mine = |tb: &&usize| self.all[**tb].lane == Some(step.lane);
                let found = self.by_rank[step.rank as usize].iter().find(mine).copied();
                let tb = found.unwrap_or_else(|| self.add(step.rank, Some(step.lane)));
                self.local.insert(key, tb);
                tb
            }
        }
    }
}

/// Connections of one channel, and whom they join.
type Group = (Vec<usize>, HashSet<(u32, u32)>);

/// Which connections have a channel in common. Two of the same ranks have not.
struct Channels<'a> {
    conns: &'a [(u32, u32)],
    of: Vec<usize>,
    groups: Vec<Group>,
}

impl<'a> Channels<'a> {
    fn new(conns: &'a [(u32, u32)]) -> Self {
        let groups = conns.iter().enumerate().map(|(i, c)| (vec![i], HashSet::from([*c]))).collect();
        Self { conns, of: (0..conns.len()).collect(), groups }
    }

    fn join(&mut self, a: usize, b: usize) -> bool {
        let (a, b) = (self.of[a], self.of[b]);
        if a == b {
            return true;
        }
        let (few, many) = if self.groups[a].0.len() < self.groups[b].0.len() { (a, b) } else { (b, a) };
        if self.groups[few].1.iter().any(|pair| self.groups[many].1.contains(pair)) {
            return false;
        }
        let (members, pairs) = std::mem::take(&mut self.groups[few]);
        members.iter().for_each(|m| self.of[*m] = many);
        self.groups[many].0.extend(members);
        self.groups[many].1.extend(pairs);
        true
    }

    /// The channel of each connection.
    fn numbers(&self) -> Vec<u32> {
        let mut used: HashMap<(u32, u32), HashSet<u32>> = HashMap::new();
        let mut numbers = vec![0; self.conns.len()];
        for (members, pairs) in &self.groups {
            let taken = |n: &u32| pairs.iter().any(|p| used.get(p).is_some_and(|u| u.contains(n)));
            let free = (0..=self.conns.len() as u32).find(|n| !taken(n)).unwrap_or(0);
            members.iter().for_each(|m| numbers[*m] = free);
            pairs.iter().for_each(|p| {
                used.entry(*p).or_default().insert(free);
            });
        }
        numbers
    }
}

/// A place as far as order is concerned: a part of the user's buffers, which may be one, or of scratch.
#[derive(PartialEq, Eq, Hash, Clone, Copy)]
enum Cell {
    User(u32, u32),
    Scratch(u32, u32),
}

#[derive(Default)]
struct Accesses {
    written: Option<(usize, usize)>,
    read: Vec<(usize, usize)>,
}

struct Emit {
    blocks: Blocks,
    cells: HashMap<Cell, Accesses>,
    /// Up to which step of another threadblock one is known to have come.
    seen: HashMap<(usize, usize), usize>,
}

impl Emit {
    fn cell(&self, rank: u32, place: Place) -> Cell {
        match place.buffer {
            Buffer::Scratch => Cell::Scratch(rank, place.at),
            user => Cell::User(rank, self.blocks.part(rank as usize, user, place.at as usize) as u32),
        }
    }

    fn step(&mut self, all: &mut [Threadblock], tb: usize, draft: &Draft) {
        let cells = |place: Option<Place>| -> Vec<Cell> {
            place.map_or(Vec::new(), |p| (0..draft.count).map(|i| self.cell(draft.rank, p.plus(i))).collect())
        };
        let mut reads = cells(draft.src);
        let writes = cells(draft.dst);
        if draft.kind == Kind::Reduce {
            reads.extend(&writes);
        }
        let mut before: BTreeMap<usize, usize> = BTreeMap::new();
        let mut need = |(t, s): (usize, usize)| {
            if t != tb {
                before.entry(t).and_modify(|last| *last = (*last).max(s)).or_insert(s);
            }
        };
        for cell in &reads {
            self.cells.get(cell).and_then(|a| a.written).into_iter().for_each(&mut need);
        }
        for a in writes.iter().filter_map(|cell| self.cells.get(cell)) {
            a.written.into_iter().chain(a.read.iter().copied()).for_each(&mut need);
        }
        before.retain(|t, s| self.seen.get(&(tb, *t)).is_none_or(|seen| seen < s));
        for (t, s) in &before {
            self.seen.insert((tb, *t), *s);
            all[*t].steps[*s].awaited = true;
        }
        let mut waits = before.into_iter().map(Some).collect::<Vec<_>>();
        let last = waits.pop().flatten();
        let nop = |waits| Step { kind: Kind::Nop, src: None, dst: None, count: 0, waits, awaited: false };
        all[tb].steps.extend(waits.into_iter().map(nop));
        let Draft { kind, src, dst, count, .. } = *draft;
        all[tb].steps.push(Step { kind, src, dst, count, waits: last, awaited: false });
        let at = (tb, all[tb].steps.len() - 1);
        for cell in reads {
            self.cells.entry(cell).or_default().read.push(at);
        }
        for cell in writes {
            self.cells.insert(cell, Accesses { written: Some(at), read: Vec::new() });
        }
    }
}

fn text(plan: &Plan, blocks: Blocks, scratch: &[u32], t: &Threadblocks, channels: u32) -> String {
    let mut out = String::new();
    // A threadblock of a rank by its number there.
    let mut numbers = vec![0; t.all.len()];
    for list in &t.by_rank {
        list.iter().enumerate().for_each(|(i, tb)| numbers[*tb] = i);
    }
    let c = plan.collective;
    let root = c.root().map(|r| format!(" root=\"{r}\"")).unwrap_or_default();
    let name: String = plan
        .algorithm
        .chars()
        .filter(|c| !c.is_control() && !matches!(c, '\u{fffe}' | '\u{ffff}'))
        .map(escaped)
        .collect();
    // Writing to a String cannot fail.
    let _ = writeln!(
        out,
        "<algo name=\"{name}\" proto=\"Simple\" nchannels=\"{channels}\" nchunksperloop=\"{}\" ngpus=\"{}\" \
         coll=\"{}\" inplace=\"{}\" outofplace=\"1\" minBytes=\"0\" maxBytes=\"{}\"{root}>",
        plan.parts_a_rank(),
        plan.ranks(),
        word(c),
        u8::from(c != Collective::AllToAll),
        1u64 << 40,
    );
    for (rank, list) in t.by_rank.iter().enumerate() {
        let size = |buffer| blocks.size(rank, buffer);
        let _ = writeln!(
            out,
            "  <gpu id=\"{rank}\" i_chunks=\"{}\" o_chunks=\"{}\" s_chunks=\"{}\">",
            size(Buffer::Input),
            size(Buffer::Output),
            scratch[rank]
        );
        for (id, tb) in list.iter().enumerate() {
            let tb = &t.all[*tb];
            let peer =
                |c: Option<usize>, pick: fn((u32, u32)) -> u32| c.map_or("-1".into(), |c| pick(t.conns[c]).to_string());
            let (send, recv) = (peer(tb.send, |c| c.1), peer(tb.recv, |c| c.0));
            let _ = writeln!(out, "    <tb id=\"{id}\" send=\"{send}\" recv=\"{recv}\" chan=\"{}\">", tb.channel);
            for (s, step) in tb.steps.iter().enumerate() {
                let place = |p: Option<Place>, other| match p {
                    Some(p) => (letter(p.buffer), p.at.to_string()),
                    None => (other, "-1".into()),
                };
                let ((src, from), (dst, to)) = (place(step.src, "i"), place(step.dst, "o"));
                let (depid, deps) = match step.waits {
                    Some((tb, step)) => (numbers[tb].to_string(), step.to_string()),
                    None => ("-1".into(), "-1".into()),
                };
                let _ = writeln!(
                    out,
                    "      <step s=\"{s}\" type=\"{}\" srcbuf=\"{src}\" srcoff=\"{from}\" dstbuf=\"{dst}\" dstoff=\"{to}\" \
                     cnt=\"{}\" depid=\"{depid}\" deps=\"{deps}\" hasdep=\"{}\"/>",
                    step.kind.name(),
                    step.count,
                    u8::from(step.awaited),
                );
            }
            out.push_str("    </tb>\n");
        }
        out.push_str("  </gpu>\n");
    }
    out.push_str("</algo>\n");
    out
}

fn escaped(c: char) -> String {
    match c {
        '<' => "&lt;".into(),
        '>' => "&gt;".into(),
        '&' => "&amp;".into(),
        '"' => "&quot;".into(),
        other => other.into(),
    }
}
