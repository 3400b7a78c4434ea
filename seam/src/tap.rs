//! Intermediate results of a model, for finding where two backends part.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::error::{ErrorCode, SeamError, SeamResult};

/// A place in the function of the [`model`](crate::model) page. Every one is `[tokens, width]`, f32,
/// and stands here in the order of the computation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum TapPoint {
    /// Embeddings times their scale: the residual stream before the first layer.
    Embedding,
    /// What queries, keys and values are projected from.
    PreAttentionNorm,
    /// `h·Wq + bq`, before norm and rope.
    QueryProjection,
    /// `h·Wk + bk`, before norm and rope.
    KeyProjection,
    /// `h·Wv + bv`.
    Value,
    /// Queries as the scores read them, after norm and rope.
    Query,
    /// Keys as the cache takes them, after norm and rope.
    Key,
    /// `softmax(scores)·v` of all heads.
    AttentionMix,
    /// `a·Wo + bo`.
    AttentionOutput,
    /// The norm after attention, where the layer has one.
    PostAttentionNorm,
    /// The residual stream after attention was added.
    AttentionResidual,
    /// What the feed-forward block reads.
    PreFeedForwardNorm,
    /// `h·Wgate + bgate`, before the non-linearity; not of a mixture of experts.
    Gate,
    /// `h·Wup + bup`; not of a mixture of experts.
    Up,
    /// `act(gate) * up`; not of a mixture of experts.
    FeedForwardProduct,
    /// The block's output.
    FeedForwardOutput,
    /// The norm after the block, where the layer has one.
    PostFeedForwardNorm,
    /// The residual stream after the layer.
    Residual,
    /// What the head reads.
    FinalNorm,
    /// Logits, after soft cap and scale.
    Logits,
}

impl TapPoint {
    /// Every point, in the order of the computation.
    pub const ALL: [Self; 20] = [
        Self::Embedding,
        Self::PreAttentionNorm,
        Self::QueryProjection,
        Self::KeyProjection,
        Self::Value,
        Self::Query,
        Self::Key,
        Self::AttentionMix,
        Self::AttentionOutput,
        Self::PostAttentionNorm,
        Self::AttentionResidual,
        Self::PreFeedForwardNorm,
        Self::Gate,
        Self::Up,
        Self::FeedForwardProduct,
        Self::FeedForwardOutput,
        Self::PostFeedForwardNorm,
        Self::Residual,
        Self::FinalNorm,
        Self::Logits,
    ];

    /// The name for people, lower case.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Embedding => "embedding",
            Self::PreAttentionNorm => "norm before attention",
            Self::QueryProjection => "query projection",
            Self::KeyProjection => "key projection",
            Self::Value => "value",
            Self::Query => "query after norm and rope",
            Self::Key => "key after norm and rope",
            Self::AttentionMix => "attention's weighted values",
            Self::AttentionOutput => "attention output",
            Self::PostAttentionNorm => "norm after attention",
            Self::AttentionResidual => "residual after attention",
            Self::PreFeedForwardNorm => "norm before feed-forward",
            Self::Gate => "gate projection",
            Self::Up => "up projection",
            Self::FeedForwardProduct => "feed-forward product",
            Self::FeedForwardOutput => "feed-forward output",
            Self::PostFeedForwardNorm => "norm after feed-forward",
            Self::Residual => "residual after the layer",
            Self::FinalNorm => "final norm",
            Self::Logits => "logits",
        }
    }
}

impl fmt::Display for TapPoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.label())
    }
}

/// Which intermediate result: the layer, where the point is inside one, and the point.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct TapSite {
    /// The layer, from 0; none for embedding, final norm and logits.
    pub layer: Option<usize>,
    /// The place.
    pub point: TapPoint,
}

impl fmt::Display for TapSite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.layer {
            Some(layer) => write!(f, "layer {layer}, {}", self.point),
            None => self.point.fmt(f),
        }
    }
}

/// An intermediate result.
#[derive(Clone, Debug, PartialEq)]
pub struct Tap {
    /// Which.
    pub site: TapSite,
    /// `[tokens, width]`.
    pub shape: [usize; 2],
    /// The numbers, row-major.
    pub values: Vec<f32>,
}

impl Tap {
    /// Puts a result together.
    ///
    /// # Errors
    /// `Backend` where the values are not `tokens * width`, or one of those is 0.
    pub fn new(site: TapSite, shape: [usize; 2], values: Vec<f32>) -> SeamResult<Self> {
        let [tokens, width] = shape;
        if tokens == 0 || width == 0 || tokens.checked_mul(width) != Some(values.len()) {
            return Err(SeamError::new(
                ErrorCode::Backend,
                format!("{site}: {} values of shape {shape:?}", values.len()),
            ));
        }
        Ok(Self {
            site,
            shape,
            values,
        })
    }

    /// One row a token.
    pub fn rows(&self) -> impl Iterator<Item = &[f32]> {
        self.values.chunks_exact(self.shape[1])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_stand_in_the_order_of_the_computation() {
        assert!(TapPoint::ALL.is_sorted());
    }

    #[test]
    fn a_tap_has_as_many_values_as_its_shape_says() {
        let site = TapSite {
            layer: Some(2),
            point: TapPoint::Gate,
        };
        assert!(Tap::new(site, [2, 3], vec![0.0; 6]).is_ok());
        for (shape, n) in [([2, 3], 5), ([0, 3], 0), ([usize::MAX, 2], 6)] {
            let e = Tap::new(site, shape, vec![0.0; n]).unwrap_err();
            assert!(e.message.starts_with("layer 2, gate projection"), "{e}");
        }
    }
}
