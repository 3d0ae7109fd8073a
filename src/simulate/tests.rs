use std::path::Path;

use super::run;
use super::*;
use crate::plan::builders::{self, Lanes, Nest, Request, Shape};
use crate::plan::{Buffer, Collective, Instruction, Lane, Parts, Placement, Plan, Span};
use crate::topology::Topology;
use crate::{Error, Result};

const OVERHEAD: f64 = crate::plan::cost::GPU_OVERHEAD;

/// GPUs at a switch: 100 GB/s and 1 us from one to another.
fn star(gpus: usize) -> Topology {
    let last = gpus - 1;
    let text = format!(
        "name = \"star\"\n[[device]]\nkind = \"gpu\"\nid = \"gpu[0-{last}]\"\n[[device]]\nkind = \"nv-switch\"\nid = \"sw\"\n\
         [[link]]\nkind = \"nvlink\"\nfrom = \"gpu[0-{last}]\"\nto = \"sw\"\nusable = \"100 GB/s\"\nlatency = \"0.5 us\"\n"
    );
    Topology::from_toml(&text, "star").unwrap()
}

/// GPUs in a circle, 100 GB/s and 1 us from one to the next.
fn circle(gpus: usize) -> Topology {
    let pairs: Vec<String> = (0..gpus).map(|i| format!("\"gpu{i} gpu{}\"", (i + 1) % gpus)).collect();
    let text = format!(
        "name = \"circle\"\n[[device]]\nkind = \"gpu\"\nid = \"gpu[0-{}]\"\n[[link]]\nkind = \"nvlink\"\npairs = [{}]\n\
         usable = \"100 GB/s\"\nlatency = \"1 us\"\n",
        gpus - 1,
        pairs.join(", ")
    );
    Topology::from_toml(&text, "circle").unwrap()
}

fn file(name: &str) -> Topology {
    Topology::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("topologies").join(name)).unwrap()
}

fn request(hosts: &[usize], collective: Collective) -> Request<'_> {
    Request { collective, hosts, chunk_bytes: 32 << 20, lanes: Lanes::Fine }
}

fn all_reduce(p: &Placement) -> Request<'_> {
    request(p.hosts(), Collective::AllReduce)
}

fn in_chunks(machine: &Machine<'_>, plan: &Plan, bytes: u64, chunks: u64) -> Run {
    machine.run_prepared(&machine.prepare(plan).unwrap(), bytes, chunks).unwrap()
}

/// All chunks one by one.
fn whole(machine: &Machine<'_>, plan: &Plan, bytes: u64, chunks: u64) -> f64 {
    let program = machine.prepare(plan).unwrap();
    run::run(machine, &program, bytes, chunks, Some(chunks), None, None).unwrap().seconds
}

#[track_caller]
fn near(found: f64, expected: f64, share: f64) {
    assert!((found / expected - 1.0).abs() < share, "{found:e} is not {expected:e}");
}

const WHOLE: Parts = Parts { first: 0, count: 1 };

fn span(buffer: Buffer, owner: Option<u32>) -> Span {
    Span { buffer, owner, at: 0 }
}

/// Lanes by rank, of an all-reduce with one part a chunk. What it computes does not matter here.
fn by_hand(lanes: Vec<Vec<Vec<Instruction>>>) -> Plan {
    let program = |lanes: Vec<Vec<Instruction>>| crate::plan::Program {
        scratch: 1,
        lanes: lanes.into_iter().map(Lane).collect(),
    };
    Plan {
        algorithm: "by hand".into(),
        collective: Collective::AllReduce,
        parts: 1,
        chunk_bytes: 1 << 20,
        depth: 1,
        programs: lanes.into_iter().map(program).collect(),
    }
}

fn pull(from: u32) -> Instruction {
    let (src, dst) = (span(Buffer::Scratch, Some(from)), span(Buffer::Output, None));
    Instruction::Copy { parts: WHOLE, src, dst }
}

fn own() -> Instruction {
    Instruction::Copy { parts: WHOLE, src: span(Buffer::Input, None), dst: span(Buffer::Scratch, None) }
}

