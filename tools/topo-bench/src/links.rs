//! `topo-bench links`: latency and bandwidth between the places where a rank can be.

mod probe;

use std::path::PathBuf;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};
use topocoll::topology::{DeviceId, DeviceKind, LinkKind, Origin, Topology};

use crate::output::Spread;
use crate::{Result, output};

/// Places in a matrix unless all are asked for.
const PLACES: usize = 16;

#[derive(clap::Args)]
pub struct Args {
    /// As JSON: to FILE, or to the standard output.
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    json: Option<String>,
    /// Writes the topology with what was measured, for TOPOCOLL_TOPOLOGY and --topology.
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
    /// Every core, however many there are.
    #[arg(long)]
    all: bool,
    /// Repetitions of each measurement.
    #[arg(short = 'n', long = "repeat", value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    repeat: u32,
}

/// A hardware thread, and the CPU device that it belongs to.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Place {
    pu: usize,
    cpu: DeviceId,
}

struct Pair {
    from: Place,
    to: Place,
    /// Seconds for a cache line to arrive.
    latency: Spread,
    /// Bytes per second that `to` reads of what `from` writes.
    bandwidth: Spread,
}

/// Copying memory on one CPU device.
struct Copying {
    cpu: DeviceId,
    /// Bytes per second of one core, and of all cores together.
    one: Spread,
    all: Spread,
    cores: usize,
}

/// What was measured.
pub struct Measured {
    places: Vec<Place>,
    pairs: Vec<Pair>,
    copying: Vec<Copying>,
}

pub fn run(args: &Args) -> Result<()> {
    let mut t = Topology::detect()?;
    let measured = measure(&t, args.all, args.repeat)?;
    measured.enter(&mut t);
    if let Some(file) = &args.save {
        std::fs::write(file, t.to_toml()).map_err(|e| format!("{}: {e}", file.display()))?;
    }
    match &args.json {
        Some(to) => output::json(&measured.to_json(&t), to)?,
        None => output::print(&measured.text(&t)),
    }
    if let Some(file) = &args.save {
        eprintln!("saved; use it with TOPOCOLL_TOPOLOGY={}", file.display());
    }
    Ok(())
}

