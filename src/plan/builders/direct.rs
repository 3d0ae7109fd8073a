//! Every rank talks to every other: the fewest flights.
//!
//! One-shot: each rank reads all inputs and reduces them itself. Two-shot: each rank reduces its share, then reads
//! the others' results. On a host peers read each other's scratch, elsewhere they send.

use crate::plan::builders::Request;
use crate::plan::builders::draft::{Draft, Group, seen_by};
use crate::plan::{Buffer, Collective, Instruction, Parts, Plan, Span};
use crate::{Error, Result};

/// Reduce-scatter phase: afterwards member `i` has the reduction of `group.shares[i]`.
pub(super) fn reduce_scatter(d: &mut Draft<'_>, group: &Group, lane: usize, finish: bool, shared: bool) {
    if !d.mapped(&group.ranks) {
        return send_and_reduce(d, group, lane, finish, shared);
    }
    let flags = flags(d, group);
    for (i, &rank) in group.ranks.iter().enumerate() {
        for j in group.others(i) {
            d.share(rank, lane, &group.shares[j]);
            d.notify(rank, lane, group.ranks[j], flags[i][j]);
        }
    }
    // All operands before any result: a result's place becomes its rank's home of the part.
    let mut reductions = Vec::new();
    for (share, &reader) in group.shares.iter().zip(&group.ranks) {
        for &part in share {
            let of = |&owner: &usize| d.home(owner, part).map(|s| seen_by(reader, owner, s));
            reductions.push((reader, part, group.ranks.iter().filter_map(of).collect::<Vec<Span>>()));
        }
    }
    for (i, &rank) in group.ranks.iter().enumerate() {
        for j in group.others(i) {
            d.wait(rank, lane, group.ranks[j], flags[j][i]);
        }
    }
    for (rank, part, srcs) in reductions {
        let (parts, dst) = (Parts { first: part, count: 1 }, d.place(rank, part, shared));
        d.push(rank, lane, Instruction::Reduce { parts, srcs, dst, finish });
        d.set_home(rank, part, dst);
    }
}

/// The same where memory is not shared. A channel may hold one part only, so what is sent is received in step.
fn send_and_reduce(d: &mut Draft<'_>, group: &Group, lane: usize, finish: bool, shared: bool) {
    let channels = flags(d, group);
    for (i, &rank) in group.ranks.iter().enumerate() {
        for k in 0..group.shares[i].len() {
            for j in group.others(i) {
                d.send(rank, lane, group.ranks[j], channels[i][j], &group.shares[j][k..=k]);
            }
            let part = group.shares[i][k];
            let Some(mut src) = d.home(rank, part) else { continue };
            let dst = d.place(rank, part, shared);
            for (step, j) in group.others(i).enumerate() {
                let (parts, from) = (Parts { first: part, count: 1 }, group.ranks[j] as u32);
                let finish = finish && step + 2 == group.ranks.len();
                let channel = channels[j][i];
                d.push(rank, lane, Instruction::RecvReduce { parts, from, channel, src, dst, finish });
                src = dst;
            }
            d.set_home(rank, part, dst);
        }
    }
}

/// All-gather phase: afterwards every member has every share.
pub(super) fn all_gather(d: &mut Draft<'_>, group: &Group, lane: usize, shared: bool) {
    if !d.mapped(&group.ranks) {
        return send_to_all(d, group, lane, shared);
    }
    let flags = flags(d, group);
    for (i, &rank) in group.ranks.iter().enumerate() {
        d.share(rank, lane, &group.shares[i]);
        for j in group.others(i) {
            d.notify(rank, lane, group.ranks[j], flags[i][j]);
        }
        if !shared {
            d.deliver(rank, lane, &group.shares[i]);
        }
    }
    for (i, &rank) in group.ranks.iter().enumerate() {
        for j in group.others(i) {
            let peer = group.ranks[j];
            d.wait(rank, lane, peer, flags[j][i]);
            let mut moves = Vec::new();
            for &part in &group.shares[j] {
                let dst = d.place(rank, part, shared);
                moves.extend(d.home(peer, part).map(|src| (part, seen_by(rank, peer, src), dst)));
                d.set_home(rank, part, dst);
            }
            d.copy(rank, lane, moves);
        }
    }
}

