//! Every rank reads what all others have and reduces it itself: the fewest flights, and the most work.
//!
//! Over several levels, each is one flight: what a group has reduced is what the next level reads.

use crate::plan::builders::Request;
use crate::plan::builders::weave::{Purpose, Weaver, seen_by};
use crate::plan::{Buffer, Collective, Instruction, Parts, Plan, Span};
use crate::{Error, Result};

/// A plan over `levels`, innermost first: each is groups of ranks, and every rank is in one group of each.
///
/// # Errors
/// [`Error::Plan`] unless it is an all-reduce.
pub fn one_shot(request: Request<'_>, levels: &[Vec<Vec<usize>>]) -> Result<Plan> {
    request.check()?;
    if request.collective != Collective::AllReduce {
        return Err(Error::Plan(format!("one-shot makes an all-reduce only, not {}", request.collective)));
    }
    let active: Vec<&Vec<Vec<usize>>> = levels.iter().filter(|l| l.iter().any(|g| g.len() > 1)).collect();
    let mut w = Weaver::new(request, 1, active.len().saturating_sub(1) as u32, true);
    let parts = Parts { first: 0, count: 1 };
    for (level, groups) in active.iter().enumerate() {
        let (stage, finish) = (level as u8, level + 1 == active.len());
        let mut results: Vec<(u32, Span)> = Vec::new();
        let groups: Vec<Vec<u32>> = groups.iter().map(|g| g.iter().map(|r| *r as u32).collect()).collect();
        for group in groups.iter().filter(|g| g.len() > 1) {
            for &r in group {
                if group.iter().any(|o| *o != r && w.mapped(*o, r)) {
                    w.share(r, 0, false, stage);
                }
            }
        }
        for group in groups.iter().filter(|g| g.len() > 1) {
            // What comes over a wire is kept until all is there, so that every rank combines in the same order.
            let mut came: Vec<Vec<Option<Span>>> = vec![vec![None; group.len()]; group.len()];
            for step in 1..group.len() {
                for (i, &u) in group.iter().enumerate() {
                    let j = (i + step) % group.len();
                    let v = group[j];
                    let Some(src) = w.home(u, 0).filter(|_| !w.mapped(u, v)) else { continue };
                    let peer = |to, peer| Purpose::Peer { out: false, to, peer, stage, stream: 0 };
                    let out = w.lane(u, false, stage, peer(true, v));
                    let reads = [w.cell(u, 0, src)];
                    w.emit(out, Instruction::Send { parts, to: v, channel: out, src }, &reads, None);
                    let dst = w.fresh(v);
                    let (lane, writes) = (w.lane(v, false, stage, peer(false, u)), w.cell(v, 0, dst));
                    w.emit(lane, Instruction::Recv { parts, from: u, channel: out, dst }, &[], Some(writes));
                    came[j][i] = Some(dst);
                }
            }
            for (j, &v) in group.iter().enumerate() {
                let place = |(i, &u): (usize, &u32)| came[j][i].or_else(|| Some(seen_by(v, u, w.home(u, 0)?)));
                let srcs: Vec<Span> = group.iter().enumerate().filter_map(place).collect();
                let reads: Vec<_> = srcs.iter().map(|s| w.cell(s.owner.unwrap_or(v), 0, *s)).collect();
                let dst = if finish { Span { buffer: Buffer::Output, owner: None, at: 0 } } else { w.fresh(v) };
                let (lane, writes) = (w.lane(v, false, stage, Purpose::Join { stage, stream: 0 }), w.cell(v, 0, dst));
                w.emit(lane, Instruction::Reduce { parts, srcs, dst, finish }, &reads, Some(writes));
                results.push((v, dst));
            }
        }
        w.home.extend(results.into_iter().map(|(v, dst)| ((v, 0), dst)));
    }
    (0..request.ranks() as u32).for_each(|r| w.deliver(r, 0, Purpose::Level(0)));
    let most = |groups: &&Vec<Vec<usize>>| groups.iter().map(Vec::len).max().unwrap_or(1).to_string();
    let name = match active.len() {
        0 | 1 => "one-shot".into(),
        _ => format!("one-shot({})", active.iter().rev().map(most).collect::<Vec<_>>().join(" x ")),
    };
    Ok(w.finish(name))
}
