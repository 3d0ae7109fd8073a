//! What a collective is made of: trees that gather parts at a root, and trees that spread them from it.

/// The way of one part of every chunk, to or from `root`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tree {
    /// What goes this way.
    pub part: u32,
    /// Where a reduction ends, or where data starts.
    pub root: u32,
    /// In the order in which the root's data would go: a rank has a parent before it is one.
    pub edges: Vec<Edge>,
}

/// A step between two ranks of a tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Edge {
    /// The end nearer to the root.
    pub parent: u32,
    /// The other end.
    pub child: u32,
    /// The level of the machine, innermost 0. Levels have lanes of their own.
    pub stage: u8,
    /// When among the steps of its level, counted from the root.
    pub step: u32,
    /// Steps of different streams have lanes of their own, so that chunks overlap between them.
    pub stream: u16,
    /// A parent reduces all its children of a level in one instruction where it can read their memory.
    pub joined: bool,
}

/// A step among the members `0..m` of a group: `(parent, child, step)`.
pub(in crate::plan) type Step = (usize, usize, u32);

/// How the members of a group work together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Shape {
    /// Each with each other: one flight.
    Direct,
    /// Along cycles through all members, each carrying its share of the data; without any, the one in order
    /// (Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009).
    Ring(Vec<Vec<usize>>),
    /// Distances of powers of two, the data doubling with each step (Thakur, Rabenseifner and Gropp, "Optimization of
    /// collective communication operations in MPICH", 2005), for any number of members.
    HalvingDoubling,
    /// Two binary trees in which a member is inner in at most one, each with half the data (Sanders, Speck and Träff,
    /// "Two-tree algorithms for full bandwidth broadcast, reduction and scan", 2009). Roots are given, not chosen.
    Tree,
    /// By member, the trees that start there (of which each carries the same share).
    Forest(Vec<Vec<Vec<Step>>>),
}

impl Shape {
    /// The word for it.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Ring(_) => "ring",
            Self::HalvingDoubling => "halving-doubling",
            Self::Tree => "tree",
            Self::Forest(_) => "forest",
        }
    }

    /// In how many ways the data of one root goes, each with an equal share.
    pub(super) fn variants(&self) -> usize {
        match self {
            Self::Ring(cycles) => cycles.len().max(1),
            Self::Tree => 2,
            Self::Forest(trees) => trees.first().map_or(1, Vec::len),
            Self::Direct | Self::HalvingDoubling => 1,
        }
    }

    /// The roots it wants, where it does not take any.
    pub(super) fn roots(&self, m: usize) -> Option<[usize; 2]> {
        (*self == Self::Tree).then(|| [binary(m, 0).0, binary(m, 1).0])
    }

    pub(super) fn joined(&self) -> bool {
        matches!(self, Self::Direct | Self::Tree | Self::HalvingDoubling)
    }

    pub(super) fn streams(&self) -> bool {
        matches!(self, Self::Forest(_))
    }

    /// The tree by which data of `root` spreads (`outward`), or comes together there.
    pub(in crate::plan) fn steps(&self, m: usize, root: usize, variant: usize, outward: bool) -> Vec<Step> {
        match self {
            Self::Direct => {
                (1..m).map(|d| (root, (root + if outward { d } else { m - d }) % m, d as u32 - 1)).collect()
            }
            Self::Ring(cycles) => {
                let order: Vec<usize> = cycles.get(variant).cloned().unwrap_or_else(|| (0..m).collect());
                let at = order.iter().position(|x| *x == root).unwrap_or(0);
                let go = |d: usize| order[(at + if outward { d } else { m - d }) % m];
                (1..m).map(|d| (go(d - 1), go(d), d as u32 - 1)).collect()
            }
            Self::HalvingDoubling => {
                let mut steps = Vec::with_capacity(m.saturating_sub(1));
                let mut mask = m.next_power_of_two() / 2;
                let mut step = 0;
                while mask > 0 {
                    for d in (0..m).step_by(2 * mask).filter(|d| d + mask < m) {
                        steps.push(((root + d) % m, (root + d + mask) % m, step));
                    }
                    (mask, step) = (mask / 2, step + 1);
                }
                steps
            }
            Self::Tree => binary(m, variant).1,
            Self::Forest(trees) => trees.get(root).and_then(|t| t.get(variant)).cloned().unwrap_or_default(),
        }
    }
}

/// The root and the edges of one of the two binary trees over `0..m`. In the first only odd members are inner; the
/// second is its mirror image, or, for odd `m`, the first moved on by one.
fn binary(m: usize, variant: usize) -> (usize, Vec<Step>) {
    let name = |i: usize| match variant {
        0 => i,
        _ if m.is_multiple_of(2) => m - 1 - i,
        _ => (i + 1) % m,
    };
    // In order, with a perfect left side.
    let top = |from: usize, to: usize| from + (1 << (to - from).ilog2()) - 1;
    let mut edges = Vec::with_capacity(m.saturating_sub(1));
    let mut open = std::collections::VecDeque::from([(0, m, None, 0)]);
    while let Some((from, to, parent, step)) = open.pop_front() {
        if from < to {
            let at = top(from, to);
            if let Some(parent) = parent {
                edges.push((name(parent), name(at), step - 1));
            }
            open.extend([(from, at, Some(at), step + 1), (at + 1, to, Some(at), step + 1)]);
        }
    }
    (if m == 0 { 0 } else { name(top(0, m)) }, edges)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shape_reaches_every_member_once() {
        let cycle = |m: usize| (0..m).map(|i| if i % 2 == 0 { i / 2 } else { m - 1 - i / 2 }).collect();
        for m in 1..40 {
            for shape in
                [Shape::Direct, Shape::Ring(vec![]), Shape::Ring(vec![cycle(m)]), Shape::HalvingDoubling, Shape::Tree]
            {
                for (root, variant, outward) in (0..m).flat_map(|r| [(r, 0, true), (r, 1, false)]) {
                    let variant = variant % shape.variants();
                    let root = shape.roots(m).map_or(root, |r| r[variant]);
                    let mut reached = vec![false; m];
                    reached[root] = true;
                    for (parent, child, _) in shape.steps(m, root, variant, outward) {
                        assert!(reached[parent] && !reached[child], "{shape:?} of {m} from {root}");
                        reached[child] = true;
                    }
                    assert!(reached.iter().all(|r| *r), "{shape:?} of {m} from {root}");
                }
            }
        }
    }

    #[test]
    fn a_member_is_inner_in_one_binary_tree_at_most() {
        for m in 2..100 {
            let inner = |v| binary(m, v).1.into_iter().map(|(p, ..)| p).collect::<std::collections::BTreeSet<_>>();
            assert!(inner(0).is_disjoint(&inner(1)), "{m}");
            let deepest = binary(m, 0).1.iter().map(|e| e.2 + 1).max().unwrap();
            assert!(deepest <= m.ilog2() + 1, "{m}: {deepest}");
        }
    }
}
