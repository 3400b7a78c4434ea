//! A model's weights as the host hands them over, and their description without the data.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::dtype::DType;
use crate::error::{ErrorCode, SeamError, SeamResult};
use crate::model::{ModelSpec, WeightId};
use crate::quant::{AffineScheme, unpack_row};
use crate::tensor::{Tensor, byte_len};

/// A quantised matrix in MLX's affine form; see [`crate::quant`] for the format.
#[derive(Clone, Debug)]
pub struct AffineTensor {
    scheme: AffineScheme,
    shape: [usize; 2],
    words: Tensor,
    scales: Tensor,
    biases: Tensor,
}

impl AffineTensor {
    /// Puts the three parts together. `words` is u32 `[rows, columns * bits / 32]`; `scales` and
    /// `biases` have the scheme's dtype and shape `[rows, columns / group_size]`. The columns
    /// follow from the scales.
    ///
    /// # Errors
    /// `InvalidModel` where dtypes or shapes disagree with the scheme or with each other.
    pub fn new(
        scheme: AffineScheme,
        words: Tensor,
        scales: Tensor,
        biases: Tensor,
    ) -> SeamResult<Self> {
        if !scheme.scale_dtype.is_float() {
            return Err(SeamError::invalid_model(format!(
                "scales are {}, not numbers",
                scheme.scale_dtype
            )));
        }
        let &[rows, groups] = scales.shape() else {
            return Err(SeamError::invalid_model(format!(
                "scales of shape {:?} are not a matrix",
                scales.shape()
            )));
        };
        let columns = groups
            .checked_mul(scheme.group_size.get())
            .ok_or_else(|| SeamError::invalid_model("too many groups"))?;
        let want_words = [rows, scheme.words_per_row(columns)];
        if words.dtype() != DType::U32 || words.shape() != want_words {
            return Err(SeamError::invalid_model(format!(
                "packed words are {} {:?}; {scheme} with scales {:?} needs u32 {want_words:?}",
                words.dtype(),
                words.shape(),
                scales.shape()
            )));
        }
        for (name, part) in [("scales", &scales), ("biases", &biases)] {
            if part.dtype() != scheme.scale_dtype || part.shape() != [rows, groups] {
                return Err(SeamError::invalid_model(format!(
                    "{name} are {} {:?}, not {} {:?}",
                    part.dtype(),
                    part.shape(),
                    scheme.scale_dtype,
                    [rows, groups]
                )));
            }
        }
        Ok(Self {
            scheme,
            shape: [rows, columns],
            words,
            scales,
            biases,
        })
    }

    /// The scheme.
    pub const fn scheme(&self) -> AffineScheme {
        self.scheme
    }

    /// The shape of the matrix it stands for, `[outputs, inputs]`.
    pub const fn shape(&self) -> [usize; 2] {
        self.shape
    }

    /// Packed values, u32 `[rows, words]`.
    pub const fn words(&self) -> &Tensor {
        &self.words
    }

    /// Scales, `[rows, groups]`.
    pub const fn scales(&self) -> &Tensor {
        &self.scales
    }

    /// Biases, `[rows, groups]`.
    pub const fn biases(&self) -> &Tensor {
        &self.biases
    }

    /// A view of some rows.
    ///
    /// # Panics
    /// Where the matrix has no such rows.
    pub fn rows(&self, rows: Range<usize>) -> Self {
        Self {
            scheme: self.scheme,
            shape: [rows.len(), self.shape[1]],
            words: self.words.rows(rows.clone()),
            scales: self.scales.rows(rows.clone()),
            biases: self.biases.rows(rows),
        }
    }

    /// The whole matrix as f32, row-major: `q as f32 * scale as f32 + bias as f32`, two roundings,
    /// no fused multiply-add. This is *the* meaning of the format here; MLX and gguf-py agree.
    pub fn dequantize(&self) -> Vec<f32> {
        let [rows, columns] = self.shape;
        let group = self.scheme.group_size.get();
        let (words, scales, biases) = (
            self.words.to_words(),
            self.scales.to_f32(),
            self.biases.to_f32(),
        );
        let width = self.scheme.words_per_row(columns);
        let groups = self.scheme.groups_per_row(columns);
        let mut q = vec![0; columns];
        let mut out = Vec::with_capacity(rows * columns);
        for row in 0..rows {
            unpack_row(&words[row * width..][..width], self.scheme.bits, &mut q);
            for (g, values) in q.chunks_exact(group).enumerate() {
                let (scale, bias) = (scales[row * groups + g], biases[row * groups + g]);
                out.extend(values.iter().map(|&v| v as f32 * scale + bias));
            }
        }
        out
    }
}

