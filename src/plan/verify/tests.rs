use super::*;
use crate::plan::builders::{self, Lanes, Nest, Request, Shape};
use crate::plan::{Collective, Lane, Program};
use proptest::prelude::*;
use std::sync::Arc;

fn all_reduce(hosts: &[usize]) -> Request<'_> {
    Request { collective: Collective::AllReduce, hosts, chunk_bytes: 1 << 20, lanes: Lanes::Coarse }
}

fn two_shot(ranks: usize) -> Plan {
    builders::two_shot(all_reduce(&vec![0; ranks])).unwrap()
}

fn one_shot(request: Request<'_>) -> Plan {
    builders::one_shot(request, &[vec![(0..request.hosts.len()).collect()]]).unwrap()
}

fn refused(plan: &Plan) -> Refusal {
    let refusal = verify(plan, &vec![0; plan.ranks()]).unwrap_err();
    let text = refusal.to_string();
    assert!(refusal.at.is_none() || text.contains("instruction"), "{text}");
    refusal
}

/// Index of the first instruction of lane 0 that `pick` takes.
fn find(plan: &Plan, rank: usize, pick: impl Fn(&Instruction) -> bool) -> usize {
    plan.programs[rank].lanes[0].0.iter().position(pick).unwrap()
}

#[test]
fn a_dropped_contribution_is_refused() {
    let mut plan = two_shot(4);
    let i = find(&plan, 2, |i| matches!(i, Instruction::Reduce { .. }));
    if let Instruction::Reduce { srcs, .. } = &mut plan.programs[2].lanes[0].0[i] {
        srcs.remove(3);
    }
    let r = refused(&plan);
    assert_eq!((r.fault, r.at), (Fault::Dropped, Some(Location { rank: 2, lane: 0, index: i })));
    assert!(r.to_string().contains("without rank 3"), "{r}");
}

#[test]
fn an_output_never_written_is_refused() {
    let mut plan = two_shot(3);
    let i = plan.programs[1].lanes[0].0.len() - 1;
    plan.programs[1].lanes[0].0.remove(i);
    let r = refused(&plan);
    assert_eq!(r.fault, Fault::Dropped);
    assert!(r.to_string().contains("rank 1 ends with nothing in part"), "{r}");
}

#[test]
fn a_doubled_contribution_is_refused() {
    let mut plan = two_shot(4);
    let i = find(&plan, 0, |i| matches!(i, Instruction::Reduce { .. }));
    if let Instruction::Reduce { srcs, .. } = &mut plan.programs[0].lanes[0].0[i] {
        srcs[3] = srcs[1];
    }
    let r = refused(&plan);
    assert_eq!((r.fault, r.at.unwrap().index), (Fault::Doubled, i));
    assert!(r.to_string().contains("rank 1 twice"), "{r}");
}

#[test]
fn a_read_before_its_write_is_refused() {
    let mut plan = two_shot(2);
    // The peer tells before it has copied.
    let i = find(&plan, 1, |i| matches!(i, Instruction::Copy { .. }));
    plan.programs[1].lanes[0].0.swap(i, i + 1);
    let r = refused(&plan);
    assert!(matches!(r.fault, Fault::ReadBeforeWrite | Fault::UnorderedRead), "{r}");
    assert_eq!(r.at.unwrap().rank, if r.fault == Fault::ReadBeforeWrite { 0 } else { r.at.unwrap().rank });
}

#[test]
fn a_missing_wait_is_refused() {
    for victim in 0..4 {
        let whole = two_shot(4);
        let waits: Vec<usize> = (0..whole.programs[victim].lanes[0].0.len())
            .filter(|&i| matches!(whole.programs[victim].lanes[0].0[i], Instruction::Await { .. }))
            .collect();
        for wait in waits {
            let mut plan = whole.clone();
            let awaited = plan.programs[victim].lanes[0].0.remove(wait);
            let Instruction::Await { from, flag, .. } = awaited else { panic!() };
            let earlier = whole.programs[victim].lanes[0].0[..wait].iter().filter(|i| **i == awaited).count();
            let code = &mut plan.programs[from as usize].lanes[0].0;
            let notice = Instruction::Notify { to: victim as u32, flag };
            let pair = (0..code.len()).filter(|&i| code[i] == notice).nth(earlier).unwrap();
            code.remove(pair);
            let r = refused(&plan);
            assert!(matches!(r.fault, Fault::ReadBeforeWrite | Fault::UnorderedRead), "{r}");
        }
    }
}

