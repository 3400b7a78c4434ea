//! ggml's blocks as MLX affine groups, exactly.
//!
//! A block of 32 values with a factor `d` (f16) becomes a group of 32 with the same factor as its
//! scale. What ggml makes signed by subtracting a constant `z` gets the bias `-z * d`:
//!
//! | type | ggml's value | bits | bias |
//! | --- | --- | --- | --- |
//! | Q4_0 | `d * (q - 8)` | 4 | `-8 d` |
//! | Q4_1 | `d * q + m` | 4 | `m` |
//! | Q5_0 | `d * (q - 16)` | 5 | `-16 d` |
//! | Q5_1 | `d * q + m` | 5 | `m` |
//! | Q8_0 | `d * q`, q signed | 8 | `-128 d`, q + 128 |
//!
//! `q * d` has at most 8 + 11 significant bits and `z * d` fewer, both multiples of `d`'s last place:
//! in f32 the product, the bias and the sum are exact, so `q * scale + bias` *is* ggml's value. With
//! `m`, both sides round once, after the same exact product. Only the sign of a zero can differ: where
//! `d` is negative ggml gives -0.0 and the affine form +0.0.
//!
//! The bias fits f16 unless `d` is large (above 511 for Q8_0); then [`BlockFormat::scale_dtype`] is f32.

use half::f16;
use halfhitch_seam::{Bits, DType, ErrorCode, SeamError, SeamResult, quant};
use rayon::prelude::*;

use super::gguf::GgmlType;

/// Values in a block and in a group.
pub const GROUP: usize = 32;

/// How a type's values become unsigned.
#[derive(Clone, Copy, Debug)]
enum Offset {
    /// `q - z`.
    Constant(f32),
    /// A minimum is stored after the factor.
    Stored,
}

/// A quantised type and how its blocks are read.
#[derive(Clone, Copy, Debug)]
pub struct BlockFormat {
    kind: GgmlType,
    bits: Bits,
    offset: Offset,
}

impl BlockFormat {
    /// The format of a type; nothing for dense types.
    ///
    /// # Errors
    /// None for the widths in the table above; [`Bits::new`] checks them all the same.
    pub fn of(kind: GgmlType) -> SeamResult<Option<Self>> {
        let (bits, offset) = match kind {
            GgmlType::F32 | GgmlType::F16 | GgmlType::BF16 => return Ok(None),
            GgmlType::Q4_0 => (4, Offset::Constant(8.0)),
            GgmlType::Q4_1 => (4, Offset::Stored),
            GgmlType::Q5_0 => (5, Offset::Constant(16.0)),
            GgmlType::Q5_1 => (5, Offset::Stored),
            GgmlType::Q8_0 => (8, Offset::Constant(128.0)),
        };
        Ok(Some(Self {
            kind,
            bits: Bits::new(bits)?,
            offset,
        }))
    }

    /// Width of the values.
    pub const fn bits(&self) -> Bits {
        self.bits
    }

    /// Bytes of a block in the file.
    pub const fn block_bytes(&self) -> usize {
        self.kind.block_bytes()
    }

    /// u32 words that a group's values take.
    pub const fn words(&self) -> usize {
        self.bits.get()
    }

    /// A block's scale and bias.
    fn affine(&self, block: &[u8]) -> (f32, f32) {
        let half = |at: usize| f16::from_le_bytes([block[at], block[at + 1]]).to_f32();
        let scale = half(0);
        match self.offset {
            Offset::Constant(zero) => (scale, -zero * scale),
            Offset::Stored => (scale, half(2)),
        }
    }

    /// A block's values, made unsigned.
    fn values(&self, block: &[u8], q: &mut [u32; GROUP]) {
        let mut nibbles = |bytes: &[u8], high: u32| {
            for (j, &byte) in bytes.iter().enumerate() {
                // Byte j holds values j and j + 16; so do the bits of `high`, bit by bit.
                q[j] = u32::from(byte & 15) | (high >> j & 1) << 4;
                q[j + 16] = u32::from(byte >> 4) | (high >> (j + 16) & 1) << 4;
            }
        };
        let word = |at: usize| {
            u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]])
        };
        match self.kind {
            GgmlType::Q4_0 => nibbles(&block[2..18], 0),
            GgmlType::Q4_1 => nibbles(&block[4..20], 0),
            GgmlType::Q5_0 => nibbles(&block[6..22], word(2)),
            GgmlType::Q5_1 => nibbles(&block[8..24], word(4)),
            _ => {
                for (value, &byte) in q.iter_mut().zip(&block[2..34]) {
                    // i8 to excess 128 is the top bit flipped.
                    *value = u32::from(byte ^ 0x80);
                }
            }
        }
    }

    /// Converts a row of whole blocks. `words` holds its packed values, `scales` and `biases` its
    /// affine parameters in `dtype`; all little-endian bytes of exactly the row's size.
    pub fn convert_row(
        &self,
        row: &[u8],
        dtype: DType,
        words: &mut [u8],
        scales: &mut [u8],
        biases: &mut [u8],
    ) {
        let (mut q, mut packed) = ([0; GROUP], [0u32; 8]);
        let packed = &mut packed[..self.words()];
        let size = dtype.size();
        for (((block, words), scale), bias) in row
            .chunks_exact(self.kind.block_bytes())
            .zip(words.chunks_exact_mut(self.words() * 4))
            .zip(scales.chunks_exact_mut(size))
            .zip(biases.chunks_exact_mut(size))
        {
            self.values(block, &mut q);
            quant::pack_row(&q, self.bits, packed);
            for (out, word) in words.chunks_exact_mut(4).zip(&*packed) {
                out.copy_from_slice(&word.to_le_bytes());
            }
            let (s, b) = self.affine(block);
            for (out, value) in [(scale, s), (bias, b)] {
                if dtype == DType::F16 {
                    out.copy_from_slice(&f16::from_f32(value).to_le_bytes());
                } else {
                    out.copy_from_slice(&value.to_le_bytes());
                }
            }
        }
    }

    /// The narrowest type that holds every scale and bias of `data` exactly: f16, or f32.
    ///
    /// # Errors
    /// `NonFinite` where one is NaN or infinite.
    pub fn scale_dtype(&self, data: &[u8]) -> SeamResult<DType> {
        let block = self.kind.block_bytes();
        let widest = data
            .par_chunks(block * 4096)
            .map(|part| {
                part.chunks_exact(block).fold(Fit::Half, |fit, block| {
                    let (scale, bias) = self.affine(block);
                    fit.max(Fit::of(scale)).max(Fit::of(bias))
                })
            })
            .max()
            .unwrap_or(Fit::Half);
        match widest {
            Fit::Half => Ok(DType::F16),
            Fit::Single => Ok(DType::F32),
            Fit::Never => Err(SeamError::new(
                ErrorCode::NonFinite,
                "a block's factor or minimum is not finite",
            )),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Fit {
    Half,
    Single,
    Never,
}

impl Fit {
    fn of(value: f32) -> Self {
        if !value.is_finite() {
            Self::Never
        } else if f16::from_f32(value).to_f32() == value {
            Self::Half
        } else {
            Self::Single
        }
    }
}
