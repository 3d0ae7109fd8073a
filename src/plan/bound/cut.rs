//! The tightest cut: the set of devices that holds the most for what can leave it.

use super::fold::{Colours, Folded};
use super::graph::Graph;
use super::symmetry;

/// A set of devices, how much it holds and how many bytes per second leave it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Cut {
    pub inside: Vec<bool>,
    pub holds: u128,
    pub leaves: u128,
}

impl Cut {
    fn new(graph: &Graph, inside: Vec<bool>, holds: &impl Fn(u64) -> u128, supply: &[u64]) -> Self {
        let held = (0..graph.len()).filter(|v| inside[*v]).map(|v| supply[v]).sum();
        Self { holds: holds(held), leaves: graph.leaving(&inside), inside }
    }

    pub fn tighter_than(&self, other: &Self) -> bool {
        self.holds * other.leaves > other.holds * self.leaves
    }

    /// Units held for one byte per second.
    pub fn ratio(&self) -> f64 {
        self.holds as f64 / self.leaves as f64
    }
}

/// Places up to which each is tried as what a cut leaves out; beyond, one of those that can be exchanged.
const TRY_ALL: usize = 64;

/// Devices and links that are gone through for all places tried, about: seconds of work. Beyond, some places are left
/// out, and what is found is a true bound still but perhaps not the tightest.
const EFFORT: usize = 1 << 23;

/// Of all sets that leave out a place of ranks, the one that holds the most of `supply` for what leaves it. There must
/// be a way from any supply to any place. None where there are no two places, or no supply.
///
/// Discrete Newton iteration: as long as a flow finds a tighter cut than the best so far, that one is the best.
pub(super) fn tightest(graph: &Graph, supply: &[u64]) -> Option<Cut> {
    let (places, colours) = (graph.places(), Colours::new(graph, supply));
    let targets = if places.len() <= TRY_ALL { places } else { targets(graph, &colours, &places) };
    among(graph, supply, &colours, &targets)
}

/// The tightest that leaves out one of `targets`, or of the simple ones.
pub(super) fn among(graph: &Graph, supply: &[u64], colours: &Colours, targets: &[usize]) -> Option<Cut> {
    let mut best = simple(graph, supply, u128::from)?;
    for &target in targets {
        improve(graph, supply, &colours.apart(graph, target), target, &mut best);
    }
    Some(best)
}

fn targets(graph: &Graph, colours: &Colours, places: &[usize]) -> Vec<usize> {
    let distinct = symmetry::distinct(graph, colours, places);
    let size = graph.len() + graph.out.iter().map(Vec::len).sum::<usize>();
    let most = (EFFORT / size).max(1);
    distinct.iter().copied().step_by(distinct.len().div_ceil(most).max(1)).collect()
}

fn improve(graph: &Graph, supply: &[u64], colours: &Colours, target: usize, best: &mut Cut) {
    // What is at the target cannot be outside.
    if supply.iter().enumerate().all(|(v, s)| v == target || *s == 0) {
        return;
    }
    let others = |v: usize| if v == target { 0 } else { supply[v] };
    let needed: Vec<u64> = (0..graph.len()).map(others).collect();
    let folded = Folded::new(graph, colours, &needed, target);
    while let Some(inside) = folded.tighter(best) {
        let cut = Cut::new(graph, inside, &u128::from, supply);
        // Always so, unless figures overflow.
        if !cut.tighter_than(best) {
            break;
        }
        *best = cut;
    }
}

/// The tightest of the cuts around each group of devices that is known beforehand, and around all but one.
pub(super) fn simple(graph: &Graph, supply: &[u64], holds: impl Fn(u64) -> u128) -> Option<Cut> {
    let (held, ranks) = (supply.iter().sum::<u64>(), graph.ranks.iter().sum::<u64>());
    let mut best: Option<(Vec<usize>, bool, u128, u128)> = None;
    for group in graph.groupings().iter().flat_map(|g| graph.groups(g).into_values()) {
        let inside = group.members.iter().map(|v| supply[*v]).sum();
        let sides = [(true, inside, group.ranks, group.out), (false, held - inside, ranks - group.ranks, group.into)];
        for (side, supply, within, leaves) in sides {
            let holds = holds(supply);
            let counts = holds > 0 && within < ranks && leaves > 0;
            if counts && best.as_ref().is_none_or(|(_, _, h, l)| holds * l > h * leaves) {
                best = Some((group.members.clone(), side, holds, leaves));
            }
        }
    }
    let (members, side, holds, leaves) = best?;
    let mut inside = vec![!side; graph.len()];
    members.iter().for_each(|v| inside[*v] = side);
    Some(Cut { inside, holds, leaves })
}

/// The cut of a family around `inside` that an all-to-all feels: each rank inside has something for each outside.
pub(super) fn pairs(graph: &Graph, inside: Vec<bool>) -> Cut {
    let all: u64 = graph.ranks.iter().sum();
    Cut::new(graph, inside, &|within| across(within, all), &graph.ranks)
}

/// Pairs of a rank inside and one outside.
pub(super) fn across(within: u64, all: u64) -> u128 {
    u128::from(within) * u128::from(all - within)
}

/// What [`tightest`] finds, without any class of devices.
#[cfg(test)]
pub(super) fn unfolded(graph: &Graph, supply: &[u64]) -> Option<Cut> {
    among(graph, supply, &Colours::all_apart(graph), &graph.places())
}
