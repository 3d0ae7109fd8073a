//! XML as a plan. A threadblock becomes a lane; what it waits for becomes notices between lanes of the rank.
//!
//! One chunk is run on symbols, to know which part each step moves and which reduction is the last of its part. Where
//! a file cannot run to its end, the rest is read as it stands, and the proof says why.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use roxmltree::{Document, Node};

use super::{Kind, letter};
use crate::plan::{Blocks, Buffer, Collective, Instruction, Lane, Parts, Plan, Program, Span};
use crate::{Error, Result};

const MAX_RANKS: usize = 1 << 14;
/// Threadblocks of a rank: more than any GPU runs at a time.
const MAX_THREADBLOCKS: usize = 512;
/// Chunks that all steps move together.
const MAX_MOVES: usize = 1 << 20;
/// Chunks in one buffer of all ranks together.
const MAX_CHUNKS: usize = 1 << 20;
/// Pairs of threadblocks that share memory, of all ranks together.
const MAX_PAIRS: usize = 1 << 22;
/// Messages that a connection of the runtime holds.
const SLOTS: usize = 2;
/// The runtime has scratch for a whole message; a plan has some generations.
const DEPTH: u32 = 2;
const CHUNK_BYTES: u64 = 1 << 20;

/// Reads `text`, which begins `skipped` bytes into `whole`.
pub(in crate::plan::formats) fn read(text: &str, skipped: usize, whole: &str, file: &str) -> Result<Plan> {
    let before = whole.get(..skipped).map_or(0, |t| t.matches('\n').count());
    let doc = Document::parse(text).map_err(|e| Error::PlanFile {
        file: file.into(),
        line: Some(e.pos().row as usize + before),
        message: format!("this is no well-formed XML: {e}"),
    })?;
    let starts = std::iter::once(0).chain(text.match_indices('\n').map(|(i, _)| i + 1)).collect();
    let source = Source { file, before, starts };
    let algo = source.algo(doc.root_element())?;
    Ok(Reader::new(&algo).plan())
}

struct Source<'a> {
    file: &'a str,
    before: usize,
    /// Where each line begins.
    starts: Vec<usize>,
}

struct Algo {
    name: String,
    collective: Collective,
    parts: usize,
    /// The input of a rank is its output, and steps may write to it.
    in_place: bool,
    gpus: Vec<Gpu>,
}

#[derive(Default)]
struct Gpu {
    scratch: usize,
    threadblocks: Vec<Threadblock>,
}

struct Threadblock {
    send: Option<u32>,
    recv: Option<u32>,
    channel: u32,
    steps: Vec<Step>,
}

#[derive(Clone, Copy)]
struct Step {
    kind: Kind,
    src: (Buffer, u32),
    dst: (Buffer, u32),
    count: u32,
    /// Threadblock of the rank, and its step.
    waits: Option<(usize, usize)>,
}

