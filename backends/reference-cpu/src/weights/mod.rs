//! Matrices as they are resident: dense f32, or packed and read row by row.
//!
//! Both give the same bits. A packed row is expanded by [`PackedRows::expand`] to the very values
//! that the dense form holds, and then goes through the same inner product.

mod packed;
mod values;

use halfhitch_seam::{CancelToken, SeamError, SeamResult, Weight};
use rayon::prelude::*;

use crate::math::dot::dot;
use packed::{PackedRows, Scratch};
use values::filled;

pub use values::Values;

/// Rows that one task of the thread pool takes at a time.
const ROWS_PER_TASK: usize = 32;

/// A matrix `[rows, columns]`.
#[derive(Debug)]
pub struct Matrix {
    rows: usize,
    columns: usize,
    store: Store,
}

#[derive(Debug)]
enum Store {
    Dense(Values),
    Packed(PackedRows),
}

impl Matrix {
    /// Brings a weight to its resident form: packed where `packed` says so and it is stored so,
    /// dense f32 otherwise.
    ///
    /// # Errors
    /// `OutOfMemory`, `Cancelled`; `Unsupported` for a form of storage that is not known here,
    /// `InvalidModel` for one that is not of numbers.
    pub fn new(weight: &Weight, packed: bool, cancel: &CancelToken) -> SeamResult<Self> {
        let &[rows, columns] = weight.shape().as_slice() else {
            return Err(SeamError::invalid_model("a vector where a matrix belongs"));
        };
        let store = match weight {
            Weight::Dense(tensor) => Store::Dense(Values::from_tensor(tensor, cancel)?),
            Weight::Affine(tensor) => {
                let scales = tensor.scheme().scale_dtype;
                if !scales.is_float() {
                    return Err(SeamError::invalid_model(format!("scales of {scales}")));
                }
                let source = PackedRows::new(tensor);
                if packed {
                    Store::Packed(source)
                } else {
                    let per_task = ROWS_PER_TASK * columns;
                    let expand = |start: usize, part: &mut [f32]| {
                        let mut scratch = Scratch::default();
                        for (i, row) in part.chunks_exact_mut(columns).enumerate() {
                            source.expand(start / columns + i, &mut scratch, row);
                        }
                    };
                    let values = filled(rows * columns, per_task, cancel, expand)?;
                    Store::Dense(Values::Owned(values))
                }
            }
            _ => return Err(SeamError::unsupported("an unknown form of weight")),
        };
        Ok(Self {
            rows,
            columns,
            store,
        })
    }

    /// Row `row` as f32.
    pub fn row(&self, row: usize) -> Vec<f32> {
        match &self.store {
            Store::Dense(values) => {
                values.as_slice()[row * self.columns..][..self.columns].to_vec()
            }
            Store::Packed(packed) => {
                let mut out = vec![0.0; self.columns];
                packed.expand(row, &mut Scratch::default(), &mut out);
                out
            }
        }
    }

    /// `W x` for each of the tokens of `x` (`[tokens, columns]`): `[tokens, rows]`.
    ///
    /// Parallel over rows; a row is brought near once and meets every token. Each element is one
    /// [`dot`], so it does not depend on how many tokens there are.
    pub fn apply(&self, x: &[f32]) -> Vec<f32> {
        let tokens = x.len() / self.columns;
        // Row-major over [rows, tokens], so that a task owns what it writes.
        let mut by_row = vec![0.0; self.rows * tokens];
        let against = |row: &[f32], out: &mut [f32]| {
            for (out, x) in out.iter_mut().zip(x.chunks_exact(self.columns)) {
                *out = dot(row, x);
            }
        };
        by_row
            .par_chunks_mut((ROWS_PER_TASK * tokens).max(1))
            .enumerate()
            .for_each_init(
                Default::default,
                |room: &mut (Scratch, Vec<f32>), (task, out)| {
                    for (i, out) in out.chunks_exact_mut(tokens).enumerate() {
                        let row = task * ROWS_PER_TASK + i;
                        match &self.store {
                            Store::Dense(values) => {
                                let start = row * self.columns;
                                against(&values.as_slice()[start..][..self.columns], out);
                            }
                            Store::Packed(packed) => {
                                let (scratch, values) = &mut *room;
                                values.resize(self.columns, 0.0);
                                packed.expand(row, scratch, values);
                                against(values, out);
                            }
                        }
                    }
                },
            );
        if tokens == 1 {
            return by_row;
        }
        let mut out = vec![0.0; by_row.len()];
        for (row, values) in by_row.chunks_exact(tokens).enumerate() {
            for (token, &value) in values.iter().enumerate() {
                out[token * self.rows + row] = value;
            }
        }
        out
    }
}

/// A matrix and, where there is one, its bias.
#[derive(Debug)]
pub struct Linear {
    /// The matrix.
    pub weight: Matrix,
    /// One value an output.
    pub bias: Option<Vec<f32>>,
}

