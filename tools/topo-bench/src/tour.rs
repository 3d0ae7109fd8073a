//! The main job: see this machine, measure it, plan an all-reduce for it, run it and check it.

use std::io::{Read, Seek, Write};
use std::os::fd::AsRawFd;

use rustix::fs::{MemfdFlags, memfd_create};
use serde_json::{Value, json};
use topocoll::plan::choose::{Choice, Wish, choose};
use topocoll::plan::{Collective, verify};
use topocoll::text;
use topocoll::topology::{DeviceKind, Topology};

use crate::{Result, collective, links, output, plan, spawn};

/// The largest message of the run.
const MOST: u64 = 64 << 20;

/// False if any result was wrong.
pub fn run(to: Option<&str>) -> Result<bool> {
    let say = |text: &str| {
        // With JSON on the standard output there is nothing else on it.
        if to != Some("-") {
            output::print(text);
        }
    };
    say("1. This machine\n\n");
    let mut t = Topology::detect()?;
    say(&t.to_tree(false));

    say("\n2. Its links, measured\n\n");
    let measured = links::measure(&t, false, 5)?;
    say(&measured.text(&t));
    measured.enter(&mut t);

    let ranks = collective::default_ranks();
    say(&format!("\n3. The plan for an all-reduce of {} f32 among {ranks} ranks\n\n", text::size(MOST)));
    let placement = plan::placement(&t, Some(ranks))?;
    let choice = choose(&t, &placement, Collective::AllReduce, MOST, &Wish::from_env()?)?;
    verify(&choice.plan, placement.hosts())?;
    say(&choice.explain());
    say("  proved      every rank ends with each rank's contribution once, and no order of events can hang it\n");

    say(&format!("\n4. That all-reduce among {ranks} processes, checked\n\n"));
    let topology = Shared::new(t.to_toml().as_bytes())?;
    let mut results = Shared::new(b"")?;
    let mut args: Vec<String> =
        ["all-reduce", "-b", "8", "-e", "64M", "-f", "8", "-n", "20", "-w", "5", "-c", "1"].map(String::from).into();
    args.extend(["--ranks".into(), ranks.to_string(), "--json".into(), results.path()]);
    if to == Some("-") {
        args.push("--quiet".into());
    }
    let good = spawn::ranks(ranks, &args, &[("TOPOCOLL_TOPOLOGY", topology.path())])?;
    let rows: Value = serde_json::from_slice(&results.read()?).unwrap_or(Value::Null);

    say(&format!("\n5. In short\n\n{}", summary(&t, &measured, &choice, &rows, good)));
    if let Some(to) = to {
        let links = measured.to_json(&t);
        let all = json!({
            "topology": t, "links": links, "plan": choice.to_json(), "all_reduce": rows, "ok": good,
        });
        output::json(&all, to)?;
    }
    Ok(good)
}

fn summary(t: &Topology, measured: &links::Measured, choice: &Choice, rows: &Value, good: bool) -> String {
    let count = |kind| t.of_kind(kind).len();
    let cores: usize = t.devices().filter_map(|(_, d)| d.cpu.as_ref()).map(|c| c.pus.len()).sum();
    let mut lines = vec![format!(
        "found     {} core(s) in {} NUMA node(s), {} GPU(s), {} network port(s)",
        cores,
        count(DeviceKind::Cpu),
        count(DeviceKind::Gpu),
        count(DeviceKind::Nic)
    )];
    let copy = measured.copy_rate() / 1e9;
    lines.push(format!("memory    one core copies {copy:.1} GB/s"));
    lines.push(format!(
        "plan      {} for {}: of {} candidate(s) it is predicted fastest, {} (the least possible is {})",
        choice.chosen.algorithm,
        text::size(choice.bytes),
        choice.candidates.len(),
        text::time(choice.chosen.seconds),
        text::time(choice.bound.seconds)
    ));
    let rows = rows.as_array().map(Vec::as_slice).unwrap_or_default();
    if let (Some(first), Some(last)) = (rows.first(), rows.last()) {
        let median = |row: &Value| row["time_us"]["median"].as_f64().unwrap_or(0.0);
        let algbw = last["algbw"].as_f64().unwrap_or(0.0);
        lines.push(format!(
            "measured  {} in {}; {} in {}: {algbw:.1} GB/s, {:.2} of what a plain copy reaches",
            text::size(first["size"].as_u64().unwrap_or(0)),
            text::time(median(first) * 1e-6),
            text::size(last["size"].as_u64().unwrap_or(0)),
            text::time(median(last) * 1e-6),
            algbw / copy
        ));
    }
    lines.push(match good {
        true => "checked   every element of every result against an independent reference: all right".into(),
        false => "checked   NOT all right: see above".into(),
    });
    lines.join("\n") + "\n"
}

/// A file in memory that the ranks can open by name, and that is gone with this process.
struct Shared(std::fs::File);

impl Shared {
    fn new(content: &[u8]) -> Result<Self> {
        let mut file = std::fs::File::from(memfd_create("topo-bench", MemfdFlags::CLOEXEC)?);
        file.write_all(content)?;
        Ok(Self(file))
    }

    fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd())
    }

    fn read(&mut self) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.0.rewind()?;
        self.0.read_to_end(&mut bytes)?;
        Ok(bytes)
    }
}