/// One weight.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Weight {
    /// Numbers as they are: f32, f16 or bf16.
    Dense(Tensor),
    /// A matrix in MLX's affine form.
    Affine(AffineTensor),
}

impl Weight {
    /// Its logical shape: `[outputs, inputs]` for a matrix, `[n]` for a vector.
    pub fn shape(&self) -> Vec<usize> {
        match self {
            Self::Dense(t) => t.shape().to_vec(),
            Self::Affine(a) => a.shape().to_vec(),
        }
    }

    /// Its form.
    pub fn form(&self) -> WeightForm {
        match self {
            Self::Dense(t) => WeightForm::Dense(t.dtype()),
            Self::Affine(a) => WeightForm::Affine(a.scheme()),
        }
    }

    /// Its description without the data.
    pub fn info(&self) -> WeightInfo {
        WeightInfo {
            shape: self.shape(),
            form: self.form(),
        }
    }

    /// A view of some rows: of the elements whose first index is in `rows`. It takes no memory of its
    /// own, so that a large weight can be converted a part at a time.
    ///
    /// # Panics
    /// Where the weight has no such rows.
    pub fn rows(&self, rows: Range<usize>) -> Self {
        match self {
            Self::Dense(t) => Self::Dense(t.rows(rows)),
            Self::Affine(a) => Self::Affine(a.rows(rows)),
        }
    }

    /// All elements as f32, row-major, exactly as the format defines them.
    pub fn to_f32(&self) -> Vec<f32> {
        match self {
            Self::Dense(t) => t.to_f32().into_owned(),
            Self::Affine(a) => a.dequantize(),
        }
    }
}

/// How a weight is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum WeightForm {
    /// Numbers of this type.
    Dense(DType),
    /// MLX's affine form.
    Affine(AffineScheme),
}

impl fmt::Display for WeightForm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dense(dtype) => dtype.fmt(f),
            Self::Affine(scheme) => scheme.fmt(f),
        }
    }
}

/// A weight without its data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WeightInfo {
    /// Logical shape.
    pub shape: Vec<usize>,
    /// Form.
    pub form: WeightForm,
}

impl WeightInfo {
    /// Bytes the weight takes if it is kept in `form`.
    pub fn bytes_as(&self, form: WeightForm) -> u64 {
        match (form, self.shape.as_slice()) {
            (WeightForm::Affine(scheme), &[rows, columns]) => scheme.bytes(rows, columns),
            (WeightForm::Affine(scheme), shape) => {
                byte_len(scheme.scale_dtype, shape).unwrap_or(usize::MAX) as u64
            }
            (WeightForm::Dense(dtype), shape) => {
                byte_len(dtype, shape).unwrap_or(usize::MAX) as u64
            }
        }
    }

    /// Bytes it takes as stored.
    pub fn bytes(&self) -> u64 {
        self.bytes_as(self.form)
    }
}

/// Descriptions of all weights of a model: what negotiation needs, without any data.
pub type WeightManifest = BTreeMap<WeightId, WeightInfo>;

/// All weights of a model. Cheap to clone; the bytes are shared.
#[derive(Clone, Debug, Default)]
pub struct Weights(BTreeMap<WeightId, Weight>);

impl Weights {
    /// Collects weights; a later one of the same name replaces an earlier one.
    pub fn new(weights: impl IntoIterator<Item = (WeightId, Weight)>) -> Self {
        Self(weights.into_iter().collect())
    }

    /// A weight.
    ///
    /// # Errors
    /// `NotFound` where there is none of that name.
    pub fn get(&self, id: WeightId) -> SeamResult<&Weight> {
        self.0.get(&id).ok_or_else(|| {
            SeamError::new(
                ErrorCode::NotFound,
                format!("the model has no weight `{id}`"),
            )
        })
    }

    /// All weights by name.
    pub fn iter(&self) -> impl Iterator<Item = (WeightId, &Weight)> {
        self.0.iter().map(|(&id, w)| (id, w))
    }

    /// Descriptions of all weights.
    pub fn manifest(&self) -> WeightManifest {
        self.0.iter().map(|(&id, w)| (id, w.info())).collect()
    }
}