#[test]
fn a_copy_takes_its_bytes_over_the_link_and_the_flight() {
    let t = star(2);
    let p = Placement::gpus(&t).unwrap();
    let plan = by_hand(vec![vec![vec![pull(1)]], vec![vec![]]]);
    let run = in_chunks(&Machine::new(&t, &p), &plan, 1_000_000, 1);
    near(run.seconds, OVERHEAD + 10e-6 + 1e-6, 1e-9);
    assert_eq!(run.links.len(), 2);
    assert_eq!(run.links[0].1, 1_000_000);
    near(run.links[0].2, 10e-6 / run.seconds, 1e-9);
}

#[test]
fn flows_on_one_link_share_it_and_the_rest_goes_to_others() {
    // Ranks 1 and 2 read from rank 0; rank 3 reads from 4: half, half and all.
    let t = star(5);
    let p = Placement::gpus(&t).unwrap();
    let m = Machine::new(&t, &p);
    let plan = by_hand(vec![vec![], vec![vec![pull(0)]], vec![vec![pull(0)]], vec![vec![pull(4)]], vec![]]);
    let trace = m.trace(&plan, 1 << 20).unwrap();
    let end = |rank| trace.spans.iter().find(|s| s.rank == rank).unwrap().end - OVERHEAD - 1e-6;
    let alone = f64::from(1 << 20) / 100e9;
    near(end(1), 2.0 * alone, 1e-9);
    near(end(2), 2.0 * alone, 1e-9);
    near(end(3), alone, 1e-9);
    // Ranks 1 to 3 read from rank 0, rank 1 from rank 4 as well: a third each of the one, two thirds of the other.
    let plan =
        by_hand(vec![vec![], vec![vec![pull(0)], vec![pull(4)]], vec![vec![pull(0)]], vec![vec![pull(0)]], vec![]]);
    let trace = m.trace(&plan, 1 << 20).unwrap();
    let first = trace.spans.iter().find(|s| s.rank == 1 && s.lane == 1).unwrap().end;
    near(first - OVERHEAD - 1e-6, 1.5 * alone, 1e-9);
    let gpu0 = trace.counters.iter().find(|c| c.link == "gpu0 -> sw").unwrap();
    near(gpu0.samples[0].1, 1.0, 1e-9);
    assert_eq!(gpu0.samples.last().unwrap().1, 0.0);
}

#[test]
fn a_reduction_reads_all_at_once() {
    let t = star(4);
    let p = Placement::gpus(&t).unwrap();
    let srcs = (1..4).map(|r| span(Buffer::Scratch, Some(r))).collect();
    let reduce = Instruction::Reduce { parts: WHOLE, srcs, dst: span(Buffer::Output, None), finish: true };
    let plan = by_hand(vec![vec![vec![reduce]], vec![], vec![], vec![]]);
    let run = in_chunks(&Machine::new(&t, &p), &plan, 1_000_000, 1);
    near(run.seconds, OVERHEAD + 30e-6 + 1e-6, 1e-9);
}

#[test]
fn notices_hold_a_lane_back_by_their_lag() {
    // Rank 1 reads what rank 0 made; rank 0 makes no more than two chunks ahead.
    let t = star(2);
    let p = Placement::gpus(&t).unwrap();
    let m = Machine::new(&t, &p);
    let notify = |to| Instruction::Notify { to, flag: 0 };
    let wait = |from, lag| Instruction::Await { from, flag: 0, lag };
    for lag in [1, 2, 3] {
        let plan =
            by_hand(vec![vec![vec![wait(1, lag), own(), notify(1)]], vec![vec![wait(0, 0), pull(0), notify(0)]]]);
        let (made, read) = (OVERHEAD, OVERHEAD + 10e-6 + 1e-6);
        // There and back again, or as fast as rank 1 reads.
        let turn = made + 1e-6 + read + 1e-6;
        let run = in_chunks(&m, &plan, 100_000_000, 100);
        near(run.period, (turn / f64::from(lag)).max(read), 1e-6);
        near(run.seconds, turn - 1e-6 + 99.0 * run.period, 1e-6);
    }
}

