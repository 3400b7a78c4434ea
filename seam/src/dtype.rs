//! Element types, and the numeric precisions a device computes in.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::error::{ErrorCode, SeamError};

/// Element type of a tensor in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum DType {
    /// IEEE 754 binary32.
    F32,
    /// IEEE 754 binary16.
    F16,
    /// bfloat16: the upper half of a binary32.
    BF16,
    /// Unsigned 32-bit words; the storage of packed quantised values.
    U32,
}

impl DType {
    /// Bytes an element takes.
    pub const fn size(self) -> usize {
        match self {
            Self::F32 | Self::U32 => 4,
            Self::F16 | Self::BF16 => 2,
        }
    }

    /// Whether the type holds real numbers (and not packed words).
    pub const fn is_float(self) -> bool {
        !matches!(self, Self::U32)
    }

    /// The name used in plans, JSON and on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::BF16 => "bf16",
            Self::U32 => "u32",
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// What a contraction reads its operands in. Norms, softmax, rope and every accumulation are f32
/// whatever the precision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    /// binary32 operands.
    F32,
    /// binary16 operands, f32 accumulation.
    F16,
    /// bfloat16 operands, f32 accumulation.
    BF16,
}

impl Precision {
    /// All precisions, widest first.
    pub const ALL: [Self; 3] = [Self::F32, Self::F16, Self::BF16];

    /// The element type of operands in this precision.
    pub const fn dtype(self) -> DType {
        match self {
            Self::F32 => DType::F32,
            Self::F16 => DType::F16,
            Self::BF16 => DType::BF16,
        }
    }
}

impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.dtype().name())
    }
}

impl FromStr for Precision {
    type Err = SeamError;

    fn from_str(s: &str) -> Result<Self, SeamError> {
        Self::ALL
            .into_iter()
            .find(|p| p.dtype().name() == s)
            .ok_or_else(|| {
                SeamError::new(ErrorCode::InvalidInput, format!("unknown precision `{s}`"))
                    .hint("one of f32, f16, bf16")
            })
    }
}
