//! Which devices can be exchanged.
//!
//! Devices of one colour look alike, but only an automorphism shows that they are. Candidates are grown from one pair
//! of devices, neighbour by neighbour, and checked link by link. One that is not found costs time, not truth.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::fold::Colours;
use super::graph::{Graph, Sets};

/// Attempts that may fail.
const PATIENCE: usize = 64;

/// How neighbours are matched where several would do.
#[derive(Clone, Copy)]
enum Way {
    /// Each with the next, so that one automorphism moves all hosts of a fabric.
    Around,
    /// As many as may be stay where they are.
    Swap,
}

/// One of `devices` for each set of them that can be exchanged, colours kept.
pub(super) fn distinct(graph: &Graph, colours: &Colours, devices: &[usize]) -> Vec<usize> {
    let near = Neighbours::new(graph, colours);
    let mut same = Sets::new(graph.len());
    let mut found: Vec<Vec<usize>> = vec![Vec::new(); graph.len()];
    let mut patience = PATIENCE;
    for &device in devices {
        let alike = &mut found[colours.of[device]];
        let mut known = alike.iter().any(|d| same.of(*d) == same.of(device));
        for &other in alike.iter() {
            for way in [Way::Around, Way::Swap] {
                if known || patience == 0 {
                    break;
                }
                match near.automorphism(graph, (other, device), way) {
                    Some(moved) => moved.iter().for_each(|(a, b)| same.join(*a, *b)),
                    None => patience -= 1,
                }
                known = same.of(other) == same.of(device);
            }
        }
        if !known {
            alike.push(device);
        }
    }
    found.into_iter().flatten().collect()
}

/// Colour of a neighbour, rates to and from it.
type Kind = (usize, u64, u64);

struct Neighbours {
    of: Vec<Vec<(Kind, usize)>>,
    /// Devices that no other has the colour of: they stay.
    alone: Vec<bool>,
}

impl Neighbours {
    fn new(graph: &Graph, colours: &Colours) -> Self {
        let mut counts = vec![0; graph.len()];
        colours.of.iter().for_each(|c| counts[*c] += 1);
        let of = (0..graph.len()).map(|v| {
            let (mut out, mut into) = (graph.out[v].iter().peekable(), graph.into[v].iter().peekable());
            let mut near = Vec::new();
            // Both are sorted by neighbour.
            while let Some(w) = out.peek().into_iter().chain(into.peek()).map(|(w, _)| *w).min() {
                let to = out.next_if(|l| l.0 == w).map_or(0, |l| l.1);
                let from = into.next_if(|l| l.0 == w).map_or(0, |l| l.1);
                near.push(((colours.of[w], to, from), w));
            }
            near.sort_unstable();
            near
        });
        Self { of: of.collect(), alone: colours.of.iter().map(|c| counts[*c] == 1).collect() }
    }

    /// What moves where in an automorphism that moves the first of `pair` to the second.
    fn automorphism(&self, graph: &Graph, pair: (usize, usize), way: Way) -> Option<Vec<(usize, usize)>> {
        let mut map = Map { to: vec![usize::MAX; graph.len()], from: vec![usize::MAX; graph.len()] };
        (0..graph.len()).filter(|v| self.alone[*v]).for_each(|v| map.set(v, v));
        map.set(pair.0, pair.1);
        let mut seen = vec![false; graph.len()];
        seen[pair.0] = true;
        // Those with few neighbours leave the least to choose.
        let mut queue = BinaryHeap::from([Reverse((self.of[pair.0].len(), pair.0))]);
        while let Some(Reverse((_, v))) = queue.pop() {
            let image = map.to[v];
            self.matched(v, image, way, &mut map)?;
            for &(_, w) in &self.of[v] {
                // What stays among what stays need not be looked at.
                if (image != v || map.to[w] != w) && !std::mem::replace(&mut seen[w], true) {
                    queue.push(Reverse((self.of[w].len(), w)));
                }
            }
        }
        map.holds(graph).then(|| map.moved().collect())
    }

    /// Matches the neighbours of `v` that have no image yet with those of its image that are none.
    fn matched(&self, v: usize, image: usize, way: Way, map: &mut Map) -> Option<()> {
        let (here, there) = (&self.of[v], &self.of[image]);
        if here.len() != there.len() {
            return None;
        }
        let mut groups = here.chunk_by(|a, b| a.0 == b.0).zip(there.chunk_by(|a, b| a.0 == b.0));
        groups.try_for_each(|(a, b)| {
            if a[0].0 != b[0].0 || a.len() != b.len() {
                return None;
            }
            let mut from: Vec<usize> = a.iter().map(|x| x.1).filter(|x| map.to[*x] == usize::MAX).collect();
            let mut to: Vec<usize> = b.iter().map(|x| x.1).filter(|x| map.from[*x] == usize::MAX).collect();
            if from.len() != to.len() {
                return None;
            }
            if from == to || matches!(way, Way::Swap) {
                let stay: Vec<usize> = from.iter().copied().filter(|x| to.binary_search(x).is_ok()).collect();
                stay.iter().for_each(|x| map.set(*x, *x));
                from.retain(|x| map.to[*x] == usize::MAX);
                to.retain(|x| map.from[*x] == usize::MAX);
            }
            if let Some(first) = from.first() {
                let shift = to.iter().position(|x| x > first).unwrap_or(0);
                to.rotate_left(shift);
            }
            from.iter().zip(&to).for_each(|(x, y)| map.set(*x, *y));
            Some(())
        })
    }
}

/// Images and what they are images of; a device without one stays.
struct Map {
    to: Vec<usize>,
    from: Vec<usize>,
}

impl Map {
    fn set(&mut self, v: usize, image: usize) {
        self.to[v] = image;
        self.from[image] = v;
    }

    fn image(&self, v: usize) -> usize {
        if self.to[v] == usize::MAX { v } else { self.to[v] }
    }

    fn moved(&self) -> impl Iterator<Item = (usize, usize)> {
        self.to.iter().copied().enumerate().filter(|(v, image)| *image != usize::MAX && v != image)
    }

    /// Whether it is one to one and every link has one of its rate as its image. Numbers of ranks are in the colours.
    fn holds(&self, graph: &Graph) -> bool {
        let mut hit = vec![false; graph.len()];
        if (0..graph.len()).any(|v| std::mem::replace(&mut hit[self.image(v)], true)) {
            return false;
        }
        let links = |v: &usize| {
            let mut links: Vec<(usize, u64)> = graph.out[*v].iter().map(|(w, rate)| (self.image(*w), *rate)).collect();
            links.sort_unstable();
            links == graph.out[self.image(*v)]
        };
        (0..graph.len()).all(|v| links(&v))
    }
}
