//! A cluster of 10,000 GPUs: made, routed, printed, written and read. Ends with the most memory this took.
#![allow(missing_docs)]

use criterion::{Criterion, criterion_group, criterion_main};
use std::hint::black_box;
use std::path::Path;
use topocoll::topology::{Fabric, Topology};

fn cluster(c: &mut Criterion) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("topologies/dgx-h100.toml");
    let host = Topology::read(&file).expect("a machine");
    let fabric: Fabric = "rails:leaf=32,spines=8".parse().expect("a fabric");
    let make = || host.cluster_over(1250, fabric).expect("a cluster");
    let t = make();
    let find = |id: &str| t.find(id).expect("a device");
    let (near, far) = (find("host0/gpu0"), find("host1249/gpu7"));
    let toml = t.to_toml();
    let mut group = c.benchmark_group("10000-gpus");
    group.sample_size(10);
    group.bench_function("make", |b| b.iter(make));
    group.bench_function("route", |b| b.iter(|| black_box(t.route(near, far))));
    group.bench_function("print", |b| b.iter(|| black_box(t.to_tree(false))));
    group.bench_function("write-toml", |b| b.iter(|| black_box(t.to_toml())));
    group.bench_function("read-toml", |b| b.iter(|| Topology::from_toml(&toml, "bench").expect("a topology")));
    group.finish();
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let most = status.lines().find(|l| l.starts_with("VmHWM")).unwrap_or("VmHWM: not known");
    println!("most memory of the whole bench: {most}");
}

criterion_group!(benches, cluster);
criterion_main!(benches);
