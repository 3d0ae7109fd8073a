use super::*;
use crate::topology::{Device, DeviceKind, Link};
use proptest::prelude::*;

fn machine(name: &str) -> Topology {
    Topology::read(&std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(name)).unwrap()
}

fn of(t: &Topology, collective: Collective) -> Bound {
    bound(t, &Placement::gpus(t).unwrap(), collective, 1 << 30)
}

#[test]
fn known_machines_have_known_bounds() {
    for (name, best, words) in [
        ("dgx-1-nvlink", 600e9 / 7.0, "the links of gpu0, 150.0 GB/s each way"),
        ("2xa100-two-switches", 520e9 / 3.0, "the links of host0/gpu0, 325.0 GB/s each way"),
        ("4xh100-rails", 8000e9 / 31.0, "the links of host0/gpu0, 500.0 GB/s each way"),
        ("mi250-16", 1200e9 / 7.0, "GB/s each way"),
    ] {
        let b = of(&machine(&format!("tests/machines/{name}.toml")), Collective::AllReduce);
        let algbw = (1u64 << 30) as f64 / b.bandwidth;
        assert!((algbw / best - 1.0).abs() < 1e-9, "{name}: {algbw}");
        assert!(b.bottleneck[0].contains(words), "{name}: {:?}", b.bottleneck);
        assert!(b.in_switch <= b.any && b.any <= b.bandwidth && b.in_switch > 0.0, "{name}: {b:?}");
    }
}

#[test]
fn a_host_is_named_by_its_nics() {
    let t = machine("topologies/dgx-h100.toml").cluster(4).unwrap();
    let b = of(&t, Collective::AllToAll);
    assert_eq!(b.bottleneck, ["the 8 NICs of host 0, 400.0 GB/s each way"]);
}

#[test]
fn ranks_that_cannot_reach_each_other_are_named() {
    let mut t = Topology::new("islands");
    let gpus: Vec<_> =
        (0..4).map(|i| t.add_device(Device::new(format!("gpu{i}"), DeviceKind::Gpu, i, "test")).unwrap()).collect();
    let link = |rate| Link { nominal: Some(rate), ..Link::new(LinkKind::NvLink, "test") };
    t.connect(gpus[0], gpus[1], link(25e9));
    t.connect(gpus[2], gpus[3], link(25e9));
    // A link without bandwidth joins nothing; one that leads one way only does not lead back.
    t.connect(gpus[0], gpus[2], link(0.0));
    t.add_link(gpus[1], gpus[3], link(25e9));
    let b = of(&t, Collective::AllGather);
    assert_eq!(b.seconds, f64::INFINITY);
    assert_eq!(b.bottleneck, ["no way leads to rank 0 (gpu0) from rank 2 (gpu2), rank 3 (gpu3)"]);
    t.add_link(gpus[3], gpus[1], link(25e9));
    assert!(of(&t, Collective::AllGather).seconds.is_finite());
}

#[test]
fn a_rank_alone_waits_for_nobody() {
    let mut t = Topology::new("one");
    t.add_device(Device::new("gpu0", DeviceKind::Gpu, 0, "test")).unwrap();
    for collective in [Collective::AllReduce, Collective::AllGather, Collective::Broadcast { root: 0 }] {
        assert_eq!(of(&t, collective).seconds, 0.0);
    }
}

proptest! {
    /// Against all sets there are.
    #[test]
    fn no_set_is_tighter(nodes in 2usize..7, kinds in prop::collection::vec(0u8..3, 7),
                         widths in prop::collection::vec(0u8..4, 42), two_way in any::<bool>()) {
        let mut t = Topology::new("any");
        let ids: Vec<_> = (0..nodes)
            .map(|i| {
                let kind = if kinds[i] == 0 && i > 1 { DeviceKind::NvSwitch } else { DeviceKind::Gpu };
                t.add_device(Device::new(format!("d{i}"), kind, i, "test")).unwrap()
            })
            .collect();
        let mut rates = vec![vec![0.0; nodes]; nodes];
        let pairs = (0..nodes).flat_map(|a| (0..nodes).filter(move |b| *b != a).map(move |b| (a, b)));
        for ((a, b), width) in pairs.zip(widths).filter(|(_, w)| *w > 0) {
            let link = Link { nominal: Some(f64::from(width) * 25e9), ..Link::new(LinkKind::NvLink, "test") };
            for (a, b) in if two_way { vec![(a, b), (b, a)] } else { vec![(a, b)] } {
                t.add_link(ids[a], ids[b], link.clone());
                rates[a][b] += f64::from(width) * 25e9;
            }
        }
        let placement = Placement::gpus(&t).unwrap();
        let ranks: Vec<usize> = (0..nodes).filter(|i| placement.devices().contains(&ids[*i])).collect();
        let n = ranks.len() as f64;
        let root = ranks.iter().position(|r| ids[*r] == placement.devices()[0]).unwrap();
        let cuts = |into: bool, only_root: bool| -> f64 {
            let sets = (1u32..1 << nodes).filter(|s| ranks.iter().any(|r| s >> r & 1 == 0));
            let sets = sets.filter(|s| !only_root || s >> ranks[root] & 1 == 1);
            sets.map(|s| {
                let mut through = 0.0;
                for (a, b) in (0..nodes).flat_map(|a| (0..nodes).map(move |b| (a, b))) {
                    let (x, y) = if into { (b, a) } else { (a, b) };
                    if s >> a & 1 == 1 && s >> b & 1 == 0 {
                        through += rates[x][y];
                    }
                }
                let inside = ranks.iter().filter(|r| s >> **r & 1 == 1).count() as f64;
                let need = if only_root { 1.0 } else { inside / n };
                if need == 0.0 { 0.0 } else { (1u64 << 30) as f64 * need / through }
            })
            .fold(0.0, f64::max)
        };
        let (out, into) = (cuts(false, false), cuts(true, false));
        for (collective, least) in [
            (Collective::AllGather, out),
            (Collective::ReduceScatter, into),
            (Collective::AllReduce, out + into),
            (Collective::Broadcast { root: 0 }, cuts(false, true)),
            (Collective::Reduce { root: 0 }, cuts(true, true)),
        ] {
            let found = bound(&t, &placement, collective, 1 << 30).bandwidth;
            // One that cannot be told, or not tell, makes it impossible whatever the direction.
            let apart = out.is_infinite() || into.is_infinite();
            let least = if apart { f64::INFINITY } else { least };
            prop_assert!(found == least || (found / least - 1.0).abs() < 1e-9, "{collective}: {found} of {least}");
        }
    }
}