#[test]
fn a_channel_holds_one_part() {
    let t = star(2);
    let p = Placement::gpus(&t).unwrap();
    let send = Instruction::Send { parts: WHOLE, to: 1, channel: 0, src: span(Buffer::Input, None) };
    let recv = Instruction::Recv { parts: WHOLE, from: 0, channel: 0, dst: span(Buffer::Output, None) };
    let plan = by_hand(vec![vec![vec![send]], vec![vec![recv]]]);
    let run = in_chunks(&Machine::new(&t, &p), &plan, 50_000_000, 50);
    // The next is sent once the last was taken, which is as long as its own overhead.
    near(run.period, OVERHEAD + 10e-6 + 1e-6, 1e-6);
    near(run.seconds, 50.0 * run.period + OVERHEAD, 1e-6);
}

#[test]
fn a_ring_takes_what_the_formula_says() {
    for (t, n) in [(star(8), 8), (circle(8), 8), (circle(5), 5)] {
        let p = Placement::gpus(&t).unwrap();
        let m = Machine::new(&t, &p);
        let plan = builders::flat(all_reduce(&p), Shape::Ring(vec![])).unwrap();
        let bytes = 1u64 << 30;
        let run = in_chunks(&m, &plan, bytes, 1);
        let steps = 2.0 * (f64::from(n) - 1.0);
        let wire = steps / f64::from(n) * bytes as f64 / 100e9;
        near(run.seconds, wire + steps * (OVERHEAD + 1e-6), 0.01);
    }
}

#[test]
fn two_shot_takes_what_the_formula_says() {
    let t = star(8);
    let p = Placement::gpus(&t).unwrap();
    let m = Machine::new(&t, &p);
    let plan = builders::two_shot(all_reduce(&p)).unwrap();
    let bytes = 1u64 << 30;
    near(in_chunks(&m, &plan, bytes, 1).seconds, 2.0 * 7.0 / 8.0 * bytes as f64 / 100e9, 0.01);
    // In many chunks both halves go on at a time, and a GPU's links carry both.
    let run = in_chunks(&m, &plan, bytes, 32);
    near(run.period, 2.0 * 7.0 / 8.0 * bytes as f64 / 32.0 / 100e9, 0.01);
    assert!(run.limit.starts_with("link "), "{}", run.limit);
    assert!(run.links.iter().all(|l| l.2 > 0.9 && l.2 <= 1.0), "{:?}", run.links);
}

#[test]
fn a_tree_is_a_pipeline() {
    let t = star(8);
    let p = Placement::gpus(&t).unwrap();
    let m = Machine::new(&t, &p);
    let plan = builders::flat(all_reduce(&p), Shape::Tree).unwrap();
    let bytes = 1u64 << 30;
    let run = in_chunks(&m, &plan, bytes, 256);
    // Each of two trees carries half; an inner rank reads from two children, is read by one parent, and back.
    near(run.period, 2.0 * bytes as f64 / 256.0 / 100e9, 0.1);
    near(run.seconds, whole(&m, &plan, bytes, 256), 0.005);
}

#[test]
fn levels_take_what_their_links_take() {
    let t = file("dgx-h100.toml").cluster(4).unwrap();
    let p = Placement::gpus(&t).unwrap();
    let m = Machine::new(&t, &p);
    let bytes = 4u64 << 30;
    let inner = 2.0 * 7.0 / 8.0 * bytes as f64 / 370.8e9;
    let outer = 2.0 * 3.0 / 4.0 * bytes as f64 / 8.0 / 50e9;
    // In a ring the part that was sent first is on its way back while the last has not left: a step more.
    for (shape, steps) in [(Shape::Direct, 1.0), (Shape::Ring(vec![]), 7.0 / 6.0)] {
        let nest = Nest::even(&[(8, Shape::Direct.into()), (4, shape.into())]);
        let plan = builders::hierarchical(all_reduce(&p), &nest, true).unwrap();
        near(in_chunks(&m, &plan, bytes, 1).seconds, inner + outer * steps, 0.01);
        let run = in_chunks(&m, &plan, bytes, 64);
        near(run.period, inner.max(outer) / 64.0, 0.1);
    }
}