impl Source<'_> {
    fn fail<T>(&self, node: Node<'_, '_>, message: String) -> Result<T> {
        // The document's own way to a line reads all before it.
        let line = self.starts.partition_point(|start| *start <= node.range().start) + self.before;
        Err(Error::PlanFile { file: self.file.into(), line: Some(line), message })
    }

    fn text<'n>(&self, node: Node<'n, '_>, name: &str) -> Result<&'n str> {
        let element = node.tag_name().name();
        node.attribute(name)
            .map_or_else(|| self.fail(node, format!("<{element}> has no `{name}`, which MSCCL's runtime needs")), Ok)
    }

    fn number(&self, node: Node<'_, '_>, name: &str, least: i64, most: usize) -> Result<i64> {
        let text = self.text(node, name)?;
        let found = text.trim().parse::<i64>().ok();
        found.filter(|n| *n >= least && *n <= most as i64).map_or_else(
            || self.fail(node, format!("`{name}` is {text:?}, expected a whole number from {least} to {most}")),
            Ok,
        )
    }

    fn count(&self, node: Node<'_, '_>, name: &str, most: usize) -> Result<usize> {
        Ok(self.number(node, name, 0, most)? as usize)
    }

    /// A rank, a threadblock or a step; `None` where it is -1.
    fn index(&self, node: Node<'_, '_>, name: &str, count: usize) -> Result<Option<usize>> {
        Ok(usize::try_from(self.number(node, name, -1, count.saturating_sub(1))?).ok())
    }

    fn algo(&self, root: Node<'_, '_>) -> Result<Algo> {
        if !root.has_tag_name("algo") {
            return self.fail(root, format!("found <{}>, expected MSCCL's <algo>", root.tag_name().name()));
        }
        let ranks = self.number(root, "ngpus", 1, MAX_RANKS)? as usize;
        let rooted = |s: &Self| match root.attribute("root") {
            None => Ok(0),
            Some(_) => s.count(root, "root", ranks - 1),
        };
        let word = self.text(root, "coll")?;
        let collective = match word.replace(['_', '-'], "").to_lowercase().as_str() {
            "allreduce" => Collective::AllReduce,
            "reducescatter" => Collective::ReduceScatter,
            "allgather" => Collective::AllGather,
            "alltoall" => Collective::AllToAll,
            "broadcast" => Collective::Broadcast { root: rooted(self)? },
            "reduce" => Collective::Reduce { root: rooted(self)? },
            _ => {
                let known = "allreduce, reducescatter, allgather, alltoall, broadcast or reduce";
                return self.fail(root, format!("`coll` is {word:?}, and what that promises is not known; {known} is"));
            }
        };
        let chunks = self.number(root, "nchunksperloop", 1, MAX_CHUNKS / ranks)? as usize;
        let (inputs, outputs) = collective.blocks(ranks);
        let blocks = inputs.max(outputs);
        if !chunks.is_multiple_of(blocks) {
            return self.fail(
                root,
                format!("`nchunksperloop` is {chunks}, expected a multiple of the {blocks} blocks of {collective}"),
            );
        }
        let flag = |name| root.attribute(name).is_some_and(|v| v.trim() == "1");
        let mut gpus: Vec<Option<Gpu>> = Vec::new();
        gpus.resize_with(ranks, || None);
        let (mut moves, mut scratch, mut pairs) = (0, 0, 0);
        for node in root.children().filter(|n| n.has_tag_name("gpu")) {
            let id = self.count(node, "id", ranks - 1)?;
            if gpus[id].is_some() {
                return self.fail(node, format!("there is a <gpu> of id {id} before; each has one"));
            }
            let gpu = self.gpu(
                node,
                Blocks::new(collective, ranks, chunks / blocks * collective.distinct(ranks)),
                id,
                ranks,
                &mut moves,
            )?;
            scratch += gpu.scratch;
            pairs += gpu.threadblocks.len().pow(2);
            if pairs > MAX_PAIRS {
                return self.fail(node, "too many threadblocks up to here to be read".into());
            }
            if scratch > MAX_CHUNKS {
                return self.fail(node, format!("more than {MAX_CHUNKS} chunks of scratch up to here are too many"));
            }
            gpus[id] = Some(gpu);
        }
        if let Some(missing) = gpus.iter().position(Option::is_none) {
            return self.fail(root, format!("there is no <gpu> of id {missing}, and `ngpus` is {ranks}"));
        }
        Ok(Algo {
            name: root.attribute("name").filter(|n| !n.is_empty()).unwrap_or("msccl").into(),
            collective,
            parts: chunks / blocks * collective.distinct(ranks),
            in_place: flag("inplace") && !flag("outofplace"),
            gpus: gpus.into_iter().flatten().collect(),
        })
    }

    fn gpu(&self, node: Node<'_, '_>, blocks: Blocks, rank: usize, ranks: usize, moves: &mut usize) -> Result<Gpu> {
        let scratch = self.count(node, "s_chunks", MAX_CHUNKS)?;
        let nodes: Vec<_> = node.children().filter(|n| n.has_tag_name("tb")).collect();
        if nodes.len() > MAX_THREADBLOCKS {
            return self.fail(node, format!("{} threadblocks, at most {MAX_THREADBLOCKS} are expected", nodes.len()));
        }
        // Of each threadblock, which steps tell that they are done.
        let tells: Vec<Vec<bool>> = nodes
            .iter()
            .map(|t| {
                t.children().filter(|n| n.has_tag_name("step")).map(|s| s.attribute("hasdep") == Some("1")).collect()
            })
            .collect();
        let mut threadblocks = Vec::with_capacity(nodes.len());
        for (i, tb) in nodes.iter().enumerate() {
            if self.count(*tb, "id", nodes.len())? != i {
                return self.fail(
                    *tb,
                    format!("`id` is {:?}, expected {i}: they are numbered in order", self.text(*tb, "id")?),
                );
            }
            let peer = |name| -> Result<Option<u32>> { Ok(self.index(*tb, name, ranks)?.map(|p| p as u32)) };
            let (send, recv) = (peer("send")?, peer("recv")?);
            let channel = self.count(*tb, "chan", 1 << 16)? as u32;
            let mut steps = Vec::with_capacity(tells[i].len());
            for s in tb.children().filter(|n| n.has_tag_name("step")) {
                if self.count(s, "s", tells[i].len())? != steps.len() {
                    return self.fail(
                        s,
                        format!(
                            "`s` is {:?}, expected {}: steps are numbered in order",
                            self.text(s, "s")?,
                            steps.len()
                        ),
                    );
                }
                let step = self.step(s, blocks, rank, scratch, &tells, i)?;
                for (what, needed, peer) in [("send", step.kind.sends(), send), ("recv", step.kind.receives(), recv)] {
                    if needed && peer.is_none() {
                        return self.fail(
                            s,
                            format!("`{}` needs a peer, and its <tb> has none in `{what}`", step.kind.name()),
                        );
                    }
                }
                *moves += step.count as usize + 1;
                if *moves > MAX_MOVES {
                    return self
                        .fail(s, format!("more than {MAX_MOVES} chunks moved up to here are too many to be read"));
                }
                steps.push(step);
            }
            threadblocks.push(Threadblock { send, recv, channel, steps });
        }
        Ok(Gpu { scratch, threadblocks })
    }

    fn step(
        &self,
        node: Node<'_, '_>,
        blocks: Blocks,
        rank: usize,
        scratch: usize,
        tells: &[Vec<bool>],
        tb: usize,
    ) -> Result<Step> {
        let word = self.text(node, "type")?;
        let Some((kind, _)) = Kind::ALL.into_iter().find(|(_, name)| *name == word) else {
            let names = Kind::ALL.map(|(_, name)| name).join(", ");
            return self.fail(node, format!("`type` is {word:?}, expected one of {names}"));
        };
        let count = if kind == Kind::Nop { 0 } else { self.number(node, "cnt", 1, MAX_MOVES)? as u32 };
        let place = |buf: &str, off: &str, used: bool| {
            if !used {
                return Ok((Buffer::Scratch, 0));
            }
            let (buffer, size) = match self.text(node, buf)? {
                "i" => (Buffer::Input, blocks.size(rank, Buffer::Input)),
                "o" => (Buffer::Output, blocks.size(rank, Buffer::Output)),
                "s" => (Buffer::Scratch, scratch),
                other => return self.fail(node, format!("`{buf}` is {other:?}, expected i, o or s")),
            };
            let at = self.count(node, off, MAX_CHUNKS)?;
            if at + count as usize > size {
                let last = at + count as usize - 1;
                return self.fail(
                    node,
                    format!("chunk {last} of buffer {} is past its end: rank {rank} has {size} there", letter(buffer)),
                );
            }
            Ok((buffer, at as u32))
        };
        let src = place("srcbuf", "srcoff", kind.reads())?;
        let dst = place("dstbuf", "dstoff", kind.writes())?;
        let waits = match self.index(node, "depid", tells.len())? {
            // Steps of one threadblock are in order anyway.
            Some(other) if other != tb => {
                let step = self.count(node, "deps", tells[other].len())?;
                // The runtime waits until that step or a later one tells.
                let told = tells[other].iter().skip(step).position(|t| *t);
                let Some(later) = told else {
                    return self.fail(
                        node,
                        format!("it would wait forever: no step of threadblock {other} from {step} on has `hasdep` 1"),
                    );
                };
                Some((other, step + later))
            }
            _ => None,
        };
        Ok(Step { kind, src, dst, count, waits })
    }
}

