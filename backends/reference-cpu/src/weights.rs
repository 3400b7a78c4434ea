//! Matrices as they are resident: dense f32, or packed and read row by row.
//!
//! Both give the same bits. A packed row is expanded by [`PackedRows::expand`] to the very values
//! that the dense form holds, and then goes through the same inner product.

use half::{bf16, f16};
use halfhitch_seam::quant::unpack_row;
use halfhitch_seam::{
    AffineTensor, CancelToken, DType, ErrorCode, SeamError, SeamResult, Tensor, Weight,
};
use rayon::prelude::*;

use crate::math::dot::dot;

/// Rows that one task of the thread pool takes at a time.
const ROWS_PER_TASK: usize = 32;

/// Numbers as f32: the checkpoint's own bytes where those are f32 and aligned, else a copy.
#[derive(Debug)]
pub enum Values {
    /// Shared with the host (a mapped file); always f32 and aligned.
    Shared(Tensor),
    /// Converted at open.
    Owned(Vec<f32>),
}

impl Values {
    /// Brings a dense tensor to f32.
    ///
    /// # Errors
    /// `OutOfMemory`, `Cancelled`.
    pub fn from_tensor(tensor: &Tensor, cancel: &CancelToken) -> SeamResult<Self> {
        if tensor.dtype() == DType::F32
            && bytemuck::try_cast_slice::<u8, f32>(tensor.bytes()).is_ok()
        {
            return Ok(Self::Shared(tensor.clone()));
        }
        let size = tensor.dtype().size();
        let bytes = tensor.bytes();
        let convert = |start: usize, out: &mut [f32]| {
            let part = &bytes[start * size..][..out.len() * size];
            for (value, raw) in out.iter_mut().zip(part.chunks_exact(size)) {
                *value = read_float(tensor.dtype(), raw);
            }
        };
        filled(tensor.elements(), 1 << 16, cancel, convert).map(Self::Owned)
    }

    /// The numbers.
    pub fn as_slice(&self) -> &[f32] {
        match self {
            Self::Shared(tensor) => bytemuck::cast_slice(tensor.bytes()),
            Self::Owned(values) => values,
        }
    }
}

/// One little-endian number of a float type, widened exactly.
fn read_float(dtype: DType, raw: &[u8]) -> f32 {
    match (dtype, raw) {
        (DType::F32, &[a, b, c, d]) => f32::from_le_bytes([a, b, c, d]),
        (DType::F16, &[a, b]) => f16::from_le_bytes([a, b]).to_f32(),
        (DType::BF16, &[a, b]) => bf16::from_le_bytes([a, b]).to_f32(),
        _ => unreachable!("the seam lets no dense weight of {dtype} through"),
    }
}

/// A vector of `n` numbers that `fill(start, part)` writes, in parallel.
fn filled(
    n: usize,
    per_task: usize,
    cancel: &CancelToken,
    fill: impl Fn(usize, &mut [f32]) + Sync,
) -> SeamResult<Vec<f32>> {
    let mut out = Vec::new();
    out.try_reserve_exact(n).map_err(|_| {
        SeamError::new(
            ErrorCode::OutOfMemory,
            format!("no memory for a weight of {n} f32 values"),
        )
        .hint("try --quant packed or a smaller model")
    })?;
    out.resize(n, 0.0);
    out.par_chunks_mut(per_task.max(1))
        .enumerate()
        .try_for_each(|(i, part)| {
            cancel.check()?;
            fill(i * per_task, part);
            Ok(())
        })?;
    Ok(out)
}

/// A packed matrix, its bytes shared with the host.
#[derive(Debug)]
pub struct PackedRows {
    tensor: AffineTensor,
    columns: usize,
}

/// Room for one row on its way from packed to f32; one a thread, used again for every row.
#[derive(Debug, Default)]
pub struct Scratch {
    words: Vec<u32>,
    quantised: Vec<u32>,
    row: Vec<f32>,
}

impl PackedRows {
    fn new(tensor: &AffineTensor) -> Self {
        Self {
            columns: tensor.shape()[1],
            tensor: tensor.clone(),
        }
    }

    /// Writes row `row` as f32: `q * scale + bias`, each operation rounded.
    fn expand(&self, row: usize, scratch: &mut Scratch, out: &mut [f32]) {
        let scheme = self.tensor.scheme();
        let words = scheme.words_per_row(self.columns);
        let groups = scheme.groups_per_row(self.columns);
        let raw = &self.tensor.words().bytes()[row * words * 4..][..words * 4];
        let (raw, _) = raw.as_chunks::<4>();
        scratch.words.clear();
        scratch
            .words
            .extend(raw.iter().map(|&word| u32::from_le_bytes(word)));
        scratch.quantised.resize(self.columns, 0);
        unpack_row(&scratch.words, scheme.bits, &mut scratch.quantised);

        let size = scheme.scale_dtype.size();
        let affine = |part: &Tensor, group: usize| {
            let raw = &part.bytes()[(row * groups + group) * size..][..size];
            read_float(scheme.scale_dtype, raw)
        };
        let group_size = scheme.group_size.get();
        let values = scratch.quantised.chunks_exact(group_size);
        for (group, (out, values)) in out.chunks_exact_mut(group_size).zip(values).enumerate() {
            let scale = affine(self.tensor.scales(), group);
            let bias = affine(self.tensor.biases(), group);
            for (value, &q) in out.iter_mut().zip(values) {
                *value = q as f32 * scale + bias;
            }
        }
    }
}

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
    /// `OutOfMemory`, `Cancelled`; `Unsupported` for a form of storage that is not known here.
    pub fn new(weight: &Weight, packed: bool, cancel: &CancelToken) -> SeamResult<Self> {
        let &[rows, columns] = weight.shape().as_slice() else {
            return Err(SeamError::invalid_model("a vector where a matrix belongs"));
        };
        let store = match weight {
            Weight::Dense(tensor) => Store::Dense(Values::from_tensor(tensor, cancel)?),
            Weight::Affine(tensor) => {
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
            .for_each_init(Scratch::default, |scratch, (task, out)| {
                for (i, out) in out.chunks_exact_mut(tokens).enumerate() {
                    let row = task * ROWS_PER_TASK + i;
                    match &self.store {
                        Store::Dense(values) => {
                            let start = row * self.columns;
                            against(&values.as_slice()[start..][..self.columns], out);
                        }
                        Store::Packed(packed) => {
                            let mut values = std::mem::take(&mut scratch.row);
                            values.resize(self.columns, 0.0);
                            packed.expand(row, scratch, &mut values);
                            against(&values, out);
                            scratch.row = values;
                        }
                    }
                }
            });
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
    use super::*;
    use halfhitch_seam::quant::pack_row;
    use halfhitch_seam::{AffineScheme, Bits, GroupSize};

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
    fn aligned_f32_is_shared_and_all_else_converted() {
        let cancel = CancelToken::new();
        let tensor = Tensor::from_f32(vec![2], &[1.0, 2.0]).unwrap();
        let shared = Values::from_tensor(&tensor, &cancel).unwrap();
        assert_eq!(shared.as_slice().as_ptr().cast(), tensor.bytes().as_ptr());
        let half = bytes_of(DType::BF16, &[1.5, -2.0]);
        let half = Tensor::new(DType::BF16, vec![2], half.into()).unwrap();
        let owned = Values::from_tensor(&half, &cancel).unwrap();
        assert_eq!(owned.as_slice(), [1.5, -2.0]);
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
