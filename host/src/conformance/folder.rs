//! A model of the suite as a checkpoint folder, so that a failure can be looked at with every other
//! command.

use std::path::Path;

use halfhitch_seam::model::{Activation, FeedForward, QkNormScope, RopeScaling};
use halfhitch_seam::{
    DType, ModelSpec, SeamError, SeamResult, Tensor, TokenId, Weight, WeightId, Weights,
};
use serde_json::{Value, json};

use crate::checkpoint::{Checkpoint, tensor_module};
use crate::import::folder::{PlannedTensor, SafetensorsWriter, StagedFolder, TensorId, WEIGHTS};

/// The file with the tokens that a failure was seen with, as `verify --tokens` takes them.
pub const TOKENS: &str = "tokens.txt";

/// Writes a model and tokens to a folder, which must not be there yet; reads it again, and holds what
/// is read to what was written.
///
/// # Errors
/// `Unsupported` where no checkpoint's configuration can say what the model computes; `Io`;
/// `InvalidInput` where something is at `folder`.
pub fn save(
    folder: &Path,
    spec: &ModelSpec,
    weights: &Weights,
    tokens: &[TokenId],
) -> SeamResult<()> {
    let staged = StagedFolder::create(folder, false)?;
    staged.write_json("config.json", &config(spec, weights)?)?;
    let (plan, parts): (Vec<PlannedTensor>, Vec<&Tensor>) = tensors(weights)?.into_iter().unzip();
    let mut writer = SafetensorsWriter::create(&staged.path(WEIGHTS), &plan)?;
    for (i, part) in parts.into_iter().enumerate() {
        writer.append(TensorId(i), part.bytes())?;
    }
    writer.finish()?;
    let line: Vec<String> = tokens.iter().map(ToString::to_string).collect();
    staged.write(TOKENS, format!("{}\n", line.join(" ")).as_bytes())?;
    let read = Checkpoint::open(staged.path(""))?;
    let same = ModelSpec {
        architecture: spec.architecture.clone(),
        ..read.spec().clone()
    };
    if same != *spec {
        return Err(inexpressible("it would be read as another model"));
    }
    drop(read);
    staged.commit()
}

fn inexpressible(why: &str) -> SeamError {
    SeamError::unsupported(format!("the model has no form as a checkpoint: {why}"))
}

/// Every tensor of the file, with its data.
fn tensors(weights: &Weights) -> SeamResult<Vec<(PlannedTensor, &Tensor)>> {
    let mut out = Vec::new();
    for (id, weight) in weights.iter() {
        let (module, leaf) =
            tensor_module(id).ok_or_else(|| inexpressible(&format!("{id} has no name")))?;
        let mut add = |leaf: &str, tensor| {
            let planned = PlannedTensor {
                name: format!("{module}.{leaf}"),
                dtype: Tensor::dtype(tensor),
                shape: Tensor::shape(tensor).to_vec(),
            };
            out.push((planned, tensor));
        };
        match weight {
            Weight::Dense(tensor) => add(leaf, tensor),
            Weight::Affine(a) => {
                add("weight", a.words());
                add("scales", a.scales());
                add("biases", a.biases());
            }
            other => return Err(inexpressible(&format!("{id} is {}", other.form()))),
        }
    }
    Ok(out)
}

