//! From tensors by name to the weights that a spec asks for.

use std::collections::{BTreeMap, BTreeSet};

use halfhitch_seam::model::ExpectedWeight;
use halfhitch_seam::{
    AffineTensor, DType, ModelSpec, ResultExt, SeamError, SeamResult, Tensor, Weight, WeightId,
    Weights,
};

use super::names::{Leaf, Names, prefix_of};
use super::quantization::Quantization;
use super::quote::{listed, quoted};
use super::shards::TensorTable;

/// All weights of a model.
pub(super) struct Assembled {
    pub(super) weights: Weights,
    /// The tensor that each weight is (the one called `weight` where it is quantised).
    pub(super) names: BTreeMap<WeightId, String>,
    pub(super) warnings: Vec<String>,
}

/// Finds every weight that `spec` asks for, and accounts for every tensor that it does not.
///
/// # Errors
/// `InvalidModel` for a weight that is missing or of another shape, for parts of a quantised one
/// that do not fit, and for a tensor inside the model that the spec has no place for; `Unsupported`
/// for another element type. Each names the tensor.
pub(super) fn assemble(
    spec: &ModelSpec,
    names: &Names,
    quantization: &Quantization,
    mut table: TensorTable,
) -> SeamResult<Assembled> {
    let prefix = prefix_of(&table);
    let mut out = BTreeMap::new();
    let mut tensor_names = BTreeMap::new();
    let mut modules = BTreeSet::new();
    for expected in spec.expected_weights() {
        let (module, leaf) = names.locate(expected.id, prefix).ok_or_else(|| {
            SeamError::unsupported(format!(
                "`{}` has no name in {} checkpoints",
                expected.id, spec.architecture
            ))
        })?;
        let name = format!("{module}.{}", leaf.name());
        let weight = take_weight(&mut table, quantization, &expected, &module, leaf, &name)
            .in_context(|| format!("tensor {}", quoted(&name)))?;
        out.insert(expected.id, weight);
        tensor_names.insert(expected.id, name);
        modules.insert(module);
    }
    let warnings = account(spec, prefix, &modules, &table)?;
    Ok(Assembled {
        weights: out.into_iter().collect(),
        names: tensor_names,
        warnings,
    })
}

fn take_weight(
    table: &mut TensorTable,
    quantization: &Quantization,
    expected: &ExpectedWeight,
    module: &str,
    leaf: Leaf,
    name: &str,
) -> SeamResult<Weight> {
    let tensor = take(table, name)?.ok_or_else(|| missing(expected.id))?;
    if let &[rows, columns] = expected.shape.as_slice()
        && leaf == Leaf::Weight
        && let Some(scales) = take(table, &format!("{module}.scales"))?
    {
        let biases = take(table, &format!("{module}.biases"))?.ok_or_else(|| {
            SeamError::invalid_model("it has scales, but no biases beside them")
                .hint("only MLX's affine form is read; other forms have no biases")
        })?;
        return affine(
            quantization,
            module,
            [rows, columns],
            tensor,
            scales,
            biases,
        );
    }
    if tensor.dtype() == DType::U32 {
        return Err(SeamError::invalid_model(
            "it is packed (U32), but has no scales beside it",
        ));
    }
    if tensor.shape() != expected.shape {
        return Err(SeamError::invalid_model(format!(
            "its shape is {:?}, the configuration asks for {:?}",
            tensor.shape(),
            expected.shape
        )));
    }
    Ok(Weight::Dense(tensor))
}

/// Puts a quantised matrix of `rows` x `columns` together. The configuration says its scheme; the
/// shapes must agree with it.
pub(super) fn affine(
    quantization: &Quantization,
    module: &str,
    [rows, columns]: [usize; 2],
    words: Tensor,
    scales: Tensor,
    biases: Tensor,
) -> SeamResult<Weight> {
    let dtype = scales.dtype();
    if !dtype.is_float() {
        return Err(SeamError::invalid_model("its scales are not numbers"));
    }
    let scheme = quantization.scheme(module, dtype)?;
    let group = scheme.group_size.get();
    if !columns.is_multiple_of(group) {
        return Err(SeamError::invalid_model(format!(
            "groups of {group} do not divide its {columns} columns"
        )));
    }
    let want = [rows, scheme.groups_per_row(columns)];
    if scales.shape() != want {
        return Err(SeamError::invalid_model(format!(
            "its scales have shape {:?}; {rows} x {columns} in groups of {group} needs {want:?}",
            scales.shape()
        )));
    }
    AffineTensor::new(scheme, words, scales, biases).map(Weight::Affine)
}

fn take(table: &mut TensorTable, name: &str) -> SeamResult<Option<Tensor>> {
    table
        .remove(name)
        .map(|raw| {
            raw.tensor()
                .in_context(|| format!("{}: {}", raw.file, quoted(name)))
        })
        .transpose()
}

fn missing(id: WeightId) -> SeamError {
    let error = SeamError::invalid_model("it is missing");
    match id {
        WeightId::Head => error.hint(
            "tie_word_embeddings is false, so the output head must be there; \
             a model without one is not a language model, or the key should be true",
        ),
        _ => error.hint("the download may be incomplete, or config.json is another model's"),
    }
}

/// Decides about the tensors that no weight took. Buffers that older programs saved are ignored; the
/// head of a model that ties it, and what lies outside the decoder, is left out with a warning, as
/// transformers does. Anything else inside the decoder would change the computation: an error.
fn account(
    spec: &ModelSpec,
    prefix: &str,
    modules: &BTreeSet<String>,
    left: &TensorTable,
) -> SeamResult<Vec<String>> {
    let mut unused = Vec::new();
    let mut tied = Vec::new();
    for name in left.keys() {
        let (module, leaf) = name.rsplit_once('.').unwrap_or(("", name));
        if is_buffer(name) {
            continue;
        }
        if module == "lm_head" && spec.head.tied && leaf != "bias" {
            tied.push(name.as_str());
            continue;
        }
        let in_layer = layer_of(name, prefix).is_some_and(|layer| layer < spec.layers.len());
        if in_layer || modules.contains(module) || module == "lm_head" {
            return Err(SeamError::invalid_model(format!(
                "tensor {} is there, but the configuration of {} has no place for it",
                quoted(name),
                spec.architecture
            ))
            .hint("config.json leaves out an option, or is another model's"));
        }
        unused.push(name.as_str());
    }
    let mut warnings = Vec::new();
    if !tied.is_empty() {
        warnings.push(format!(
            "{} not used: the configuration ties the head to the embedding",
            listed(&tied)
        ));
    }
    if !unused.is_empty() {
        warnings.push(format!(
            "{} not used: no part of the language model",
            listed(&unused)
        ));
    }
    Ok(warnings)
}

/// Buffers that are computed, not learned.
fn is_buffer(name: &str) -> bool {
    [".rotary_emb.inv_freq", ".position_ids", ".masked_bias"]
        .iter()
        .any(|suffix| name.ends_with(suffix))
}

fn layer_of(name: &str, prefix: &str) -> Option<usize> {
    let rest = name.strip_prefix(prefix)?.strip_prefix("layers.")?;
    rest.split_once('.')?.0.parse().ok()
}