/// The same where memory is not shared.
fn send_to_all(d: &mut Draft<'_>, group: &Group, lane: usize, shared: bool) {
    let channels = flags(d, group);
    for (i, &rank) in group.ranks.iter().enumerate() {
        for k in 0..group.shares[i].len() {
            for j in group.others(i) {
                d.send(rank, lane, group.ranks[j], channels[i][j], &group.shares[i][k..=k]);
            }
            for j in group.others(i) {
                d.recv(rank, lane, group.ranks[j], channels[j][i], &group.shares[j][k..=k], shared);
            }
        }
        if !shared {
            d.deliver(rank, lane, &group.shares[i]);
        }
    }
}

/// A flag (or channel) from each member to each other: `[from][to]`.
fn flags(d: &mut Draft<'_>, group: &Group) -> Vec<Vec<u32>> {
    let ranks = &group.ranks;
    ranks.iter().map(|&a| ranks.iter().map(|&b| if a == b { 0 } else { d.flag(a, b) }).collect()).collect()
}

/// Every rank reads every input and reduces all of it: one flight, `ranks` times the work.
///
/// # Errors
/// [`Error::Plan`] unless it is an all-reduce among ranks of one host.
pub fn one_shot(request: Request<'_>) -> Result<Plan> {
    request.check()?;
    let n = request.ranks();
    if request.collective != Collective::AllReduce {
        return Err(Error::Plan(format!("one-shot makes an all-reduce only, not {}", request.collective)));
    }
    if request.hosts.iter().any(|h| *h != request.hosts[0]) {
        return Err(Error::Plan("one-shot reads every rank's memory, and these ranks are on several hosts".into()));
    }
    let mut d = Draft::new(request, 1, 1);
    let parts = Parts { first: 0, count: 1 };
    for rank in 0..n {
        if n == 1 {
            d.deliver(rank, 0, &[0]);
            continue;
        }
        d.share(rank, 0, &[0]);
        let others = (1..n).map(|s| (rank + s) % n);
        others.clone().for_each(|peer| d.notify(rank, 0, peer, 0));
        others.for_each(|peer| d.wait(rank, 0, peer, 0));
        let scratch = Span { buffer: Buffer::Scratch, owner: None, at: 0 };
        let srcs = (0..n).map(|owner| seen_by(rank, owner, scratch)).collect();
        let dst = Span { buffer: Buffer::Output, owner: None, at: 0 };
        d.push(rank, 0, Instruction::Reduce { parts, srcs, dst, finish: true });
    }
    Ok(d.finish("one-shot".into(), 2))
}

/// The root puts its data where its host can read it, and sends it on along a chain of hosts.
///
/// # Errors
/// [`Error::Plan`] where the root is not one of the ranks.
pub fn broadcast(request: Request<'_>, root: usize) -> Result<Plan> {
    request.check()?;
    let n = request.ranks();
    let mut d = Draft::new(request, 1, 1);
    // One rank a host takes part between hosts: the root, elsewhere the first.
    let mut chain = vec![root];
    for (rank, host) in request.hosts.iter().enumerate() {
        if chain.iter().all(|&c| request.hosts[c] != *host) {
            chain.push(rank);
        }
    }
    let parts = Parts { first: 0, count: 1 };
    let output = Span { buffer: Buffer::Output, owner: None, at: 0 };
    for (i, &leader) in chain.iter().enumerate() {
        let locals: Vec<usize> = (0..n).filter(|&r| r != leader && d.mapped(&[r, leader])).collect();
        if i > 0 {
            d.push(leader, 0, Instruction::Recv { parts, from: chain[i - 1] as u32, channel: 0, dst: output });
            d.set_home(leader, 0, output);
        }
        if let (Some(&next), Some(src)) = (chain.get(i + 1), d.home(leader, 0)) {
            d.push(leader, 0, Instruction::Send { parts, to: next as u32, channel: 0, src });
        }
        let flags: Vec<(u32, u32)> = locals.iter().map(|&r| (d.flag(leader, r), d.flag(r, leader))).collect();
        if !locals.is_empty() {
            // The scratch of two chunks ago must have been read by all before it is written again.
            for (&peer, &(_, read)) in locals.iter().zip(&flags) {
                d.push(leader, 0, Instruction::Await { from: peer as u32, flag: read, lag: 2 });
            }
            d.share(leader, 0, &[0]);
        }
        for (&peer, &(ready, read)) in locals.iter().zip(&flags) {
            d.notify(leader, 0, peer, ready);
            d.wait(peer, 0, leader, ready);
            let src = Span { buffer: Buffer::Scratch, owner: Some(leader as u32), at: 0 };
            d.copy(peer, 0, [(0, src, output)]);
            d.notify(peer, 0, leader, read);
        }
        if i == 0 {
            d.deliver(leader, 0, &[0]);
        }
    }
    Ok(d.finish("direct".into(), 2))
}