#[test]
fn unordered_writes_to_one_place_are_refused() {
    let mut plan = two_shot(2);
    plan.programs[0].lanes.push(Lane(vec![Instruction::Copy {
        parts: Parts { first: 1, count: 1 },
        src: Span { buffer: Buffer::Input, owner: None, at: 1 },
        dst: Span { buffer: Buffer::Output, owner: None, at: 1 },
    }]));
    let r = refused(&plan);
    assert_eq!(r.fault, Fault::UnorderedWrites, "{r}");
}

#[test]
fn scratch_reused_too_early_is_refused() {
    let mut plan = one_shot(all_reduce(&[0; 2]));
    plan.depth = 1;
    let r = refused(&plan);
    assert_eq!(r.fault, Fault::UnorderedRead, "{r}");
    assert!(r.to_string().contains("nothing orders"), "{r}");
}

#[test]
fn a_cyclic_wait_is_refused() {
    let mut plan = two_shot(2);
    for rank in 0..2 {
        // Both wait for the other before they tell it.
        let code = &mut plan.programs[rank].lanes[0].0;
        let tell = code.iter().position(|i| matches!(i, Instruction::Notify { .. })).unwrap();
        let wait = code.iter().position(|i| matches!(i, Instruction::Await { .. })).unwrap();
        code.swap(tell, wait);
    }
    let r = refused(&plan);
    assert_eq!(r.fault, Fault::CyclicWait, "{r}");
    assert!(r.to_string().contains("waits for itself: rank"), "{r}");
    assert!(r.at.is_some());
}

#[test]
fn a_ring_of_sends_that_all_go_first_twice_is_refused() {
    let mut plan = builders::flat(all_reduce(&[0, 1]), Shape::Ring(vec![])).unwrap();
    for program in &mut plan.programs {
        // Two sends in a row need a channel of two parts; one is all that is promised.
        program.lanes[0].0.sort_by_key(|i| !matches!(i, Instruction::Send { .. }));
    }
    assert!(verify(&plan, &[0, 1]).is_err());
}

#[test]
fn bits_that_would_differ_are_refused() {
    let mut plan = one_shot(all_reduce(&[0; 3]));
    let i = find(&plan, 1, |i| matches!(i, Instruction::Reduce { .. }));
    if let Instruction::Reduce { srcs, .. } = &mut plan.programs[1].lanes[0].0[i] {
        srcs.reverse();
    }
    assert_eq!(refused(&plan).fault, Fault::DifferentBits);
}

#[test]
fn indices_from_outside_never_panic() {
    let huge = Span { buffer: Buffer::Output, owner: Some(u32::MAX), at: u32::MAX };
    let parts = Parts { first: u32::MAX, count: u32::MAX };
    let cases = [
        Instruction::Copy { parts, src: huge, dst: huge },
        Instruction::Reduce { parts: Parts { first: 0, count: 1 }, srcs: vec![], dst: huge, finish: true },
        Instruction::Send { parts: Parts { first: 0, count: 1 }, to: u32::MAX, channel: u32::MAX, src: huge },
        Instruction::Notify { to: u32::MAX, flag: 0 },
        Instruction::Await { from: 0, flag: u32::MAX, lag: u32::MAX },
    ];
    for i in cases {
        let mut plan = two_shot(2);
        plan.programs[0].lanes[0].0.insert(0, i);
        refused(&plan);
    }
    let mut plan = two_shot(2);
    plan.programs[1].scratch = usize::MAX;
    assert!(refused(&plan).to_string().contains("too large"));
    for hosts in [vec![], vec![0], vec![0; 3]] {
        assert_eq!(verify(&two_shot(2), &hosts).unwrap_err().fault, Fault::Malformed);
    }
    let mut plan = two_shot(2);
    plan.programs.clear();
    assert_eq!(refused(&plan).fault, Fault::Malformed);
}

