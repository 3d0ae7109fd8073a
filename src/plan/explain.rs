//! A choice in words, and as JSON.

use std::fmt::Write;

use serde_json::{Value, json};

use crate::plan::choose::{Candidate, Choice};
use crate::plan::{Buffer, Instruction, Plan};
use crate::text::{size, time};

impl Choice {
    /// `{collective, ranks, bytes, algorithm, chunks, lanes, predicted_s, bound_s, bound_any_s, bound_in_switch_s, ratio,
    /// bottleneck[], limit, limit_source, algbw, candidates[] {algorithm, chunks, lanes, predicted_s, limit}}`. Times in
    /// seconds, `algbw` in GB/s, `ratio` is bound over prediction. `bound_any_s` is for any algorithm,
    /// `bound_in_switch_s` where switches combine; both are `bound_s` but for an all-reduce. An infinite bound is null.
    /// The keys are a promise.
    pub fn to_json(&self) -> Value {
        let candidate = |c: &Candidate| json!({"algorithm": c.algorithm, "chunks": c.chunks, "lanes": c.lanes, "predicted_s": c.seconds, "limit": c.limit});
        json!({
            "collective": self.plan.collective.to_string(),
            "ranks": self.plan.ranks(),
            "bytes": self.bytes,
            "algorithm": self.chosen.algorithm,
            "chunks": self.chosen.chunks,
            "lanes": self.chosen.lanes,
            "predicted_s": self.chosen.seconds,
            "bound_s": self.bound.seconds,
            "bound_any_s": self.bound.any,
            "bound_in_switch_s": self.bound.in_switch,
            "ratio": self.ratio(),
            "bottleneck": self.bound.bottleneck,
            "limit": self.chosen.limit,
            "limit_source": self.chosen.limit_source,
            "algbw": self.algbw() / 1e9,
            "candidates": self.candidates.iter().map(candidate).collect::<Vec<_>>(),
        })
    }

    /// What was chosen, what it should take, what the least time is, and what was not chosen.
    pub fn explain(&self) -> String {
        let mut out = String::new();
        let mut put = |line: String| {
            // Writing to a String cannot fail.
            let _ = writeln!(out, "{line}");
        };
        let (plan, c) = (&self.plan, &self.chosen);
        put(format!("{} of {} among {} ranks", plan.collective, size(self.bytes), plan.ranks()));
        put(format!(
            "  plan        {}: {} chunk(s) of at most {}, {} lane(s)",
            c.algorithm,
            c.chunks,
            size(plan.chunk_bytes.min(self.bytes.max(1))),
            c.lanes
        ));
        put(format!("  each rank   {}", steps(plan)));
        put(format!("  predicted   {}, algbw {:.2} GB/s", time(c.seconds), self.algbw() / 1e9));
        put(format!("  paced by    {} ({})", c.limit, c.limit_source));
        put(format!("  bound       {}, {:.2} of it reached", time(self.bound.seconds), self.ratio()));
        put(format!("  any way     {}; if switches combine, {}", time(self.bound.any), time(self.bound.in_switch)));
        let bottleneck = if self.bound.bottleneck.is_empty() { "none" } else { &self.bound.bottleneck.join("; ") };
        put(format!("  bottleneck  {bottleneck}"));
        put("  candidates".into());
        for other in &self.candidates {
            let mark = if other == c { "*" } else { " " };
            let ratio = if c.seconds > 0.0 { other.seconds / c.seconds } else { 1.0 };
            let (algorithm, predicted) = (&other.algorithm, time(other.seconds));
            put(format!(
                "  {mark} {algorithm:<32} {predicted:>12}  {ratio:>6.2} x  {:>5} chunk(s)  {}",
                other.chunks, other.limit
            ));
        }
        out
    }
}

/// What rank 0 does in a chunk, counted.
fn steps(plan: &Plan) -> String {
    let Some(program) = plan.programs.first() else { return String::new() };
    let mut counts = [0usize; 4];
    let mut peers = std::collections::BTreeSet::new();
    for i in program.lanes.iter().flat_map(|l| &l.0) {
        let (kind, peer) = match i {
            Instruction::Copy { src, .. } => (0, src.owner),
            Instruction::Reduce { .. } => (1, None),
            Instruction::Send { to, .. } => (2, Some(*to)),
            Instruction::Recv { from, .. } | Instruction::RecvReduce { from, .. } => (3, Some(*from)),
            Instruction::Notify { .. } | Instruction::Await { .. } => continue,
        };
        if let Instruction::Reduce { srcs, .. } = i {
            peers.extend(srcs.iter().filter(|s| s.buffer == Buffer::Scratch).filter_map(|s| s.owner));
        }
        counts[kind] += 1;
        peers.extend(peer);
    }
    let words = ["copies", "reductions", "sends", "receives"];
    let said: Vec<String> =
        counts.iter().zip(words).filter(|(n, _)| **n > 0).map(|(n, word)| format!("{n} {word}")).collect();
    match said.is_empty() {
        true => "nothing".into(),
        false => format!("{} a chunk, with {} peer(s)", said.join(", "), peers.len()),
    }
}
