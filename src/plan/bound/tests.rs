use std::path::Path;

use petgraph::graph::NodeIndex;
use proptest::prelude::*;

use super::cut::{Cut, tightest, unfolded};
use super::graph::Graph;
use super::*;
use crate::topology::DeviceId;

fn machine(file: &str) -> Topology {
    Topology::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join(file)).unwrap()
}

fn least(t: &Topology, collective: Collective) -> Bound {
    bound(t, &Placement::gpus(t).unwrap(), collective, 1 << 40)
}

/// The rate of an all-reduce, in GB/s.
fn rate(seconds: f64) -> f64 {
    (1u64 << 40) as f64 / seconds / 1e9
}

fn close(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-9 * b.abs()
}

#[test]
fn known_machines_have_their_known_bounds() {
    for (file, truth, words) in [
        ("dgx-1-nvlink", 600.0 / 7.0, "the links of gpu0, 150.0 GB/s each way"),
        ("2xa100-two-switches", 520.0 / 3.0, "the links of host0/gpu0, 325.0 GB/s each way"),
        ("4xh100-rails", 8000.0 / 31.0, "the links of host0/gpu0, 500.0 GB/s each way"),
        ("mi250-16", 1200.0 / 7.0, "the xGMI links between gpu0, gpu1 and gpu4, gpu5, gpu8-gpu10, 300.0 GB/s each way"),
    ] {
        let t = machine(&format!("tests/machines/{file}.toml"));
        let b = least(&t, Collective::AllReduce);
        assert!(close(rate(b.bandwidth), truth), "{file}: {} GB/s and not {truth}", rate(b.bandwidth));
        assert!(b.in_switch <= b.any && b.any <= b.seconds, "{file}: {b:?}");
        let half = least(&t, Collective::AllGather).bandwidth;
        assert!(close(half * 2.0, b.bandwidth) && half == least(&t, Collective::ReduceScatter).bandwidth, "{file}");
        assert_eq!(b.bottleneck, [words]);
    }
}

fn graph(ranks: &[u64], links: &[(usize, usize, u64)]) -> Graph {
    let devices = (0..ranks.len()).map(|v| DeviceId(NodeIndex::new(v))).collect();
    Graph::of(devices, vec![None; ranks.len()], ranks.to_vec(), links.to_vec())
}

/// Over all sets of devices.
fn brute(graph: &Graph, supply: &[u64]) -> Option<f64> {
    let n = graph.len();
    let mut worst: Option<f64> = None;
    for set in 0..1usize << n {
        let inside: Vec<bool> = (0..n).map(|v| set >> v & 1 == 1).collect();
        let held: u64 = (0..n).filter(|v| inside[*v]).map(|v| supply[v]).sum();
        if held > 0 && graph.places().iter().any(|p| !inside[*p]) {
            let ratio = held as f64 / graph.leaving(&inside) as f64;
            worst = Some(worst.map_or(ratio, |w| w.max(ratio)));
        }
    }
    worst
}

fn right(graph: &Graph, cut: Option<&Cut>, supply: &[u64]) -> bool {
    match (cut, brute(graph, supply)) {
        (Some(cut), Some(truth)) => {
            let held: u64 = (0..graph.len()).filter(|v| cut.inside[*v]).map(|v| supply[v]).sum();
            close(cut.ratio(), truth) && cut.holds == u128::from(held) && cut.leaves == graph.leaving(&cut.inside)
        }
        (None, None) => true,
        _ => false,
    }
}

#[derive(Debug)]
struct Ratio(u128, u128);

impl PartialEq for Ratio {
    fn eq(&self, other: &Self) -> bool {
        self.0 * other.1 == other.0 * self.1
    }
}

/// A ring with ranks, so that all are reached, and other links; few rates, so that devices are alike.
fn graphs(most: usize) -> impl Strategy<Value = Graph> {
    (2..=most).prop_flat_map(|n| {
        let ranks = prop::collection::vec(0..3u64, n);
        let links = prop::collection::vec((0..n, 0..n, 1..4u64), 0..3 * n);
        (ranks, links, 1..4u64, any::<bool>()).prop_map(move |(mut ranks, mut links, rate, even)| {
            ranks[0] = ranks[0].max(1);
            ranks[n - 1] = ranks[n - 1].max(1);
            links.extend((0..n).map(|v| (v, (v + 1) % n, rate)));
            if even {
                links = links.iter().flat_map(|&(a, b, r)| [(a, b, r), (b, a, r)]).collect();
            }
            graph(&ranks, &links)
        })
    })
}

/// Rings of rings, wheels and grids: places that look alike and places that only look so.
#[test]
fn devices_that_can_be_exchanged_are_found() {
    let distinct = |g: &Graph| symmetry::distinct(g, &fold::Colours::new(g, &g.ranks), &g.places());
    let both = |links: &[(usize, usize)]| -> Vec<(usize, usize, u64)> {
        links.iter().flat_map(|&(a, b)| [(a, b, 1), (b, a, 1)]).collect()
    };
    let ring: Vec<(usize, usize)> = (0..12).map(|v| (v, (v + 1) % 12)).collect();
    assert_eq!(distinct(&graph(&[1; 12], &both(&ring))), [0]);
    // Three neighbours each, so of one colour; but a bridge (0 - 5) joins two pieces, and 0 is not like 1.
    let piece = [(0, 1), (0, 2), (1, 3), (1, 4), (2, 3), (2, 4), (3, 4)];
    let twice: Vec<(usize, usize)> =
        piece.iter().flat_map(|&(a, b)| [(a, b), (a + 5, b + 5)]).chain([(0, 5)]).collect();
    let bridged = graph(&[1; 10], &both(&twice));
    let found = distinct(&bridged);
    assert!(found.contains(&0) && found.len() >= 3, "{found:?}");
    let cut = tightest(&bridged, &bridged.ranks).unwrap();
    assert_eq!((cut.holds, cut.leaves), (5, 1));
}