/// A part, and how many ranks' contributions.
#[derive(Clone, Copy)]
struct Value {
    part: u32,
    sum: u32,
}

/// Where data really is: in place, an input and the place of the output that it is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Cell {
    Input(u32),
    Output(u32),
    Scratch(u32),
}

#[derive(Default)]
struct Rank {
    /// What was written.
    cells: HashMap<Cell, Value>,
    scratch: usize,
    /// Scratch that stands for places of the input that steps write to.
    stand_ins: BTreeMap<u32, u32>,
    /// By place of scratch: the lanes that touch it, and those that write.
    touched: HashMap<u32, (BTreeSet<u32>, BTreeSet<u32>)>,
    /// By place of the input: lanes that read it there.
    readers: HashMap<u32, BTreeSet<u32>>,
    flags: u32,
}

impl Rank {
    fn flag(&mut self) -> u32 {
        self.flags += 1;
        self.flags - 1
    }
}

/// A threadblock on its way to a lane.
struct LaneDraft {
    rank: usize,
    of_rank: usize,
    /// Instructions of each step that is done.
    steps: Vec<Vec<Instruction>>,
    sent: usize,
    received: usize,
}

/// The chunks of one step.
type Message = Vec<Option<Value>>;

/// From, to, the file's channel, slot, and chunk of the step.
type ChannelKey = (u32, u32, u32, usize, u32);

