//! What is in a checkpoint, as plain data for display.

use std::collections::BTreeMap;

use halfhitch_seam::model::{FeedForward, RopeSpec};
use halfhitch_seam::{ModelFeature, TokenId, WeightForm, WeightId};
use serde::Serialize;

use super::Checkpoint;

/// A weight file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FileSummary {
    /// Name in the folder.
    pub name: String,
    /// Length in bytes.
    pub bytes: u64,
}

/// All weights that are stored in one form.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FormSummary {
    /// The form.
    pub form: WeightForm,
    /// The form in words: `affine 4-bit g32 (f16)`.
    pub label: String,
    /// Number of weights.
    pub weights: usize,
    /// Parameters in them.
    pub parameters: u64,
    /// Bytes they take, with scales and biases.
    pub bytes: u64,
}

/// One weight.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TensorSummary {
    /// Name in the file; of a quantised weight, that of its packed values.
    pub name: String,
    /// Name in the seam.
    pub weight: WeightId,
    /// Logical shape.
    pub shape: Vec<usize>,
    /// How it is stored.
    pub form: WeightForm,
    /// Bytes it takes, with scales and biases.
    pub bytes: u64,
}

/// A checkpoint without its weights' values. Where layers differ, the numbers are the first layer's
/// and `features` says so.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CheckpointSummary {
    /// The folder.
    pub path: String,
    /// `model_type`.
    pub architecture: String,
    /// Parameters, a tied head counted once.
    pub parameters: u64,
    /// Layers.
    pub layers: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width inside the feed-forward block.
    pub intermediate_size: usize,
    /// Query heads.
    pub heads: usize,
    /// Key-value heads.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Tokens in the vocabulary.
    pub vocab_size: usize,
    /// Tokens of context the model was made for.
    pub context: usize,
    /// Layers with a sliding window.
    pub windowed_layers: usize,
    /// The window of the first of them, in tokens.
    pub window: Option<usize>,
    /// Rotary position embedding.
    pub rope: Option<RopeSpec>,
    /// Whether the embedding serves as the head.
    pub tied_head: bool,
    /// What it needs beyond the plain llama decoder.
    pub features: Vec<ModelFeature>,
    /// Weight files.
    pub files: Vec<FileSummary>,
    /// Bytes of those files together.
    pub file_bytes: u64,
    /// Bytes of the weights that are used.
    pub weight_bytes: u64,
    /// `weight_bytes` in bits, divided by parameters.
    pub bits_per_weight: f64,
    /// Forms the weights are stored in, the largest first.
    pub forms: Vec<FormSummary>,
    /// Every weight, in the order of the computation.
    pub tensors: Vec<TensorSummary>,
    /// Tokens that end a text.
    pub stop_tokens: Vec<TokenId>,
    /// The token a text begins with.
    pub bos_token: Option<TokenId>,
    /// What a user should know.
    pub warnings: Vec<String>,
}

pub(super) fn summarise(checkpoint: &Checkpoint) -> CheckpointSummary {
    let spec = checkpoint.spec();
    let manifest = checkpoint.weights().manifest();
    let tensors: Vec<_> = spec
        .expected_weights()
        .into_iter()
        .filter_map(|expected| {
            let info = manifest.get(&expected.id)?;
            Some(TensorSummary {
                name: checkpoint.tensor_names.get(&expected.id)?.clone(),
                weight: expected.id,
                shape: info.shape.clone(),
                form: info.form,
                bytes: info.bytes(),
            })
        })
        .collect();
    let parameters = spec.parameters();
    let weight_bytes = tensors.iter().map(|t| t.bytes).sum();
    let windows = || spec.layers.iter().filter_map(|l| l.attention.window);
    let first = &spec.layers[0];
    CheckpointSummary {
        path: checkpoint.dir().display().to_string(),
        architecture: spec.architecture.clone(),
        parameters,
        layers: spec.layers.len(),
        hidden_size: spec.hidden_size,
        intermediate_size: match &first.feed_forward {
            FeedForward::MixtureOfExperts(moe) => moe.expert.intermediate,
            FeedForward::Gated(mlp) => mlp.intermediate,
            _ => 0,
        },
        heads: first.attention.heads,
        kv_heads: first.attention.kv_heads,
        head_dim: first.attention.head_dim,
        vocab_size: spec.vocab_size,
        context: spec.max_context,
        windowed_layers: windows().count(),
        window: windows().next(),
        rope: first.attention.rope,
        tied_head: spec.head.tied,
        features: spec.features().into_iter().collect(),
        files: checkpoint.files.clone(),
        file_bytes: checkpoint.files.iter().map(|f| f.bytes).sum(),
        weight_bytes,
        bits_per_weight: weight_bytes as f64 * 8.0 / parameters.max(1) as f64,
        forms: forms(&tensors),
        tensors,
        stop_tokens: checkpoint.stop_tokens().iter().copied().collect(),
        bos_token: checkpoint.bos_token(),
        warnings: checkpoint.warnings().to_vec(),
    }
}

fn forms(tensors: &[TensorSummary]) -> Vec<FormSummary> {
    let mut by_form: BTreeMap<WeightForm, FormSummary> = BTreeMap::new();
    for tensor in tensors {
        let entry = by_form.entry(tensor.form).or_insert_with(|| FormSummary {
            form: tensor.form,
            label: tensor.form.to_string(),
            weights: 0,
            parameters: 0,
            bytes: 0,
        });
        entry.weights += 1;
        entry.parameters += tensor.shape.iter().map(|&n| n as u64).product::<u64>();
        entry.bytes += tensor.bytes;
    }
    let mut out: Vec<_> = by_form.into_values().collect();
    out.sort_by_key(|f| std::cmp::Reverse(f.bytes));
    out
}
