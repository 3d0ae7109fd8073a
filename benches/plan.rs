//! Planning and proving, by number of GPUs.
#![allow(missing_docs)]

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use std::path::Path;
use topocoll::plan::choose::{Wish, choose};
use topocoll::plan::{Collective, Placement, verify};
use topocoll::topology::Topology;

fn plan(c: &mut Criterion) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("topologies/dgx-h100.toml");
    let host = Topology::read(&file).expect("a machine");
    let mut group = c.benchmark_group("plan");
    group.sample_size(10);
    for hosts in [1, 2, 8] {
        let t = host.cluster(hosts).expect("a cluster");
        let placement = Placement::gpus(&t).expect("GPUs");
        let wish = Wish::default();
        let make = || choose(&t, &placement, Collective::AllReduce, 1 << 30, &wish).expect("a plan");
        group.bench_function(BenchmarkId::new("choose", hosts * 8), |b| b.iter(make));
        let choice = make();
        group.bench_function(BenchmarkId::new("verify", hosts * 8), |b| {
            b.iter(|| verify(&choice.plan, placement.hosts()).expect("proved"));
        });
    }
    group.finish();
}

criterion_group!(benches, plan);
criterion_main!(benches);