struct Reader<'a> {
    algo: &'a Algo,
    blocks: Blocks,
    ranks: Vec<Rank>,
    lanes: Vec<LaneDraft>,
    first_lane: Vec<usize>,
    messages: HashMap<(u32, u32, u32), VecDeque<Message>>,
    channels: HashMap<ChannelKey, u32>,
    per_pair: HashMap<(u32, u32), u32>,
}

impl<'a> Reader<'a> {
    fn new(algo: &'a Algo) -> Self {
        let n = algo.gpus.len();
        let blocks = Blocks::new(algo.collective, n, algo.parts);
        let mut reader = Self {
            algo,
            blocks,
            ranks: Vec::new(),
            lanes: Vec::new(),
            first_lane: Vec::new(),
            messages: HashMap::new(),
            channels: HashMap::new(),
            per_pair: HashMap::new(),
        };
        for (rank, gpu) in algo.gpus.iter().enumerate() {
            reader.first_lane.push(reader.lanes.len());
            reader.ranks.push(Rank { scratch: gpu.scratch, ..Rank::default() });
            for (of_rank, tb) in gpu.threadblocks.iter().enumerate() {
                reader.lanes.push(LaneDraft { rank, of_rank, steps: Vec::new(), sent: 0, received: 0 });
                for step in tb.steps.iter().filter(|s| s.kind.writes() && s.dst.0 == Buffer::Input) {
                    for at in step.dst.1..step.dst.1 + step.count {
                        if matches!(reader.cell(rank, (Buffer::Input, at)), Cell::Input(_)) {
                            let r = &mut reader.ranks[rank];
                            let scratch = &mut r.scratch;
                            r.stand_ins.entry(at).or_insert_with(|| {
                                *scratch += 1;
                                *scratch as u32 - 1
                            });
                        }
                    }
                }
            }
        }
        for rank in 0..n {
            for at in reader.ranks[rank].stand_ins.clone().into_keys() {
                if let Some(value) = reader.initial(rank, Cell::Input(at)) {
                    reader.ranks[rank].cells.insert(Cell::Input(at), value);
                }
            }
        }
        reader
    }

