//! The host as a device: reductions and copies on the CPU.
#![allow(unsafe_code)]

mod arith;

use half::{bf16, f16};

use crate::runtime::element::{DType, ReduceOp};
use arith::{Avg, Max, Min, Op, Prod, Sum};

/// Elements combined at a time: their accumulators stay in the first-level cache.
const BLOCK: usize = 512;

/// Combines `n` elements of each of `srcs`, in that order, into `dst`. An average is divided by `finish` ranks where
/// that is given and is otherwise a sum.
///
/// # Safety
/// Each of `srcs` (at least one) must be readable and `dst` writable for `n` elements of `dtype` and aligned for it.
/// Nobody else may write them meanwhile. `dst` may be one of `srcs` but not overlap one otherwise.
pub unsafe fn reduce(dtype: DType, op: ReduceOp, srcs: &[*const u8], dst: *mut u8, n: usize, finish: Option<usize>) {
    macro_rules! with {
        ($t:ty) => {
            match (op, finish) {
                (ReduceOp::Sum, _) | (ReduceOp::Avg, None) => fold::<$t, Sum>,
                (ReduceOp::Prod, _) => fold::<$t, Prod>,
                (ReduceOp::Min, _) => fold::<$t, Min>,
                (ReduceOp::Max, _) => fold::<$t, Max>,
                (ReduceOp::Avg, Some(_)) => fold::<$t, Avg>,
            }
        };
    }
    let kernel: unsafe fn(&[*const u8], *mut u8, usize, f64) = match dtype {
        DType::F32 => with!(f32),
        DType::F64 => with!(f64),
        DType::F16 => with!(f16),
        DType::Bf16 => with!(bf16),
        DType::I8 => with!(i8),
        DType::U8 => with!(u8),
        DType::I32 => with!(i32),
        DType::U32 => with!(u32),
        DType::I64 => with!(i64),
        DType::U64 => with!(u64),
    };
    // SAFETY: the caller's promise, for the type that `dtype` names.
    unsafe { kernel(srcs, dst, n, finish.unwrap_or(1) as f64) }
}

/// Picks the widest vectors this processor has.
///
/// # Safety
/// As [`reduce`], for elements of type `T`.
unsafe fn fold<T: Copy, O: Op<T>>(srcs: &[*const u8], dst: *mut u8, n: usize, ranks: f64) {
    #[cfg(target_arch = "x86_64")]
    {
        if std::arch::is_x86_feature_detected!("avx512f")
            && std::arch::is_x86_feature_detected!("avx512bw")
            && std::arch::is_x86_feature_detected!("avx512dq")
            && std::arch::is_x86_feature_detected!("avx512vl")
        {
            // SAFETY: the processor has the features; the rest is the caller's promise.
            return unsafe { fold_avx512::<T, O>(srcs, dst, n, ranks) };
        }
        if std::arch::is_x86_feature_detected!("avx2") {
            // SAFETY: as above.
            return unsafe { fold_avx2::<T, O>(srcs, dst, n, ranks) };
        }
    }
    // SAFETY: the caller's promise.
    unsafe { fold_blocks::<T, O>(srcs, dst, n, ranks) }
}

/// # Safety
/// As [`fold`], on a processor with AVX-512.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn fold_avx512<T: Copy, O: Op<T>>(srcs: &[*const u8], dst: *mut u8, n: usize, ranks: f64) {
    // SAFETY: the caller's promise.
    unsafe { fold_blocks::<T, O>(srcs, dst, n, ranks) }
}

/// # Safety
/// As [`fold`], on a processor with AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn fold_avx2<T: Copy, O: Op<T>>(srcs: &[*const u8], dst: *mut u8, n: usize, ranks: f64) {
    // SAFETY: the caller's promise.
    unsafe { fold_blocks::<T, O>(srcs, dst, n, ranks) }
}

/// # Safety
/// As [`fold`].
#[inline(always)]
unsafe fn fold_blocks<T: Copy, O: Op<T>>(srcs: &[*const u8], dst: *mut u8, n: usize, ranks: f64) {
    let mut accumulators = [O::Acc::default(); BLOCK];
    let mut at = 0;
    while at < n {
        let len = BLOCK.min(n - at);
        let acc = &mut accumulators[..len];
        // SAFETY: elements at..at + len are within the n that the caller vouches for. `dst` may be one of the sources,
        // so it becomes a slice only when they no longer are.
        let src = |i: usize| unsafe { std::slice::from_raw_parts(srcs[i].cast::<T>().add(at), len) };
        match srcs.len() {
            1 => O::lift(acc, src(0)),
            _ => O::pair(acc, src(0), src(1)),
        }
        for i in 2..srcs.len() {
            O::combine(acc, src(i));
        }
        // SAFETY: as above.
        O::lower(unsafe { std::slice::from_raw_parts_mut(dst.cast::<T>().add(at), len) }, acc, ranks);
        at += len;
    }
}

