//! Maximum flow, by Dinic's algorithm.

use std::collections::VecDeque;

/// A network of arcs with whole capacities.
pub(in crate::plan) struct Network {
    arcs: Vec<Vec<usize>>,
    /// Arc `2k` leads where its capacity says, `2k + 1` back.
    to: Vec<usize>,
    left: Vec<u128>,
}

impl Network {
    pub fn new(nodes: usize) -> Self {
        Self { arcs: vec![Vec::new(); nodes], to: Vec::new(), left: Vec::new() }
    }

    pub fn arc(&mut self, from: usize, to: usize, capacity: u128) {
        for (a, b, capacity) in [(from, to, capacity), (to, from, 0)] {
            self.arcs[a].push(self.to.len());
            self.to.push(b);
            self.left.push(capacity);
        }
    }

    /// The most that flows; what is left of the capacities stays.
    pub fn flow(&mut self, from: usize, to: usize) -> u128 {
        let mut total = 0;
        loop {
            let mut levels = self.levels(from);
            if levels[to] == usize::MAX {
                return total;
            }
            total += self.blocking(from, to, &mut levels);
        }
    }

    /// What can still be reached: after [`Network::flow`], the source's side of a least cut.
    pub fn reached(&self, from: usize) -> Vec<bool> {
        self.levels(from).into_iter().map(|l| l != usize::MAX).collect()
    }

    fn levels(&self, from: usize) -> Vec<usize> {
        let mut levels = vec![usize::MAX; self.arcs.len()];
        levels[from] = 0;
        let mut queue = VecDeque::from([from]);
        while let Some(node) = queue.pop_front() {
            for &arc in &self.arcs[node] {
                let next = self.to[arc];
                if self.left[arc] > 0 && levels[next] == usize::MAX {
                    levels[next] = levels[node] + 1;
                    queue.push_back(next);
                }
            }
        }
        levels
    }

    /// Fills every shortest way. Not recursive: ways may be as long as the machine is wide.
    fn blocking(&mut self, from: usize, to: usize, levels: &mut [usize]) -> u128 {
        let mut tried = vec![0; self.arcs.len()];
        let mut way: Vec<usize> = Vec::new();
        let mut total = 0;
        loop {
            let node = way.last().map_or(from, |arc| self.to[*arc]);
            if node == to {
                let least = way.iter().map(|arc| self.left[*arc]).min().unwrap_or(0);
                total += least;
                for arc in &way {
                    self.left[*arc] -= least;
                    self.left[arc ^ 1] += least;
                }
                let full = way.iter().position(|arc| self.left[*arc] == 0).unwrap_or(0);
                way.truncate(full);
                continue;
            }
            let next = self.arcs[node][tried[node]..]
                .iter()
                .position(|arc| self.left[*arc] > 0 && levels[self.to[*arc]] == levels[node].wrapping_add(1));
            match next {
                Some(skip) => {
                    tried[node] += skip;
                    way.push(self.arcs[node][tried[node]]);
                }
                None => {
                    levels[node] = usize::MAX;
                    if way.pop().is_none() {
                        return total;
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flow_takes_back_what_was_sent_the_wrong_way() {
        let mut n = Network::new(6);
        for (a, b, c) in [(0, 1, 10), (0, 2, 10), (1, 2, 2), (1, 3, 4), (1, 4, 8), (2, 4, 9), (4, 3, 6), (3, 5, 10)] {
            n.arc(a, b, c);
        }
        n.arc(4, 5, 10);
        assert_eq!(n.flow(0, 5), 19);
        assert_eq!(n.reached(0), [true, false, true, false, false, false]);
    }

    #[test]
    fn a_way_of_a_hundred_thousand_arcs_is_no_matter() {
        let mut n = Network::new(100_000);
        (1..100_000).for_each(|i| n.arc(i - 1, i, 7));
        assert_eq!(n.flow(0, 99_999), 7);
    }
}
