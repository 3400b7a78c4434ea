//! Names of weights, apart from any checkpoint's naming, and the shapes a spec asks for.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::layer::{FeedForward, GatedMlp, NormSpec, QkNormScope};
use super::spec::ModelSpec;

/// A weight inside a layer. Matrices are `[outputs, inputs]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
#[allow(missing_docs)] // the names say it: projection, its bias, norm, its bias
pub enum LayerWeight {
    PreAttentionNorm,
    PreAttentionNormBias,
    Query,
    QueryBias,
    Key,
    KeyBias,
    Value,
    ValueBias,
    QueryNorm,
    QueryNormBias,
    KeyNorm,
    KeyNormBias,
    Output,
    OutputBias,
    PostAttentionNorm,
    PostAttentionNormBias,
    PreFeedForwardNorm,
    PreFeedForwardNormBias,
    Gate,
    GateBias,
    Up,
    UpBias,
    Down,
    DownBias,
    PostFeedForwardNorm,
    PostFeedForwardNormBias,
    Router,
    ExpertGate(u32),
    ExpertGateBias(u32),
    ExpertUp(u32),
    ExpertUpBias(u32),
    ExpertDown(u32),
    ExpertDownBias(u32),
}

/// A weight of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum WeightId {
    /// Token embedding, `[vocabulary, hidden]`; also the head where that is tied.
    Embedding,
    /// A layer's weight.
    Layer(u32, LayerWeight),
    /// Weight of the last norm.
    FinalNorm,
    /// Bias of the last norm.
    FinalNormBias,
    /// Output head, `[vocabulary, hidden]`, where it is not tied.
    Head,
    /// Bias of the head.
    HeadBias,
}

impl fmt::Display for WeightId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Layer(layer, weight) => write!(f, "layer {layer} {weight:?}"),
            other => write!(f, "{other:?}"),
        }
    }
}

/// What a spec asks of one weight.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpectedWeight {
    /// Which.
    pub id: WeightId,
    /// Its shape: `[outputs, inputs]` for a matrix, `[n]` for norms and biases.
    pub shape: Vec<usize>,
}

impl ExpectedWeight {
    /// Whether it is a matrix, which may be quantised; vectors never are.
    pub fn is_matrix(&self) -> bool {
        self.shape.len() == 2
    }
}

impl ModelSpec {
    /// Every weight the model has, with its shape, in the order of the computation. A set of
    /// [`Weights`](crate::Weights) fits the spec iff it holds exactly these.
    pub fn expected_weights(&self) -> Vec<ExpectedWeight> {
        let mut out = Collector(Vec::new());
        let (vocab, hidden) = (self.vocab_size, self.hidden_size);
        out.push(WeightId::Embedding, &[vocab, hidden]);
        for (i, layer) in self.layers.iter().enumerate() {
            use LayerWeight as W;
            let id = |w| WeightId::Layer(i as u32, w);
            let a = &layer.attention;
            let (q, kv) = (a.query_width(), a.kv_width());
            let mut norm = |spec: &Option<NormSpec>, weight, bias, width| {
                if let Some(norm) = spec {
                    out.push_if(norm.weight, id(weight), &[width]);
                    out.push_if(norm.bias, id(bias), &[width]);
                }
            };
            norm(
                &layer.pre_attention,
                W::PreAttentionNorm,
                W::PreAttentionNormBias,
                hidden,
            );
            norm(
                &layer.post_attention,
                W::PostAttentionNorm,
                W::PostAttentionNormBias,
                hidden,
            );
            norm(
                &layer.pre_feed_forward,
                W::PreFeedForwardNorm,
                W::PreFeedForwardNormBias,
                hidden,
            );
            norm(
                &layer.post_feed_forward,
                W::PostFeedForwardNorm,
                W::PostFeedForwardNormBias,
                hidden,
            );
            if let Some(qk) = &a.qk_norm {
                let (qw, kw) = match qk.scope {
                    QkNormScope::Head => (a.head_dim, a.head_dim),
                    QkNormScope::All => (q, kv),
                };
                norm(&Some(qk.norm), W::QueryNorm, W::QueryNormBias, qw);
                norm(&Some(qk.norm), W::KeyNorm, W::KeyNormBias, kw);
            }
            for (weight, bias, rows) in [
                (W::Query, W::QueryBias, q),
                (W::Key, W::KeyBias, kv),
                (W::Value, W::ValueBias, kv),
            ] {
                out.push(id(weight), &[rows, hidden]);
                out.push_if(a.qkv_bias, id(bias), &[rows]);
            }
            out.push(id(W::Output), &[hidden, q]);
            out.push_if(a.output_bias, id(W::OutputBias), &[hidden]);
            match &layer.feed_forward {
                FeedForward::Gated(mlp) => out.mlp(
                    i,
                    hidden,
                    mlp,
                    [
                        (W::Gate, W::GateBias),
                        (W::Up, W::UpBias),
                        (W::Down, W::DownBias),
                    ],
                ),
                FeedForward::MixtureOfExperts(moe) => {
                    out.push(id(W::Router), &[moe.experts, hidden]);
                    for e in 0..moe.experts as u32 {
                        out.mlp(
                            i,
                            hidden,
                            &moe.expert,
                            [
                                (W::ExpertGate(e), W::ExpertGateBias(e)),
                                (W::ExpertUp(e), W::ExpertUpBias(e)),
                                (W::ExpertDown(e), W::ExpertDownBias(e)),
                            ],
                        );
                    }
                }
            }
        }
        out.push_if(self.final_norm.weight, WeightId::FinalNorm, &[hidden]);
        out.push_if(self.final_norm.bias, WeightId::FinalNormBias, &[hidden]);
        out.push_if(!self.head.tied, WeightId::Head, &[vocab, hidden]);
        out.push_if(self.head.bias, WeightId::HeadBias, &[vocab]);
        out.0
    }

    /// Number of parameters.
    pub fn parameters(&self) -> u64 {
        self.expected_weights()
            .iter()
            .map(|w| w.shape.iter().map(|&n| n as u64).product::<u64>())
            .sum()
    }
}

struct Collector(Vec<ExpectedWeight>);

impl Collector {
    fn push(&mut self, id: WeightId, shape: &[usize]) {
        self.0.push(ExpectedWeight {
            id,
            shape: shape.to_vec(),
        });
    }

    fn push_if(&mut self, there: bool, id: WeightId, shape: &[usize]) {
        if there {
            self.push(id, shape);
        }
    }

    fn mlp(
        &mut self,
        layer: usize,
        hidden: usize,
        mlp: &GatedMlp,
        names: [(LayerWeight, LayerWeight); 3],
    ) {
        let wide = mlp.intermediate;
        let shapes = [[wide, hidden], [wide, hidden], [hidden, wide]];
        for ((weight, bias), shape) in names.into_iter().zip(shapes) {
            self.push(WeightId::Layer(layer as u32, weight), &shape);
            self.push_if(mlp.bias, WeightId::Layer(layer as u32, bias), &shape[..1]);
        }
    }
}
