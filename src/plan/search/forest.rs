//! As many trees from every member as the wires carry.
//!
//! Edmonds ("Edge-disjoint branchings", 1973) says when trees fit, and a tree is grown wire by wire such that what is
//! left still fits (Bérczi and Frank, "Packing arborescences", 2010). Switches, which cannot copy, are replaced by wires
//! between their neighbours without loss (Bang-Jensen, Frank and Jackson, "Preserving and increasing local
//! edge-connectivity in mixed graphs", 1995). The whole is as Zhao et al. have it ("ForestColl: Throughput-optimal
//! collective communications on heterogeneous network fabrics", 2024).

use std::collections::BTreeMap;

use crate::plan::builders::Step;
use crate::plan::flow::Network;
use crate::plan::search::Wires;

/// Trees from each member, at most: each is a part of every chunk.
const MOST_TREES: i64 = 8;
/// A rate that much better is worth more trees.
const WORTH: f64 = 1.01;
/// Among more members it takes too long.
const MOST_MEMBERS: usize = 32;

type Capacity = BTreeMap<(usize, usize), i64>;

/// By member, its trees.
pub(super) fn forest(wires: &Wires) -> Option<Vec<Vec<Vec<Step>>>> {
    let m = wires.members();
    if m > MOST_MEMBERS {
        return None;
    }
    let mut best: Option<(f64, i64, Capacity)> = None;
    for k in 1..=MOST_TREES {
        if let Some((scale, capacity)) = fit(wires, k) {
            let rate = k as f64 / scale;
            if best.as_ref().is_none_or(|(b, ..)| rate > b * WORTH) {
                best = Some((rate, k, capacity));
            }
        }
    }
    let (_, k, mut capacity) = best?;
    for switch in m..wires.nodes() {
        split_off(&mut capacity, switch, m, wires.nodes(), k)?;
    }
    pack(capacity, m, k)
}

/// The least scale of the wires at which `k` trees from every member fit, and the wires at it.
fn fit(wires: &Wires, k: i64) -> Option<(f64, Capacity)> {
    let fits = |scale: f64| carries(&wires.scaled(scale), wires.members(), wires.nodes(), k);
    // Whole numbers change only where a rate becomes one.
    let most = k * wires.members() as i64;
    let mut scales: Vec<f64> =
        wires.distinct().iter().flat_map(|rate| (1..=most).map(move |n| n as f64 / rate)).collect();
    scales.sort_by(f64::total_cmp);
    let at = scales.partition_point(|scale| !fits(*scale));
    scales.get(at).map(|scale| (*scale, wires.scaled(*scale)))
}

/// Whether every member can be reached from all members together, `k` from each.
fn carries(capacity: &Capacity, members: usize, nodes: usize, k: i64) -> bool {
    let reaches = |v: usize| {
        let mut network = Network::new(nodes + 1);
        capacity.iter().for_each(|((a, b), c)| network.arc(*a, *b, whole(*c)));
        (0..members).for_each(|v| network.arc(nodes, v, whole(k)));
        network.flow(nodes, v) >= members as u128 * whole(k)
    };
    (0..members).all(reaches)
}

fn whole(n: i64) -> u128 {
    u128::try_from(n).unwrap_or(0)
}

/// Replaces ways through `switch` by wires between its neighbours, as wide as what must be carried allows.
fn split_off(capacity: &mut Capacity, switch: usize, members: usize, nodes: usize, k: i64) -> Option<()> {
    let outs: Vec<usize> = capacity.keys().filter(|(a, _)| *a == switch).map(|(_, b)| *b).collect();
    for to in outs {
        let ins: Vec<usize> = capacity.keys().filter(|(_, b)| *b == switch).map(|(a, _)| *a).collect();
        for from in ins.into_iter().filter(|from| *from != to) {
            let moved = |n: i64| {
                let mut c = capacity.clone();
                for (ends, n) in [((from, switch), -n), ((switch, to), -n), ((from, to), n)] {
                    *c.entry(ends).or_insert(0) += n;
                }
                c.retain(|_, n| *n > 0);
                c
            };
            let get = |ends: (usize, usize)| capacity.get(&ends).copied().unwrap_or(0);
            let most = get((from, switch)).min(get((switch, to)));
            let n = largest(most, |n| carries(&moved(n), members, nodes, k));
            if n > 0 {
                *capacity = moved(n);
            }
        }
    }
    // What is left of it leads nowhere.
    capacity.retain(|(a, b), _| *a != switch && *b != switch);
    carries(capacity, members, nodes, k).then_some(())
}

