//! The tightest cuts of a net.

use crate::plan::bound::fold::{Classes, Neighbours};
use crate::plan::bound::net::Net;
use crate::plan::flow::Network;

/// A set of nodes, and what gets out of it.
#[derive(Debug, Clone)]
pub(super) struct Cut {
    /// By node.
    pub inside: Vec<bool>,
    /// Ranks in it that have something to say.
    pub ranks: i128,
    /// In the net's unit; 0 if nothing leads out.
    pub leaving: i128,
}

impl Cut {
    /// Whether this is the tighter: more to say for what gets out.
    fn tighter(&self, other: &Self) -> bool {
        self.ranks * other.leaving > other.ranks * self.leaving
    }
}

/// The set with the most ranks for what leaves it, of all that leave a rank out: until what these ranks have has left,
/// no all-gather is done. For each rank that could be left out the ratio is driven up by one cut after the other
/// (Dinkelbach, "On nonlinear fractional programming", 1967), as ForestColl (arXiv 2402.06787) does by bisection.
pub(super) fn gather(net: &Net) -> Option<Cut> {
    let neighbours = Neighbours::new(net);
    let base = Classes::new(net, &neighbours);
    let all: i128 = net.ranks.iter().sum();
    let mut worst: Option<Cut> = None;
    for out in base.with_ranks(net) {
        let classes = base.apart(out, &neighbours);
        let folded = classes.fold(net);
        let target = classes.of[out];
        // All but that one rank's device.
        let inside = (0..net.ranks.len()).map(|v| v != out).collect::<Vec<_>>();
        let first = Cut { ranks: all - net.ranks[out], leaving: net.leaving(|v| inside[v]), inside };
        if first.ranks > 0 && worst.as_ref().is_none_or(|w| first.tighter(w)) {
            worst = Some(first);
        }
        while let Some(cut) = worst.as_ref().filter(|c| c.leaving > 0) {
            let source = classes.count;
            let mut network = Network::new(source + 1);
            folded.edges.iter().for_each(|(a, b, c)| network.add(*a, *b, c * cut.ranks));
            for (class, ranks) in folded.ranks.iter().enumerate() {
                network.add(source, class, ranks * cut.leaving);
            }
            let enough = all * cut.leaving;
            if network.flow(source, target, enough) >= enough {
                break;
            }
            let side = network.reached(source);
            let inside: Vec<bool> = classes.of.iter().map(|class| side[*class]).collect();
            let ranks = (0..inside.len()).filter(|v| inside[*v]).map(|v| net.ranks[v]).sum();
            let next = Cut { ranks, leaving: net.leaving(|v| inside[v]), inside };
            if !next.tighter(cut) {
                break;
            }
            worst = Some(next);
        }
        if worst.as_ref().is_some_and(|w| w.leaving == 0) {
            break;
        }
    }
    worst
}

/// The narrowest way from `root` to any other node with ranks, as the set that has to let it out.
pub(super) fn narrowest(net: &Net, root: usize) -> Option<Cut> {
    let neighbours = Neighbours::new(net);
    let base = Classes::new(net, &neighbours).apart(root, &neighbours);
    let mut worst: Option<Cut> = None;
    for to in base.with_ranks(net).into_iter().filter(|v| *v != root) {
        let classes = base.apart(to, &neighbours);
        let mut network = Network::new(classes.count);
        classes.fold(net).edges.iter().for_each(|(a, b, c)| network.add(*a, *b, *c));
        let enough = worst.as_ref().map_or(i128::MAX, |w| w.leaving);
        let flow = network.flow(classes.of[root], classes.of[to], enough);
        if flow < enough {
            let side = network.reached(classes.of[root]);
            let inside = classes.of.iter().map(|class| side[*class]).collect();
            worst = Some(Cut { inside, ranks: 1, leaving: flow });
        }
    }
    worst
}
