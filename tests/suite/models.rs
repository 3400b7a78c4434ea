//! Small random models, made in memory by a seeded generator: one for each part of a
//! [`ModelSpec`], several with many parts at once, and quantised ones.
//!
//! The numbers are chosen so that every part matters: biases are not zero, norm weights differ from
//! one, logits stand apart. A backend that leaves a part out is far off, not slightly.

use halfhitch_seam::model::{FeedForward, ModelSpec, PlainDecoder};
use halfhitch_seam::quant::pack_row;
use halfhitch_seam::{
    AffineScheme, AffineTensor, Bits, DType, GroupSize, LayerWeight, SeamResult, Tensor, Weight,
    WeightId, Weights,
};

use crate::random::Random;

/// A model of the suite's own.
#[derive(Clone, Debug)]
pub struct Generated {
    /// What it is there for.
    pub name: String,
    /// What it computes.
    pub spec: ModelSpec,
    /// Its numbers.
    pub weights: Weights,
}

/// How matrices are stored. Vectors are f32, save with halves, where all is.
#[derive(Clone, Copy, Debug)]
pub enum Storage {
    /// As numbers.
    Dense(DType),
    /// Packed.
    Affine(AffineScheme),
}

impl Generated {
    /// Fills a spec with random weights; the same name gives the same weights.
    ///
    /// # Errors
    /// `InvalidModel` where the spec is not valid or a scheme does not fit its shapes.
    pub fn new(name: &str, spec: ModelSpec, storage: Storage) -> SeamResult<Self> {
        spec.validate()?;
        let mut random = Random::from_name(name);
        let weights = spec
            .expected_weights()
            .into_iter()
            .map(|want| {
                let weight = match (storage, want.shape.as_slice()) {
                    (Storage::Affine(scheme), &[rows, columns]) => {
                        Weight::Affine(affine(&mut random, scheme, rows, columns)?)
                    }
                    (Storage::Affine(_), shape) => dense(&mut random, want.id, DType::F32, shape)?,
                    (Storage::Dense(dtype), shape) => dense(&mut random, want.id, dtype, shape)?,
                };
                Ok((want.id, weight))
            })
            .collect::<SeamResult<_>>()?;
        Ok(Self {
            name: name.into(),
            spec,
            weights,
        })
    }

    /// Tokens of this model's vocabulary; the same seed gives the same.
    pub fn tokens(&self, seed: &str, n: usize) -> Vec<u32> {
        let mut random = Random::from_name(seed);
        (0..n)
            .map(|_| random.below(self.spec.vocab_size) as u32)
            .collect()
    }
}

fn dense(random: &mut Random, id: WeightId, dtype: DType, shape: &[usize]) -> SeamResult<Weight> {
    let n = shape.iter().product();
    let spread = match (id, shape) {
        (WeightId::Embedding, _) => 1.0,
        // Sharp logits and a router that chooses clearly.
        (WeightId::Head | WeightId::Layer(_, LayerWeight::Router), &[_, columns]) => {
            6.0 / (columns as f32).sqrt()
        }
        (_, &[_, columns]) => 2.5 / (columns as f32).sqrt(),
        _ => 0.4,
    };
    let centre = if is_norm_weight(id) { 1.0 } else { 0.0 };
    let values: Vec<f32> = (0..n)
        .map(|_| centre + spread * random.symmetric())
        .collect();
    let bytes = to_bytes(dtype, &values);
    Tensor::new(dtype, shape.to_vec(), bytes.into()).map(Weight::Dense)
}

fn is_norm_weight(id: WeightId) -> bool {
    use LayerWeight as W;
    matches!(
        id,
        WeightId::FinalNorm
            | WeightId::Layer(
                _,
                W::PreAttentionNorm
                    | W::PostAttentionNorm
                    | W::PreFeedForwardNorm
                    | W::PostFeedForwardNorm
                    | W::QueryNorm
                    | W::KeyNorm
            )
    )
}

fn to_bytes(dtype: DType, values: &[f32]) -> Vec<u8> {
    values
        .iter()
        .flat_map(|&v| match dtype {
            DType::F16 => half::f16::from_f32(v).to_le_bytes().to_vec(),
            DType::BF16 => half::bf16::from_f32(v).to_le_bytes().to_vec(),
            _ => v.to_le_bytes().to_vec(),
        })
        .collect()
}