impl Linear {
    /// `W x + b` for each token.
    pub fn apply(&self, x: &[f32]) -> Vec<f32> {
        let mut out = self.weight.apply(x);
        if let Some(bias) = &self.bias {
            for token in out.chunks_exact_mut(bias.len()) {
                for (value, b) in token.iter_mut().zip(bias) {
                    *value += b;
                }
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use half::{bf16, f16};
    use halfhitch_seam::quant::pack_row;
    use halfhitch_seam::{AffineScheme, AffineTensor, Bits, DType, ErrorCode, GroupSize, Tensor};

    use super::*;

    fn bytes_of(dtype: DType, values: &[f32]) -> Vec<u8> {
        values
            .iter()
            .flat_map(|&v| match dtype {
                DType::F16 => f16::from_f32(v).to_le_bytes().to_vec(),
                DType::BF16 => bf16::from_f32(v).to_le_bytes().to_vec(),
                _ => v.to_le_bytes().to_vec(),
            })
            .collect()
    }

    fn affine(bits: u8, group: u16, dtype: DType, rows: usize, columns: usize) -> AffineTensor {
        let scheme = AffineScheme {
            bits: Bits::new(bits.into()).unwrap(),
            group_size: GroupSize::new(group.into()).unwrap(),
            scale_dtype: dtype,
        };
        let (width, groups) = (
            scheme.words_per_row(columns),
            scheme.groups_per_row(columns),
        );
        let mut words = vec![0u32; rows * width];
        for row in 0..rows {
            let q: Vec<u32> = (0..columns)
                .map(|c| ((row * 37 + c * 11 + c * c) as u32) & scheme.bits.max_value())
                .collect();
            pack_row(&q, scheme.bits, &mut words[row * width..][..width]);
        }
        let part = |start: f32| {
            let values: Vec<f32> = (0..rows * groups)
                .map(|i| start + i as f32 * 0.013)
                .collect();
            Tensor::new(dtype, vec![rows, groups], bytes_of(dtype, &values).into()).unwrap()
        };
        let raw: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
        let words = Tensor::new(DType::U32, vec![rows, width], raw.into()).unwrap();
        AffineTensor::new(scheme, words, part(0.1), part(-0.7)).unwrap()
    }

    #[test]
    fn packed_and_expanded_give_the_same_bits_for_every_scheme() {
        let cancel = CancelToken::new();
        let (rows, columns) = (70, 128);
        let x: Vec<f32> = (0..3 * columns).map(|i| (i as f32 * 0.37).sin()).collect();
        for bits in Bits::ALL {
            for group in GroupSize::ALL {
                for dtype in [DType::F32, DType::F16, DType::BF16] {
                    let tensor = affine(bits, group, dtype, rows, columns);
                    let weight = Weight::Affine(tensor.clone());
                    let dense = Matrix::new(&weight, false, &cancel).unwrap();
                    let packed = Matrix::new(&weight, true, &cancel).unwrap();
                    let want = tensor.dequantize();
                    assert_eq!(dense.row(3), &want[3 * columns..][..columns]);
                    assert_eq!(packed.row(69), &want[69 * columns..][..columns]);
                    assert_eq!(dense.apply(&x), packed.apply(&x), "{}", tensor.scheme());
                }
            }
        }
    }

    #[test]
    fn several_tokens_give_what_each_gives_alone() {
        let weight = Weight::Affine(affine(4, 32, DType::F16, 45, 64));
        let matrix = Matrix::new(&weight, false, &CancelToken::new()).unwrap();
        let x: Vec<f32> = (0..5 * 64).map(|i| (i as f32 * 0.11).cos()).collect();
        let alone: Vec<f32> = x.chunks(64).flat_map(|x| matrix.apply(x)).collect();
        assert_eq!(matrix.apply(&x), alone);
    }

    #[test]
    fn a_product_by_hand() {
        let tensor = Tensor::from_f32(vec![2, 3], &[1.0, 2.0, 3.0, 0.0, -1.0, 4.0]).unwrap();
        let linear = Linear {
            weight: Matrix::new(&Weight::Dense(tensor), false, &CancelToken::new()).unwrap(),
            bias: Some(vec![10.0, 20.0]),
        };
        assert_eq!(
            linear.apply(&[1.0, 1.0, 1.0, 2.0, 0.0, -1.0]),
            [16.0, 23.0, 9.0, 16.0]
        );
    }

    #[test]
    fn a_cancelled_expansion_stops() {
        let cancel = CancelToken::new();
        cancel.cancel();
        let weight = Weight::Affine(affine(4, 32, DType::F16, 4, 64));
        let e = Matrix::new(&weight, false, &cancel).unwrap_err();
        assert_eq!(e.code, ErrorCode::Cancelled);
    }
}