#[test]
fn what_is_wrong_in_place_only_is_refused() {
    let mut plan = two_shot(2);
    // Part 1 of the input is read after the result was written to the output, then beside that.
    let span = |buffer, at| Span { buffer, owner: None, at };
    let parts = Parts { first: 1, count: 1 };
    let late = Instruction::Copy { parts, src: span(Buffer::Input, 1), dst: span(Buffer::Scratch, 0) };
    plan.programs[0].lanes[0].0.push(late);
    let r = refused(&plan);
    assert!(r.to_string().contains("in place is the output"), "{r}");
    plan.programs[0].lanes[0].0.pop();
    let copy = Instruction::Copy { parts, src: span(Buffer::Input, 1), dst: span(Buffer::Scratch, 9) };
    plan.programs[0].scratch = 10;
    plan.programs[0].lanes.push(Lane(vec![copy]));
    let r = refused(&plan);
    assert!(r.fault == Fault::UnorderedRead && r.to_string().contains("in place is the"), "{r}");
    // To write to an input is wrong however it is called.
    plan.programs[0].lanes.pop();
    let copy = Instruction::Copy { parts, src: span(Buffer::Output, 1), dst: span(Buffer::Input, 1) };
    plan.programs[0].lanes[0].0.push(copy);
    assert!(refused(&plan).to_string().contains("only read"));
}

#[test]
fn what_is_rounded_in_between_has_other_bits() {
    let mut plan = one_shot(all_reduce(&[0; 3]));
    // Rank 1 adds in the same order, in two steps.
    plan.programs[1].scratch += 1;
    let i = find(&plan, 1, |i| matches!(i, Instruction::Reduce { .. }));
    let Instruction::Reduce { parts, srcs, dst, .. } = plan.programs[1].lanes[0].0[i].clone() else { panic!() };
    let half = Span { buffer: Buffer::Scratch, owner: None, at: 1 };
    let two = |srcs, dst, finish| Instruction::Reduce { parts, srcs, dst, finish };
    plan.programs[1].lanes[0].0[i] = two(srcs[..2].to_vec(), half, false);
    plan.programs[1].lanes[0].0.insert(i + 1, two(vec![half, srcs[2]], dst, true));
    assert_eq!(refused(&plan).fault, Fault::DifferentBits);
}

#[test]
fn room_in_a_channel_orders_nothing() {
    // Rank 1 tells rank 0 that its scratch is written by taking a message: a wire that holds two does not wait for it.
    let mut plan = one_shot(all_reduce(&[0; 2]));
    let parts = Parts { first: 0, count: 1 };
    let own = Span { buffer: Buffer::Scratch, owner: None, at: 0 };
    let spare = Span { at: 1, ..own };
    plan.programs[1].scratch += 2;
    let told = |i: &Instruction| matches!(i, Instruction::Await { .. });
    let wait = find(&plan, 0, told);
    let Instruction::Await { flag, .. } = plan.programs[0].lanes[0].0.remove(wait) else { panic!() };
    plan.programs[1].lanes[0].0.retain(|i| *i != Instruction::Notify { to: 0, flag });
    let send = Instruction::Send { parts, to: 1, channel: 0, src: own };
    plan.programs[0].lanes[0].0.splice(wait..wait, [send.clone(), send]);
    let shared = find(&plan, 1, |i| matches!(i, Instruction::Copy { .. })) + 1;
    let recv = Instruction::Recv { parts, from: 0, channel: 0, dst: spare };
    plan.programs[1].lanes[0].0.splice(shared..shared, [recv.clone(), recv]);
    assert_eq!(refused(&plan).fault, Fault::UnorderedRead);
}

