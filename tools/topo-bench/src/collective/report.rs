//! The table that nccl-tests prints, and the same as JSON.

use serde_json::{Value, json};
use topocoll::Communicator;

use crate::collective::measure::{Row, Timing};
use crate::collective::{Args, Kind};
use crate::{Result, output};

/// Rank 0 prints a line as each size is done; the others keep count only.
pub struct Report<'a> {
    kind: Kind,
    args: &'a Args,
    rank: usize,
    ranks: usize,
    rows: Vec<Value>,
    wrong: u64,
    busbw: Vec<f64>,
}

impl<'a> Report<'a> {
    pub fn new(kind: Kind, args: &'a Args, comm: &Communicator) -> Self {
        let report =
            Self { kind, args, rank: comm.rank(), ranks: comm.size(), rows: Vec::new(), wrong: 0, busbw: Vec::new() };
        report.say(&report.header());
        report
    }

    fn header(&self) -> String {
        let how = if self.args.threads { "threads" } else { "processes" };
        format!(
            "# {} among {} {how}: {} call(s) a size after {}, {}\n\
             # times are medians; GB/s of 10^9 bytes; busbw is what a link must carry, as nccl-tests defines it\n\
             #\n\
             # {:>10} {:>12} {:>6} {:>6} {:>4}  {:^35}  {:^35}\n\
             # {:>10} {:>12} {:>6} {:>6} {:>4}  {:>9} {:>8} {:>8} {:>7}  {:>9} {:>8} {:>8} {:>7}\n\
             # {:>10} {:>12} {:>6} {:>6} {:>4}  {:>9} {:>8} {:>8} {:>7}  {:>9} {:>8} {:>8} {:>7}\n",
            self.kind.collective(self.args.root),
            self.ranks,
            self.args.iterations,
            self.args.warmup,
            if self.args.check > 0 { "results checked" } else { "results not checked" },
            "",
            "",
            "",
            "",
            "",
            "out-of-place",
            "in-place",
            "size",
            "count",
            "type",
            "redop",
            "root",
            "time",
            "algbw",
            "busbw",
            "#wrong",
            "time",
            "algbw",
            "busbw",
            "#wrong",
            "(B)",
            "(elements)",
            "",
            "",
            "",
            "(us)",
            "(GB/s)",
            "(GB/s)",
            "",
            "(us)",
            "(GB/s)",
            "(GB/s)",
            "",
        )
    }

    fn say(&self, text: &str) {
        // With JSON on the standard output there is nothing else on it.
        if self.rank == 0 && !self.args.quiet && self.args.json.as_deref() != Some("-") {
            output::print(text);
        }
    }

    fn rates(&self, row: &Row, t: &Timing) -> (f64, f64) {
        let algbw = if t.seconds.median > 0.0 { row.size as f64 / t.seconds.median / 1e9 } else { 0.0 };
        (algbw, algbw * self.kind.collective(self.args.root).bus_factor(self.ranks))
    }

    pub fn row(&mut self, row: Row) {
        let mut line = format!(
            "  {:>10} {:>12} {:>6} {:>6} {:>4}",
            row.size,
            row.count,
            row.dtype,
            row.op.map_or("none".into(), |o| o.to_string()),
            if self.kind.rooted() { self.args.root.to_string() } else { "-1".into() },
        );
        let mut values = Vec::new();
        for t in [Some(&row.out_of_place), row.in_place.as_ref()] {
            let Some(t) = t else {
                line.push_str(&format!("  {:>9} {:>8} {:>8} {:>7}", "N/A", "N/A", "N/A", "N/A"));
                values.push(Value::Null);
                continue;
            };
            let (algbw, busbw) = self.rates(&row, t);
            let wrong = t.wrong.map_or("N/A".into(), |w| w.to_string());
            let us = t.seconds.median * 1e6;
            let us = if us < 1000.0 { format!("{us:.2}") } else { format!("{us:.0}") };
            line.push_str(&format!("  {us:>9} {algbw:>8.2} {busbw:>8.2} {wrong:>7}"));
            self.busbw.push(busbw);
            self.wrong += t.wrong.unwrap_or(0);
            values.push(json!({
                "time_us": t.seconds.scaled(1e6), "algbw": algbw, "busbw": busbw, "wrong": t.wrong,
            }));
        }
        self.say(&format!("{line}\n"));
        let mut object = json!({
            "collective": self.kind.collective(self.args.root).to_string(),
            "ranks": self.ranks,
            "size": row.size,
            "count": row.count,
            "type": row.dtype.to_string(),
            "redop": row.op.map(|o| o.to_string()),
            "in_place": values.pop(),
        });
        if let (Some(Value::Object(flat)), Some(object)) = (values.pop(), object.as_object_mut()) {
            object.extend(flat);
        }
        self.rows.push(object);
    }

    /// The closing lines; false if anything was wrong.
    pub fn end(self) -> Result<bool> {
        let mean = self.busbw.iter().sum::<f64>() / self.busbw.len().max(1) as f64;
        let verdict = match (self.args.check, self.wrong) {
            (0, _) => "not checked".into(),
            (_, 0) => "0 OK".into(),
            (_, n) => format!("{n} FAILED"),
        };
        self.say(&format!("# Out of bounds values : {verdict}\n# Avg bus bandwidth    : {mean:.4} GB/s\n"));
        if self.rank == 0
            && let Some(to) = &self.args.json
        {
            output::json(&Value::Array(self.rows), to)?;
        }
        Ok(self.wrong == 0)
    }
}
