//! Every collective, type and operator, against a reference of its own, with ranks as threads.

use proptest::prelude::*;
use topocoll::plan::Collective;
use topocoll::plan::builders::Lanes;
use topocoll::plan::choose::Wish;
use topocoll::topology::Topology;
use topocoll::{Communicator, DType, Element, Error, ReduceOp, bf16, f16};

/// Runs `f` as each of `ranks` ranks and gives back what each returned.
fn world<R: Send>(ranks: usize, f: impl Fn(&Communicator) -> R + Sync) -> Vec<R> {
    let comms = Communicator::local(ranks).unwrap();
    std::thread::scope(|s| {
        let f = &f;
        let threads: Vec<_> = comms.into_iter().map(|c| s.spawn(move || f(&c))).collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    })
}

/// What a type needs for a reference in f64 (floats) or i128 (integers).
trait Number: Element {
    fn random(seed: u64, rank: usize, i: usize) -> Self;
    fn reference(op: ReduceOp, values: &[Self]) -> Expected;
    fn matches(self, expected: &Expected) -> bool;
}

#[derive(Debug)]
enum Expected {
    Exactly(i128),
    Within(f64, f64),
}

fn mix(seed: u64, rank: usize, i: usize) -> u64 {
    let mut z = seed ^ (rank as u64) << 48 ^ (i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

macro_rules! floats {
    ($($t:ty, $eps:expr, $least:expr, $to:expr, $from:expr);*) => {$(
        impl Number for $t {
            fn random(seed: u64, rank: usize, i: usize) -> Self {
                $from(mix(seed, rank, i) as f64 / u64::MAX as f64 * 4.0 - 2.0)
            }
            fn reference(op: ReduceOp, values: &[Self]) -> Expected {
                let x: Vec<f64> = values.iter().map(|v| $to(*v)).collect();
                let n = x.len() as f64;
                let size: f64 = x.iter().map(|v| v.abs()).sum();
                let (value, scale) = match op {
                    ReduceOp::Sum => (x.iter().sum(), size),
                    ReduceOp::Avg => (x.iter().sum::<f64>() / n, size / n),
                    ReduceOp::Prod => (x.iter().product::<f64>(), x.iter().map(|v| v.abs()).product()),
                    ReduceOp::Min => (x.iter().copied().fold(f64::INFINITY, f64::min), 0.0),
                    ReduceOp::Max => (x.iter().copied().fold(f64::NEG_INFINITY, f64::max), 0.0),
                };
                // One rounding a step at most, and a unit of the subnormals at the end.
                Expected::Within(value, scale * $eps * n + $least)
            }
            fn matches(self, expected: &Expected) -> bool {
                let Expected::Within(value, by) = expected else { return false };
                ($to(self) - value).abs() <= *by
            }
        }
    )*};
}
floats!(f32, f64::from(f32::EPSILON), 1e-45, f64::from, |x| x as f32; f64, f64::EPSILON, 5e-324, |x: f64| x, |x| x;
        f16, 1e-3, 6e-8, f16::to_f64, f16::from_f64; bf16, 8e-3, 1e-40, bf16::to_f64, bf16::from_f64);

macro_rules! integers {
    ($($t:ty),*) => {$(
        impl Number for $t {
            fn random(seed: u64, rank: usize, i: usize) -> Self {
                mix(seed, rank, i) as $t
            }
            fn reference(op: ReduceOp, values: &[Self]) -> Expected {
                let x = values.iter().map(|v| *v as i128);
                Expected::Exactly(match op {
                    ReduceOp::Sum => (x.sum::<i128>() as $t) as i128,
                    ReduceOp::Avg => x.sum::<i128>() / values.len() as i128,
                    ReduceOp::Prod => x.fold(1, |a, b| a.wrapping_mul(b) as $t as i128),
                    ReduceOp::Min => x.min().unwrap(),
                    ReduceOp::Max => x.max().unwrap(),
                })
            }
            fn matches(self, expected: &Expected) -> bool {
                matches!(expected, Expected::Exactly(v) if *v == self as i128)
            }
        }
    )*};
}
integers!(i8, u8, i32, u32, i64, u64);

/// All-reduce and reduce-scatter, out of place and in place, checked element by element.
fn check<T: Number>(ranks: usize, count: usize, op: ReduceOp, seed: u64) {
    let outputs = world(ranks, |c| {
        let input: Vec<T> = (0..count).map(|i| T::random(seed, c.rank(), i)).collect();
        let mut output = vec![T::default(); count];
        c.all_reduce(&input, &mut output, op).unwrap();
        for (i, got) in output.iter().enumerate() {
            let all: Vec<T> = (0..ranks).map(|r| T::random(seed, r, i)).collect();
            let want = T::reference(op, &all);
            assert!(got.matches(&want), "{op} {} of {count}, element {i}: {got:?}, expected {want:?}", T::DTYPE);
        }
        // An odd start: nothing may rely on alignment.
        let mut shifted = vec![T::default(); count + 1];
        shifted[1..].copy_from_slice(&input);
        c.all_reduce_in_place(&mut shifted[1..], op).unwrap();
        assert_eq!(shifted[1..], output[..], "in place gives other bits");

        let block = count.div_ceil(3);
        let input: Vec<T> = (0..block * ranks).map(|i| T::random(seed, c.rank(), i)).collect();
        let mut mine = vec![T::default(); block];
        c.reduce_scatter(&input, &mut mine, op).unwrap();
        for (i, got) in mine.iter().enumerate() {
            let all: Vec<T> = (0..ranks).map(|r| T::random(seed, r, c.rank() * block + i)).collect();
            assert!(got.matches(&T::reference(op, &all)), "reduce-scatter {op} {}: {got:?} at {i}", T::DTYPE);
        }
        let mut whole = input.clone();
        c.reduce_scatter_in_place(&mut whole, op).unwrap();
        assert_eq!(whole[c.rank() * block..][..block], mine[..]);

        let root = seed as usize % ranks;
        let input: Vec<T> = (0..count).map(|i| T::random(seed, c.rank(), i)).collect();
        let mut mine = vec![T::default(); if c.rank() == root { count } else { 0 }];
        c.reduce(&input, &mut mine, root, op).unwrap();
        for (i, got) in mine.iter().enumerate() {
            let all: Vec<T> = (0..ranks).map(|r| T::random(seed, r, i)).collect();
            assert!(got.matches(&T::reference(op, &all)), "reduce {op} {}: {got:?} at {i}", T::DTYPE);
        }
        let mut whole = input.clone();
        c.reduce_in_place(&mut whole, root, op).unwrap();
        assert_eq!(whole, if c.rank() == root { mine } else { input });
        output
    });
    assert!(outputs.windows(2).all(|w| w[0] == w[1]), "ranks end with different bits");
}

fn check_type(dtype: DType, ranks: usize, count: usize, op: ReduceOp, seed: u64) {
    match dtype {
        DType::F32 => check::<f32>(ranks, count, op, seed),
        DType::F64 => check::<f64>(ranks, count, op, seed),
        DType::F16 => check::<f16>(ranks, count, op, seed),
        DType::Bf16 => check::<bf16>(ranks, count, op, seed),
        DType::I8 => check::<i8>(ranks, count, op, seed),
        DType::U8 => check::<u8>(ranks, count, op, seed),
        DType::I32 => check::<i32>(ranks, count, op, seed),
        DType::U32 => check::<u32>(ranks, count, op, seed),
        DType::I64 => check::<i64>(ranks, count, op, seed),
        DType::U64 => check::<u64>(ranks, count, op, seed),
    }
}

#[test]
fn every_type_and_operator() {
    for dtype in DType::ALL {
        for op in ReduceOp::ALL {
            for (ranks, count) in [(1, 5), (2, 1000), (3, 4099), (5, 7)] {
                check_type(dtype, ranks, count, op, 0xabcd ^ count as u64);
            }
        }
    }
}

#[test]
fn sizes_from_nothing_to_many_chunks() {
    for ranks in [1, 2, 3, 4, 7, 8] {
        for count in [0, 1, 2, 3, 15, 16, 17, 100_003] {
            check::<f32>(ranks, count, ReduceOp::Sum, count as u64);
        }
    }
    check::<i32>(3, 3_000_001, ReduceOp::Max, 9);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_ranks_any_size(ranks in 1usize..9, count in 0usize..20_000, dtype in 0usize..10, op in 0usize..5, seed in any::<u64>()) {
        check_type(DType::ALL[dtype], ranks, count, ReduceOp::ALL[op], seed);
    }

    #[test]
    fn gather_broadcast_and_exchange(ranks in 1usize..7, count in 0usize..9000, root in any::<prop::sample::Index>(), seed in any::<u64>()) {
        let root = root.index(ranks);
        world(ranks, |c| {
            let input: Vec<u32> = (0..count).map(|i| mix(seed, c.rank(), i) as u32).collect();
            let mut output = vec![0; count * ranks];
            c.all_gather(&input, &mut output).unwrap();
            for (i, got) in output.iter().enumerate() {
                assert_eq!(*got, mix(seed, i / count, i % count) as u32);
            }
            let mut own = vec![0; count * ranks];
            own[c.rank() * count..][..count].copy_from_slice(&input);
            c.all_gather_in_place(&mut own).unwrap();
            assert_eq!(own, output);
            let mut buffer = input.clone();
            c.broadcast(&mut buffer, root).unwrap();
            assert!(buffer.iter().enumerate().all(|(i, x)| *x == mix(seed, root, i) as u32));
            let input: Vec<u32> = (0..count * ranks).map(|i| mix(seed, c.rank(), i) as u32).collect();
            c.all_to_all(&input, &mut output).unwrap();
            for (i, got) in output.iter().enumerate() {
                assert_eq!(*got, mix(seed, i / count, c.rank() * count + i % count) as u32);
            }
            c.barrier().unwrap();
        });
    }
}

/// Machines of one to three sockets with one to four cores, some of them measured, some not.
fn machine() -> impl Strategy<Value = Topology> {
    let cpu = (1usize..5, prop::option::of(1e9f64..50e9), prop::option::of(64u64 << 10..4 << 20));
    (prop::collection::vec(cpu, 1..4), prop::option::of(1e9f64..40e9), 1e-8f64..1e-5).prop_map(
        |(cpus, link, latency)| {
            let mut text = String::from("name = \"random\"\n");
            for (i, (cores, copy, l2)) in cpus.iter().enumerate() {
                text.push_str(&format!(
                    "[[device]]\nkind = \"cpu\"\nid = \"cpu{i}\"\npackage = {i}\ncores = {cores}\n"
                ));
                text.extend(copy.iter().map(|r| format!("copy-rate = {r:?}\n")));
                text.extend(l2.iter().map(|s| format!("l2 = {s}\n")));
                text.push_str(&format!(
                    "[[link]]\nkind = \"memory\"\nfrom = \"cpu{i}\"\nto = \"cpu{i}\"\nlatency = {latency:?}\n"
                ));
            }
            for i in 1..cpus.len() {
                text.push_str(&format!("[[link]]\nkind = \"cpu-interconnect\"\nfrom = \"cpu0\"\nto = \"cpu{i}\"\n"));
                text.extend(link.iter().map(|r| format!("nominal = {r:?}\n")));
            }
            Topology::from_toml(&text, "random").unwrap()
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    /// Random topology, random collective, random size, random plan: planned, verified, run, compared.
    #[test]
    fn whatever_is_planned_is_right(
        topology in machine(), ranks in 1usize..9, count in 0usize..30_000, algorithm in 0usize..6, chunks in prop::option::of(1u64..9),
        which in 0usize..6, root in any::<prop::sample::Index>(), seed in any::<u64>(), fine in prop::option::of(any::<bool>()),
    ) {
        let algorithm = [None, Some("one-shot"), Some("two-shot"), Some("direct"), Some("ring"), Some("hierarchical")][algorithm];
        let wish = Wish { algorithm: algorithm.map(String::from), chunks, lanes: fine.map(|f| if f { Lanes::Fine } else { Lanes::Coarse }), ..Wish::default() };
        let root = root.index(ranks);
        let collective = Collective::every(root)[which];
        let comms = Communicator::local_on(ranks, topology).unwrap();
        let bytes = (count * 4 * if matches!(which, 1 | 2 | 5) { ranks } else { 1 }) as u64;
        comms[0].prefer(wish.clone());
        let Ok(choice) = comms[0].plan(collective, bytes.max(1), DType::U32, None) else {
            // This algorithm is not for this collective or this machine: that is said on every rank alike.
            return Ok(());
        };
        topocoll::plan::verify(&choice.plan, &vec![0; ranks]).unwrap();
        prop_assert!(choice.chosen.seconds > 0.0 && choice.bound.seconds >= 0.0);
        std::thread::scope(|s| {
            for c in comms {
                let wish = wish.clone();
                s.spawn(move || {
                    c.prefer(wish);
                    let data = |r: usize, i: usize| mix(seed, r, i) as u32;
                    let sum = |i: usize| (0..ranks).map(|r| data(r, i)).fold(0, u32::wrapping_add);
                    match collective {
                        Collective::AllReduce => {
                            let mut x: Vec<u32> = (0..count).map(|i| data(c.rank(), i)).collect();
                            c.all_reduce_in_place(&mut x, ReduceOp::Sum).unwrap();
                            assert!(x.iter().enumerate().all(|(i, v)| *v == sum(i)));
                        }
                        Collective::ReduceScatter => {
                            let input: Vec<u32> = (0..count * ranks).map(|i| data(c.rank(), i)).collect();
                            let mut x = vec![0; count];
                            c.reduce_scatter(&input, &mut x, ReduceOp::Sum).unwrap();
                            assert!(x.iter().enumerate().all(|(i, v)| *v == sum(c.rank() * count + i)));
                        }
                        Collective::AllGather => {
                            let input: Vec<u32> = (0..count).map(|i| data(c.rank(), i)).collect();
                            let mut x = vec![0; count * ranks];
                            c.all_gather(&input, &mut x).unwrap();
                            assert!(x.iter().enumerate().all(|(i, v)| *v == data(i / count, i % count)));
                        }
                        Collective::Broadcast { .. } => {
                            let mut x: Vec<u32> = (0..count).map(|i| data(c.rank(), i)).collect();
                            c.broadcast(&mut x, root).unwrap();
                            assert!(x.iter().enumerate().all(|(i, v)| *v == data(root, i)));
                        }
                        Collective::Reduce { .. } => {
                            let mine: Vec<u32> = (0..count).map(|i| data(c.rank(), i)).collect();
                            let (mut x, mut y) = (mine.clone(), vec![7; count]);
                            c.reduce(&mine, &mut y, root, ReduceOp::Sum).unwrap();
                            c.reduce_in_place(&mut x, root, ReduceOp::Sum).unwrap();
                            if c.rank() == root {
                                assert!(x == y && x.iter().enumerate().all(|(i, v)| *v == sum(i)));
                            } else {
                                assert!(x == mine && y.iter().all(|v| *v == 7));
                            }
                        }
                        Collective::AllToAll => {
                            let input: Vec<u32> = (0..count * ranks).map(|i| data(c.rank(), i)).collect();
                            let mut x = vec![0; count * ranks];
                            c.all_to_all(&input, &mut x).unwrap();
                            let want = |i: usize| data(i / count, c.rank() * count + i % count);
                            assert!(x.iter().enumerate().all(|(i, v)| *v == want(i)));
                        }
                    }
                });
            }
        });
    }
}

#[test]
fn nan_passes_through_minimum_and_maximum() {
    for op in [ReduceOp::Min, ReduceOp::Max, ReduceOp::Sum, ReduceOp::Avg] {
        for out in world(3, |c| {
            let mut x = [1.0f32, if c.rank() == 1 { f32::NAN } else { 2.0 }];
            c.all_reduce_in_place(&mut x, op).unwrap();
            let mut h = [bf16::from_f32(if c.rank() == 2 { f32::NAN } else { 2.0 })];
            c.all_reduce_in_place(&mut h, op).unwrap();
            (x, h)
        }) {
            assert!(!out.0[0].is_nan() && out.0[1].is_nan() && out.1[0].is_nan(), "{op}");
        }
    }
}

#[test]
fn many_in_a_row_of_different_kinds() {
    world(4, |c| {
        for round in 0..300usize {
            let n = (round * 7919) % 5000;
            let mut x = vec![c.rank() as i64 + 1; n];
            c.all_reduce_in_place(&mut x, ReduceOp::Sum).unwrap();
            assert!(x.iter().all(|v| *v == 10));
            if round % 3 == 0 {
                c.barrier().unwrap();
            }
            let mut b = vec![if c.rank() == round % 4 { round as u8 } else { 0 }; n];
            c.broadcast(&mut b, round % 4).unwrap();
            assert!(b.iter().all(|v| *v == round as u8));
        }
    });
}

#[test]
fn asynchronous_calls_keep_their_order() {
    world(3, |c| {
        let many: Vec<_> = (0..20).map(|i| c.all_reduce_async(vec![i as f64; 1000 * i], ReduceOp::Sum)).collect();
        let gathered = c.all_gather_async(vec![c.rank() as u8; 10], vec![0; 30]);
        let scattered = c.reduce_scatter_async(vec![2i32; 9], vec![0; 3], ReduceOp::Prod);
        let sent = c.broadcast_async(vec![c.rank() as u16 as u32; 4], 2);
        let output = vec![0; if c.rank() == 1 { 5 } else { 0 }];
        let reduced = c.reduce_async(vec![c.rank() as i64; 5], output, 1, ReduceOp::Max);
        let exchanged = c.all_to_all_async(vec![c.rank() as u8; 6], vec![0; 6]);
        let barrier = c.barrier_async();
        // A blocking call waits its turn.
        let mut x = [1u8];
        c.all_reduce_in_place(&mut x, ReduceOp::Sum).unwrap();
        assert_eq!(x, [3]);
        assert!(barrier.is_done());
        barrier.wait().unwrap();
        for (i, r) in many.into_iter().enumerate() {
            let out = r.wait().unwrap();
            assert!(out.len() == 1000 * i && out.iter().all(|v| *v == 3.0 * i as f64));
        }
        assert!(gathered.wait().unwrap().1.iter().enumerate().all(|(i, v)| *v as usize == i / 10));
        assert_eq!(scattered.wait().unwrap().1, [8; 3]);
        assert_eq!(sent.wait().unwrap(), [2; 4]);
        assert_eq!(reduced.wait().unwrap().1, vec![2; if c.rank() == 1 { 5 } else { 0 }]);
        assert_eq!(exchanged.wait().unwrap().1, [0, 0, 1, 1, 2, 2]);
        // Dropped before it is done: it still is done, for the others' sake.
        drop(c.all_reduce_async(vec![1.0f32; 100_000], ReduceOp::Sum));
    });
}

#[test]
fn ranks_that_disagree_are_all_told_and_nothing_is_written() {
    type Ask = fn(&Communicator, &mut Vec<f32>) -> Result<(), Error>;
    let sum: Ask = |c, x| c.all_reduce_in_place(x, ReduceOp::Sum);
    let cases: [(Ask, &str); 8] = [
        (|c, x| c.all_reduce_in_place(&mut x[1..], ReduceOp::Sum), "99999 f32"),
        (|c, x| c.all_reduce_in_place(x, ReduceOp::Max), "max"),
        (|c, _| c.all_reduce_in_place(&mut vec![1i32; 100_000], ReduceOp::Sum), "i32"),
        (|c, x| c.broadcast(x, 0), "broadcast from rank 0"),
        (|c, x| c.reduce_in_place(x, 2, ReduceOp::Sum), "reduce to rank 2"),
        (|c, x| c.all_to_all(&x.clone(), x), "all-to-all"),
        (|c, _| c.barrier(), "barrier"),
        (|c, x| c.all_reduce_in_place(&mut x[..0], ReduceOp::Sum), "of 0 f32"),
    ];
    world(4, |c| {
        for (odd, word) in cases {
            let mut x = vec![1.5f32; 100_000];
            let result = if c.rank() == 2 { odd(c, &mut x) } else { sum(c, &mut x) };
            let text = result.unwrap_err().to_string();
            assert!(text.contains("ranks 0-1, 3 asked all-reduce sum of 100000 f32"), "{text}");
            assert!(text.contains("rank 2 asked") && text.contains(word), "{text}");
            assert!(x.iter().all(|v| *v == 1.5), "something was written");
            // It can go on.
            let mut y = [c.rank() as u64];
            c.all_reduce_in_place(&mut y, ReduceOp::Sum).unwrap();
            assert_eq!(y, [6]);
        }
    });
}

#[test]
fn wrong_arguments_are_an_error_everywhere() {
    world(3, |c| {
        let input = [1.0f32; 8];
        let mut output = vec![0.0f32; if c.rank() == 1 { 7 } else { 8 }];
        let error = c.all_reduce(&input, &mut output, ReduceOp::Sum).unwrap_err();
        match c.rank() {
            1 => assert!(error.to_string().contains("8 elements and the output 7"), "{error}"),
            _ => assert!(matches!(error, Error::Disagreement { .. }), "{error}"),
        }
        assert!(output.iter().all(|v| *v == 0.0));
        assert!(matches!(c.broadcast(&mut output, 3).unwrap_err(), Error::Argument(_)));
        assert!(matches!(c.reduce(&input, &mut output, 3, ReduceOp::Sum).unwrap_err(), Error::Argument(_)));
        // Eight elements are no three blocks.
        let error = c.all_to_all(&input, &mut [0.0; 8]).unwrap_err();
        assert!(error.to_string().contains("the input has 8 elements, which is not 3 times"), "{error}");
        // Rank 1's output is short, and it is the root.
        let error = c.reduce(&input, &mut output, 1, ReduceOp::Sum).unwrap_err();
        match c.rank() {
            1 => assert!(error.to_string().contains("reduce at its root"), "{error}"),
            _ => assert!(matches!(error, Error::Disagreement { .. }), "{error}"),
        }
        c.barrier().unwrap();
    });
}

#[test]
fn ranks_that_name_different_roots_are_told() {
    world(3, |c| {
        let mut x = [1.0f32; 8];
        let text = c.reduce_in_place(&mut x, c.rank() / 2, ReduceOp::Sum).unwrap_err().to_string();
        assert!(text.contains("ranks 0-1 asked reduce to rank 0") && text.contains("reduce to rank 1"), "{text}");
        assert_eq!(x, [1.0; 8]);
    });
}

#[test]
fn a_rank_that_leaves_is_named() {
    let results = world(3, |c| {
        let mut x = vec![1.0f32; 1000];
        c.all_reduce_in_place(&mut x, ReduceOp::Sum).unwrap();
        if c.rank() == 1 {
            return None;
        }
        let begun = std::time::Instant::now();
        let error = c.all_reduce_in_place(&mut x, ReduceOp::Sum).unwrap_err();
        assert!(begun.elapsed() < std::time::Duration::from_secs(1));
        assert!(matches!(c.barrier().unwrap_err(), Error::Broken(_)));
        Some(error)
    });
    for error in results.into_iter().flatten() {
        assert!(matches!(error, Error::PeerLost { rank: 1, .. }), "{error}");
    }
}

#[test]
fn numbers_of_ranks_that_cannot_be() {
    for ranks in [0, 10_000, usize::MAX] {
        let error = Communicator::local(ranks).err().unwrap();
        assert!(error.to_string().contains("1 to 1024"), "{error}");
    }
}
