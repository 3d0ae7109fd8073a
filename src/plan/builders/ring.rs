//! Each rank sends to the next and receives from the one before (Patarasuk and Yuan, "Bandwidth optimal all-reduce
//! algorithms for clusters of workstations", 2009): `n - 1` steps a phase, every link loaded alike.

use crate::plan::builders::draft::{Draft, Group};
use crate::plan::{Instruction, Parts};

/// Reduce-scatter phase: afterwards member `i` has the reduction of `group.shares[i]`.
pub(super) fn reduce_scatter(d: &mut Draft<'_>, group: &Group, lane: usize, finish: bool, shared: bool) {
    let n = group.ranks.len();
    let channels: Vec<u32> = (0..n).map(|i| d.flag(group.ranks[i], group.ranks[(i + 1) % n])).collect();
    for step in 0..n - 1 {
        for (i, &rank) in group.ranks.iter().enumerate() {
            let (next, prev) = (group.ranks[(i + 1) % n], group.ranks[(i + n - 1) % n]);
            // Share s starts at member s + 1 and ends at member s.
            let (give, take) = ((i + 2 * n - 1 - step) % n, (i + 2 * n - 2 - step) % n);
            let last = step + 2 == n;
            // A channel may hold one part only, so what is sent is received in step.
            for (&part, out) in group.shares[take].iter().zip(&group.shares[give]) {
                d.send(rank, lane, next, channels[i], &[*out]);
                let Some(src) = d.home(rank, part) else { continue };
                let (parts, dst) = (Parts { first: part, count: 1 }, d.place(rank, part, shared && last));
                let (from, channel, finish) = (prev as u32, channels[(i + n - 1) % n], finish && last);
                d.push(rank, lane, Instruction::RecvReduce { parts, from, channel, src, dst, finish });
                d.set_home(rank, part, dst);
            }
        }
    }
}

/// All-gather phase: afterwards every member has every share.
pub(super) fn all_gather(d: &mut Draft<'_>, group: &Group, lane: usize, shared: bool) {
    let n = group.ranks.len();
    let channels: Vec<u32> = (0..n).map(|i| d.flag(group.ranks[i], group.ranks[(i + 1) % n])).collect();
    for step in 0..n - 1 {
        for (i, &rank) in group.ranks.iter().enumerate() {
            let (next, prev) = (group.ranks[(i + 1) % n], group.ranks[(i + n - 1) % n]);
            let (give, take) = ((i + n - step) % n, (i + n - 1 - step) % n);
            for (part, out) in group.shares[take].iter().zip(&group.shares[give]) {
                d.send(rank, lane, next, channels[i], &[*out]);
                d.recv(rank, lane, prev, channels[(i + n - 1) % n], &[*part], shared);
            }
            if step == 0 && !shared {
                d.deliver(rank, lane, &group.shares[i]);
            }
        }
    }
}