/// The configuration of the family that has what the model has.
fn config(spec: &ModelSpec, weights: &Weights) -> SeamResult<Value> {
    let first = spec
        .layers
        .first()
        .ok_or_else(|| inexpressible("it has no layers"))?;
    let FeedForward::Gated(mlp) = first.feed_forward else {
        return Err(inexpressible("it has experts"));
    };
    let norm = first
        .pre_attention
        .ok_or_else(|| inexpressible("a layer has no norm"))?;
    let a = &first.attention;
    let rope = a.rope.ok_or_else(|| inexpressible("a layer has no rope"))?;
    let windows: Vec<Option<usize>> = spec.layers.iter().map(|l| l.attention.window).collect();
    let window = windows.iter().flatten().next().copied();
    let family = match (a.qk_norm, a.qkv_bias, a.output_bias) {
        (Some(qk), ..) if qk.scope == QkNormScope::Head => "qwen3",
        (Some(_), ..) => return Err(inexpressible("its query-key norm is over all heads")),
        (None, true, false) => "qwen2",
        (None, false, false) if window.is_some() => "mistral",
        _ => "llama",
    };
    let activation = match mlp.activation {
        Activation::Silu => "silu",
        Activation::GeluTanh => "gelu_pytorch_tanh",
        Activation::GeluErf => "gelu",
        _ => return Err(inexpressible("its activation has no name")),
    };
    let scaling = match rope.scaling {
        None => Value::Null,
        Some(RopeScaling::Linear { factor }) => json!({"rope_type": "linear", "factor": factor}),
        Some(RopeScaling::Llama3 {
            factor,
            low_freq_factor,
            high_freq_factor,
            original_context,
        }) => json!({
            "rope_type": "llama3",
            "factor": factor,
            "low_freq_factor": low_freq_factor,
            "high_freq_factor": high_freq_factor,
            "original_max_position_embeddings": original_context,
        }),
        Some(_) => return Err(inexpressible("its rope scaling has no name")),
    };
    let mut config = json!({
        "architectures": ["ForCausalLM"],
        "model_type": family,
        "vocab_size": spec.vocab_size,
        "hidden_size": spec.hidden_size,
        "intermediate_size": mlp.intermediate,
        "num_hidden_layers": spec.layers.len(),
        "num_attention_heads": a.heads,
        "num_key_value_heads": a.kv_heads,
        "head_dim": a.head_dim,
        "max_position_embeddings": spec.max_context,
        "rms_norm_eps": f64::from(norm.eps),
        "rope_theta": rope.theta,
        "rope_scaling": scaling,
        "hidden_act": activation,
        "tie_word_embeddings": spec.head.tied,
        "attention_bias": a.output_bias,
        "mlp_bias": mlp.bias,
    });
    match (family, window) {
        ("mistral", _) => config["sliding_window"] = json!(window),
        ("llama", Some(_)) => return Err(inexpressible("its windows go with its biases")),
        (_, Some(_)) => {
            config["use_sliding_window"] = json!(true);
            config["sliding_window"] = json!(window);
            let kind = |w: &Option<usize>| match w {
                Some(_) => "sliding_attention",
                None => "full_attention",
            };
            config["layer_types"] = windows.iter().map(kind).collect();
        }
        _ => {}
    }
    let schemes = weights.iter().find_map(|(_, w)| match w {
        Weight::Affine(a) => Some(a.scheme()),
        _ => None,
    });
    if let Some(scheme) = schemes {
        config["quantization"] = json!({
            "group_size": scheme.group_size.get(),
            "bits": scheme.bits.get(),
        });
    }
    let embedding = weights.get(WeightId::Embedding)?.form();
    config["torch_dtype"] = json!(match embedding {
        halfhitch_seam::WeightForm::Dense(DType::F16) => "float16",
        halfhitch_seam::WeightForm::Dense(DType::BF16) => "bfloat16",
        _ => "float32",
    });
    Ok(config)
}

#[cfg(test)]
mod tests {
    use super::*;
    use halfhitch_seam::ErrorCode;
    use halfhitch_suite::features;
    use halfhitch_suite::search::{Recipe, sample};

    #[test]
    fn what_is_saved_is_read_as_the_same_model() {
        let folder = tempfile::tempdir().unwrap();
        for (i, recipe) in sample(7, 60).into_iter().enumerate() {
            let model = Recipe::build(&recipe).unwrap();
            let to = folder.path().join(i.to_string());
            save(&to, &model.spec, &model.weights, &[1, 0, 1])
                .unwrap_or_else(|e| panic!("{e}: {recipe:?}"));
            let read = Checkpoint::open(&to).unwrap();
            let bits = |w: &Weights| -> Vec<(WeightId, Vec<u32>)> {
                let values = |w: &Weight| w.to_f32().iter().map(|v| v.to_bits()).collect();
                w.iter().map(|(id, w)| (id, values(w))).collect()
            };
            assert_eq!(bits(read.weights()), bits(&model.weights), "{recipe:?}");
            assert_eq!(std::fs::read_to_string(to.join(TOKENS)).unwrap(), "1 0 1\n");
        }
    }

    #[test]
    fn what_no_configuration_says_is_refused_and_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        for name in [
            "experts",
            "logit-softcap",
            "no-rope",
            "rope-partial",
            "layer-norm",
        ] {
            let model = features::single(name).unwrap();
            let to = folder.path().join(name);
            let error = save(&to, &model.spec, &model.weights, &[1]).unwrap_err();
            assert_eq!(error.code, ErrorCode::Unsupported, "{name}: {error}");
        }
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