/// A chain of 16,384 ranks that reduces 16 parts on the way there and hands them out on the way back.
#[test]
fn as_many_ranks_as_a_large_cluster_has() {
    let (n, all) = (1 << 14, 16);
    let place = |buffer, at| Span { buffer, owner: None, at };
    let program = |rank: u32| {
        let (prev, next, last) = (rank.wrapping_sub(1), rank + 1, n - 1);
        let (mut there, mut back) = (Vec::new(), Vec::new());
        for at in 0..all {
            let parts = Parts { first: at, count: 1 };
            let (input, sum, out) = (place(Buffer::Input, at), place(Buffer::Scratch, at), place(Buffer::Output, at));
            let (finish, made) = (rank == last, if rank == last { out } else { sum });
            if rank > 0 {
                let (src, dst) = (input, made);
                there.push(Instruction::RecvReduce { parts, from: prev, channel: 0, src, dst, finish });
            }
            if rank < last {
                let src = if rank > 0 { made } else { input };
                there.push(Instruction::Send { parts, to: next, channel: 0, src });
                back.push(Instruction::Recv { parts, from: next, channel: 1, dst: out });
            }
            if rank > 0 {
                back.push(Instruction::Send { parts, to: prev, channel: 1, src: out });
            }
        }
        Program { scratch: all as usize, lanes: vec![Lane([there, back].concat())] }
    };
    let plan = Plan {
        algorithm: "chain".into(),
        collective: Collective::AllReduce,
        parts: all as usize,
        chunk_bytes: 1 << 20,
        depth: 1,
        programs: (0..n).map(program).collect(),
    };
    let hosts: Vec<usize> = (0..n as usize).map(|r| r / 8).collect();
    verify(&plan, &hosts).unwrap();
}

#[test]
fn memory_of_another_host_is_refused() {
    let r = verify(&two_shot(4), &[0, 0, 1, 1]).unwrap_err();
    assert!(r.to_string().contains("another host"), "{r}");
}