#[test]
fn clusters_are_one_place_and_folding_them_changes_nothing() {
    for (hosts, fabric) in [(9, None), (16, Some("rails:leaf=4,spines=2")), (16, Some("leaf-spine:leaf=4,spines=2"))] {
        let host = machine("topologies/dgx-h100.toml");
        let t = match fabric {
            None => host.cluster(hosts).unwrap(),
            Some(f) => host.cluster_over(hosts, f.parse().unwrap()).unwrap(),
        };
        let g = Graph::new(&t, &Placement::gpus(&t).unwrap());
        let colours = fold::Colours::new(&g, &g.ranks);
        assert_eq!(symmetry::distinct(&g, &colours, &g.places()).len(), 1, "{hosts} {fabric:?}");
        let one: Vec<u64> = (0..g.len()).map(|v| u64::from(v == g.places()[3])).collect();
        for supply in [&g.ranks, &one] {
            let (a, b) = (tightest(&g, supply).unwrap(), unfolded(&g, supply).unwrap());
            assert_eq!(a.holds * b.leaves, b.holds * a.leaves);
        }
    }
}

#[test]
fn a_rank_that_none_can_reach_is_named() {
    let mut t = machine("tests/machines/dgx-1-nvlink.toml");
    let gone = t.find("gpu3").unwrap();
    let links: Vec<_> = t.links().filter(|(_, a, ..)| *a == gone).map(|(id, ..)| id).collect();
    links.into_iter().for_each(|l| t.link_mut(l).nominal = Some(0.0));
    let b = least(&t, Collective::AllReduce);
    assert!(b.seconds.is_infinite() && b.any.is_infinite());
    assert_eq!(b.bottleneck, ["no route leads from rank 3 (gpu3) to rank 0 (gpu0)"]);
    assert!(least(&t, Collective::Broadcast { root: 0 }).seconds.is_finite());
    assert!(least(&t, Collective::Broadcast { root: 3 }).seconds.is_infinite());
    assert!(least(&t, Collective::Reduce { root: 3 }).seconds.is_finite());
    assert!(least(&t, Collective::AllToAll).seconds.is_infinite());
}

#[test]
fn bottlenecks_are_named_as_people_would() {
    let two = machine("topologies/dgx-h100.toml").cluster(2).unwrap();
    let b = least(&two, Collective::AllToAll);
    assert_eq!(b.bottleneck, ["the 8 NICs of host 0, 400.0 GB/s each way"]);
    assert!(close(b.bandwidth, (1u64 << 40) as f64 / 16.0 * 64.0 / 400e9));
    let said = |file: &str, c| least(&machine(file), c).bottleneck.join("; ");
    assert_eq!(
        said("topologies/desktop-2xrtx4090.toml", Collective::Broadcast { root: 0 }),
        "the links of gpu0, 15.8 GB/s each way"
    );
    assert_eq!(
        said("topologies/mi250x.toml", Collective::AllGather),
        "the links around gpu0, gpu1, 331.5 GB/s each way"
    );
    // Two quads of GPUs, joined by a narrow link from each GPU to its like.
    let quad = "[[link]]\nkind = 'nvlink'\neach = 'all'\nnominal = '100 GB/s'\n";
    let quads = format!(
        "name = 'quads'\n[[device]]\nkind = 'gpu'\nid = 'gpu[0-7]'\n\
         {quad}from = 'gpu[0-3]'\nto = 'gpu[0-3]'\n{quad}from = 'gpu[4-7]'\nto = 'gpu[4-7]'\n\
         [[link]]\nkind = 'nvlink'\nfrom = 'gpu[0-3]'\nto = 'gpu[4-7]'\nnominal = '5 GB/s'\n"
    );
    let b = least(&Topology::from_toml(&quads, "quads").unwrap(), Collective::AllReduce);
    assert_eq!(b.bottleneck, ["the NVLinks between gpu0-gpu3 and gpu4-gpu7, 20.0 GB/s each way"]);
    assert!(close(rate(b.bandwidth), 20.0) && close(rate(b.in_switch), 20.0));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn the_tightest_cut_is_the_tightest_of_all_sets(g in graphs(6)) {
        for g in [g.clone(), g.reversed()] {
            let found = tightest(&g, &g.ranks);
            prop_assert!(right(&g, found.as_ref(), &g.ranks), "{:?} in {:?}", found, g);
            for root in g.places() {
                let supply: Vec<u64> = (0..g.len()).map(|v| u64::from(v == root)).collect();
                let found = tightest(&g, &supply);
                prop_assert!(right(&g, found.as_ref(), &supply), "{:?} in {:?} from {}", found, g, root);
            }
        }
    }

    #[test]
    fn folding_changes_nothing(g in graphs(12)) {
        let one: Vec<u64> = (0..g.len()).map(|v| u64::from(v == g.places()[0])).collect();
        for supply in [&g.ranks, &one] {
            let truth = unfolded(&g, supply);
            let colours = fold::Colours::new(&g, supply);
            let targets = symmetry::distinct(&g, &colours, &g.places());
            for found in [tightest(&g, supply), cut::among(&g, supply, &colours, &targets)] {
                let value = |c: &Option<Cut>| c.as_ref().map(|c| Ratio(c.holds, c.leaves));
                prop_assert_eq!(value(&found), value(&truth));
            }
        }
    }
}
