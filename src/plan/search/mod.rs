//! Shapes that suit the links between the members of a group: cycles and trees no two of which want one link.

mod forest;
mod rings;
mod wires;

pub use wires::Wires;

use crate::plan::builders::Shape;

impl Wires {
    /// Shapes that use these wires well, simplest first. None where nothing is to be gained over shapes that need to
    /// know no wires, or where wires lead one way only.
    pub fn shapes(&self) -> Vec<Shape> {
        if self.members() < 3 || !self.is_symmetric() || self.is_uniform() {
            return vec![];
        }
        let rings = rings::rings(self).map(Shape::Ring);
        rings.into_iter().chain(forest::forest(self).map(Shape::Forest)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Placement;
    use crate::plan::builders::Step;
    use crate::topology::Topology;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn machine(name: &str) -> Wires {
        let file = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/machines").join(name);
        let t = Topology::read(&file).unwrap();
        let placement = Placement::gpus(&t).unwrap();
        let first: Vec<_> = placement.devices().iter().copied().filter(|d| t.device(*d).host == Some(0)).collect();
        Wires::between(&t, &first)
    }

    /// Bytes per second from every member at once, with an equal share a tree, if no wire carries more than it can;
    /// through switches, if no port does. Every tree must reach every member once.
    fn rate(wires: &Wires, trees: &[Vec<Vec<Step>>]) -> f64 {
        let m = wires.members();
        let mut used: BTreeMap<(usize, usize), f64> = BTreeMap::new();
        let direct = wires.nodes() == m;
        for (root, trees) in trees.iter().enumerate() {
            for tree in trees {
                let mut depth = vec![None; m];
                depth[root] = Some(0);
                for (from, to, step) in tree {
                    assert!(depth[*from].is_some_and(|d| d <= *step) && depth[*to].is_none());
                    depth[*to] = Some(step + 1);
                    let wires = if direct { vec![(*from, *to)] } else { vec![(*from, m), (m, *to)] };
                    wires.into_iter().for_each(|w| *used.entry(w).or_default() += 1.0 / trees.len() as f64);
                }
                assert!(depth.iter().all(Option::is_some));
            }
        }
        let rates = wires.scaled(1.0);
        used.iter().map(|(ends, n)| rates[ends] as f64 / n).fold(f64::INFINITY, f64::min)
    }

    fn forest_of(wires: &Wires) -> Vec<Vec<Vec<Step>>> {
        forest::forest(wires).expect("trees")
    }

    #[test]
    fn trees_reach_the_bound_of_known_machines() {
        // Half of the best algbw of an all-reduce is the best of an all-gather; a rank's share of that is its rate.
        for (name, least) in [("dgx-1-nvlink.toml", 150e9 / 7.0), ("mi250-16.toml", 150e9 / 7.0)] {
            let wires = machine(name);
            let found = rate(&wires, &forest_of(&wires));
            assert!((found / least - 1.0).abs() < 1e-6, "{name}: {found}");
        }
        // A switch that eight members are at lets each have a seventh of its port.
        for (name, port) in [("4xh100-rails.toml", 450e9), ("2xa100-two-switches.toml", 300e9)] {
            let wires = machine(name);
            let found = rate(&wires, &forest_of(&wires));
            assert!((found / (port / 7.0) - 1.0).abs() < 1e-6, "{name}: {found}");
        }
    }

    #[test]
    fn a_cube_mesh_has_six_rings() {
        let wires = machine("dgx-1-nvlink.toml");
        let cycles = rings::rings(&wires).expect("rings");
        assert_eq!(cycles.len(), 6);
        let mut left = wires.scaled(1.0 / 25e9);
        for cycle in &cycles {
            assert_eq!(cycle.iter().collect::<std::collections::BTreeSet<_>>().len(), 8);
            for i in 0..8 {
                *left.get_mut(&(cycle[i], cycle[(i + 1) % 8])).expect("a wire") -= 1;
            }
        }
        assert!(left.values().all(|n| *n == 0), "{left:?}");
        assert!(rings::rings(&machine("4xh100-rails.toml")).is_none());
    }

    /// The most that every member can tell all others at once, by trying all sets that leave one out.
    fn most(m: usize, rates: &BTreeMap<(usize, usize), i64>) -> f64 {
        let sets = 1u32..(1 << m) - 1;
        let leaving = |s: u32| {
            let out = rates.iter().filter(|((a, b), _)| s >> a & 1 == 1 && s >> b & 1 == 0).map(|(_, r)| *r);
            out.sum::<i64>() as f64 / f64::from(s.count_ones())
        };
        sets.map(leaving).fold(f64::INFINITY, f64::min)
    }

    proptest! {
        #[test]
        fn trees_fit_whatever_the_wires(m in 3usize..7, widths in prop::collection::vec(0i64..4, 21)) {
            let pairs = (0..m).flat_map(|a| (a + 1..m).map(move |b| (a, b)));
            let mut rates = BTreeMap::new();
            for ((a, b), width) in pairs.zip(widths).filter(|(_, w)| *w > 0) {
                rates.extend([((a, b), width), ((b, a), width)]);
            }
            let wires = Wires::of(m, rates.iter().map(|(ends, r)| (*ends, *r as f64)).collect());
            let best = most(m, &rates);
            match forest::forest(&wires) {
                None => prop_assert_eq!(best, 0.0),
                // Few trees cannot use odd widths whole.
                Some(trees) => {
                    let found = rate(&wires, &trees);
                    prop_assert!(found <= best * (1.0 + 1e-9) && found >= best * 0.8, "{found} of {best}");
                }
            }
        }
    }
}
