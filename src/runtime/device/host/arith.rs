//! One element's arithmetic, written so that the compiler makes vectors of it.

use half::{bf16, f16};

/// One operator on one element type, a block at a time: lift into accumulators, combine, lower once at the end.
pub(super) trait Op<T: Copy> {
    type Acc: Copy + Default;
    fn lift(acc: &mut [Self::Acc], src: &[T]);
    /// The first two sources in one pass.
    fn pair(acc: &mut [Self::Acc], a: &[T], b: &[T]);
    fn combine(acc: &mut [Self::Acc], src: &[T]);
    /// `ranks` is the divisor of an average.
    fn lower(dst: &mut [T], acc: &[Self::Acc], ranks: f64);
}

pub(super) struct Sum;
pub(super) struct Prod;
pub(super) struct Min;
pub(super) struct Max;
pub(super) struct Avg;

/// Plain loops over slices, which the compiler makes vectors of.
macro_rules! op {
    ($op:ident, $t:ty, $acc:ty, $lift:expr, $combine:expr, $lower:expr) => {
        impl Op<$t> for $op {
            type Acc = $acc;
            #[inline(always)]
            fn lift(acc: &mut [$acc], src: &[$t]) {
                for (a, x) in acc.iter_mut().zip(src) {
                    *a = $lift(*x);
                }
            }
            #[inline(always)]
            fn pair(acc: &mut [$acc], a: &[$t], b: &[$t]) {
                for (acc, (a, b)) in acc.iter_mut().zip(a.iter().zip(b)) {
                    *acc = $combine($lift(*a), $lift(*b));
                }
            }
            #[inline(always)]
            fn combine(acc: &mut [$acc], src: &[$t]) {
                for (a, x) in acc.iter_mut().zip(src) {
                    *a = $combine(*a, $lift(*x));
                }
            }
            #[inline(always)]
            fn lower(dst: &mut [$t], acc: &[$acc], ranks: f64) {
                for (d, a) in dst.iter_mut().zip(acc) {
                    *d = $lower(*a, ranks);
                }
            }
        }
    };
}

macro_rules! float {
    ($t:ty, $acc:ident, $lift:expr, $lower:expr) => {
        op!(Sum, $t, $acc, $lift, |a: $acc, b: $acc| a + b, |a, _| $lower(a));
        op!(Prod, $t, $acc, $lift, |a: $acc, b: $acc| a * b, |a, _| $lower(a));
        op!(Min, $t, $acc, $lift, minimum::$acc, |a, _| $lower(a));
        op!(Max, $t, $acc, $lift, maximum::$acc, |a, _| $lower(a));
        op!(Avg, $t, $acc, $lift, |a: $acc, b: $acc| a + b, |a: $acc, n: f64| $lower(a / n as $acc));
    };
}
float!(f32, f32, |x| x, |x| x);
float!(f64, f64, |x| x, |x| x);
float!(bf16, f32, bf16_to_f32, bf16_from_f32);
float!(f16, f32, f16_to_f32, f16_from_f32);

macro_rules! integer {
    ($t:ty, $wide:ty, $divide:expr) => {
        op!(Sum, $t, $t, |x| x, <$t>::wrapping_add, |a, _| a);
        op!(Prod, $t, $t, |x| x, <$t>::wrapping_mul, |a, _| a);
        op!(Min, $t, $t, |x| x, <$t>::min, |a, _| a);
        op!(Max, $t, $t, |x| x, <$t>::max, |a, _| a);
        op!(Avg, $t, $wide, <$wide>::from, |a: $wide, b: $wide| a + b, $divide);
    };
}
// A quotient of whole numbers is never rounded up to the next one where the sum has fewer bits than the float's
// fraction, as sums of 8 bits have in f32 and of 32 bits in f64. And floats divide in vectors.
integer!(i8, i32, |a: i32, n: f64| narrow(f64::from(a as f32 / n as f32)) as i8);
integer!(u8, i32, |a: i32, n: f64| narrow(f64::from(a as f32 / n as f32)) as u8);
integer!(i32, i64, |a: i64, n: f64| narrow(a as f64 / n) as i32);
integer!(u32, i64, |a: i64, n: f64| narrow(a as f64 / n) as u32);
integer!(i64, i128, |a: i128, n: f64| (a / n as i128) as i64);
integer!(u64, i128, |a: i128, n: f64| (a / n as i128) as u64);

/// Truncates what is known to fit.
#[inline(always)]
fn narrow(x: f64) -> i64 {
    // SAFETY: an average of 8 or 32-bit integers is finite and far within 64 bits; a cast that checks is not
    // vectorised.
    unsafe { x.to_int_unchecked() }
}

macro_rules! extremum {
    ($name:ident, $less:tt, $zero:tt) => {
        mod $name {
            #[inline(always)]
            pub fn f32(a: f32, b: f32) -> f32 {
                // Equal values differ in the sign of zero at most.
                let same = f32::from_bits(a.to_bits() $zero b.to_bits());
                let ordered = if a $less b { a } else { b };
                let value = if a == b { same } else { ordered };
                if a.is_nan() { a } else { value }
            }
            #[inline(always)]
            pub fn f64(a: f64, b: f64) -> f64 {
                let same = f64::from_bits(a.to_bits() $zero b.to_bits());
                let ordered = if a $less b { a } else { b };
                let value = if a == b { same } else { ordered };
                if a.is_nan() { a } else { value }
            }
        }
    };
}
extremum!(minimum, <, |);
extremum!(maximum, >, &);

