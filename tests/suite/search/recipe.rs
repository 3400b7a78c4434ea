//! Random models, and a sequence for each, in numbers that shrink towards the simplest.

use halfhitch_seam::model::{
    Activation, AttentionSpec, FeedForward, GatedMlp, HeadSpec, LayerSpec, ModelSpec, NormSpec,
    QkNorm, QkNormScope, RopeLayout, RopeScaling, RopeSpec,
};
use halfhitch_seam::{AffineScheme, Bits, DType, GroupSize, SeamResult, TokenId};
use proptest::prelude::*;
use proptest::strategy::ValueTree;

use super::runner;
use crate::models::{Generated, Storage};

/// Most tokens of a sequence.
const TOKENS: usize = 40;

/// A model and a sequence, in numbers that shrink towards the simplest.
#[derive(Clone, Debug)]
pub struct Recipe {
    /// llama, mistral, qwen2 or qwen3.
    family: u8,
    layers: usize,
    kv_heads: usize,
    group: usize,
    head_dim: usize,
    hidden: usize,
    intermediate: usize,
    vocabulary: usize,
    flags: [bool; 3],
    activation: u8,
    scaling: u8,
    theta: u8,
    window: usize,
    storage: u8,
    scheme: [u8; 3],
    seed: u64,
    tokens: Vec<u16>,
    decode: usize,
}

pub(super) fn recipes() -> impl Strategy<Value = Recipe> {
    let shape = (
        1..=3usize,
        1..=3usize,
        1..=3usize,
        0..=7usize,
        0..=7usize,
        0..=7usize,
    );
    let parts = (
        0..4u8,
        any::<[bool; 3]>(),
        0..3u8,
        0..3u8,
        0..3u8,
        0..=9usize,
    );
    let stored = (0..6u8, [0..6u8, 0..3u8, 0..3u8], any::<u64>().no_shrink());
    let input = (
        2..=97usize,
        prop::collection::vec(any::<u16>(), 2..=TOKENS),
        0..=20usize,
    );
    (shape, parts, stored, input).prop_map(|(shape, parts, stored, input)| {
        let (layers, kv_heads, group, head_dim, hidden, intermediate) = shape;
        let (family, flags, activation, scaling, theta, window) = parts;
        let (storage, scheme, seed) = stored;
        let (vocabulary, tokens, decode) = input;
        Recipe {
            family,
            layers,
            kv_heads,
            group,
            head_dim,
            hidden,
            intermediate,
            vocabulary,
            flags,
            activation,
            scaling,
            theta,
            window,
            storage,
            scheme,
            seed,
            tokens,
            decode,
        }
    })
}

impl Recipe {
    fn scheme(&self) -> SeamResult<Option<AffineScheme>> {
        // As many packed as dense ones.
        if self.storage < 3 {
            return Ok(None);
        }
        let [bits, group, scales] = self.scheme.map(usize::from);
        Ok(Some(AffineScheme {
            bits: Bits::new(Bits::ALL[bits % 6].into())?,
            group_size: GroupSize::new(GroupSize::ALL[group % 3].into())?,
            scale_dtype: [DType::F32, DType::F16, DType::BF16][scales % 3],
        }))
    }

