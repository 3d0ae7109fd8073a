//! Devices that are alike are one.
//!
//! Where every device of a class has the same rates to and from each other class (an equitable partition), a least cut
//! that keeps classes whole is as narrow as any: the mean of a fractional cut over a class is one too, and costs no
//! more. So flows are looked for among the classes. A class is told apart only where that matters: the device that is to be
//! reached is a class of its own.

use std::collections::HashMap;

use super::cut::Cut;
use super::graph::Graph;
use crate::plan::flow::Network;

/// Colours of devices, from 0.
pub(super) struct Colours {
    pub of: Vec<usize>,
    count: usize,
}

impl Colours {
    /// The coarsest classes that tell numbers of ranks and of `supply` apart.
    pub fn new(graph: &Graph, supply: &[u64]) -> Self {
        let start = number((0..graph.len()).map(|v| (graph.ranks[v], supply[v])));
        start.refined(graph)
    }

    /// Each device by itself.
    #[cfg(test)]
    pub fn all_apart(graph: &Graph) -> Self {
        Self { of: (0..graph.len()).collect(), count: graph.len() }
    }

    /// The same with one device apart.
    pub fn apart(&self, graph: &Graph, device: usize) -> Self {
        let mut of = self.of.clone();
        of[device] = self.count;
        number(of.into_iter()).refined(graph)
    }

    /// Splits colours by the rates to and from each colour until nothing changes. Sums of rates times a random number a
    /// colour stand for the rates: two that are equal by chance would make a bound less tight, not wrong.
    fn refined(mut self, graph: &Graph) -> Self {
        loop {
            let keys: Vec<(u128, u128)> = (0..self.count).map(|c| (random(c as u64, 1), random(c as u64, 2))).collect();
            let sum = |links: &[(usize, u64)], way: fn(&(u128, u128)) -> u128| {
                let part = |(w, rate): &(usize, u64)| way(&keys[self.of[*w]]).wrapping_mul(u128::from(*rate));
                links.iter().map(part).fold(0, u128::wrapping_add)
            };
            let sign = |v: usize| sum(&graph.out[v], |k| k.0).wrapping_add(sum(&graph.into[v], |k| k.1));
            let next = number((0..graph.len()).map(|v| (self.of[v], sign(v))));
            let done = next.count == self.count;
            self = next;
            if done {
                return self;
            }
        }
    }
}

/// Numbers values in the order in which they first come.
fn number<T: std::hash::Hash + Eq>(values: impl Iterator<Item = T>) -> Colours {
    let mut seen = HashMap::new();
    let mut of = Vec::new();
    for value in values {
        let next = seen.len();
        of.push(*seen.entry(value).or_insert(next));
    }
    Colours { of, count: seen.len() }
}

/// A fixed odd number that looks random (splitmix64, twice).
fn random(seed: u64, salt: u64) -> u128 {
    let mix = |x: u64| {
        let x = x.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(salt << 32);
        let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        u128::from(x ^ (x >> 31))
    };
    (mix(2 * seed + 1) << 64) | mix(2 * seed + 2) | 1
}

/// The graph of the classes.
pub(super) struct Folded<'g> {
    graph: &'g Graph,
    colours: &'g Colours,
    links: Vec<(usize, usize, u128)>,
    supply: Vec<u128>,
    target: usize,
}

impl<'g> Folded<'g> {
    /// Of `colours`, in which `target` is apart.
    pub fn new(graph: &'g Graph, colours: &'g Colours, supply: &[u64], target: usize) -> Self {
        let mut rates: HashMap<(usize, usize), u128> = HashMap::new();
        let mut sums = vec![0; colours.count];
        for (v, (&from, supply)) in colours.of.iter().zip(supply).enumerate() {
            sums[from] += u128::from(*supply);
            for &(w, rate) in &graph.out[v] {
                let to = colours.of[w];
                if from != to {
                    *rates.entry((from, to)).or_default() += u128::from(rate);
                }
            }
        }
        let mut links: Vec<_> = rates.into_iter().map(|((a, b), rate)| (a, b, rate)).collect();
        // A map's order differs from process to process, and with it which of several least cuts is found.
        links.sort_unstable();
        Self { graph, colours, links, supply: sums, target: colours.of[target] }
    }

    /// A set of devices without the target from which less leaves, for what it holds, than from `cut`.
    pub fn tighter(&self, cut: &Cut) -> Option<Vec<bool>> {
        let common = gcd(cut.holds, cut.leaves).max(1);
        let (holds, leaves) = (cut.holds / common, cut.leaves / common);
        let source = self.colours.count;
        let mut network = Network::new(source + 1);
        let mut total = 0;
        for (class, supply) in self.supply.iter().enumerate().filter(|(_, s)| **s > 0) {
            network.arc(source, class, supply * leaves);
            total += supply * leaves;
        }
        for (a, b, rate) in &self.links {
            network.arc(*a, *b, rate * holds);
        }
        if network.flow(source, self.target) == total {
            return None;
        }
        let reached = network.reached(source);
        Some((0..self.graph.len()).map(|v| reached[self.colours.of[v]]).collect())
    }
}

fn gcd(a: u128, b: u128) -> u128 {
    if b == 0 { a } else { gcd(b, a % b) }
}
