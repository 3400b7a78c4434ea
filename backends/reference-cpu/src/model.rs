//! A model with its weights resident, in the shape of the computation.

use halfhitch_seam::model::{LayerSpec, MixtureOfExperts, ModelSpec, NormSpec};

use crate::math::activation::Function;
use crate::math::norm::normalise;
use crate::math::rope::Rope;
use crate::weights::{Linear, Matrix};

/// A normalisation with its numbers.
#[derive(Debug)]
pub struct Norm {
    /// The formula.
    pub spec: NormSpec,
    /// One factor an element.
    pub weight: Option<Vec<f32>>,
    /// One value an element.
    pub bias: Option<Vec<f32>>,
}

impl Norm {
    /// Normalises every run of `width` values of `x` by itself.
    pub fn apply(&self, x: &mut [f32], width: usize) {
        for run in x.chunks_exact_mut(width) {
            normalise(
                run,
                &self.spec,
                self.weight.as_deref(),
                self.bias.as_deref(),
            );
        }
    }
}

/// One gated MLP.
#[derive(Debug)]
pub struct Mlp {
    /// Non-linearity on the gate.
    pub activation: Function,
    /// To the wide side, through the non-linearity.
    pub gate: Linear,
    /// To the wide side.
    pub up: Linear,
    /// Back.
    pub down: Linear,
}

/// A router and its experts.
#[derive(Debug)]
pub struct Experts {
    /// The numbers.
    pub spec: MixtureOfExperts,
    /// Scores of the experts.
    pub router: Matrix,
    /// The experts.
    pub experts: Vec<Mlp>,
}

/// A feed-forward block.
#[derive(Debug)]
pub enum Block {
    /// One MLP.
    Gated(Box<Mlp>),
    /// Several, chosen by a router.
    Experts(Box<Experts>),
}

/// One layer.
#[derive(Debug)]
pub struct Layer {
    /// Its shapes and factors.
    pub spec: LayerSpec,
    /// Norm before attention.
    pub pre_attention: Option<Norm>,
    /// Query projection.
    pub query: Linear,
    /// Key projection.
    pub key: Linear,
    /// Value projection.
    pub value: Linear,
    /// Norm on queries.
    pub query_norm: Option<Norm>,
    /// Norm on keys.
    pub key_norm: Option<Norm>,
    /// Rotation of queries and keys.
    pub rope: Option<Rope>,
    /// Output projection.
    pub output: Linear,
    /// Norm on attention's output.
    pub post_attention: Option<Norm>,
    /// Norm before the feed-forward block.
    pub pre_feed_forward: Option<Norm>,
    /// The block.
    pub block: Block,
    /// Norm on the block's output.
    pub post_feed_forward: Option<Norm>,
}

/// A whole model.
#[derive(Debug)]
pub struct Model {
    /// Its shapes and factors.
    pub spec: ModelSpec,
    /// Rows are tokens.
    pub embedding: Matrix,
    /// First to last.
    pub layers: Vec<Layer>,
    /// Norm before the head.
    pub final_norm: Norm,
    /// The head's matrix, where it is not the embedding.
    pub head: Option<Matrix>,
    /// The head's bias.
    pub head_bias: Option<Vec<f32>>,
}

impl Model {
    /// The output head's matrix.
    pub fn head(&self) -> &Matrix {
        self.head.as_ref().unwrap_or(&self.embedding)
    }
}