#[test]
fn some_chunks_stand_for_all() {
    let star = star(8);
    let circle = circle(6);
    let host = file("dgx-a100.toml");
    let cluster = file("dgx-h100.toml").cluster(2).unwrap();
    let mut errors = Vec::new();
    for t in [&star, &circle, &host, &cluster] {
        let p = Placement::gpus(t).unwrap();
        let m = Machine::new(t, &p);
        for collective in [Collective::AllReduce, Collective::AllGather, Collective::Broadcast { root: 0 }] {
            for shape in [Shape::Direct, Shape::Ring(vec![]), Shape::Tree, Shape::HalvingDoubling] {
                let Ok(plan) = builders::flat(request(p.hosts(), collective), shape) else { continue };
                for (bytes, chunks) in [(64u64 << 20, 40), (1 << 20, 23)] {
                    let all = whole(&m, &plan, bytes, chunks);
                    let some = in_chunks(&m, &plan, bytes, chunks).seconds;
                    let what =
                        format!("{} {} {collective} in {chunks}: {some:e} for {all:e}", t.name(), plan.algorithm);
                    errors.push(((some / all - 1.0).abs(), what));
                }
            }
        }
    }
    errors.sort_by(|a, b| a.0.total_cmp(&b.0));
    // Where flows meet by chance of their timing, chunks take turns at being fast, and no few of them stand for all.
    let (most, worst) = (&errors[errors.len() * 3 / 4], &errors[errors.len() - 1]);
    assert!(most.0 < 0.005, "{most:?}");
    assert!(worst.0 < 0.08, "{worst:?}");
}

#[test]
fn cores_are_shared() {
    let text = "name = \"c\"\n[[device]]\nkind = \"cpu\"\nid = \"cpu0\"\ncores = 4\n\
                [[link]]\nkind = \"memory\"\nfrom = \"cpu0\"\nto = \"cpu0\"\nusable = \"30 GB/s\"\n";
    let t = Topology::from_toml(text, "c").unwrap();
    let time = |ranks: usize, bytes: u64| {
        let p = Placement::on_host(&t, ranks).unwrap();
        let plan = by_hand(vec![
            vec![vec![Instruction::Copy {
                parts: WHOLE,
                src: span(Buffer::Input, None),
                dst: span(Buffer::Output, None),
            }]];
            ranks
        ]);
        let run = in_chunks(&Machine::new(&t, &p), &plan, bytes, 1);
        (run.seconds, run.limit)
    };
    // One core copies 10 GB/s, memory 30: the fourth makes all wait.
    near(time(1, 10_000_000).0, 1e-3 + 100e-9, 1e-6);
    near(time(2, 10_000_000).0, 1e-3 + 100e-9, 1e-6);
    let (four, limit) = time(4, 10_000_000);
    near(four, 4e-3 / 3.0, 1e-3);
    assert_eq!(limit, "memory of cpu0 at 30.0 GB/s");
    // Without bytes only the overhead counts: eight ranks on four cores take twice as long.
    near(time(4, 0).0, 100e-9, 1e-6);
    let (eight, limit) = time(8, 0);
    near(eight, 200e-9, 1e-6);
    assert_eq!(limit, "4 core(s) of cpu0");
}

#[test]
fn host_plans_run() {
    let host = file("dgx-h100.toml");
    for ranks in [1, 2, 8, 200] {
        let p = Placement::on_host(&host, ranks).unwrap();
        let m = Machine::new(&host, &p);
        let request = Request { lanes: Lanes::Coarse, chunk_bytes: 1 << 20, ..all_reduce(&p) };
        for plan in [builders::two_shot(request).unwrap(), builders::flat(request, Shape::Ring(vec![])).unwrap()] {
            let run = m.run(&plan, 16 << 20).unwrap();
            assert!(run.seconds > 1e-4 && run.seconds < 1.0, "{ranks} {}: {run:?}", plan.algorithm);
            assert!(run.period <= run.seconds);
        }
    }
}

