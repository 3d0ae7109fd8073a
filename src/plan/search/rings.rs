//! Cycles through all members that share no link, each used both ways.

use crate::plan::search::Wires;

/// Steps of the search, at most: a few milliseconds.
const EFFORT: u32 = 100_000;

/// As many cycles as can be found; none through switches, where the members' order makes no difference, and none if
/// there is one cycle only and it is that of the members' order.
pub(super) fn rings(wires: &Wires) -> Option<Vec<Vec<usize>>> {
    let m = wires.members();
    if wires.nodes() > m {
        return None;
    }
    // The narrowest wire is one cable.
    let unit = wires.distinct().first().copied()?;
    let mut cables = vec![vec![0i64; m]; m];
    for ((a, b), n) in wires.scaled(1.0 / unit) {
        cables[a][b] = n;
    }
    let least = cables.iter().map(|row| row.iter().sum::<i64>()).min()?;
    let mut search =
        Search { cables, wanted: (least / 2) as usize, effort: EFFORT, found: vec![], best: vec![], path: vec![0] };
    search.go();
    let both = search.best.into_iter().flat_map(|c| [c.clone(), c.into_iter().rev().collect()]);
    let cycles: Vec<Vec<usize>> = both.collect();
    (!cycles.is_empty()).then_some(cycles)
}

struct Search {
    /// Cables that are free, by both ends.
    cables: Vec<Vec<i64>>,
    wanted: usize,
    effort: u32,
    found: Vec<Vec<usize>>,
    best: Vec<Vec<usize>>,
    path: Vec<usize>,
}

impl Search {
    /// Goes on with the path; whether all that is wanted was found, or patience is at its end.
    fn go(&mut self) -> bool {
        self.effort = self.effort.saturating_sub(1);
        if self.best.len() >= self.wanted || self.effort == 0 {
            return true;
        }
        let m = self.cables.len();
        let at = self.path[self.path.len() - 1];
        if self.path.len() == m {
            // Each cycle is found from both sides; one will do.
            if self.cables[at][0] == 0 || (m > 2 && self.path[1] > at) {
                return false;
            }
            self.take(at, 0, 1);
            let whole = std::mem::replace(&mut self.path, vec![0]);
            self.found.push(whole);
            if self.found.len() > self.best.len() {
                self.best.clone_from(&self.found);
            }
            let done = self.go();
            self.path = self.found.pop().unwrap_or_default();
            self.take(at, 0, -1);
            return done;
        }
        // Where most cables are first, so that the next cycle finds some too.
        let mut next: Vec<usize> = (0..m).filter(|v| self.cables[at][*v] > 0 && !self.path.contains(v)).collect();
        next.sort_by_key(|v| (-self.cables[at][*v], *v));
        for v in next {
            self.take(at, v, 1);
            self.path.push(v);
            let done = self.go();
            self.path.pop();
            self.take(at, v, -1);
            if done {
                return true;
            }
        }
        false
    }

    fn take(&mut self, a: usize, b: usize, n: i64) {
        self.cables[a][b] -= n;
        self.cables[b][a] -= n;
    }
}
