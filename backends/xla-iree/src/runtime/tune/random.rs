//! Random weights and activations of given shapes, the same each time.

use bytes::Bytes;
use half::{bf16, f16};
use halfhitch_seam::{
    AffineScheme, AffineTensor, DType, SeamError, SeamResult, Tensor, Weight, WeightForm,
};

/// SplitMix64.
pub struct Random(u64);

impl Random {
    /// The sequence of a seed.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    pub const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number from -1 to 1.
    pub fn symmetric(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }
}

/// f32 activations.
pub fn activations(random: &mut Random, n: usize) -> Vec<f32> {
    (0..n).map(|_| random.symmetric()).collect()
}

/// A weight of a form.
///
/// # Errors
/// `OutOfMemory` is not told apart: what building it says.
pub fn weight(random: &mut Random, form: WeightForm, shape: [usize; 2]) -> SeamResult<Weight> {
    match form {
        WeightForm::Affine(scheme) => affine(random, scheme, shape).map(Weight::Affine),
        WeightForm::Dense(dtype) => {
            let n = shape[0] * shape[1];
            dense(random, dtype, shape.to_vec(), n, 1.0).map(Weight::Dense)
        }
        other => Err(SeamError::unsupported(format!("random {other} weights"))),
    }
}

fn affine(
    random: &mut Random,
    scheme: AffineScheme,
    [rows, columns]: [usize; 2],
) -> SeamResult<AffineTensor> {
    let words = rows * scheme.words_per_row(columns);
    let groups = rows * scheme.groups_per_row(columns);
    let bytes: Vec<u8> = (0..words.div_ceil(2))
        .flat_map(|_| random.next().to_le_bytes())
        .take(4 * words)
        .collect();
    let shape = vec![rows, scheme.words_per_row(columns)];
    let words = Tensor::new(DType::U32, shape, Bytes::from(bytes))?;
    let mut numbers = |scale| {
        let shape = vec![rows, scheme.groups_per_row(columns)];
        dense(random, scheme.scale_dtype, shape, groups, scale)
    };
    let (scales, biases) = (numbers(1.0 / 64.0)?, numbers(0.25)?);
    AffineTensor::new(scheme, words, scales, biases)
}

fn dense(
    random: &mut Random,
    dtype: DType,
    shape: Vec<usize>,
    n: usize,
    scale: f32,
) -> SeamResult<Tensor> {
    let values = (0..n).map(|_| scale * random.symmetric());
    let bytes: Vec<u8> = match dtype {
        DType::F16 => values
            .flat_map(|v| f16::from_f32(v).to_le_bytes())
            .collect(),
        DType::BF16 => values
            .flat_map(|v| bf16::from_f32(v).to_le_bytes())
            .collect(),
        _ => values.flat_map(f32::to_le_bytes).collect(),
    };
    Tensor::new(dtype, shape, Bytes::from(bytes))
}