/// Copies `n` bytes. Nothing is done where the two are the same place.
///
/// # Safety
/// `src` readable and `dst` writable for `n` bytes, not overlapping unless they are the same place.
pub unsafe fn copy(src: *const u8, dst: *mut u8, n: usize) {
    if !std::ptr::eq(src, dst) {
        // SAFETY: the caller's promise.
        unsafe { std::ptr::copy_nonoverlapping(src, dst, n) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::element::Element;
    use proptest::prelude::*;

    fn run<T: Element>(op: ReduceOp, srcs: &[Vec<T>], finish: Option<usize>, shift: usize) -> Vec<T> {
        let n = srcs[0].len();
        // Any alignment that the type allows: `shift` elements past the start.
        let shift = shift * size_of::<T>();
        let raw: Vec<Vec<u8>> = srcs
            .iter()
            .map(|s| {
                let mut bytes = vec![0u8; shift + n * size_of::<T>()];
                for (i, x) in s.iter().enumerate() {
                    // SAFETY: within the vector just made.
                    unsafe { bytes.as_mut_ptr().add(shift).cast::<T>().add(i).write_unaligned(*x) };
                }
                bytes
            })
            .collect();
        let ptrs: Vec<*const u8> = raw.iter().map(|b| b[shift..].as_ptr()).collect();
        let mut out = vec![0u8; shift + n * size_of::<T>()];
        // SAFETY: every pointer is to n elements.
        unsafe { reduce(T::DTYPE, op, &ptrs, out[shift..].as_mut_ptr(), n, finish) };
        // SAFETY: as above; each was written.
        (0..n).map(|i| unsafe { out[shift..].as_ptr().cast::<T>().add(i).read_unaligned() }).collect()
    }

    proptest! {
        #[test]
        fn sums_of_f32_are_in_order(srcs in prop::collection::vec(prop::collection::vec(-1e6f32..1e6, 137), 1..9), shift in 0usize..9) {
            let got = run(ReduceOp::Sum, &srcs, None, shift);
            for (i, x) in got.iter().enumerate() {
                let want = srcs[1..].iter().fold(srcs[0][i], |a, s| a + s[i]);
                prop_assert_eq!(x.to_bits(), want.to_bits());
            }
        }

        #[test]
        fn integers_wrap(srcs in prop::collection::vec(prop::collection::vec(any::<i8>(), 300), 1..9)) {
            let (sum, prod) = (run(ReduceOp::Sum, &srcs, None, 1), run(ReduceOp::Prod, &srcs, None, 0));
            for i in 0..300 {
                prop_assert_eq!(sum[i], srcs[1..].iter().fold(srcs[0][i], |a, s| a.wrapping_add(s[i])));
                prop_assert_eq!(prod[i], srcs[1..].iter().fold(srcs[0][i], |a, s| a.wrapping_mul(s[i])));
            }
        }

        #[test]
        fn averages_do_not_wrap(srcs in prop::collection::vec(prop::collection::vec(any::<u8>(), 130), 2..9)) {
            let n = srcs.len();
            let got = run(ReduceOp::Avg, &srcs, Some(n), 3);
            for i in 0..130 {
                let sum: usize = srcs.iter().map(|s| usize::from(s[i])).sum();
                prop_assert_eq!(usize::from(got[i]), sum / n);
            }
        }

        #[test]
        fn halves_round_once(srcs in prop::collection::vec(prop::collection::vec(-100f32..100.0, 70), 2..9)) {
            let halves: Vec<Vec<bf16>> = srcs.iter().map(|s| s.iter().map(|x| bf16::from_f32(*x)).collect()).collect();
            let got = run(ReduceOp::Sum, &halves, None, 0);
            for i in 0..70 {
                let want = halves[1..].iter().fold(halves[0][i].to_f32(), |a, s| a + s[i].to_f32());
                prop_assert_eq!(got[i], bf16::from_f32(want));
            }
        }
    }

    #[test]
    fn in_place_is_allowed() {
        let (mut a, b) = (vec![1u32; 1000], vec![2u32; 1000]);
        let p = a.as_mut_ptr().cast::<u8>();
        // SAFETY: both are 1000 elements; dst is the first source.
        unsafe { reduce(DType::U32, ReduceOp::Sum, &[p, b.as_ptr().cast()], p, 1000, None) };
        assert!(a.iter().all(|x| *x == 3));
    }
}