impl FromIterator<(WeightId, Weight)> for Weights {
    fn from_iter<I: IntoIterator<Item = (WeightId, Weight)>>(weights: I) -> Self {
        Self::new(weights)
    }
}

/// Checks that `manifest` holds exactly the weights `spec` asks for, with their shapes, and that
/// only matrices are quantised. The host calls it once; a backend may rely on it.
///
/// # Errors
/// `InvalidModel`, naming the first weight that is missing, has another shape, or is unknown.
pub fn check_weights(spec: &ModelSpec, manifest: &WeightManifest) -> SeamResult<()> {
    let expected = spec.expected_weights();
    for want in &expected {
        let Some(info) = manifest.get(&want.id) else {
            return Err(SeamError::invalid_model(format!(
                "`{}` is missing",
                want.id
            )));
        };
        if info.shape != want.shape {
            return Err(SeamError::invalid_model(format!(
                "`{}` has shape {:?}, the configuration asks for {:?}",
                want.id, info.shape, want.shape
            )));
        }
        let legal = match info.form {
            WeightForm::Dense(dtype) => dtype.is_float(),
            WeightForm::Affine(_) => want.is_matrix(),
        };
        if !legal {
            return Err(SeamError::invalid_model(format!(
                "`{}` cannot be stored as {}",
                want.id, info.form
            )));
        }
    }
    if manifest.len() > expected.len() {
        let known: std::collections::BTreeSet<_> = expected.iter().map(|w| w.id).collect();
        if let Some(id) = manifest.keys().find(|id| !known.contains(id)) {
            return Err(SeamError::invalid_model(format!(
                "`{id}` is there, but the configuration has no place for it"
            )));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quant::{Bits, GroupSize};
    use bytes::Bytes;

    fn tensor(dtype: DType, shape: [usize; 2]) -> Tensor {
        let len = shape[0] * shape[1] * dtype.size();
        Tensor::new(dtype, shape.into(), Bytes::from(vec![0; len])).unwrap()
    }

    #[test]
    fn rows_are_those_of_the_whole() {
        let scheme = AffineScheme {
            bits: Bits::new(3).unwrap(),
            group_size: GroupSize::new(32).unwrap(),
            scale_dtype: DType::F32,
        };
        let bytes = |n: usize| Bytes::from((0..n).map(|i| (i * 37 % 61) as u8).collect::<Vec<_>>());
        let words = Tensor::new(DType::U32, vec![5, 6], bytes(5 * 6 * 4)).unwrap();
        let scales = Tensor::from_f32(
            vec![5, 2],
            &[0.5, -1.0, 2.0, 3.0, 1.0, 4.0, -2.0, 0.25, 8.0, 7.0],
        );
        let scales = scales.unwrap();
        let packed = AffineTensor::new(scheme, words, scales.clone(), scales.clone()).unwrap();
        for weight in [Weight::Affine(packed), Weight::Dense(scales)] {
            let (shape, whole) = (weight.shape(), weight.to_f32());
            for (from, to) in [(0, 5), (1, 3), (4, 5), (2, 2)] {
                let part = weight.rows(from..to);
                assert_eq!(part.shape(), [to - from, shape[1]]);
                assert_eq!(part.to_f32(), whole[from * shape[1]..to * shape[1]]);
            }
        }
    }

    #[test]
    fn parts_that_disagree_are_refused() {
        let scheme = |scale_dtype| AffineScheme {
            bits: Bits::new(4).unwrap(),
            group_size: GroupSize::new(32).unwrap(),
            scale_dtype,
        };
        let words = || tensor(DType::U32, [2, 8]);
        let half = |columns| tensor(DType::F16, [2, columns]);
        let make = |scale, words, scales, biases| {
            AffineTensor::new(scheme(scale), words, scales, biases).map(|t| t.shape())
        };
        assert_eq!(make(DType::F16, words(), half(2), half(2)), Ok([2, 64]));
        let refused = [
            make(DType::F16, tensor(DType::U32, [2, 9]), half(2), half(2)),
            make(DType::F16, tensor(DType::F32, [2, 8]), half(2), half(2)),
            make(DType::F16, words(), half(2), half(1)),
            make(DType::BF16, words(), half(2), half(2)),
            make(
                DType::U32,
                words(),
                tensor(DType::U32, [2, 2]),
                tensor(DType::U32, [2, 2]),
            ),
        ];
        for (i, result) in refused.iter().enumerate() {
            assert!(result.is_err(), "case {i}");
        }
    }
}