/// Random packed values; scales of either sign, biases that put a group's middle near zero.
fn affine(
    random: &mut Random,
    scheme: AffineScheme,
    rows: usize,
    columns: usize,
) -> SeamResult<AffineTensor> {
    let (width, groups) = (
        scheme.words_per_row(columns),
        scheme.groups_per_row(columns),
    );
    let top = scheme.bits.max_value();
    let mut words = vec![0u32; rows * width];
    for row in words.chunks_exact_mut(width.max(1)) {
        let values: Vec<u32> = (0..columns)
            .map(|_| random.below(top as usize + 1) as u32)
            .collect();
        pack_row(&values, scheme.bits, row);
    }
    let reach = 4.0 / (columns as f32).sqrt();
    let (mut scales, mut biases) = (Vec::new(), Vec::new());
    for _ in 0..rows * groups {
        let sign = if random.below(2) == 0 { 1.0 } else { -1.0 };
        let scale = sign * reach * (1.0 + 0.5 * random.symmetric()) / top as f32;
        scales.push(scale);
        biases.push(-scale * top as f32 * (0.5 + 0.1 * random.symmetric()));
    }
    let part = |values: &[f32]| {
        Tensor::new(
            scheme.scale_dtype,
            vec![rows, groups],
            to_bytes(scheme.scale_dtype, values).into(),
        )
    };
    let raw: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
    AffineTensor::new(
        scheme,
        Tensor::new(DType::U32, vec![rows, width], raw.into())?,
        part(&scales)?,
        part(&biases)?,
    )
}

/// The plain decoder that every other model varies: two layers, four heads on two, an untied head.
pub fn plain_spec() -> ModelSpec {
    let mut spec = PlainDecoder {
        vocab_size: 61,
        hidden_size: 32,
        intermediate: 48,
        layers: 2,
        heads: 4,
        kv_heads: 2,
        head_dim: 8,
        max_context: 512,
    }
    .spec();
    spec.architecture = "suite".into();
    spec.head.tied = false;
    spec
}

/// The plain decoder in f32.
///
/// # Errors
/// Never, unless the seam's own checks refuse the model.
pub fn plain() -> SeamResult<Generated> {
    Generated::new("plain", plain_spec(), Storage::Dense(DType::F32))
}

/// One layer of which every matrix can be packed in groups of 32, 64 and 128.
pub fn packable_spec() -> ModelSpec {
    let mut spec = plain_spec();
    spec.layers.truncate(1);
    spec.hidden_size = 128;
    spec.vocab_size = 40;
    let a = &mut spec.layers[0].attention;
    (a.head_dim, a.scale) = (32, 32f32.sqrt().recip());
    a.rope.iter_mut().for_each(|r| r.dims = 32);
    if let FeedForward::Gated(mlp) = &mut spec.layers[0].feed_forward {
        mlp.intermediate = 128;
    }
    spec
}

/// Every scheme of the format.
pub fn schemes() -> Vec<AffineScheme> {
    let mut out = Vec::new();
    for bits in Bits::ALL.into_iter().flat_map(|b| Bits::new(b.into())) {
        for group_size in GroupSize::ALL
            .into_iter()
            .flat_map(|g| GroupSize::new(g.into()))
        {
            for scale_dtype in [DType::F32, DType::F16, DType::BF16] {
                out.push(AffineScheme {
                    bits,
                    group_size,
                    scale_dtype,
                });
            }
        }
    }
    out
}

/// A model all of whose matrices are packed. `tied` makes the packed embedding the head too.
///
/// # Errors
/// As [`Generated::new`].
pub fn packed(scheme: AffineScheme, tied: bool) -> SeamResult<Generated> {
    let mut spec = packable_spec();
    spec.head.tied = tied;
    let name = format!(
        "affine-{}bit-g{}-{}{}",
        scheme.bits.get(),
        scheme.group_size.get(),
        scheme.scale_dtype,
        if tied { "-tied" } else { "" }
    );
    Generated::new(&name, spec, Storage::Affine(scheme))
}
