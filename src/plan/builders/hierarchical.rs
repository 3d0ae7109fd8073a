//! Any shape at any level of the machine: reduce-scatter inside, all-reduce between, all-gather inside.
//!
//! In every group one member stands for a shard: the one with the same place in its group as the shard's owner has in
//! its own, so that each shard leaves a host by the NIC nearest to it. Where groups are unequal, places are compared
//! by weight (the bandwidth of each rank's NIC), so that a rank stands for as many shards as its NIC can carry.

use std::sync::Arc;

use crate::plan::builders::tree::{Edge, Shape, Tree};
use crate::plan::builders::{Request, weave};
use crate::plan::{Collective, Plan};
use crate::{Error, Result};

/// Shards among unequal groups, at most.
const MAX_SHARDS: usize = 64;
/// Edges of all trees, at most: some gigabytes of plan.
const MAX_EDGES: usize = 1 << 25;

/// Ranks in groups of groups.
#[derive(Debug, Clone, PartialEq)]
pub struct Nest {
    ranks: Vec<u32>,
    /// None for a single rank.
    members: Vec<Nest>,
    shape: Arc<Shape>,
    weight: f64,
    stage: u8,
}

impl Nest {
    /// A rank, and the bandwidth by which it leaves its group (any unit; all alike where it does not matter).
    pub fn rank(rank: usize, weight: f64) -> Self {
        let shape = Arc::new(Shape::Direct);
        Self { ranks: vec![rank as u32], members: vec![], shape, weight: weight.max(0.0), stage: 0 }
    }

    /// A group that works together as `shape` says.
    pub fn group(members: Vec<Self>, shape: impl Into<Arc<Shape>>) -> Self {
        let below = members.iter().filter(|m| !m.members.is_empty()).map(|m| m.stage + 1).max();
        Self {
            ranks: members.iter().flat_map(|m| m.ranks.iter().copied()).collect(),
            weight: members.iter().map(|m| m.weight).sum(),
            stage: below.unwrap_or(0),
            shape: shape.into(),
            members,
        }
    }

    /// Groups of equal sizes, innermost first: rank `c0 + n0 * (c1 + n1 * ...)` is member `c0` of its innermost group.
    pub fn even(levels: &[(usize, Arc<Shape>)]) -> Self {
        let Some(((size, shape), inner)) = levels.split_last() else { return Self::rank(0, 1.0) };
        let below = Self::even(inner);
        let n = below.ranks.len();
        Self::group((0..*size).map(|i| below.moved((i * n) as u32)).collect(), shape.clone())
    }

    fn moved(&self, by: u32) -> Self {
        Self {
            ranks: self.ranks.iter().map(|r| r + by).collect(),
            members: self.members.iter().map(|m| m.moved(by)).collect(),
            ..self.clone()
        }
    }

    /// The member with `rank`.
    fn index(&self, rank: u32) -> Option<usize> {
        self.members.iter().position(|m| m.ranks.contains(&rank))
    }

    /// Each rank with its share of the way through the group.
    fn leaves(&self) -> Vec<(u32, f64)> {
        match self.members.is_empty() {
            true => vec![(self.ranks[0], self.weight)],
            false => self.members.iter().flat_map(Self::leaves).collect(),
        }
    }

    /// The rank at `place`, of 0 to 1.
    fn leader(&self, place: f64) -> u32 {
        if let [one] = self.ranks[..] {
            return one;
        }
        let leaves = self.leaves();
        let even = self.weight <= 0.0;
        let total = if even { leaves.len() as f64 } else { self.weight };
        let mut left = place * total;
        for (rank, weight) in &leaves {
            left -= if even { 1.0 } else { *weight };
            if left < 0.0 {
                return *rank;
            }
        }
        leaves.last().map_or(0, |l| l.0)
    }

    /// The middle of `rank`'s place in this group.
    fn place(&self, rank: u32) -> f64 {
        let leaves = self.leaves();
        let even = self.weight <= 0.0;
        let weight = |w: f64| if even { 1.0 } else { w };
        let before: f64 = leaves.iter().take_while(|l| l.0 != rank).map(|l| weight(l.1)).sum();
        let own = leaves.iter().find(|l| l.0 == rank).map_or(1.0, |l| weight(l.1));
        (before + own / 2.0) / leaves.iter().map(|l| weight(l.1)).sum::<f64>()
    }

    /// In how many ways each root's data goes.
    fn variants(&self) -> usize {
        self.members.iter().map(Self::variants).fold(self.shape.variants().max(1), lcm)
    }

    /// All levels, the outermost first: their group sizes (the largest) and shapes.
    fn levels(&self) -> Vec<(usize, &Shape)> {
        let mut levels = Vec::new();
        let mut at = self;
        while !at.members.is_empty() {
            if at.members.len() > 1 {
                levels.push((at.members.len(), &*at.shape));
            }
            let Some(next) = at.members.iter().max_by_key(|m| m.ranks.len()) else { break };
            at = next;
        }
        levels
    }

