//! Tensors as typed views of shared bytes.

use std::borrow::Cow;
use std::ops::Range;

use bytes::Bytes;
use half::{bf16, f16};

use crate::dtype::DType;
use crate::error::{SeamError, SeamResult};

/// A dense, row-major tensor over bytes that it shares with whoever owns them (a mapped file, a
/// buffer). Cloning copies no data; the bytes live as long as any clone. Little-endian.
#[derive(Clone, Debug)]
pub struct Tensor {
    dtype: DType,
    shape: Vec<usize>,
    bytes: Bytes,
}

impl Tensor {
    /// Makes a view.
    ///
    /// # Errors
    /// `InvalidModel` where the shape's element count overflows or does not match the bytes.
    pub fn new(dtype: DType, shape: Vec<usize>, bytes: Bytes) -> SeamResult<Self> {
        let expected = byte_len(dtype, &shape).ok_or_else(|| {
            SeamError::invalid_model(format!("a tensor of shape {shape:?} is too large"))
        })?;
        if expected != bytes.len() {
            return Err(SeamError::invalid_model(format!(
                "a {dtype} tensor of shape {shape:?} takes {expected} bytes, not {}",
                bytes.len()
            )));
        }
        Ok(Self {
            dtype,
            shape,
            bytes,
        })
    }

    /// A tensor that owns f32 values.
    ///
    /// # Errors
    /// `InvalidModel` where the shape does not hold exactly `values.len()` elements.
    pub fn from_f32(shape: Vec<usize>, values: &[f32]) -> SeamResult<Self> {
        Self::new(
            DType::F32,
            shape,
            Bytes::copy_from_slice(bytemuck::cast_slice(values)),
        )
    }

    /// Element type.
    pub const fn dtype(&self) -> DType {
        self.dtype
    }

    /// Extents, outermost first.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Number of elements.
    pub fn elements(&self) -> usize {
        self.bytes.len() / self.dtype.size()
    }

    /// The raw little-endian bytes. They need not be aligned to the element type.
    pub const fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// A view of some rows: of the elements whose first index is in `rows`.
    ///
    /// # Panics
    /// Where the tensor has no such rows.
    pub fn rows(&self, rows: Range<usize>) -> Self {
        let count = self.shape[0];
        assert!(
            rows.start <= rows.end && rows.end <= count,
            "rows {rows:?} of {count}"
        );
        let width = self.bytes.len().checked_div(count).unwrap_or(0);
        let mut shape = self.shape.clone();
        shape[0] = rows.len();
        Self {
            dtype: self.dtype,
            shape,
            bytes: self.bytes.slice(rows.start * width..rows.end * width),
        }
    }

    /// The elements as f32: borrowed where they are f32 and aligned, converted otherwise.
    ///
    /// # Panics
    /// On [`DType::U32`], which holds packed words, not numbers.
    pub fn to_f32(&self) -> Cow<'_, [f32]> {
        match self.dtype {
            DType::F32 => self.elements_as::<f32>(),
            DType::F16 => Cow::Owned(
                self.elements_as::<f16>()
                    .iter()
                    .map(|v| v.to_f32())
                    .collect(),
            ),
            DType::BF16 => Cow::Owned(
                self.elements_as::<bf16>()
                    .iter()
                    .map(|v| v.to_f32())
                    .collect(),
            ),
            DType::U32 => panic!("packed words are not numbers"),
        }
    }

    /// The elements as u32 words: borrowed where aligned, copied otherwise.
    ///
    /// # Panics
    /// On any other element type.
    pub fn to_words(&self) -> Cow<'_, [u32]> {
        assert_eq!(self.dtype, DType::U32);
        self.elements_as::<u32>()
    }

    fn elements_as<T: bytemuck::AnyBitPattern>(&self) -> Cow<'_, [T]> {
        match bytemuck::try_cast_slice(&self.bytes) {
            Ok(slice) => Cow::Borrowed(slice),
            Err(_) => Cow::Owned(
                self.bytes
                    .chunks_exact(size_of::<T>())
                    .map(bytemuck::pod_read_unaligned)
                    .collect(),
            ),
        }
    }
}

/// Bytes a tensor takes, or nothing where that does not fit a `usize`.
pub fn byte_len(dtype: DType, shape: &[usize]) -> Option<usize> {
    shape
        .iter()
        .try_fold(dtype.size(), |n, &extent| n.checked_mul(extent))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shape_that_is_not_the_bytes_is_refused() {
        let bytes = Bytes::from(vec![0u8; 12]);
        assert!(Tensor::new(DType::F32, vec![3], bytes.clone()).is_ok());
        assert!(Tensor::new(DType::F32, vec![2], bytes.clone()).is_err());
        let e = Tensor::new(DType::F32, vec![usize::MAX, 8], bytes).unwrap_err();
        assert!(e.message.contains("too large"), "{e}");
    }

    #[test]
    fn unaligned_bytes_are_read_all_the_same() {
        let mut raw = vec![0u8];
        raw.extend_from_slice(&1.5f32.to_le_bytes());
        raw.extend_from_slice(&(-2.0f32).to_le_bytes());
        let tensor = Tensor::new(DType::F32, vec![2], Bytes::from(raw).slice(1..)).unwrap();
        assert_eq!(&*tensor.to_f32(), &[1.5, -2.0]);
    }

    #[test]
    fn halves_widen_exactly() {
        let raw: Vec<u8> = [f16::from_f32(0.1), f16::MIN_POSITIVE_SUBNORMAL]
            .iter()
            .flat_map(|v| v.to_le_bytes())
            .collect();
        let tensor = Tensor::new(DType::F16, vec![2], Bytes::from(raw)).unwrap();
        assert_eq!(tensor.to_f32()[0], 0.099_975_586);
        assert_eq!(tensor.to_f32()[1], 2f32.powi(-24));
    }
}
