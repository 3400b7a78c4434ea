//! Types of values in a graph: element types, extents, tensors.

use std::fmt;

use halfhitch_seam::{DType, Precision};

/// Element type of a tensor in a graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Elem {
    /// binary32.
    F32,
    /// binary16.
    F16,
    /// bfloat16.
    BF16,
    /// Signless 32-bit integers: tokens, positions.
    I32,
    /// Packed words.
    U32,
    /// Bytes, `0..=255`.
    U8,
    /// Nibbles, `0..=15`, two to a byte, the low one first.
    U4,
    /// Truth values.
    I1,
}

impl Elem {
    /// The name in MLIR.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::BF16 => "bf16",
            Self::I32 => "i32",
            Self::U32 => "ui32",
            Self::U8 => "ui8",
            Self::U4 => "ui4",
            Self::I1 => "i1",
        }
    }

    /// Whether the type holds real numbers.
    pub const fn is_float(self) -> bool {
        matches!(self, Self::F32 | Self::F16 | Self::BF16)
    }

    /// Bits an element takes in memory.
    pub const fn bits(self) -> usize {
        match self {
            Self::F32 | Self::I32 | Self::U32 => 32,
            Self::F16 | Self::BF16 => 16,
            Self::U8 | Self::I1 => 8,
            Self::U4 => 4,
        }
    }
}

impl From<DType> for Elem {
    fn from(dtype: DType) -> Self {
        match dtype {
            DType::F16 => Self::F16,
            DType::BF16 => Self::BF16,
            DType::U32 => Self::U32,
            _ => Self::F32,
        }
    }
}

impl From<Precision> for Elem {
    fn from(precision: Precision) -> Self {
        precision.dtype().into()
    }
}

impl fmt::Display for Elem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One extent of a shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Dim {
    /// Known when the graph is compiled.
    Static(usize),
    /// Known when it runs; two dynamic extents are equal iff they are the same symbol.
    Dynamic(u32),
}

impl From<usize> for Dim {
    fn from(n: usize) -> Self {
        Self::Static(n)
    }
}

impl fmt::Display for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Static(n) => n.fmt(f),
            Self::Dynamic(_) => f.write_str("?"),
        }
    }
}

/// The type of a tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorType {
    /// Element type.
    pub elem: Elem,
    /// Extents, outermost first; empty for a scalar.
    pub dims: Vec<Dim>,
}

impl TensorType {
    /// A type with these extents.
    pub fn new(elem: Elem, dims: &[Dim]) -> Self {
        Self {
            elem,
            dims: dims.to_vec(),
        }
    }

    /// A type whose extents are all static.
    pub fn fixed(elem: Elem, dims: &[usize]) -> Self {
        Self {
            elem,
            dims: dims.iter().map(|&n| Dim::Static(n)).collect(),
        }
    }

    /// Number of extents.
    pub fn rank(&self) -> usize {
        self.dims.len()
    }

    /// The extents, all of which must be static.
    ///
    /// # Panics
    /// Where one is dynamic: a mistake of the emitter, not of its input.
    pub fn sizes(&self) -> Vec<usize> {
        self.dims
            .iter()
            .map(|d| match d {
                Dim::Static(n) => *n,
                Dim::Dynamic(_) => panic!("{self} has a dynamic extent"),
            })
            .collect()
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("tensor<")?;
        for dim in &self.dims {
            write!(f, "{dim}x")?;
        }
        write!(f, "{}>", self.elem)
    }
}