    /// The tree of `root`'s data over the whole group; `leaders` stand for the members.
    fn tree(&self, root: u32, place: f64, variant: usize, outward: bool, edges: &mut Vec<Edge>) {
        let Some(at) = self.index(root) else { return };
        let leader = |(i, m): (usize, &Self)| if i == at { root } else { m.leader(place) };
        let leaders: Vec<u32> = self.members.iter().enumerate().map(leader).collect();
        let steps = self.shape.steps(leaders.len(), at, variant % self.shape.variants().max(1), outward);
        edges.extend(steps.into_iter().map(|(parent, child, step)| Edge {
            parent: leaders[parent],
            child: leaders[child],
            stage: self.stage,
            step,
            stream: if self.shape.streams() { step as u16 } else { 0 },
            joined: self.shape.joined(),
        }));
        for (member, leader) in self.members.iter().zip(leaders).filter(|(m, _)| m.ranks.len() > 1) {
            member.tree(leader, member.place(leader), variant, outward, edges);
        }
    }

    /// The way from one rank to another, a step a level.
    fn path(&self, from: u32, to: u32, edges: &mut Vec<Edge>) {
        let (Some(a), Some(b)) = (self.index(from), self.index(to)) else { return };
        let leader = if a == b { from } else { self.members[b].leader(self.members[a].place(from)) };
        if a != b {
            let n = self.members.len();
            let step = ((b + n - a) % n) as u32;
            edges.push(Edge { parent: from, child: leader, stage: self.stage, step, stream: 0, joined: false });
        }
        self.members[b].path(leader, to, edges);
    }
}

fn lcm(a: usize, b: usize) -> usize {
    let (mut x, mut y) = (a, b);
    while y > 0 {
        (x, y) = (y, x % y);
    }
    a / x.max(1) * b
}

/// The trees of a collective, and how many parts a chunk has.
struct Trees {
    parts: usize,
    ins: Vec<Tree>,
    outs: Vec<Tree>,
}

/// A plan in which the groups of `nest` work together, level by level. A broadcast or a reduction goes over all ranks of
/// the root's group at the outermost level, so that all its NICs are used; with one level, over all ranks if `spread`.
///
/// # Errors
/// [`Error::Plan`] where the nest is not of the request's ranks, a level has a shape that it cannot have, or the plan
/// would be too large.
pub fn hierarchical(request: Request<'_>, nest: &Nest, spread: bool) -> Result<Plan> {
    request.check()?;
    let n = request.ranks();
    let mut ranks = nest.ranks.clone();
    ranks.sort_unstable();
    if !ranks.iter().copied().eq(0..n as u32) {
        return Err(Error::Plan(format!("groups of {} ranks in all do not make the {n} ranks once each", ranks.len())));
    }
    let inner_tree = |m: &Nest| m.levels().iter().any(|(_, s)| **s == Shape::Tree);
    if nest.members.iter().any(inner_tree) {
        return Err(Error::Plan("`tree` chooses its own roots, so it is for the outermost level only".into()));
    }
    let trees = trees(request.collective, n, nest, spread)?;
    Ok(weave::weave(request, name(request.collective, nest, spread), trees.parts, &trees.ins, &trees.outs))
}

/// About how many steps of trees a plan for `nest` has, which is what making and timing it takes.
pub fn steps(collective: Collective, nest: &Nest) -> usize {
    let n = nest.ranks.len();
    let variants = nest.variants();
    let (trees, ways) = match collective {
        Collective::AllReduce => (shards(nest, variants).len(), 2),
        Collective::ReduceScatter | Collective::AllGather => (n.saturating_mul(variants), 1),
        Collective::Broadcast { .. } | Collective::Reduce { .. } => {
            (nest.members.iter().map(|m| m.ranks.len()).max().unwrap_or(1).saturating_mul(variants), 1)
        }
        Collective::AllToAll => (n, nest.levels().len()),
    };
    trees.saturating_mul(n).saturating_mul(ways)
}