#[inline(always)]
fn bf16_to_f32(x: bf16) -> f32 {
    f32::from_bits(u32::from(x.to_bits()) << 16)
}

/// To nearest, ties to even; NaN stays NaN.
#[inline(always)]
fn bf16_from_f32(x: f32) -> bf16 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
    let nan = bits >> 16 | 0x40;
    bf16::from_bits(if x.is_nan() { nan } else { rounded } as u16)
}

/// By scaling: the exponent is re-biased by a multiplication, which also normalises what is subnormal.
#[inline(always)]
fn f16_to_f32(x: f16) -> f32 {
    let bits = u32::from(x.to_bits());
    let magnitude = (bits & 0x7fff) << 13;
    let finite = (f32::from_bits(magnitude) * f32::from_bits(0x7780_0000)).to_bits();
    let special = magnitude | 0x7f80_0000;
    f32::from_bits(if bits & 0x7c00 == 0x7c00 { special } else { finite } | (bits & 0x8000) << 16)
}

/// To nearest, ties to even; what is too large becomes infinite, NaN stays NaN.
#[inline(always)]
fn f16_from_f32(x: f32) -> f16 {
    let bits = x.to_bits();
    let magnitude = bits & 0x7fff_ffff;
    // Below 2^-14 the addition of one half shifts the bits into place and rounds them.
    let small = (f32::from_bits(magnitude) + 0.5).to_bits().wrapping_sub(0x3f00_0000);
    let normal = magnitude.wrapping_sub(0x3800_0000).wrapping_add(0xfff + (magnitude >> 13 & 1)) >> 13;
    let nan = 0x7e00 | magnitude >> 13 & 0x3ff;
    let finite = if magnitude < 0x3880_0000 { small } else { normal };
    let large = if magnitude >= 0x4780_0000 { 0x7c00 } else { finite };
    let value = if magnitude > 0x7f80_0000 { nan } else { large };
    f16::from_bits((value | bits >> 16 & 0x8000) as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_conversions_agree_with_the_half_crate() {
        for bits in 0..=u16::MAX {
            let (h, b) = (f16::from_bits(bits), bf16::from_bits(bits));
            assert!(
                f16_to_f32(h).to_bits() == h.to_f32().to_bits() || h.is_nan() && f16_to_f32(h).is_nan(),
                "{bits:x}"
            );
            assert!(bf16_to_f32(b).to_bits() == b.to_f32().to_bits() || b.is_nan() && bf16_to_f32(b).is_nan());
        }
        // Every 251st f32 (a prime step visits all exponents and rounding cases), and the neighbourhood of each half.
        let near = (0..=u16::MAX).flat_map(|h| {
            let x = f16::from_bits(h).to_f32().to_bits();
            (0..5).map(move |d| x.wrapping_add(d).wrapping_sub(2)).chain((0..3).map(move |d| x.wrapping_add(0xfff + d)))
        });
        for bits in (0..=u32::MAX).step_by(251).chain(near) {
            let x = f32::from_bits(bits);
            let (h, b) = (f16_from_f32(x), bf16_from_f32(x));
            if x.is_nan() {
                assert!(h.is_nan() && b.is_nan());
                continue;
            }
            assert_eq!(h.to_bits(), f16::from_f32(x).to_bits(), "{bits:x}");
            assert_eq!(b.to_bits(), bf16::from_f32(x).to_bits(), "{bits:x}");
        }
    }

    #[test]
    fn minimum_and_maximum_are_those_of_ieee_754_2019() {
        for f in [minimum::f32, maximum::f32] {
            assert!(f(f32::NAN, 1.0).is_nan() && f(1.0, f32::NAN).is_nan());
        }
        assert!(minimum::f64(0.0, -0.0).is_sign_negative() && minimum::f64(-0.0, 0.0).is_sign_negative());
        assert!(maximum::f64(0.0, -0.0).is_sign_positive() && maximum::f64(-0.0, 0.0).is_sign_positive());
        assert_eq!((minimum::f32(-3.0, 2.0), maximum::f32(-3.0, 2.0)), (-3.0, 2.0));
        assert_eq!(minimum::f32(f32::NEG_INFINITY, 0.0), f32::NEG_INFINITY);
    }

    fn average<T: Copy + Default>(sum: <Avg as Op<T>>::Acc, ranks: usize) -> T
    where
        Avg: Op<T>,
    {
        let mut out = [T::default()];
        <Avg as Op<T>>::lower(&mut out, &[sum], ranks as f64);
        out[0]
    }

    #[test]
    fn integer_averages_are_exact_and_truncate_toward_zero() {
        for (a, n, want) in [(-7i64, 2, -3i32), (7, 2, 3), (-1, 3, 0), (i64::from(i32::MAX) * 3, 3, i32::MAX)] {
            assert_eq!(average::<i32>(a, n), want);
        }
        assert_eq!(average::<u64>(u128::from(u64::MAX) as i128 * 5, 5), u64::MAX);
        for n in 1..200i64 {
            for k in [0i64, 1, 2, 12345, 1 << 30] {
                for d in -1..=1 {
                    let sum = k * n + d;
                    assert_eq!(average::<i32>(sum, n as usize), (sum / n) as i32, "{sum} / {n}");
                }
            }
        }
        for n in 1..=1024i32 {
            for sum in (-128 * n..=127 * n).step_by(1 + n as usize / 7) {
                assert_eq!(i32::from(average::<i8>(sum, n as usize)), sum / n, "{sum} / {n}");
            }
        }
    }
}
