//! What happened, for people to look at.

use serde_json::{Value, json};

use crate::plan::Plan;
use crate::simulate::machine::Machine;
use crate::simulate::program::What;
use crate::simulate::run::{self, SOME, Step};
use crate::{Result, text};

/// Instructions that a trace has, at most, if it has more than the first chunks.
const STEPS: usize = 100_000;

/// A run, step by step.
#[derive(Debug, Clone, PartialEq)]
pub struct Trace {
    /// What was run, in words.
    pub name: String,
    /// All steps that moved data, by their end.
    pub spans: Vec<Step>,
    /// Links, in the order of the topology's.
    pub counters: Vec<Counter>,
    /// The device of each rank.
    pub devices: Vec<String>,
    /// When the last step ends.
    pub seconds: f64,
    /// How many chunks of the message are shown, and how many it has.
    pub chunks: (u64, u64),
}

/// How a link was used.
#[derive(Debug, Clone, PartialEq)]
pub struct Counter {
    /// The link.
    pub link: String,
    /// From when on which share of its bandwidth was used.
    pub samples: Vec<(f64, f64)>,
}

pub(super) fn trace(machine: &Machine<'_>, plan: &Plan, bytes: u64) -> Result<Trace> {
    let program = machine.prepare(plan)?;
    let chunks = plan.chunks(bytes);
    let shown = chunks.min(((STEPS / program.ops.len().max(1)) as u64).max(SOME));
    let (mut steps, mut samples) = (Vec::new(), Vec::new());
    run::run(machine, &program, bytes, chunks, Some(shown), Some(&mut steps), Some(&mut samples))?;
    let topology = machine.topology;
    let link = |r| match r {
        What::Link(link) => Some(link),
        What::Thread(_) | What::Cores(_) => None,
    };
    let mut links: Vec<_> = program.resources.iter().filter_map(|r| Some((link(r.what)?, r))).collect();
    links.sort_by_key(|(link, _)| *link);
    let mut by_resource: Vec<Vec<(f64, f64)>> = vec![Vec::new(); program.resources.len()];
    for (time, r, share) in samples {
        let of = &mut by_resource[r as usize];
        if of.last().map_or(share > 0.0, |(_, last)| (last - share).abs() > 1e-9) {
            of.push((time, share));
        }
    }
    let mut counters = Vec::new();
    for (link, resource) in links {
        let (a, b) = topology.endpoints(link);
        let (from, to) = (&topology.device(a).id, &topology.device(b).id);
        let name = if a == b { format!("memory of {from}") } else { format!("{from} -> {to}") };
        let other = resource.stand_in as usize;
        let scale = program.resources[other].capacity / resource.capacity;
        let samples = by_resource[other].iter().map(|(time, share)| (*time, share * scale)).collect();
        counters.push(Counter { link: name, samples });
    }
    let devices = machine.placement.devices().iter().map(|d| topology.device(*d).id.clone()).collect();
    Ok(Trace {
        name: format!("{} {}, {}", plan.algorithm, plan.collective, text::size(bytes)),
        seconds: steps.iter().map(|s| s.end).fold(0.0, f64::max),
        spans: steps.iter().filter_map(|s| run::step(plan, &program, s)).collect(),
        counters,
        devices,
        chunks: (shown, chunks),
    })
}

impl Trace {
    /// Chrome's trace event format, as <https://ui.perfetto.dev> reads it: a process a rank, a thread a lane, times in
    /// microseconds, and a counter for the use of each link.
    pub fn to_perfetto(&self) -> String {
        let us = |seconds: f64| seconds * 1e6;
        let mut events: Vec<Value> = Vec::with_capacity(self.spans.len() + 2 * self.devices.len());
        let meta = |name: &str, pid: usize, tid: usize, args: Value| json!({"ph": "M", "name": name, "pid": pid, "tid": tid, "args": args});
        for (rank, device) in self.devices.iter().enumerate() {
            events.push(meta("process_name", rank, 0, json!({"name": format!("rank {rank} ({device})")})));
            events.push(meta("process_sort_index", rank, 0, json!({"sort_index": rank})));
        }
        let mut lanes: Vec<(usize, usize)> = self.spans.iter().map(|s| (s.rank, s.lane)).collect();
        lanes.sort_unstable();
        lanes.dedup();
        for (rank, lane) in lanes {
            events.push(meta("thread_name", rank, lane, json!({"name": format!("lane {lane}")})));
            events.push(meta("thread_sort_index", rank, lane, json!({"sort_index": lane})));
        }
        for s in &self.spans {
            events.push(json!({
                "ph": "X",
                "name": s.what,
                "cat": s.what.split(' ').next(),
                "pid": s.rank,
                "tid": s.lane,
                "ts": us(s.start),
                "dur": us(s.end - s.start),
                "args": {"chunk": s.chunk},
            }));
        }
        let links = self.devices.len();
        events.push(meta("process_name", links, 0, json!({"name": "links, share of bandwidth in use"})));
        events.push(meta("process_sort_index", links, 0, json!({"sort_index": links})));
        for c in &self.counters {
            for (time, share) in &c.samples {
                events.push(json!({
                    "ph": "C",
                    "name": c.link,
                    "pid": links,
                    "ts": us(*time),
                    "args": {"share": share},
                }));
            }
        }
        json!({"displayTimeUnit": "ns", "otherData": {"plan": self.name}, "traceEvents": events}).to_string()
    }
}
