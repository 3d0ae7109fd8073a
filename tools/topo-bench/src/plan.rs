//! `topo-bench plan`.

use clap::ValueEnum;
use topocoll::plan::builders::Lanes;
use topocoll::plan::choose::{Choice, Wish, choose};
use topocoll::plan::{Collective, Placement, verify};
use topocoll::simulate::{Machine, Run};
use topocoll::topology::{DeviceKind, Topology};
use topocoll::{DType, ReduceOp};

use crate::{Result, detect, output, sizes};

#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    source: detect::Source,
    /// Ranks on the CPUs of a machine without GPUs; one a core otherwise. With GPUs there is one a GPU.
    #[arg(long, value_name = "N")]
    ranks: Option<usize>,
    /// all-reduce, reduce-scatter, all-gather, broadcast, reduce or all-to-all; the root is rank 0.
    #[arg(long, default_value = "all-reduce", value_parser = collective)]
    collective: Collective,
    /// Bytes of the larger buffer.
    #[arg(long, default_value = "256M", value_parser = sizes::parse)]
    size: u64,
    /// The element type.
    #[arg(long, default_value = "f32")]
    dtype: DType,
    /// The reduction; an average of integers rules out plans of several steps.
    #[arg(long, default_value = "sum")]
    op: ReduceOp,
    /// one-shot, two-shot, direct, ring, tree, halving-doubling, forest or hierarchical, instead of the best.
    #[arg(long, value_name = "NAME")]
    algorithm: Option<String>,
    /// So many chunks, instead of the best number.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    chunks: Option<u64>,
    /// How finely work is cut into lanes: `coarse`, one a level, or `fine`, one a peer; instead of fine on GPUs only.
    #[arg(long, value_name = "LANES")]
    lanes: Option<Lanes>,
    /// Why this one: prediction, bound, bottleneck and the other candidates.
    #[arg(long)]
    explain: bool,
    /// The choice in words, or the plan itself for `topo-bench verify` and for MSCCL's runtime.
    #[arg(long, value_enum, default_value_t = Format::Text, conflicts_with = "json")]
    format: Format,
    /// To FILE instead of the standard output.
    #[arg(short = 'o', long = "output", value_name = "FILE", default_value = "-", conflicts_with = "json")]
    output: String,
    /// Where to write what happens when, as a trace that Perfetto (ui.perfetto.dev) opens.
    #[arg(long, value_name = "FILE")]
    trace: Option<String>,
    /// The choice and its figures as JSON: to FILE, or to the standard output.
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    json: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// What was chosen.
    Text,
    /// The plan, whole.
    Json,
    /// The plan as MSCCL's runtime takes it.
    MscclXml,
}

fn collective(text: &str) -> std::result::Result<Collective, String> {
    let all = Collective::every(0);
    all.into_iter().find(|c| c.to_string() == text).ok_or_else(|| {
        let names = all.map(|c| c.to_string());
        let (last, others) = (&names[names.len() - 1], names[..names.len() - 1].join(", "));
        format!("`{text}` is no collective; {others} or {last} is")
    })
}

/// One rank a GPU, or `ranks` on the CPUs of a machine without any.
pub fn placement(t: &Topology, ranks: Option<usize>) -> Result<Placement> {
    if !t.of_kind(DeviceKind::Gpu).is_empty() && ranks.is_none() {
        return Ok(Placement::gpus(t)?);
    }
    let cores: usize = t
        .of_kind(DeviceKind::Cpu)
        .iter()
        .filter_map(|c| t.device(*c).cpu.as_ref())
        .map(|c| c.pus.len().max(c.cores))
        .sum();
    let ranks = ranks.unwrap_or(cores.clamp(2, 64));
    if ranks == 0 || ranks > 1 << 16 {
        return Err(format!("{ranks} ranks: 1 to {} are expected", 1 << 16).into());
    }
    Ok(Placement::on_host(t, ranks)?)
}

pub fn run(args: &Args) -> Result<()> {
    let t = args.source.load()?;
    let width = args.dtype.width() as u64;
    if args.size < width {
        return Err(format!("--size {}: at least one {} of {width} byte(s) is needed", args.size, args.dtype).into());
    }
    if args.size > 1 << 62 {
        return Err(format!("--size {}: more than 2^62 bytes are no message", args.size).into());
    }
    let placement = placement(&t, args.ranks)?;
    let env = Wish::from_env()?;
    let wish = Wish {
        algorithm: args.algorithm.clone().or(env.algorithm),
        chunks: args.chunks.or(env.chunks),
        lanes: args.lanes.or(env.lanes),
        single_step: args.collective.reduces() && args.op == ReduceOp::Avg && args.dtype.is_integer(),
    };
    let choice = choose(&t, &placement, args.collective, args.size, &wish)?;
    verify(&choice.plan, placement.hosts())?;
    if let Some(file) = &args.trace {
        let trace = Machine::new(&t, &placement).trace(&choice.plan, args.size)?;
        output::text(&trace.to_perfetto(), file)?;
    }
    if let Some(to) = &args.json {
        return output::json(&choice.to_json(), to);
    }
    let text = match args.format {
        Format::Text if args.explain => {
            let run = Machine::new(&t, &placement).run(&choice.plan, args.size)?;
            format!("{}{}", choice.explain(), simulated(&t, &run))
        }
        Format::Text => brief(&choice),
        Format::Json => choice.plan.to_json()?,
        Format::MscclXml => choice.plan.to_msccl_xml()?,
    };
    output::text(&text, &args.output)
}

/// What a run of the plan, event by event, shows.
fn simulated(t: &Topology, run: &Run) -> String {
    let mut out = format!("  simulated   {}, paced by {}\n", topocoll::text::time(run.seconds), run.limit);
    let mut links = run.links.clone();
    links.sort_by(|a, b| b.2.total_cmp(&a.2).then(a.0.cmp(&b.0)));
    for (link, bytes, busy) in links.iter().take(3) {
        let (from, to) = t.endpoints(*link);
        let (from, to) = (&t.device(from).id, &t.device(to).id);
        out +=
            &format!("    {from} -> {to}: {}, busy {:.0} % of the time\n", topocoll::text::size(*bytes), busy * 100.0);
    }
    out
}

fn brief(c: &Choice) -> String {
    format!(
        "{}: {} chunk(s), {} lane(s), predicted {}, bound {} ({:.2} of it reached), algbw {:.2} GB/s, proved\n",
        c.chosen.algorithm,
        c.chosen.chunks,
        c.chosen.lanes,
        topocoll::text::time(c.chosen.seconds),
        topocoll::text::time(c.bound.seconds),
        c.ratio(),
        c.algbw() / 1e9,
    )
}
