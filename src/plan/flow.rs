//! The most that gets from one node to another (Dinic, "Algorithm for solution of a problem of maximum flow in networks
//! with power estimation", 1970).

use std::collections::VecDeque;

/// Nodes, and whole capacities between them.
#[derive(Debug, Clone, Default)]
pub(in crate::plan) struct Network {
    /// By node, its edges: other end, capacity, and the index of the way back there.
    edges: Vec<Vec<Edge>>,
}

#[derive(Debug, Clone, Copy)]
struct Edge {
    to: usize,
    capacity: i128,
    left: i128,
    back: usize,
}

impl Network {
    pub fn new(nodes: usize) -> Self {
        Self { edges: vec![Vec::new(); nodes] }
    }

    pub fn add(&mut self, from: usize, to: usize, capacity: i128) {
        if from == to || capacity <= 0 {
            return;
        }
        let (out, back) = (self.edges[from].len(), self.edges[to].len());
        self.edges[from].push(Edge { to, capacity, left: 0, back });
        self.edges[to].push(Edge { to: from, capacity: 0, left: 0, back: out });
    }

    /// The flow, or `enough` if it is more.
    pub fn flow(&mut self, from: usize, to: usize, enough: i128) -> i128 {
        self.edges.iter_mut().flatten().for_each(|e| e.left = e.capacity);
        let mut total = 0;
        while total < enough {
            let Some(levels) = self.levels(from, to) else { break };
            let mut next = vec![0; self.edges.len()];
            loop {
                let pushed = self.push(from, to, enough - total, &levels, &mut next);
                total += pushed;
                if pushed == 0 || total >= enough {
                    break;
                }
            }
        }
        total
    }

    /// What can still be reached after a flow: the source's side of a least cut, if the flow was not stopped early.
    pub fn reached(&self, from: usize) -> Vec<bool> {
        let mut reached = vec![false; self.edges.len()];
        reached[from] = true;
        let mut open = vec![from];
        while let Some(at) = open.pop() {
            for e in self.edges[at].iter().filter(|e| e.left > 0) {
                if !std::mem::replace(&mut reached[e.to], true) {
                    open.push(e.to);
                }
            }
        }
        reached
    }

    /// Hops from `from`, if `to` can be reached.
    fn levels(&self, from: usize, to: usize) -> Option<Vec<usize>> {
        let mut levels = vec![usize::MAX; self.edges.len()];
        levels[from] = 0;
        let mut open = VecDeque::from([from]);
        while let Some(at) = open.pop_front() {
            for e in self.edges[at].iter().filter(|e| e.left > 0) {
                if levels[e.to] == usize::MAX {
                    levels[e.to] = levels[at] + 1;
                    open.push_back(e.to);
                }
            }
        }
        (levels[to] != usize::MAX).then_some(levels)
    }

    fn push(&mut self, at: usize, to: usize, most: i128, levels: &[usize], next: &mut [usize]) -> i128 {
        if at == to {
            return most;
        }
        while let Some(&e) = self.edges[at].get(next[at]) {
            if e.left > 0 && levels[e.to] == levels[at] + 1 {
                let pushed = self.push(e.to, to, most.min(e.left), levels, next);
                if pushed > 0 {
                    self.edges[at][next[at]].left -= pushed;
                    self.edges[e.to][e.back].left += pushed;
                    return pushed;
                }
            }
            next[at] += 1;
        }
        0
    }
}
