//! All-reduce among threads of this process, against a plain copy of the same bytes in the same run.
#![allow(missing_docs)]

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};
use topocoll::{Communicator, ReduceOp};

/// Seconds that rank 0 takes for `calls` calls that all ranks make together.
fn calls(ranks: usize, elements: usize, calls: u64) -> Duration {
    let comms = Communicator::local(ranks).expect("ranks");
    let (send, receive) = channel();
    std::thread::scope(|s| {
        for comm in comms {
            let send = send.clone();
            s.spawn(move || {
                // The output changes place, as gradients do.
                let input: Vec<f32> = (0..elements).map(|i| ((i * 31 + comm.rank()) % 97) as f32).collect();
                let mut outputs = [vec![0f32; elements], vec![0f32; elements]];
                for output in &mut outputs {
                    comm.all_reduce(&input, output, ReduceOp::Sum).expect("warm-up");
                }
                comm.barrier().expect("barrier");
                let begun = Instant::now();
                for call in 0..calls {
                    comm.all_reduce(&input, &mut outputs[(call % 2) as usize], ReduceOp::Sum).expect("all-reduce");
                }
                if comm.rank() == 0 {
                    send.send(begun.elapsed()).expect("the bench waits");
                }
            });
        }
    });
    receive.recv().expect("rank 0 reports")
}

fn all_reduce(c: &mut Criterion) {
    let mut group = c.benchmark_group("all-reduce f32");
    group.sample_size(10);
    for bytes in [8usize, 4 << 10, 64 << 10, 1 << 20, 16 << 20] {
        group.throughput(Throughput::Bytes(bytes as u64));
        for ranks in [2, 4, 8] {
            let id = BenchmarkId::new(format!("{ranks} ranks"), bytes);
            group.bench_function(id, |b| b.iter_custom(|n| calls(ranks, bytes / 4, n)));
        }
        group.bench_function(BenchmarkId::new("copy", bytes), |b| {
            let (source, mut target) = (vec![1u8; bytes], vec![2u8; bytes]);
            b.iter(|| {
                target.copy_from_slice(std::hint::black_box(&source));
                std::hint::black_box(&mut target);
            });
        });
    }
    group.finish();
}

criterion_group!(benches, all_reduce);
criterion_main!(benches);
