//! Reduce-scatter inside, all-reduce between, all-gather inside, over any number of levels.
//!
//! Each level is a phase of its own in a lane of its own, so that while chunk `k` is between hosts, chunk `k + 1` is
//! being reduced inside. With one level this is the flat algorithm itself.

use crate::plan::builders::draft::{Draft, Group};
use crate::plan::builders::{Request, direct, ring};
use crate::plan::{Collective, Plan};
use crate::{Error, Result};

/// How the ranks of one level work together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// Every rank with every other.
    Direct,
    /// In a ring.
    Ring,
}

/// One level of the machine, innermost first: groups of `ranks` ranks or of the groups below.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Level {
    /// Members of a group.
    pub ranks: usize,
    /// How they work together.
    pub method: Method,
}

/// A plan over `levels`: rank `c0 + n0 * (c1 + n1 * ...)` is member `c0` of its innermost group, and so on.
///
/// # Errors
/// [`Error::Plan`] where the levels do not multiply to the number of ranks, or the collective has no such form.
pub fn hierarchical(request: Request<'_>, levels: &[Level]) -> Result<Plan> {
    request.check()?;
    let n = request.ranks();
    if levels.iter().map(|l| l.ranks).try_fold(1usize, usize::checked_mul) != Some(n) {
        let sizes: Vec<String> = levels.iter().map(|l| l.ranks.to_string()).collect();
        return Err(Error::Plan(format!("levels of {} do not make {n} ranks", sizes.join(" x "))));
    }
    let (scatters, gathers) = match request.collective {
        Collective::AllReduce => (true, true),
        Collective::ReduceScatter => (true, false),
        Collective::AllGather => (false, true),
        other => {
            return Err(Error::Plan(format!("{other} has no reduce-scatter and all-gather phases; use `direct`")));
        }
    };
    let machine = Machine::new(levels, request.collective);
    let active: Vec<usize> = (0..levels.len()).filter(|&l| levels[l].ranks > 1).collect();
    let phases = phases(&active, scatters, gathers);
    let lanes = phases.iter().map(|p| p.lane + 1).max().unwrap_or(1);
    let mut d = Draft::new(request, n, lanes);
    if phases.is_empty() {
        d.deliver(0, 0, &[0]);
    }
    let mut lane = 0;
    for (at, phase) in phases.iter().enumerate() {
        if phase.lane != lane {
            (0..n).for_each(|rank| d.order(rank, lane, phase.lane, 0));
            lane = phase.lane;
        }
        let rest = &phases[at + 1..];
        for group in machine.groups(phase.level) {
            let method = levels[phase.level].method;
            // What the host reads next must be where it can read it.
            let shared = rest.first().is_some_and(|next| reads_peers(&d, &machine, levels, next))
                || (phase.last_scatter && rest.iter().any(|p| p.gather && reads_peers(&d, &machine, levels, p)));
            match (phase.gather, method) {
                (false, Method::Direct) => direct::reduce_scatter(&mut d, &group, lane, phase.last_scatter, shared),
                (false, Method::Ring) => ring::reduce_scatter(&mut d, &group, lane, phase.last_scatter, shared),
                (true, Method::Direct) => direct::all_gather(&mut d, &group, lane, shared),
                (true, Method::Ring) => ring::all_gather(&mut d, &group, lane, shared),
            }
        }
    }
    if lanes > 1 {
        // A chunk begins only when one that shares its generation of scratch has left the last lane everywhere.
        (0..n).for_each(|rank| d.order(rank, lane, 0, lanes as u32));
    }
    // An all-reduce in one lane waits for all twice a chunk: its scratch is free again when it ends.
    let depth = if lanes == 1 && scatters && gathers { 1 } else { lanes + 1 };
    Ok(d.finish(name(request.collective, levels, &active), depth))
}

struct Phase {
    level: usize,
    lane: usize,
    gather: bool,
    last_scatter: bool,
}

/// Inwards to outwards scattering, then back; the outermost level does both in one lane.
fn phases(active: &[usize], scatters: bool, gathers: bool) -> Vec<Phase> {
    let mut phases = Vec::new();
    if scatters {
        for (lane, &level) in active.iter().enumerate() {
            phases.push(Phase { level, lane, gather: false, last_scatter: lane + 1 == active.len() });
        }
    }
    if gathers {
        let first = phases.last().map_or(0, |p: &Phase| p.lane);
        for (i, &level) in active.iter().rev().enumerate() {
            phases.push(Phase { level, lane: first + i, gather: true, last_scatter: false });
        }
    }
    phases
}

/// Whether the members of this phase's groups read each other's scratch.
fn reads_peers(d: &Draft<'_>, machine: &Machine, levels: &[Level], phase: &Phase) -> bool {
    levels[phase.level].method == Method::Direct && d.mapped(&machine.members(phase.level, 0))
}

fn name(collective: Collective, levels: &[Level], active: &[usize]) -> String {
    let word = |m: Method| if m == Method::Direct { "direct" } else { "ring" };
    match active {
        [] => "copy".into(),
        [one] => match levels[*one].method {
            Method::Direct if collective == Collective::AllReduce => "two-shot".into(),
            method => word(method).into(),
        },
        _ => {
            let each: Vec<String> =
                active.iter().map(|&l| format!("{} {}", word(levels[l].method), levels[l].ranks)).collect();
            format!("hierarchical({})", each.join(", "))
        }
    }
}

/// Ranks and parts in the mixed radix of the levels.
struct Machine {
    sizes: Vec<usize>,
    /// The rank that ends with each part after all scattering.
    owners: Vec<usize>,
    /// The parts that each rank ends with.
    ranks: usize,
}

impl Machine {
    fn new(levels: &[Level], collective: Collective) -> Self {
        let sizes: Vec<usize> = levels.iter().map(|l| l.ranks).collect();
        let ranks = sizes.iter().product();
        let owners = (0..ranks)
            .map(|part| {
                if collective != Collective::AllReduce {
                    return part;
                }
                // The innermost coordinate is the most significant, so that every share is one run of parts.
                let (mut rest, mut weight, mut span, mut owner) = (part, 1, ranks, 0);
                for &size in &sizes {
                    span /= size;
                    owner += rest / span * weight;
                    rest %= span;
                    weight *= size;
                }
                owner
            })
            .collect();
        Self { sizes, owners, ranks }
    }

    /// How far apart in rank the members of a group of `level` are.
    fn stride(&self, level: usize) -> usize {
        self.sizes[..level].iter().product()
    }

    fn members(&self, level: usize, first: usize) -> Vec<usize> {
        (0..self.sizes[level]).map(|c| first + c * self.stride(level)).collect()
    }

    fn groups(&self, level: usize) -> Vec<Group> {
        let stride = self.stride(level);
        let mut by_inner: Vec<Vec<u32>> = vec![Vec::new(); stride * self.sizes[level]];
        for (part, owner) in self.owners.iter().enumerate() {
            by_inner[owner % (stride * self.sizes[level])].push(part as u32);
        }
        (0..self.ranks)
            .filter(|rank| (rank / stride).is_multiple_of(self.sizes[level]))
            .map(|first| {
                let ranks = self.members(level, first);
                let shares = ranks.iter().map(|r| by_inner[r % (stride * self.sizes[level])].clone()).collect();
                Group { ranks, shares }
            })
            .collect()
    }
}