    fn spec(&self) -> SeamResult<ModelSpec> {
        let scheme = self.scheme()?;
        // A packed row is whole groups. Dense widths are any, but not so small that a norm magnifies
        // rounding.
        let width = |n: usize| match scheme {
            Some(s) => s.group_size.get() * (1 + n % 2),
            None => 8 + 3 * n,
        };
        let head_dim = match scheme {
            Some(s) => s.group_size.get(),
            None => 4 + 2 * self.head_dim,
        };
        let heads = self.kv_heads * self.group;
        let [tied, attention_bias, mlp_bias] = self.flags;
        let (qkv_bias, output_bias, mlp_bias) = match self.family {
            0 => (attention_bias, attention_bias, mlp_bias),
            1 => (false, false, false),
            2 => (true, false, false),
            _ => (attention_bias, attention_bias, false),
        };
        let norm = NormSpec::rms(1e-5);
        let layer = |i: usize| LayerSpec {
            pre_attention: Some(norm),
            attention: AttentionSpec {
                heads,
                kv_heads: self.kv_heads,
                head_dim,
                scale: (head_dim as f64).powf(-0.5) as f32,
                rope: Some(RopeSpec {
                    dims: head_dim,
                    theta: [10_000.0, 100.0, 1e6][usize::from(self.theta % 3)],
                    scaling: self.rope_scaling(),
                    layout: RopeLayout::HalfSplit,
                }),
                // Of every layer, or with a family that has it of every other.
                window: match (self.family, self.window) {
                    (_, 0) | (0, _) => None,
                    (1, window) => Some(window),
                    (_, window) => i.is_multiple_of(2).then_some(window),
                },
                softcap: None,
                qk_norm: (self.family == 3).then_some(QkNorm {
                    scope: QkNormScope::Head,
                    norm,
                }),
                qkv_bias,
                output_bias,
            },
            post_attention: None,
            pre_feed_forward: Some(norm),
            feed_forward: FeedForward::Gated(GatedMlp {
                intermediate: width(self.intermediate),
                activation: [Activation::Silu, Activation::GeluTanh, Activation::GeluErf]
                    [usize::from(self.activation % 3)],
                bias: mlp_bias,
            }),
            post_feed_forward: None,
            residual_scale: 1.0,
        };
        Ok(ModelSpec {
            architecture: ["llama", "mistral", "qwen2", "qwen3"][usize::from(self.family % 4)]
                .into(),
            vocab_size: self.vocabulary,
            hidden_size: width(self.hidden),
            max_context: 64,
            embedding_scale: 1.0,
            layers: (0..self.layers).map(layer).collect(),
            final_norm: norm,
            head: HeadSpec {
                tied,
                bias: false,
                softcap: None,
                scale: 1.0,
            },
        })
    }

    fn rope_scaling(&self) -> Option<RopeScaling> {
        match self.scaling {
            0 => None,
            1 => Some(RopeScaling::Linear { factor: 2.5 }),
            _ => Some(RopeScaling::Llama3 {
                factor: 8.0,
                low_freq_factor: 1.0,
                high_freq_factor: 4.0,
                original_context: 32.0,
            }),
        }
    }

    /// The model.
    ///
    /// # Errors
    /// Never, unless the seam's own checks refuse it.
    pub fn build(&self) -> SeamResult<Generated> {
        let storage = match (self.scheme()?, self.storage) {
            (Some(scheme), _) => Storage::Affine(scheme),
            (None, 1) => Storage::Dense(DType::F16),
            (None, 2) => Storage::Dense(DType::BF16),
            (None, _) => Storage::Dense(DType::F32),
        };
        Generated::new(&format!("random {:016x}", self.seed), self.spec()?, storage)
    }

    /// The sequence.
    pub fn tokens(&self) -> Vec<TokenId> {
        let token = |&t: &u16| TokenId::from(t) % self.vocabulary as TokenId;
        self.tokens.iter().map(token).collect()
    }

    /// How many of its tokens, at the end, run as decode steps; at most half, as the gate has it.
    pub fn decode(&self) -> usize {
        self.decode.min(self.tokens.len() / 2)
    }
}

/// Some recipes, for tests of what is made of them.
pub fn sample(seed: u64, count: usize) -> Vec<Recipe> {
    let mut runner = runner(seed, 1, 0);
    let strategy = recipes();
    (0..count)
        .filter_map(|_| strategy.new_tree(&mut runner).ok())
        .map(|tree| tree.current())
        .collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn recipes_are_models_of_every_family_and_kind_of_storage() {
        let recipes = sample(1, 200);
        let mut kinds = BTreeSet::new();
        for recipe in &recipes {
            let model = recipe.build().unwrap_or_else(|e| panic!("{e}: {recipe:?}"));
            assert!(
                recipe
                    .tokens()
                    .iter()
                    .all(|&t| (t as usize) < model.spec.vocab_size)
            );
            assert!(recipe.decode() * 2 <= recipe.tokens().len());
            kinds.insert((model.spec.architecture.clone(), recipe.storage));
        }
        assert_eq!(kinds.len(), 4 * 6);
        let again = sample(1, 200);
        assert_eq!(format!("{recipes:?}"), format!("{again:?}"));
        assert_ne!(format!("{recipes:?}"), format!("{:?}", sample(2, 200)));
    }
}