/// Measures between all places that `t` has, a sample of them if there are many.
pub fn measure(t: &Topology, all: bool, repeat: u32) -> Result<Measured> {
    let everyone = places(t);
    if everyone.is_empty() {
        return Err("this topology names no hardware threads of this machine; measure without TOPOCOLL_TOPOLOGY".into());
    }
    let step = if all { 1 } else { everyone.len().div_ceil(PLACES) };
    let places: Vec<Place> = everyone.iter().copied().step_by(step).collect();
    let cpus = t.of_kind(DeviceKind::Cpu);
    let bar = bar((places.len() * (places.len() - 1) / 2 + cpus.len()) as u64);
    let mut copying = Vec::new();
    for cpu in cpus {
        let pus: Vec<usize> = everyone.iter().filter(|p| p.cpu == cpu).map(|p| p.pu).collect();
        if pus.is_empty() {
            continue;
        }
        bar.set_message(format!("copying memory on {}", t.device(cpu).id));
        let one = probe::copy_rate(&pus[..1], repeat)?;
        let all = if pus.len() > 1 { probe::copy_rate(&pus, repeat)? } else { one.clone() };
        copying.push(Copying { cpu, one: Spread::of(&one), all: Spread::of(&all), cores: pus.len() });
        bar.inc(1);
    }
    let mut pairs = Vec::new();
    for (i, &from) in places.iter().enumerate() {
        for &to in &places[i + 1..] {
            bar.set_message(format!("core {} and core {}", from.pu, to.pu));
            let latency = Spread::of(&probe::latency(from.pu, to.pu, repeat)?);
            for (from, to) in [(from, to), (to, from)] {
                let bandwidth = Spread::of(&probe::bandwidth(from.pu, to.pu, repeat)?);
                pairs.push(Pair { from, to, latency, bandwidth });
            }
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    Ok(Measured { places, pairs, copying })
}

/// Shown only where the standard error is a terminal.
fn bar(steps: u64) -> ProgressBar {
    let bar = ProgressBar::new(steps);
    if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len} {msg}") {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

/// One hardware thread a core where the count of cores tells them apart.
fn places(t: &Topology) -> Vec<Place> {
    let mut all = Vec::new();
    for cpu in t.of_kind(DeviceKind::Cpu) {
        let Some(info) = &t.device(cpu).cpu else { continue };
        let threads = info.pus.len().checked_div(info.cores).unwrap_or(1).max(1);
        // Linux numbers the second threads of all cores after the first ones.
        let firsts = info.pus.len().div_ceil(threads);
        all.extend(info.pus.iter().take(firsts).map(|&pu| Place { pu, cpu }));
    }
    all
}

impl Measured {
    /// Writes what was measured into a topology.
    pub fn enter(&self, t: &mut Topology) {
        let source = "measured by topo-bench links";
        for c in &self.copying {
            if let Some(info) = &mut t.device_mut(c.cpu).cpu {
                info.copy_rate = Some(c.one.median);
                let near = self.pairs.iter().filter(|p| p.from.cpu == c.cpu && p.to.cpu == c.cpu);
                let rates: Vec<f64> = near.map(|p| p.bandwidth.median).collect();
                info.exchange_rate = (!rates.is_empty()).then(|| Spread::of(&rates).median);
            }
        }
        let links: Vec<_> = t.links().map(|(id, a, b, l)| (id, a, b, l.kind)).collect();
        for (id, a, b, kind) in links {
            let between = |p: &&Pair| p.from.cpu == a && p.to.cpu == b;
            let latency: Vec<f64> = self.pairs.iter().filter(between).map(|p| p.latency.median).collect();
            let rates: Vec<f64> = self.pairs.iter().filter(between).map(|p| p.bandwidth.median).collect();
            let rate = match kind {
                LinkKind::Memory => self.copying.iter().find(|c| c.cpu == a).map(|c| c.all.median),
                LinkKind::CpuInterconnect if !rates.is_empty() => Some(Spread::of(&rates).median),
                _ => continue,
            };
            let link = t.link_mut(id);
            if rate.is_some() {
                link.measured = rate;
                link.source = source.into();
            }
            if !latency.is_empty() {
                link.latency = Spread::of(&latency).median;
                link.latency_origin = Origin::Measured;
            }
        }
    }

    /// Bytes per second that one core copies, the slowest CPU's.
    pub fn copy_rate(&self) -> f64 {
        self.copying.iter().map(|c| c.one.median).fold(f64::INFINITY, f64::min)
    }

    /// `{places[] {core, cpu}, pairs[] {from, to, latency_s, bandwidth}, copy[] {cpu, cores, one, all}}` with spreads
    /// `{min, median, max}`, seconds and bytes per second.
    pub fn to_json(&self, t: &Topology) -> Value {
        let place = |p: &Place| json!({"core": p.pu, "cpu": t.device(p.cpu).id});
        let pair =
            |p: &Pair| json!({"from": p.from.pu, "to": p.to.pu, "latency_s": p.latency, "bandwidth": p.bandwidth});
        let copy = |c: &Copying| json!({"cpu": t.device(c.cpu).id, "cores": c.cores, "one": c.one, "all": c.all});
        json!({
            "places": self.places.iter().map(place).collect::<Vec<_>>(),
            "pairs": self.pairs.iter().map(pair).collect::<Vec<_>>(),
            "copy": self.copying.iter().map(copy).collect::<Vec<_>>(),
        })
    }

    /// Matrices and their spread.
    pub fn text(&self, t: &Topology) -> String {
        let mut out = String::from("memory copy, GB/s copied (each byte is read once and written once)\n");
        let header = ["", "one core", "all cores", "cores", "min - max of one", "min - max of all"];
        let gb = |r: f64| format!("{:.1}", r / 1e9);
        let range = |s: Spread| format!("{} - {}", gb(s.min), gb(s.max));
        let rows = self.copying.iter().map(|c| {
            let cores = c.cores.to_string();
            vec![t.device(c.cpu).id.clone(), gb(c.one.median), gb(c.all.median), cores, range(c.one), range(c.all)]
        });
        out.push_str(&output::table(header.map(String::from).to_vec(), rows.collect()));
        if self.pairs.is_empty() {
            out.push_str("\none core only: there are no links between cores to measure\n");
            return out;
        }
        out.push_str("\nlatency between cores, ns one way (a cache line, shared memory)\n");
        out.push_str(&self.matrix(|p| format!("{:.0}", p.latency.median * 1e9)));
        out.push_str("\nbandwidth between cores, GB/s (row writes, column reads; blocks that fit the cache)\n");
        out.push_str(&self.matrix(|p| gb(p.bandwidth.median)));
        let worst = |spread: fn(&Pair) -> Spread| {
            self.pairs.iter().map(|p| (spread(p).max - spread(p).min) / spread(p).median).fold(0.0, f64::max)
        };
        out.push_str(&format!(
            "\nspread (max - min over median) of a pair, at most: latency {:.0} %, bandwidth {:.0} %\n",
            worst(|p| p.latency) * 100.0,
            worst(|p| p.bandwidth) * 100.0
        ));
        out
    }

    fn matrix(&self, cell: impl Fn(&Pair) -> String) -> String {
        let mut header = vec![String::new()];
        header.extend(self.places.iter().map(|p| format!("core {}", p.pu)));
        let rows = self.places.iter().map(|from| {
            let mut row = vec![format!("core {}", from.pu)];
            for to in &self.places {
                let pair = self.pairs.iter().find(|p| p.from == *from && p.to == *to);
                row.push(pair.map_or("-".into(), &cell));
            }
            row
        });
        output::table(header, rows.collect())
    }
}
