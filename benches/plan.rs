//! Planning and proving, by number of GPUs.
#![allow(missing_docs)]

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use std::path::Path;
use topocoll::plan::bound::bound;
use topocoll::plan::builders::{self, Lanes, Nest, Request, Shape};
use topocoll::plan::choose::{Wish, choose};
use topocoll::plan::{Collective, Placement, verify};
use topocoll::simulate::Machine;
use topocoll::topology::Topology;

fn plan(c: &mut Criterion) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("topologies/dgx-h100.toml");
    let host = Topology::read(&file).expect("a machine");
    let mut group = c.benchmark_group("plan");
    group.sample_size(10);
    for hosts in [1, 8, 128] {
        let t = host.cluster(hosts).expect("a cluster");
        let placement = Placement::gpus(&t).expect("GPUs");
        let wish = Wish::default();
        let make = || choose(&t, &placement, Collective::AllReduce, 1 << 30, &wish).expect("a plan");
        group.bench_function(BenchmarkId::new("choose", hosts * 8), |b| b.iter(make));
    }
    group.finish();
}

fn least(c: &mut Criterion) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("topologies/dgx-h100.toml");
    let host = Topology::read(&file).expect("a machine");
    let mut group = c.benchmark_group("bound");
    group.sample_size(10);
    for hosts in [1, 128, 2048] {
        let t = host.cluster(hosts).expect("a cluster");
        let placement = Placement::gpus(&t).expect("GPUs");
        group.bench_function(BenchmarkId::new("all-reduce", hosts * 8), |b| {
            b.iter(|| bound(&t, &placement, Collective::AllReduce, 1 << 30));
        });
    }
    group.finish();
}

/// Runs of a gigabyte in 32 chunks, of plans compiled before. Direct exchange between many hosts takes seconds.
fn virtual_time(c: &mut Criterion) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("topologies/dgx-h100.toml");
    let host = Topology::read(&file).expect("a machine");
    let mut group = c.benchmark_group("simulate");
    group.sample_size(10);
    for (hosts, shape) in
        [(1, Shape::Direct), (4, Shape::Direct), (4, Shape::Ring(vec![])), (32, Shape::Ring(vec![])), (32, Shape::Tree)]
    {
        let t = host.cluster(hosts).expect("a cluster");
        let placement = Placement::gpus(&t).expect("GPUs");
        let request = Request {
            collective: Collective::AllReduce,
            hosts: placement.hosts(),
            chunk_bytes: 32 << 20,
            lanes: Lanes::Fine,
        };
        let nest = Nest::even(&[(8, Shape::Direct.into()), (hosts, shape.into())]);
        let plan = builders::hierarchical(request, &nest, true).expect("a plan");
        let machine = Machine::new(&t, &placement);
        let program = machine.prepare(&plan).expect("a program");
        group.bench_function(BenchmarkId::new(&plan.algorithm, hosts * 8), |b| {
            b.iter(|| machine.run_prepared(&program, 1 << 30, 32).expect("a run"));
        });
    }
    group.finish();
}

/// Builders are called directly: to choose among so many ranks takes longer than the proof.
fn proof(c: &mut Criterion) {
    let mut group = c.benchmark_group("verify");
    group.sample_size(10);
    for hosts in [8, 128] {
        let of: Vec<usize> = (0..hosts * 8).map(|rank| rank / 8).collect();
        let request =
            Request { collective: Collective::AllReduce, hosts: &of, chunk_bytes: 1 << 20, lanes: Lanes::Coarse };
        let nest = Nest::even(&[(8, Shape::Direct.into()), (hosts, Shape::Ring(vec![]).into())]);
        for (name, plan) in [
            ("hierarchical", builders::hierarchical(request, &nest, true)),
            ("ring", builders::flat(request, Shape::Ring(vec![]))),
        ] {
            let plan = plan.expect("a plan");
            group.bench_function(BenchmarkId::new(name, hosts * 8), |b| {
                b.iter(|| verify(&plan, &of).expect("proved"));
            });
        }
    }
    group.finish();
}

criterion_group!(benches, plan, least, virtual_time, proof);
criterion_main!(benches);