    /// In place, the output is the input where both have the same part.
    fn cell(&self, rank: usize, (buffer, at): (Buffer, u32)) -> Cell {
        match buffer {
            Buffer::Scratch => Cell::Scratch(at),
            Buffer::Output => Cell::Output(at),
            Buffer::Input => {
                let part = self.blocks.part(rank, Buffer::Input, at as usize);
                let alias = self.blocks.at(rank, Buffer::Output, part).filter(|_| self.algo.in_place);
                alias.map_or(Cell::Input(at), |out| Cell::Output(out as u32))
            }
        }
    }

    /// The place of the input that a cell has its first value from.
    fn input(&self, rank: usize, cell: Cell) -> Option<u32> {
        match cell {
            Cell::Input(at) => Some(at),
            Cell::Output(at) if self.algo.in_place => {
                let part = self.blocks.part(rank, Buffer::Output, at as usize);
                self.blocks.at(rank, Buffer::Input, part).map(|at| at as u32)
            }
            _ => None,
        }
    }

    fn initial(&self, rank: usize, cell: Cell) -> Option<Value> {
        let at = self.input(rank, cell).filter(|_| !only_root(self.algo.collective, rank))?;
        Some(Value { part: self.blocks.part(rank, Buffer::Input, at as usize) as u32, sum: 1 })
    }

    fn place(&mut self, l: usize, cell: Cell, write: bool) -> Span {
        let (rank, lane) = (self.lanes[l].rank, self.lanes[l].of_rank as u32);
        let written = write || self.ranks[rank].cells.contains_key(&cell);
        let input = self.input(rank, cell);
        let r = &mut self.ranks[rank];
        let scratch = match (cell, input) {
            (Cell::Input(at), _) if r.stand_ins.contains_key(&at) => r.stand_ins[&at],
            (Cell::Input(_) | Cell::Output(_), Some(at)) if !written => {
                r.readers.entry(at).or_default().insert(lane);
                return own(Buffer::Input, at);
            }
            (Cell::Input(at), _) => return own(Buffer::Input, at),
            (Cell::Output(at), _) => return own(Buffer::Output, at),
            (Cell::Scratch(at), _) => at,
        };
        let touched = r.touched.entry(scratch).or_default();
        touched.0.insert(lane);
        if write {
            touched.1.insert(lane);
        }
        own(Buffer::Scratch, scratch)
    }

    fn load(&mut self, l: usize, place: (Buffer, u32)) -> (Span, Option<Value>) {
        let rank = self.lanes[l].rank;
        let cell = self.cell(rank, place);
        let value = self.ranks[rank].cells.get(&cell).copied().or_else(|| self.initial(rank, cell));
        (self.place(l, cell, false), value)
    }

    fn store(&mut self, l: usize, place: (Buffer, u32), value: Option<Value>) -> Span {
        let rank = self.lanes[l].rank;
        let cell = self.cell(rank, place);
        let span = self.place(l, cell, true);
        self.ranks[rank].cells.insert(cell, value.unwrap_or(Value { part: 0, sum: 0 }));
        span
    }

    fn channel(&mut self, key: ChannelKey) -> u32 {
        let next = self.per_pair.entry((key.0, key.1)).or_default();
        *self.channels.entry(key).or_insert_with(|| {
            *next += 1;
            *next - 1
        })
    }

    fn plan(mut self) -> Plan {
        self.run();
        let n = self.algo.gpus.len();
        let mut programs = Vec::with_capacity(n);
        for rank in 0..n {
            programs.push(self.program(rank));
        }
        Plan {
            algorithm: self.algo.name.clone(),
            collective: self.algo.collective,
            parts: self.algo.parts,
            chunk_bytes: CHUNK_BYTES,
            depth: DEPTH as usize,
            programs,
        }
    }

