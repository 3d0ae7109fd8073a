//! Equal devices taken together.
//!
//! Nodes are of one class if they have the same links to every class. The flow between two nodes that are classes of
//! their own is the same whether nodes or classes carry it: of any flow, the mean over each class is one too (Ramana,
//! Scheinerman and Ullman, "Fractional isomorphism of graphs", 1994; Grohe, Kersting, Mladenov and Selman, "Dimension
//! reduction via colour refinement", 2014).

use rustc_hash::FxHashMap as HashMap;

use crate::plan::bound::net::Net;

/// The class of each node, and how many classes there are.
#[derive(Debug, Clone)]
pub(super) struct Classes {
    pub of: Vec<usize>,
    pub count: usize,
}

/// Capacities between classes, all nodes together.
pub(super) struct Folded {
    pub edges: Vec<(usize, usize, i128)>,
    /// Ranks of each class.
    pub ranks: Vec<i128>,
}

impl Classes {
    /// The coarsest classes that tell apart what has other neighbours.
    pub fn new(net: &Net, neighbours: &Neighbours) -> Self {
        let start = net.kinds.iter().zip(&net.ranks).map(|(k, r)| (*k, *r));
        numbered(start).refined(neighbours)
    }

    /// As these, with `node` in a class of its own.
    pub fn apart(&self, node: usize, neighbours: &Neighbours) -> Self {
        let mut classes = self.clone();
        classes.of[node] = classes.count;
        classes.count += 1;
        classes.refined(neighbours)
    }

    fn refined(mut self, neighbours: &Neighbours) -> Self {
        let mut sums: Vec<(bool, usize, i128)> = Vec::new();
        loop {
            let mut key = |v: usize| {
                sums.clear();
                sums.extend(neighbours.of[v].iter().map(|(out, to, c)| (*out, self.of[*to], *c)));
                sums.sort_unstable();
                sums.dedup_by(|next, kept| {
                    let same = (next.0, next.1) == (kept.0, kept.1);
                    kept.2 += if same { next.2 } else { 0 };
                    same
                });
                (self.of[v], sums.clone())
            };
            let next = numbered((0..self.of.len()).map(&mut key));
            if next.count == self.count {
                return self;
            }
            self = next;
        }
    }

    /// The first node of each class that has ranks.
    pub fn with_ranks(&self, net: &Net) -> Vec<usize> {
        let mut seen = vec![false; self.count];
        let mut new = |v: &usize| net.ranks[*v] > 0 && !std::mem::replace(&mut seen[self.of[*v]], true);
        (0..self.of.len()).filter(|v| new(v)).collect()
    }

    pub fn fold(&self, net: &Net) -> Folded {
        let mut edges: HashMap<(usize, usize), i128> = HashMap::default();
        for (a, b, c) in &net.edges {
            *edges.entry((self.of[*a], self.of[*b])).or_default() += c;
        }
        let mut ranks = vec![0; self.count];
        net.ranks.iter().zip(&self.of).for_each(|(r, class)| ranks[*class] += r);
        let mut edges: Vec<_> = edges.into_iter().map(|((a, b), c)| (a, b, c)).collect();
        edges.sort_unstable();
        Folded { edges, ranks }
    }
}

/// The links of each node: whether it leads away, the other end, and the capacity.
pub(super) struct Neighbours {
    of: Vec<Vec<(bool, usize, i128)>>,
}

impl Neighbours {
    pub fn new(net: &Net) -> Self {
        let mut of = vec![Vec::new(); net.ranks.len()];
        for (a, b, c) in &net.edges {
            of[*a].push((true, *b, *c));
            of[*b].push((false, *a, *c));
        }
        Self { of }
    }
}

/// Numbers for equal things, by first occurrence.
fn numbered<K: std::hash::Hash + Eq>(keys: impl Iterator<Item = K>) -> Classes {
    let mut numbers: HashMap<K, usize> = HashMap::default();
    let mut of = Vec::new();
    for key in keys {
        let next = numbers.len();
        of.push(*numbers.entry(key).or_insert(next));
    }
    Classes { of, count: numbers.len() }
}
