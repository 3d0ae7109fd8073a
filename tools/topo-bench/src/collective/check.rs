//! Random data that every rank can make for every other, and a reference that shares no code with the library: floats
//! in f64, integers in a wider integer, so exactly.

use topocoll::{Element, ReduceOp, bf16, f16};

/// Elements compared at a time.
const BLOCK: usize = 4096;

/// A type that data can be made of and results compared in.
pub trait Sample: Element {
    /// What `bits`, random, stand for.
    fn from_bits(bits: u64) -> Self;
    /// Whether `got` is the reduction of `all`, to within the roundings that the type allows.
    fn is_reduction(got: Self, all: &[Self], op: ReduceOp) -> bool;
}

macro_rules! float {
    ($t:ty, $bits:expr, $to:expr, $from:expr, $eps:expr, $least:expr) => {
        impl Sample for $t {
            fn from_bits(bits: u64) -> Self {
                // -1 to 1, in steps that the type has.
                let unit = (bits >> (64 - $bits)) as f64 / (1u64 << ($bits - 1)) as f64 - 1.0;
                $from(unit)
            }

            fn is_reduction(got: Self, all: &[Self], op: ReduceOp) -> bool {
                let x = || all.iter().map(|v| $to(*v));
                let n = all.len() as f64;
                let (want, scale): (f64, f64) = match op {
                    ReduceOp::Sum => (x().sum(), x().map(f64::abs).sum()),
                    ReduceOp::Avg => (x().sum::<f64>() / n, x().map(f64::abs).sum::<f64>() / n),
                    ReduceOp::Prod => (x().product(), x().map(f64::abs).product()),
                    ReduceOp::Min => (x().fold(f64::INFINITY, f64::min), 0.0),
                    ReduceOp::Max => (x().fold(f64::NEG_INFINITY, f64::max), 0.0),
                };
                // One rounding a step, each half a unit, and a subnormal's unit at the end.
                let got: f64 = $to(got);
                (got - want).abs() <= scale * $eps * n + $least
            }
        }
    };
}
float!(f32, 24, f64::from, |x| x as f32, f64::from(f32::EPSILON), 1.5e-45);
float!(f64, 53, |x: f64| x, |x| x, f64::EPSILON, 5e-324);
float!(f16, 11, f16::to_f64, f16::from_f64, 9.8e-4, 6e-8);
float!(bf16, 8, bf16::to_f64, bf16::from_f64, 7.9e-3, 9.3e-41);

macro_rules! integer {
    ($t:ty, $wide:ty) => {
        impl Sample for $t {
            fn from_bits(bits: u64) -> Self {
                bits as $t
            }

            fn is_reduction(got: Self, all: &[Self], op: ReduceOp) -> bool {
                let x = || all.iter().map(|v| *v as $wide);
                let want = match op {
                    ReduceOp::Sum => x().sum::<$wide>() as $t,
                    ReduceOp::Avg => (x().sum::<$wide>() / all.len() as $wide) as $t,
                    ReduceOp::Prod => x().fold(1, <$wide>::wrapping_mul) as $t,
                    ReduceOp::Min => x().min().unwrap_or(0) as $t,
                    ReduceOp::Max => x().max().unwrap_or(0) as $t,
                };
                got == want
            }
        }
    };
}
integer!(i8, i64);
integer!(u8, i64);
integer!(i32, i64);
integer!(u32, i64);
integer!(i64, i128);
integer!(u64, i128);

/// Elements `first..first + out.len()` of `rank`'s data under `seed`.
pub fn fill<T: Sample>(out: &mut [T], seed: u64, rank: usize, first: usize) {
    let per_word = 8 / size_of::<T>();
    let width = 64 / per_word as u32;
    for (i, x) in out.iter_mut().enumerate() {
        let at = first + i;
        let word = mix(seed ^ (rank as u64) << 48, (at / per_word) as u64);
        *x = T::from_bits(word.rotate_left(width * (at % per_word) as u32));
    }
}

/// A counter through a mixer (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014).
fn mix(seed: u64, at: u64) -> u64 {
    let mut z = seed.wrapping_add(at.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// How many of `got` are not the reduction of all `ranks` ranks' elements from `first` on.
pub fn wrong_reductions<T: Sample>(got: &[T], seed: u64, ranks: usize, first: usize, op: ReduceOp) -> u64 {
    let mut wrong = 0;
    let mut theirs = vec![T::default(); BLOCK * ranks];
    let mut all = vec![T::default(); ranks];
    for (b, block) in got.chunks(BLOCK).enumerate() {
        for (rank, data) in theirs.chunks_mut(BLOCK).enumerate() {
            fill(&mut data[..block.len()], seed, rank, first + b * BLOCK);
        }
        for (i, got) in block.iter().enumerate() {
            for (rank, x) in all.iter_mut().enumerate() {
                *x = theirs[rank * BLOCK + i];
            }
            wrong += u64::from(!T::is_reduction(*got, &all, op));
        }
    }
    wrong
}

/// How many of `got` are not `rank`'s elements from `first` on.
pub fn wrong_copies<T: Sample>(got: &[T], seed: u64, first: usize, rank: usize) -> u64 {
    let mut wrong = 0;
    let mut theirs = vec![T::default(); BLOCK];
    for (b, block) in got.chunks(BLOCK).enumerate() {
        fill(&mut theirs[..block.len()], seed, rank, first + b * BLOCK);
        wrong += block.iter().zip(&theirs).filter(|(a, b)| a != b).count() as u64;
    }
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A check that cannot fail is none: every single wrong element is seen.
    fn notices<T: Sample>(op: ReduceOp, spoil: impl Fn(T) -> T) {
        let mut data = vec![vec![T::default(); 5000]; 3];
        for (rank, d) in data.iter_mut().enumerate() {
            fill(d, 7, rank, 0);
        }
        // Any element of its own is a minimum of itself: use rank 0 alone.
        let one = data[0].clone();
        assert_eq!(wrong_reductions(&one, 7, 1, 0, op), 0);
        assert_eq!(wrong_copies(&data[1], 7, 0, 1), 0);
        let mut bad = one;
        bad[4321] = spoil(bad[4321]);
        assert_eq!(wrong_reductions(&bad, 7, 1, 0, op), 1, "{op} {}", T::DTYPE);
        assert!(wrong_copies(&bad, 7, 0, 0) == 1);
        assert_eq!(wrong_copies(&data[2][4000..], 7, 4000, 2), 0);
        assert!(wrong_reductions(&data[0], 7, 3, 0, op) > 1000);
    }

    #[test]
    fn one_wrong_element_is_noticed() {
        for op in ReduceOp::ALL {
            notices::<f32>(op, |x| x * 1.001 + 0.001);
            notices::<f64>(op, |x| x + 1e-9);
            notices::<bf16>(op, |x| bf16::from_f32(x.to_f32() + 0.1));
            notices::<f16>(op, |x| f16::from_f32(x.to_f32() + 0.02));
            notices::<i8>(op, |x| x.wrapping_add(1));
            notices::<u64>(op, |x| x ^ 1);
        }
    }

    #[test]
    fn ranks_and_places_differ() {
        let mut a = vec![0u8; 1000];
        let mut b = a.clone();
        fill(&mut a, 1, 0, 0);
        fill(&mut b, 1, 0, 500);
        assert_eq!(a[500..], b[..500]);
        fill(&mut b, 1, 1, 0);
        assert!(a.iter().zip(&b).filter(|(x, y)| x == y).count() < 20);
    }
}