    /// Runs what can be run, then takes the rest as it comes.
    fn run(&mut self) {
        let mut ready: VecDeque<usize> = (0..self.lanes.len()).collect();
        // By lane and step that is waited for, and by connection: the lanes that wait.
        let mut for_step: HashMap<(usize, usize), Vec<usize>> = HashMap::new();
        let mut for_message: HashMap<(u32, u32, u32), Vec<usize>> = HashMap::new();
        while let Some(l) = ready.pop_front() {
            let (rank, at) = (self.lanes[l].rank, self.lanes[l].steps.len());
            let tb = &self.algo.gpus[rank].threadblocks[self.lanes[l].of_rank];
            let Some(step) = tb.steps.get(at) else { continue };
            if let Some((other, s)) = step.waits {
                let other = self.first_lane[rank] + other;
                if self.lanes[other].steps.len() <= s {
                    for_step.entry((other, s)).or_default().push(l);
                    continue;
                }
            }
            if let Some(from) = tb.recv.filter(|_| step.kind.receives()) {
                let key = (from, rank as u32, tb.channel);
                if self.messages.get(&key).is_none_or(VecDeque::is_empty) {
                    for_message.entry(key).or_default().push(l);
                    continue;
                }
            }
            self.step(l, tb, *step);
            ready.push_back(l);
            ready.extend(for_step.remove(&(l, at)).into_iter().flatten());
            if let Some(to) = tb.send.filter(|_| step.kind.sends()) {
                ready.extend(for_message.remove(&(rank as u32, to, tb.channel)).into_iter().flatten());
            }
        }
        for l in 0..self.lanes.len() {
            let tb = &self.algo.gpus[self.lanes[l].rank].threadblocks[self.lanes[l].of_rank];
            while let Some(step) = tb.steps.get(self.lanes[l].steps.len()) {
                self.step(l, tb, *step);
            }
        }
    }

    fn step(&mut self, l: usize, tb: &Threadblock, step: Step) {
        let n = self.algo.gpus.len() as u32;
        let rank = self.lanes[l].rank as u32;
        let reduces = self.algo.collective.reduces();
        let mut code = Vec::new();
        let (slot_in, slot_out) = (self.lanes[l].received % SLOTS, self.lanes[l].sent % SLOTS);
        let mut came = VecDeque::new();
        if let Some(from) = tb.recv.filter(|_| step.kind.receives()) {
            self.lanes[l].received += 1;
            let queue = self.messages.get_mut(&(from, rank, tb.channel));
            came = queue.and_then(VecDeque::pop_front).unwrap_or_default().into();
        }
        let mut gone = Vec::new();
        for k in 0..step.count {
            let at = |(buffer, at): (Buffer, u32)| (buffer, at + k);
            let one = |v: Option<Value>| Parts { first: v.map_or(0, |v| v.part), count: 1 };
            let add = |a: Option<Value>, b: Option<Value>| match (a, b) {
                (Some(a), Some(b)) => Some(Value { part: a.part, sum: a.sum.saturating_add(b.sum) }),
                (a, b) => a.or(b),
            };
            let whole = |v: Option<Value>| reduces && v.is_some_and(|v| v.sum == n);
            let (mut to_send, mut value) = (None, None);
            if let Some(from) = tb.recv.filter(|_| step.kind.receives()) {
                let message = came.pop_front().flatten();
                let channel = self.channel((from, rank, tb.channel, slot_in, k));
                if step.kind.reads() {
                    let (src, have) = self.load(l, at(step.src));
                    value = add(message, have);
                    let dst = if step.kind.writes() { self.store(l, at(step.dst), value) } else { self.spare(l) };
                    let (parts, finish) = (one(message.or(have)), whole(value));
                    code.push(Instruction::RecvReduce { parts, from, channel, src, dst, finish });
                    to_send = Some(dst);
                } else {
                    value = message;
                    let dst = self.store(l, at(step.dst), value);
                    code.push(Instruction::Recv { parts: one(value), from, channel, dst });
                    to_send = Some(dst);
                }
            } else if matches!(step.kind, Kind::Copy | Kind::Reduce) {
                let (src, loaded) = self.load(l, at(step.src));
                if step.kind == Kind::Reduce {
                    let (sum, have) = self.load(l, at(step.dst));
                    value = add(loaded, have);
                    let dst = self.store(l, at(step.dst), value);
                    let (parts, finish) = (one(value), whole(value));
                    join(&mut code, Instruction::Reduce { parts, srcs: vec![src, sum], dst, finish });
                } else {
                    let dst = self.store(l, at(step.dst), loaded);
                    join(&mut code, Instruction::Copy { parts: one(loaded), src, dst });
                }
            } else if step.kind == Kind::Send {
                let (src, loaded) = self.load(l, at(step.src));
                (to_send, value) = (Some(src), loaded);
            }
            if let (Some(to), Some(src)) = (tb.send.filter(|_| step.kind.sends()), to_send) {
                let channel = self.channel((rank, to, tb.channel, slot_out, k));
                code.push(Instruction::Send { parts: one(value), to, channel, src });
                gone.push(value);
            }
        }
        if let Some(to) = tb.send.filter(|_| step.kind.sends()) {
            self.lanes[l].sent += 1;
            self.messages.entry((rank, to, tb.channel)).or_default().push_back(gone);
        }
        self.lanes[l].steps.push(code);
    }

