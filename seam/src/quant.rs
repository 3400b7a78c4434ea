//! MLX affine quantisation: the scheme's parameters and its packed storage.
//!
//! A row of `columns` values is cut into groups of `group_size`. Each group has one scale and one
//! bias, and a value is `q * scale + bias` with `q` an unsigned integer of `bits` bits. A row's
//! `q`s form one bit stream, lowest bit first, value after value without padding, stored as
//! little-endian u32 words: `columns * bits / 32` words a row. (For 2, 4 and 8 bits a value never
//! straddles words; for 3, 5 and 6 it may.) Source: MLX, `mlx.core.quantize` and its packing.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::dtype::DType;
use crate::error::{SeamError, SeamResult};

/// Width of a quantised value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u32", into = "u32")]
pub struct Bits(u8);

impl Bits {
    /// Widths the format has.
    pub const ALL: [u8; 6] = [2, 3, 4, 5, 6, 8];

    /// Checks a width.
    ///
    /// # Errors
    /// [`ErrorCode::Unsupported`](crate::ErrorCode::Unsupported) where it is none of [`Self::ALL`].
    pub fn new(bits: u32) -> SeamResult<Self> {
        match u8::try_from(bits) {
            Ok(b) if Self::ALL.contains(&b) => Ok(Self(b)),
            _ => Err(
                SeamError::unsupported(format!("quantisation with {bits} bits"))
                    .hint("bits can be 2, 3, 4, 5, 6 or 8"),
            ),
        }
    }

    /// The width in bits.
    pub const fn get(self) -> usize {
        self.0 as usize
    }

    /// The largest quantised value, `2^bits - 1`.
    pub const fn max_value(self) -> u32 {
        (1 << self.0) - 1
    }
}

impl TryFrom<u32> for Bits {
    type Error = SeamError;
    fn try_from(bits: u32) -> SeamResult<Self> {
        Self::new(bits)
    }
}

impl From<Bits> for u32 {
    fn from(bits: Bits) -> u32 {
        bits.0.into()
    }
}

/// Values that share a scale and a bias.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u32", into = "u32")]
pub struct GroupSize(u16);

impl GroupSize {
    /// Sizes the format has.
    pub const ALL: [u16; 3] = [32, 64, 128];

    /// Checks a size.
    ///
    /// # Errors
    /// [`ErrorCode::Unsupported`](crate::ErrorCode::Unsupported) where it is none of [`Self::ALL`].
    pub fn new(size: u32) -> SeamResult<Self> {
        match u16::try_from(size) {
            Ok(s) if Self::ALL.contains(&s) => Ok(Self(s)),
            _ => Err(
                SeamError::unsupported(format!("quantisation groups of {size}"))
                    .hint("the group size can be 32, 64 or 128"),
            ),
        }
    }

    /// The size in values.
    pub const fn get(self) -> usize {
        self.0 as usize
    }
}

impl TryFrom<u32> for GroupSize {
    type Error = SeamError;
    fn try_from(size: u32) -> SeamResult<Self> {
        Self::new(size)
    }
}

impl From<GroupSize> for u32 {
    fn from(size: GroupSize) -> u32 {
        size.0.into()
    }
}

/// An affine scheme: all that is needed to read a packed weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct AffineScheme {
    /// Width of a value.
    pub bits: Bits,
    /// Values to a scale and bias.
    pub group_size: GroupSize,
    /// Element type of scales and biases: f32, f16 or bf16.
    pub scale_dtype: DType,
}

impl AffineScheme {
    /// Words that hold a row of `columns` values; `columns` is a multiple of 32.
    pub const fn words_per_row(&self, columns: usize) -> usize {
        columns / 32 * self.bits.get()
    }

    /// Groups in a row of `columns` values.
    pub const fn groups_per_row(&self, columns: usize) -> usize {
        columns / self.group_size.get()
    }

    /// Bytes that `rows` x `columns` values take, with scales and biases.
    pub const fn bytes(&self, rows: usize, columns: usize) -> u64 {
        let words = self.words_per_row(columns) as u64 * 4;
        let affine = self.groups_per_row(columns) as u64 * self.scale_dtype.size() as u64 * 2;
        rows as u64 * (words + affine)
    }
}

impl fmt::Display for AffineScheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "affine {}-bit g{} ({})",
            self.bits.get(),
            self.group_size.get(),
            self.scale_dtype
        )
    }
}

/// Reads the values of one packed row, `out.len()` of them.
///
/// # Panics
/// Where `words` is shorter than the row needs: [`AffineScheme::words_per_row`].
pub fn unpack_row(words: &[u32], bits: Bits, out: &mut [u32]) {
    let width = bits.get();
    let mask = u64::from(bits.max_value());
    for (i, value) in out.iter_mut().enumerate() {
        let bit = i * width;
        let (word, shift) = (bit / 32, bit % 32);
        let mut pair = u64::from(words[word]);
        if shift + width > 32 {
            pair |= u64::from(words[word + 1]) << 32;
        }
        *value = ((pair >> shift) & mask) as u32;
    }
}

/// Packs one row of values; the inverse of [`unpack_row`]. `values.len() * bits` is a multiple of 32.
///
/// # Panics
/// Where `words` is shorter than the row needs.
pub fn pack_row(values: &[u32], bits: Bits, words: &mut [u32]) {
    let width = bits.get();
    words.fill(0);
    for (i, &value) in values.iter().enumerate() {
        debug_assert!(value <= bits.max_value());
        let bit = i * width;
        let (word, shift) = (bit / 32, bit % 32);
        let pair = u64::from(value) << shift;
        words[word] |= pair as u32;
        if shift + width > 32 {
            words[word + 1] |= (pair >> 32) as u32;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn four_bits_lie_low_nibble_first() {
        let mut out = [0; 8];
        unpack_row(&[0x7654_3210], Bits::new(4).unwrap(), &mut out);
        assert_eq!(out, [0, 1, 2, 3, 4, 5, 6, 7]);
    }

    #[test]
    fn six_bits_pack_four_values_in_three_bytes() {
        // MLX: bytes = [v0 | v1<<6, v1>>2 | v2<<4, v2>>4 | v3<<2].
        let mut values = [0; 32];
        (values[0], values[1], values[2], values[3]) = (1, 2, 3, 4);
        let mut words = [0; 6];
        pack_row(&values, Bits::new(6).unwrap(), &mut words);
        let bytes = words[0].to_le_bytes();
        assert_eq!(&bytes[..3], &[1 | 0x80, 0x30, 4 << 2]);
    }

    #[test]
    fn other_widths_and_groups_are_refused() {
        for bits in [0, 1, 7, 9, 16, u32::MAX] {
            assert!(Bits::new(bits).is_err(), "{bits}");
        }
        for size in [0, 16, 33, 256, u32::MAX] {
            assert!(GroupSize::new(size).is_err(), "{size}");
        }
        assert!(serde_json::from_str::<Bits>("7").is_err());
    }

    proptest! {
        #[test]
        fn packing_round_trips(width in proptest::sample::select(Bits::ALL.to_vec()), seed in proptest::collection::vec(any::<u32>(), 64)) {
            let bits = Bits::new(width.into()).unwrap();
            let values: Vec<u32> = seed.iter().map(|v| v & bits.max_value()).collect();
            let mut words = vec![0; 64 / 32 * bits.get()];
            pack_row(&values, bits, &mut words);
            let mut back = vec![0; 64];
            unpack_row(&words, bits, &mut back);
            prop_assert_eq!(values, back);
        }
    }
}
