//! Which ranks are in a sum, and in what order they were added.

use rustc_hash::FxHashMap as HashMap;

/// Every sum that a run makes, by number; the first are the ranks' own contributions. Sums of the same ranks added in
/// another order are others, and so are sums that are rounded in other places: an instruction with more than two
/// operands may keep a wider type between them.
pub(super) struct Sums {
    ranks: u32,
    /// By sum: where its runs of ranks begin.
    starts: Vec<u32>,
    /// First rank and the one after the last, ascending and apart.
    runs: Vec<(u32, u32)>,
    known: HashMap<(u32, u32, bool), u32>,
}

impl Sums {
    pub fn new(ranks: usize) -> Self {
        let ranks = ranks as u32;
        Self {
            ranks,
            starts: (0..ranks).collect(),
            runs: (0..ranks).map(|r| (r, r + 1)).collect(),
            known: HashMap::default(),
        }
    }

    fn runs(&self, sum: u32) -> &[(u32, u32)] {
        let start = self.starts[sum as usize] as usize;
        let end = self.starts.get(sum as usize + 1).map_or(self.runs.len(), |e| *e as usize);
        &self.runs[start..end]
    }

    /// Whether a proof should give up: sums of ranks far apart take the most, a gigabyte then.
    pub fn full(&self) -> bool {
        self.starts.len() >= 1 << 26 || self.runs.len() >= 1 << 27
    }

    /// `a` and `b` added, `rounded` or kept wider; `None` where they have a rank in common.
    pub fn join(&mut self, a: u32, b: u32, rounded: bool) -> Option<u32> {
        if let Some(known) = self.known.get(&(a, b, rounded)) {
            return Some(*known);
        }
        let mut both: Vec<(u32, u32)> = [self.runs(a), self.runs(b)].concat();
        both.sort_unstable();
        if both.windows(2).any(|w| w[0].1 > w[1].0) {
            return None;
        }
        both.dedup_by(|next, run| {
            let joined = run.1 == next.0;
            if joined {
                run.1 = next.1;
            }
            joined
        });
        let id = self.starts.len() as u32;
        self.starts.push(self.runs.len() as u32);
        self.runs.extend(both);
        self.known.insert((a, b, rounded), id);
        Some(id)
    }

    pub fn is_all(&self, sum: u32) -> bool {
        self.runs(sum) == [(0, self.ranks)]
    }

    fn has(&self, sum: u32, rank: u32) -> bool {
        self.runs(sum).iter().any(|r| (r.0..r.1).contains(&rank))
    }

    pub fn missing(&self, sum: u32) -> Vec<usize> {
        (0..self.ranks).filter(|r| !self.has(sum, *r)).map(|r| r as usize).collect()
    }

    pub fn common(&self, a: u32, b: u32) -> Vec<usize> {
        (0..self.ranks).filter(|r| self.has(a, *r) && self.has(b, *r)).map(|r| r as usize).collect()
    }
}
