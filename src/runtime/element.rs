//! What a buffer holds and how two of them combine.

use std::fmt;
use std::str::FromStr;

use crate::Error;

/// The type of an element.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
#[allow(missing_docs)]
pub enum DType {
    F32,
    F64,
    F16,
    Bf16,
    I8,
    U8,
    I32,
    U32,
    I64,
    U64,
}

impl DType {
    /// All of them.
    pub const ALL: [Self; 10] =
        [Self::F32, Self::F64, Self::F16, Self::Bf16, Self::I8, Self::U8, Self::I32, Self::U32, Self::I64, Self::U64];

    /// Bytes an element.
    pub fn width(self) -> usize {
        match self {
            Self::I8 | Self::U8 => 1,
            Self::F16 | Self::Bf16 => 2,
            Self::F32 | Self::I32 | Self::U32 => 4,
            Self::F64 | Self::I64 | Self::U64 => 8,
        }
    }

    /// Whether it is a whole number.
    pub fn is_integer(self) -> bool {
        !matches!(self, Self::F32 | Self::F64 | Self::F16 | Self::Bf16)
    }

    fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F64 => "f64",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::I8 => "i8",
            Self::U8 => "u8",
            Self::I32 => "i32",
            Self::U32 => "u32",
            Self::I64 => "i64",
            Self::U64 => "u64",
        }
    }

    pub(crate) fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|d| *d as u8 == code)
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for DType {
    type Err = Error;

    /// Takes `f32` and also nccl-tests' `float`, `half`, `bfloat16`, `int32` and so on.
    fn from_str(s: &str) -> Result<Self, Error> {
        let plain = match s {
            "float" | "float32" => "f32",
            "double" | "float64" => "f64",
            "half" | "float16" => "f16",
            "bfloat16" => "bf16",
            "int8" => "i8",
            "uint8" => "u8",
            "int" | "int32" => "i32",
            "uint32" => "u32",
            "int64" => "i64",
            "uint64" => "u64",
            other => other,
        };
        Self::ALL.into_iter().find(|d| d.name() == plain).ok_or_else(|| {
            let names: Vec<&str> = Self::ALL.iter().map(|d| d.name()).collect();
            Error::Argument(format!("`{s}` is no element type; one of {} is", names.join(", ")))
        })
    }
}

/// How elements combine.
///
/// Integer sums and products wrap as two's complement. Half types are combined in `f32` within an instruction and
/// rounded once after it. `Min` and `Max` are IEEE 754-2019 `minimum` and `maximum`: a NaN in any rank's element
/// makes the result NaN, and -0 is less than +0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ReduceOp {
    /// The sum.
    Sum,
    /// The product.
    Prod,
    /// The least.
    Min,
    /// The greatest.
    Max,
    /// The sum divided by the number of ranks. Of integers it is exact (the sum does not wrap) and truncates toward
    /// zero.
    Avg,
}

impl ReduceOp {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Sum, Self::Prod, Self::Min, Self::Max, Self::Avg];

    fn name(self) -> &'static str {
        match self {
            Self::Sum => "sum",
            Self::Prod => "prod",
            Self::Min => "min",
            Self::Max => "max",
            Self::Avg => "avg",
        }
    }

    pub(crate) fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|d| *d as u8 == code)
    }
}

impl fmt::Display for ReduceOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for ReduceOp {
    type Err = Error;

    fn from_str(s: &str) -> Result<Self, Error> {
        Self::ALL
            .into_iter()
            .find(|o| o.name() == s)
            .ok_or_else(|| Error::Argument(format!("`{s}` is no reduction; sum, prod, min, max or avg is")))
    }
}

/// Types that a collective can carry.
pub trait Element: Copy + Send + Sync + Default + PartialEq + fmt::Debug + sealed::Sealed + 'static {
    /// Its name at run time.
    const DTYPE: DType;
}

mod sealed {
    pub trait Sealed {}
}

macro_rules! elements {
    ($($t:ty => $d:ident),*) => {$(
        impl sealed::Sealed for $t {}
        impl Element for $t {
            const DTYPE: DType = DType::$d;
        }
    )*};
}
elements!(f32 => F32, f64 => F64, half::f16 => F16, half::bf16 => Bf16, i8 => I8, u8 => U8, i32 => I32, u32 => U32, i64 => I64, u64 => U64);