#[test]
fn one_rank_and_no_bytes_take_next_to_nothing() {
    let t = star(1);
    let p = Placement::gpus(&t).unwrap();
    let m = Machine::new(&t, &p);
    let plan = builders::two_shot(all_reduce(&p)).unwrap();
    let run = m.run(&plan, 1 << 30).unwrap();
    assert!(run.seconds < 33.0 * OVERHEAD && run.links.is_empty(), "{run:?}");
    let t = star(8);
    let p = Placement::gpus(&t).unwrap();
    let m = Machine::new(&t, &p);
    let run = m.run(&builders::two_shot(all_reduce(&p)).unwrap(), 0).unwrap();
    assert!(run.seconds > OVERHEAD && run.seconds < 30e-6, "{run:?}");
}

#[test]
fn runs_are_alike() {
    let t = file("dgx-h100.toml").cluster(2).unwrap();
    let p = Placement::gpus(&t).unwrap();
    let nest = Nest::even(&[(8, Shape::Direct.into()), (2, Shape::Direct.into())]);
    let plan = builders::hierarchical(all_reduce(&p), &nest, true).unwrap();
    let run = || Machine::new(&t, &p).run(&plan, 100_000_001).unwrap();
    let first = run();
    assert_eq!(first, run());
    // The critical path goes from the beginning to the end of the last chunk run, without turning back.
    assert!(first.critical.windows(2).all(|w| w[0].start <= w[1].start && w[0].end <= w[1].end + 1e-12));
    assert!(first.critical[0].start < 1e-9);
}

#[test]
fn what_cannot_run_is_an_error() {
    let message = |r: Result<Run>| match r {
        Err(Error::Plan(text)) => text,
        other => panic!("{other:?}"),
    };
    let two = "name = \"apart\"\n[[device]]\nkind = \"gpu\"\nid = \"gpu[0-1]\"\n";
    let t = Topology::from_toml(two, "apart").unwrap();
    let p = Placement::gpus(&t).unwrap();
    let plan = by_hand(vec![vec![vec![pull(1)]], vec![]]);
    let text = message(Machine::new(&t, &p).run(&plan, 1));
    assert_eq!(text, "no route leads from rank 1 (gpu1) to rank 0 (gpu0)");
    let t = star(2);
    let p = Placement::gpus(&t).unwrap();
    let m = Machine::new(&t, &p);
    let wait = |from| vec![vec![Instruction::Await { from, flag: 0, lag: 0 }]];
    assert_eq!(
        message(m.run(&by_hand(vec![wait(1), wait(0)]), 1)),
        "`by hand` cannot be timed: its lanes wait for each other"
    );
    assert!(message(m.run(&by_hand(vec![wait(7), wait(0)]), 1)).contains("rank 0 works with rank 7"));
    assert!(message(m.run(&by_hand(vec![wait(0)]), 1)).contains("is of 1 ranks"));
    let twice = vec![wait(1)[0].clone(), wait(1)[0].clone()];
    assert!(message(m.run(&by_hand(vec![twice, vec![]]), 1)).contains("another lane"));
}

#[test]
fn traces_are_what_perfetto_reads() {
    let t = file("dgx-h100.toml");
    let p = Placement::gpus(&t).unwrap();
    let trace = Machine::new(&t, &p).trace(&builders::two_shot(all_reduce(&p)).unwrap(), 64 << 20).unwrap();
    assert_eq!(trace.chunks, (2, 2));
    let json: serde_json::Value = serde_json::from_str(&trace.to_perfetto()).unwrap();
    let events = json["traceEvents"].as_array().unwrap();
    let of = |ph: &str| events.iter().filter(|e| e["ph"] == ph).count();
    assert_eq!(of("X"), trace.spans.len());
    assert!(of("C") > 32 && of("M") > 16);
    assert!(events.iter().any(|e| e["args"]["name"] == "rank 7 (gpu7)"));
    assert!(events.iter().filter(|e| e["ph"] == "C").all(|e| e["args"]["share"].as_f64().unwrap() < 1.000_001));
    // A lane does one thing at a time.
    let mut last = std::collections::HashMap::new();
    for s in &trace.spans {
        let before = last.insert((s.rank, s.lane), s.end).unwrap_or(0.0);
        assert!(s.start >= before - 1e-10 && s.end >= s.start, "{s:?}");
    }
}