    /// A place for what is only passed on.
    fn spare(&mut self, l: usize) -> Span {
        let rank = &mut self.ranks[self.lanes[l].rank];
        rank.scratch += 1;
        own(Buffer::Scratch, rank.scratch as u32 - 1)
    }

    fn program(&mut self, rank: usize) -> Program {
        let gpu = &self.algo.gpus[rank];
        let first = self.first_lane[rank];
        let me = rank as u32;
        let count = gpu.threadblocks.len();
        let mut copies = self.shown_in_place(rank);
        let r = &mut self.ranks[rank];
        // What each step waits for and tells: notices between two lanes are counted, so their order is one.
        let mut tells: HashMap<(usize, usize), Vec<u32>> = HashMap::new();
        let mut hears: HashMap<(usize, usize), u32> = HashMap::new();
        let mut flags: HashMap<(usize, usize), (u32, usize)> = HashMap::new();
        for (lane, tb) in gpu.threadblocks.iter().enumerate() {
            for (s, (other, step)) in tb.steps.iter().enumerate().filter_map(|(s, step)| Some((s, step.waits?))) {
                let known = flags.get(&(other, lane)).copied();
                if known.is_some_and(|(_, up_to)| step <= up_to) {
                    continue;
                }
                let flag = known.map_or_else(|| r.flag(), |(flag, _)| flag);
                flags.insert((other, lane), (flag, step));
                tells.entry((other, step)).or_default().push(flag);
                hears.insert((lane, s), flag);
            }
        }
        let notify = |flag| Instruction::Notify { to: me, flag };
        let wait = |flag, lag| Instruction::Await { from: me, flag, lag };
        let mut lanes: Vec<Vec<Instruction>> = Vec::with_capacity(count + 2);
        for lane in 0..count {
            let mut code = Vec::new();
            for (s, mut of_step) in std::mem::take(&mut self.lanes[first + lane].steps).into_iter().enumerate() {
                code.extend(hears.get(&(lane, s)).map(|flag| wait(*flag, 0)));
                code.append(&mut of_step);
                code.extend(tells.get(&(lane, s)).into_iter().flatten().map(|flag| notify(*flag)));
            }
            lanes.push(code);
        }
        // What each lane waits for before all else.
        let mut heads: Vec<Vec<Instruction>> = vec![Vec::new(); count + 2];
        // Places of the input that steps write to are in scratch from the start.
        let stand_ins = std::mem::take(&mut r.stand_ins);
        let mut code = Vec::new();
        let mut users = BTreeSet::new();
        for (&at, &to) in stand_ins.iter().filter(|_| !only_root(self.algo.collective, rank)) {
            let first = self.blocks.part(rank, Buffer::Input, at as usize) as u32;
            let (src, dst) = (own(Buffer::Input, at), own(Buffer::Scratch, to));
            join(&mut code, Instruction::Copy { parts: Parts { first, count: 1 }, src, dst });
            let touched = r.touched.entry(to).or_default();
            users.extend(touched.0.iter().copied());
            touched.0.insert(count as u32);
            touched.1.insert(count as u32);
        }
        for user in users {
            let flag = r.flag();
            code.push(notify(flag));
            heads[user as usize].push(wait(flag, 0));
        }
        lanes.push(code);
        // What is in its place already is copied there for a call out of place, once nobody reads it any more.
        let mut readers = BTreeSet::new();
        for copy in &copies {
            if let Instruction::Copy { parts, src, .. } = copy {
                readers.extend((src.at..src.at + parts.count).filter_map(|at| r.readers.get(&at)).flatten().copied());
            }
        }
        let mut code = Vec::new();
        for reader in readers {
            let flag = r.flag();
            lanes[reader as usize].push(notify(flag));
            code.push(wait(flag, 0));
        }
        code.append(&mut copies);
        lanes.push(code);
        for (user, writer) in later(&r.touched, lanes.len()) {
            let flag = r.flag();
            lanes[user].push(notify(flag));
            heads[writer].push(wait(flag, DEPTH));
        }
        let lanes = heads.into_iter().zip(lanes).map(|(head, code)| Lane([head, code].concat()));
        Program { scratch: r.scratch, lanes: lanes.filter(|l| !l.0.is_empty()).collect() }
    }