fn trees(collective: Collective, n: usize, nest: &Nest, spread: bool) -> Result<Trees> {
    let variants = nest.variants();
    let (gathers, spreads) = match collective {
        Collective::AllReduce => (true, true),
        Collective::ReduceScatter | Collective::Reduce { .. } => (true, false),
        Collective::AllGather | Collective::Broadcast { .. } | Collective::AllToAll => (false, true),
    };
    // Root, place and variant of each part.
    let mut roots: Vec<(u32, f64, usize)> = Vec::new();
    let mut through = None;
    match collective {
        Collective::AllToAll => return all_to_all(n, nest),
        Collective::ReduceScatter | Collective::AllGather => {
            if nest.shape.roots(2).is_some() && n > 1 {
                return Err(Error::Plan(format!("`tree` has two roots, and {collective} needs one at every rank")));
            }
            let place = |r: u32| nest.index(r).map_or(0.5, |m| nest.members[m].place(r));
            roots.extend((0..n as u32).flat_map(|r| (0..variants).map(move |v| (r, v))).map(|(r, v)| (r, place(r), v)));
        }
        Collective::AllReduce => roots = shards(nest, variants),
        Collective::Broadcast { root } | Collective::Reduce { root } => {
            let root = root as u32;
            through = Some(root);
            let group = match nest.members.get(nest.index(root).unwrap_or(0)) {
                Some(group) if group.ranks.len() > 1 => group,
                _ if spread || nest.members.is_empty() => nest,
                _ => &Nest::rank(root as usize, 1.0),
            };
            match nest.shape.roots(nest.members.len()) {
                Some(_) if n > 1 => roots = shards(nest, variants),
                _ => {
                    for (rank, _) in group.leaves() {
                        roots.extend((0..variants).map(|v| (rank, group.place(rank), v)));
                    }
                }
            }
        }
    }
    if roots.len().saturating_mul(n) > MAX_EDGES {
        return Err(Error::Plan(format!(
            "{} trees over {n} ranks are more steps than the {MAX_EDGES} a plan may have",
            roots.len()
        )));
    }
    let make = |outward: bool| -> Vec<Tree> {
        let tree = |(part, &(root, place, variant)): (usize, &(u32, f64, usize))| {
            let mut edges = Vec::with_capacity(n.saturating_sub(1));
            nest.tree(root, place, variant, outward, &mut edges);
            let tree = Tree { part: part as u32, root, edges };
            through.map_or(tree.clone(), |r| rerooted(tree, r))
        };
        roots.iter().enumerate().map(tree).collect()
    };
    let ins = if gathers { make(false) } else { vec![] };
    let outs = if spreads { make(true) } else { vec![] };
    Ok(Trees { parts: roots.len().max(1), ins, outs })
}

/// Who owns the shards of an all-reduce: in every group of the outermost level the same places.
fn shards(nest: &Nest, variants: usize) -> Vec<(u32, f64, usize)> {
    if nest.members.is_empty() {
        return vec![(nest.ranks[0], 0.5, 0)];
    }
    let sizes = nest.members.iter().map(|m| m.ranks.len());
    let most = sizes.clone().max().unwrap_or(1);
    let even = |m: &Nest| m.leaves().windows(2).all(|w| w[0].1 == w[1].1);
    let shards = if nest.members.iter().all(even) { sizes.fold(1, lcm) } else { MAX_SHARDS };
    let shards = if shards > MAX_SHARDS.max(most) { MAX_SHARDS.max(most) } else { shards };
    let mut roots = Vec::new();
    for s in 0..shards {
        let place = (s as f64 + 0.5) / shards as f64;
        match nest.shape.roots(nest.members.len()) {
            Some(two) => {
                roots.extend((0..variants).map(|v| (nest.members[two[v % 2]].leader(place), place, v)));
            }
            None => {
                for member in &nest.members {
                    roots.extend((0..variants).map(|v| (member.leader(place), place, v)));
                }
            }
        }
    }
    roots
}

/// The same tree from `root`: the step by which it was reached is left out, and one to the old root put in front.
fn rerooted(mut tree: Tree, root: u32) -> Tree {
    if tree.root == root {
        return tree;
    }
    tree.edges.retain(|e| e.child != root);
    let stage = tree.edges.iter().map(|e| e.stage).max().unwrap_or(0);
    let first = Edge { parent: root, child: tree.root, stage, step: 0, stream: u16::MAX, joined: false };
    tree.edges.iter_mut().for_each(|e| e.step += 1);
    // A parent comes before its children: the old root now hangs on the new one, which has its children already.
    tree.edges.insert(0, first);
    tree.root = root;
    tree
}

fn all_to_all(n: usize, nest: &Nest) -> Result<Trees> {
    let levels = nest.levels();
    if let Some((_, shape)) = levels.iter().find(|(_, s)| **s != Shape::Direct) {
        return Err(Error::Plan(format!(
            "an all-to-all goes from rank to rank at each level, not by `{}`",
            shape.name()
        )));
    }
    if n.saturating_mul(n).saturating_mul(levels.len().max(1)) > MAX_EDGES {
        return Err(Error::Plan(format!(
            "an all-to-all among {n} ranks has more than the {MAX_EDGES} steps of a plan"
        )));
    }
    let pairs = (0..n as u32).flat_map(|from| (0..n as u32).map(move |to| (from, to)));
    let tree = |(from, to): (u32, u32)| {
        let mut edges = Vec::new();
        nest.path(from, to, &mut edges);
        Tree { part: from * n as u32 + to, root: from, edges }
    };
    Ok(Trees { parts: n * n, ins: vec![], outs: pairs.map(tree).collect() })
}

fn name(collective: Collective, nest: &Nest, spread: bool) -> String {
    let levels = nest.levels();
    let rooted = matches!(collective, Collective::Broadcast { .. } | Collective::Reduce { .. });
    match levels[..] {
        [] => "copy".into(),
        [(_, Shape::Direct)] if collective == Collective::AllReduce || (rooted && spread) => "two-shot".into(),
        [(_, Shape::Ring(cycles))] if cycles.len() > 1 => format!("{} rings", cycles.len()),
        [(_, shape)] => shape.name().into(),
        _ => {
            let words: Vec<String> = levels.iter().rev().map(|(n, s)| format!("{} {n}", s.name())).collect();
            format!("hierarchical({})", words.join(", "))
        }
    }
}