/// Whether blocks may have other owners than the ranks they are of.
fn takes_two_roots(c: Collective) -> bool {
    !matches!(c, Collective::ReduceScatter | Collective::AllGather | Collective::AllToAll)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn every_plan_that_is_built_is_right(
        sizes in prop::collection::vec(1usize..5, 1..4), shapes in prop::collection::vec(0usize..5, 3),
        local in any::<bool>(), fine in any::<bool>(), spread in any::<bool>(), which in 0usize..6,
        root in any::<prop::sample::Index>(), lost in any::<prop::sample::Index>(),
    ) {
        let even: usize = sizes.iter().product();
        let root = root.index(even);
        let collective = Collective::every(root)[which];
        let levels: Vec<(usize, Arc<Shape>)> = sizes.iter().zip(&shapes).enumerate().map(|(i, (&size, &shape))| {
            let cycles = vec![(0..size).collect(), (0..size).rev().collect()];
            let trees = |i: usize| vec![Shape::Ring(vec![]).steps(size, i, 0, true), Shape::HalvingDoubling.steps(size, i, 0, true)];
            let shape = match shape {
                _ if collective == Collective::AllToAll => Shape::Direct,
                0 => Shape::Direct,
                1 => Shape::Ring(cycles),
                2 => Shape::HalvingDoubling,
                3 if i + 1 == sizes.len() && takes_two_roots(collective) => Shape::Tree,
                _ => Shape::Forest((0..size).map(trees).collect()),
            };
            (size, shape.into())
        }).collect();
        // One host in all, or one for each innermost group.
        let hosts: Vec<usize> = (0..even).map(|r| if local { 0 } else { r / sizes[0] }).collect();
        let lanes = if fine { Lanes::Fine } else { Lanes::Coarse };
        let request = Request { collective, hosts: &hosts, chunk_bytes: 999, lanes };
        let plan = builders::hierarchical(request, &Nest::even(&levels), spread).unwrap();
        if let Err(r) = verify(&plan, &hosts) {
            return Err(TestCaseError::fail(format!("{} of {}: {r}", plan.algorithm, plan.collective)));
        }
        // Credits, flags, transfers: whatever is taken out is missed.
        let total: usize = plan.programs.iter().flat_map(|p| &p.lanes).map(|l| l.0.len()).sum();
        if total > 0 {
            let mut short = plan.clone();
            let mut at = lost.index(total);
            for code in short.programs.iter_mut().flat_map(|p| &mut p.lanes).map(|l| &mut l.0) {
                if at < code.len() { code.remove(at); break; }
                at -= code.len();
            }
            prop_assert!(verify(&short, &hosts).is_err(), "{} of {}", plan.algorithm, plan.collective);
        }
    }

    #[test]
    fn unequal_groups_are_right(
        sizes in prop::collection::vec(1usize..5, 1..4), weights in prop::collection::vec(0u8..3, 16), shape in 0usize..3,
        which in 0usize..6, root in any::<prop::sample::Index>(), local in any::<bool>(),
    ) {
        let n: usize = sizes.iter().sum();
        let collective = Collective::every(root.index(n))[which];
        let mut hosts = Vec::new();
        let groups = sizes.iter().enumerate().map(|(h, &size)| {
            let first = hosts.len();
            hosts.extend(std::iter::repeat_n(if local { 0 } else { h }, size));
            let members = (first..first + size).map(|r| Nest::rank(r, f64::from(weights[r]))).collect();
            Nest::group(members, Shape::Direct)
        }).collect();
        let shape = match shape {
            1 if collective != Collective::AllToAll => Shape::HalvingDoubling,
            2 if takes_two_roots(collective) => Shape::Tree,
            _ => Shape::Direct,
        };
        let request = Request { collective, hosts: &hosts, chunk_bytes: 999, lanes: Lanes::Fine };
        let plan = builders::hierarchical(request, &Nest::group(groups, shape), true).unwrap();
        if let Err(r) = verify(&plan, &hosts) {
            return Err(TestCaseError::fail(format!("{} of {}: {r}", plan.algorithm, plan.collective)));
        }
    }

    /// Removing any one ordering or data instruction breaks a plan; the proof notices each.
    #[test]
    fn nothing_in_a_plan_is_superfluous(ranks in 2usize..5, ring in any::<bool>(), pick in any::<prop::sample::Index>()) {
        let hosts = vec![0; ranks];
        let shape = if ring { Shape::Ring(vec![]) } else { Shape::Direct };
        let mut plan = builders::flat(all_reduce(&hosts), shape).unwrap();
        let total: usize = plan.programs.iter().map(|p| p.lanes[0].0.len()).sum();
        let mut at = pick.index(total);
        for p in &mut plan.programs {
            let code = &mut p.lanes[0].0;
            if at < code.len() { code.remove(at); break; }
            at -= code.len();
        }
        prop_assert!(verify(&plan, &vec![0; ranks]).is_err());
    }
}

#[test]
fn one_shot_is_right_for_any_number_of_ranks() {
    for ranks in 1..9 {
        let hosts = vec![7; ranks];
        let plan = one_shot(all_reduce(&hosts));
        verify(&plan, &hosts).unwrap();
        assert!(ranks == 1 || plan.single_step());
    }
}

#[test]
fn one_shot_over_levels_and_hosts_is_right() {
    let rows = |f: &dyn Fn(usize, usize) -> usize| {
        (0..3).map(|i| (0..4).map(|j| f(i, j)).collect()).collect::<Vec<Vec<usize>>>()
    };
    let columns: Vec<Vec<usize>> = (0..4).map(|j| (0..3).map(|i| i * 4 + j).collect()).collect();
    let levels = [rows(&|i, j| i * 4 + j), columns];
    for hosts in [vec![0; 12], (0..12).map(|r| r / 4).collect::<Vec<_>>(), (0..12).map(|r| r / 2).collect()] {
        for lanes in [Lanes::Fine, Lanes::Coarse] {
            let plan = builders::one_shot(Request { lanes, ..all_reduce(&hosts) }, &levels).unwrap();
            verify(&plan, &hosts).unwrap();
        }
    }
}
