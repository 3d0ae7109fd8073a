//! Plans come near the limit, on machines whose limit is known.

use std::path::Path;

use topocoll::plan::choose::{Choice, Wish, choose};
use topocoll::plan::{Collective, Placement, verify};
use topocoll::topology::{Device, DeviceKind, Link, LinkKind, Topology};

fn machine(name: &str) -> Topology {
    Topology::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/machines").join(name)).unwrap()
}

fn plan(t: &Topology, bytes: u64, algorithm: Option<&str>) -> Choice {
    let placement = Placement::gpus(t).unwrap();
    let wish = Wish { algorithm: algorithm.map(str::to_string), ..Wish::default() };
    let choice = choose(t, &placement, Collective::AllReduce, bytes, &wish).unwrap();
    verify(&choice.plan, placement.hosts()).unwrap();
    choice
}

/// The best algbw of an all-reduce by reduce-scatter and all-gather, bytes per second, computed elsewhere.
const KNOWN: [(&str, f64); 4] = [
    ("dgx-1-nvlink.toml", 600e9 / 7.0),
    ("2xa100-two-switches.toml", 520e9 / 3.0),
    ("4xh100-rails.toml", 8000e9 / 31.0),
    ("mi250-16.toml", 1200e9 / 7.0),
];

#[test]
fn a_gigabyte_takes_little_more_than_it_must() {
    for (name, best) in KNOWN {
        let choice = plan(&machine(name), 1 << 30, None);
        let share = choice.algbw() / best;
        assert!((0.97..=1.0).contains(&share), "{name}: {} reaches {share}", choice.chosen.algorithm);
    }
}

#[test]
fn levels_alone_do_nearly_as_well() {
    for (name, best) in &KNOWN[1..3] {
        let choice = plan(&machine(name), 1 << 30, Some("hierarchical"));
        let share = choice.algbw() / best;
        assert!((0.95..=1.0).contains(&share), "{name}: {} reaches {share}", choice.chosen.algorithm);
    }
}

#[test]
fn a_forest_is_asked_for_where_there_is_none() {
    let t = machine("4xh100-rails.toml");
    let wish = Wish { algorithm: Some("forest".into()), ..Wish::default() };
    let error = choose(&t, &Placement::gpus(&t).unwrap(), Collective::AllReduce, 1 << 30, &wish).unwrap_err();
    assert!(error.to_string().contains("links between the GPUs of a host"), "{error}");
    assert!(plan(&machine("mi250-16.toml"), 1 << 20, Some("forest")).chosen.algorithm == "forest");
}

#[test]
fn what_is_the_same_is_considered_once_and_what_cannot_be_is_told() {
    let mut t = Topology::new("islands");
    let gpus: Vec<_> =
        (0..4).map(|i| t.add_device(Device::new(format!("gpu{i}"), DeviceKind::Gpu, i, "test")).unwrap()).collect();
    t.connect(gpus[0], gpus[1], Link::new(LinkKind::NvLink, "test"));
    let wish = Wish::default();
    let error =
        choose(&t, &Placement::gpus(&t).unwrap(), Collective::AllReduce, 1 << 20, &wish).unwrap_err().to_string();
    for rank in ["rank 0 (gpu0)", "rank 2 (gpu2)", "rank 3 (gpu3)"] {
        assert!(error.contains(rank), "{error}");
    }
    for ranks in 1..3 {
        let some = Placement::new(&t, gpus[..ranks].to_vec()).unwrap();
        for collective in Collective::every(0) {
            let choice = choose(&t, &some, collective, 1 << 20, &wish).unwrap();
            let mut names: Vec<_> = choice.candidates.iter().map(|c| &c.algorithm).collect();
            names.sort();
            names.dedup();
            assert_eq!(names.len(), choice.candidates.len(), "{:?}", choice.candidates);
        }
    }
}
