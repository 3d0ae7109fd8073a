//! Flags and channels: who fills each, who empties it.

use rustc_hash::FxHashMap as HashMap;

use crate::plan::verify::{Fault, Location, Refusal};
use crate::plan::{Instruction, Plan};

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    from: u32,
    to: u32,
    id: u32,
    carries_data: bool,
}

#[derive(Default)]
struct Queue {
    producer: Option<(usize, Location)>,
    consumer: Option<(usize, Location)>,
    puts: usize,
    takes: usize,
}

/// Every flag and channel of a plan, each with one lane at either end and as many puts as takes a chunk.
pub(super) struct Queues {
    queues: Vec<Queue>,
    /// By lane of all, and instruction.
    of: Vec<Vec<u32>>,
}

impl Queues {
    pub fn new(plan: &Plan) -> Result<Self, Refusal> {
        let mut ids: HashMap<Key, usize> = HashMap::default();
        let mut queues: Vec<Queue> = Vec::new();
        let mut of: Vec<Vec<u32>> = Vec::new();
        for (rank, program) in plan.programs.iter().enumerate() {
            for (lane, code) in program.lanes.iter().enumerate() {
                let flat = of.len();
                let mut refs = Vec::with_capacity(code.0.len());
                for (index, i) in code.0.iter().enumerate() {
                    let at = Location { rank, lane, index };
                    let refuse = |why: String| Refusal::new(plan, Fault::Malformed, Some(at), why);
                    let me = rank as u32;
                    let (from, to, id, carries_data, put) = match i {
                        Instruction::Send { to, channel, .. } => (me, *to, *channel, true, true),
                        Instruction::Recv { from, channel, .. } | Instruction::RecvReduce { from, channel, .. } => {
                            (*from, me, *channel, true, false)
                        }
                        Instruction::Notify { to, flag } => (me, *to, *flag, false, true),
                        Instruction::Await { from, flag, .. } => (*from, me, *flag, false, false),
                        Instruction::Copy { .. } | Instruction::Reduce { .. } => {
                            refs.push(u32::MAX);
                            continue;
                        }
                    };
                    if from.max(to) as usize >= plan.ranks() {
                        return Err(refuse(format!("there is no rank {}", from.max(to))));
                    }
                    if i.parts().is_some_and(|p| p.count != 1) {
                        return Err(refuse("a message is one part".into()));
                    }
                    let queue = *ids.entry(Key { from, to, id, carries_data }).or_insert_with(|| {
                        queues.push(Queue::default());
                        queues.len() - 1
                    });
                    let q = &mut queues[queue];
                    let (end, count, word) = if put {
                        (&mut q.producer, &mut q.puts, "filled")
                    } else {
                        (&mut q.consumer, &mut q.takes, "emptied")
                    };
                    *count += 1;
                    let (other, _) = *end.get_or_insert((flat, at));
                    if other != flat {
                        return Err(refuse(format!("this flag or channel is {word} by another lane too")));
                    }
                    refs.push(queue as u32);
                }
                of.push(refs);
            }
        }
        for q in &queues {
            let unpaired = |at: Option<(usize, Location)>, why: String| {
                Err(Refusal::new(plan, Fault::Malformed, at.map(|(_, at)| at), why))
            };
            match (q.producer, q.consumer) {
                (Some(p), None) => return unpaired(Some(p), "nobody waits for this".into()),
                (None, c @ Some(_)) => {
                    let mut refusal = unpaired(c, "waits for what nobody gives".into());
                    if let Err(r) = &mut refusal {
                        r.fault = Fault::CyclicWait;
                    }
                    return refusal;
                }
                _ if q.puts != q.takes => {
                    return unpaired(q.consumer, format!("given {} times and taken {} times a chunk", q.puts, q.takes));
                }
                _ => {}
            }
        }
        Ok(Self { queues, of })
    }

    pub fn len(&self) -> usize {
        self.queues.len()
    }

    /// The queue that an instruction fills or empties.
    pub fn of(&self, lane: usize, index: usize) -> usize {
        self.of[lane][index] as usize
    }

    /// The lane that fills a queue. Both ends exist once [`Queues::new`] has passed.
    pub fn producer(&self, queue: usize) -> usize {
        self.queues[queue].producer.map_or(0, |(lane, _)| lane)
    }

    pub fn consumer(&self, queue: usize) -> usize {
        self.queues[queue].consumer.map_or(0, |(lane, _)| lane)
    }
}