    /// Copies from the input to the output of what an algorithm in place need not move.
    fn shown_in_place(&self, rank: usize) -> Vec<Instruction> {
        let mut copies = Vec::new();
        let size = if self.algo.in_place { self.blocks.size(rank, Buffer::Output) as u32 } else { 0 };
        for at in 0..size {
            let cell = Cell::Output(at);
            if self.ranks[rank].cells.contains_key(&cell) {
                continue;
            }
            if let (Some(value), Some(input)) = (self.initial(rank, cell), self.input(rank, cell)) {
                let (src, dst) = (own(Buffer::Input, input), own(Buffer::Output, at));
                join(&mut copies, Instruction::Copy { parts: Parts { first: value.part, count: 1 }, src, dst });
            }
        }
        copies
    }
}

/// Scratch of a later chunk is written when all are done with that of the earlier one: who with whose.
fn later(touched: &HashMap<u32, (BTreeSet<u32>, BTreeSet<u32>)>, lanes: usize) -> Vec<(usize, usize)> {
    let mut users = vec![vec![0u64; lanes.div_ceil(64)]; lanes];
    for (all, writers) in touched.values() {
        let mut set = vec![0u64; lanes.div_ceil(64)];
        all.iter().for_each(|l| set[*l as usize / 64] |= 1 << (l % 64));
        for w in writers {
            users[*w as usize].iter_mut().zip(&set).for_each(|(all, some)| *all |= some);
        }
    }
    let pairs = (0..lanes).flat_map(|w| (0..lanes).map(move |u| (u, w)));
    pairs.filter(|(u, w)| u != w && users[*w][u / 64] >> (u % 64) & 1 == 1).collect()
}

/// Whether a rank's input holds nothing.
fn only_root(collective: Collective, rank: usize) -> bool {
    matches!(collective, Collective::Broadcast { root } if root != rank)
}

fn own(buffer: Buffer, at: u32) -> Span {
    Span { buffer, owner: None, at }
}

/// Adds an instruction, or makes the last one longer.
fn join(code: &mut Vec<Instruction>, next: Instruction) {
    let follows = |a: &Span, n: u32, b: &Span| a.buffer == b.buffer && a.at + n == b.at;
    if let Some(Instruction::Copy { parts, src, dst }) = code.last_mut()
        && let Instruction::Copy { parts: p, src: s, dst: d } = &next
        && parts.first + parts.count == p.first
        && follows(src, parts.count, s)
        && follows(dst, parts.count, d)
    {
        parts.count += 1;
        return;
    }
    code.push(next);
}