/// The largest number up to `most` that is allowed; 0 is, and less than what is allowed is too.
fn largest(most: i64, allowed: impl Fn(i64) -> bool) -> i64 {
    if most <= 0 || allowed(most) {
        return most.max(0);
    }
    let (mut low, mut high) = (0, most);
    while high - low > 1 {
        let middle = (low + high) / 2;
        if allowed(middle) { low = middle } else { high = middle }
    }
    low
}

/// Trees that grow alike.
#[derive(Clone)]
struct Batch {
    root: usize,
    count: i64,
    /// By member, its depth where it is reached.
    depth: Vec<Option<u32>>,
    steps: Vec<Step>,
}

fn pack(mut capacity: Capacity, m: usize, k: i64) -> Option<Vec<Vec<Vec<Step>>>> {
    let start = |root: usize| {
        let depth = (0..m).map(|v| (v == root).then_some(0)).collect();
        Batch { root, count: k, depth, steps: vec![] }
    };
    let mut batches: Vec<Batch> = (0..m).map(start).collect();
    // All trees grow by one step in turn, so that none is left with the long ways only.
    loop {
        batches.sort_by_key(|b| b.steps.len());
        if batches[0].steps.len() + 1 >= m {
            break;
        }
        grow(&mut batches, &mut capacity, m)?;
    }
    let mut trees = vec![vec![]; m];
    for batch in batches {
        let all = std::iter::repeat_n(batch.steps, batch.count as usize);
        trees[batch.root].extend(all);
    }
    Some(trees)
}

/// Gives the first batch a step, for as many of its trees as there is room for.
fn grow(batches: &mut Vec<Batch>, capacity: &mut Capacity, m: usize) -> Option<()> {
    let batch = batches[0].clone();
    let mut ways: Vec<(u32, i64, usize, usize)> = Vec::new();
    for ((from, to), c) in capacity.iter().filter(|(_, c)| **c > 0) {
        if let (Some(depth), None) = (batch.depth[*from], batch.depth[*to]) {
            ways.push((depth, -c, *from, *to));
        }
    }
    // Shallow trees fill soonest.
    ways.sort_unstable();
    for (depth, c, from, to) in ways {
        let room = |n: i64| leaves_room(batches, capacity, m, (from, to), n);
        let n = largest(batch.count.min(-c), room);
        if n == 0 {
            continue;
        }
        *capacity.entry((from, to)).or_insert(0) -= n;
        if n < batch.count {
            batches.push(Batch { count: batch.count - n, ..batch.clone() });
        }
        let grown = &mut batches[0];
        grown.count = n;
        grown.depth[to] = Some(depth + 1);
        grown.steps.push((from, to, depth));
        return Some(());
    }
    None
}

/// Whether all trees can still reach all members once `n` of the first batch have taken a wire. The sets of members that
/// this could cut off all hold the wire's end, so one flow to there tells.
fn leaves_room(batches: &[Batch], capacity: &Capacity, m: usize, (from, to): (usize, usize), n: i64) -> bool {
    let source = m;
    let mut network = Network::new(m + 1 + batches.len() + 1);
    for ((a, b), c) in capacity {
        network.arc(*a, *b, whole(if (*a, *b) == (from, to) { c - n } else { *c }));
    }
    let mut all = 0;
    for (i, batch) in batches.iter().enumerate() {
        let count = whole(if i == 0 { batch.count - n } else { batch.count });
        all += count;
        // Such trees are there already.
        if batch.depth[to].is_some() {
            network.arc(source, to, count);
            continue;
        }
        let node = m + 1 + i;
        network.arc(source, node, count);
        (0..m).filter(|v| batch.depth[*v].is_some()).for_each(|v| network.arc(node, v, count));
    }
    network.flow(source, to) >= all
}
