//! Folders that are unusual and right.

mod checkpoint_support;

use std::collections::BTreeMap;
use std::fs;

use checkpoint_support::{Folder, QUANTISED, f32s, quantise};
use halfhitch::checkpoint::Checkpoint;
use halfhitch_seam::{DType, LayerWeight, WeightForm, WeightId};
use safetensors::Dtype;
use serde_json::json;

fn open(folder: &Folder) -> Checkpoint {
    Checkpoint::open(folder.path()).unwrap_or_else(|e| panic!("{e}"))
}

#[test]
fn every_width_group_and_scale_type_is_read() {
    let id = WeightId::Layer(1, LayerWeight::Down);
    let types = [
        (Dtype::F16, DType::F16),
        (Dtype::BF16, DType::BF16),
        (Dtype::F32, DType::F32),
    ];
    for bits in [2, 3, 4, 5, 6, 8] {
        for group in [32, 64, 128] {
            for (stored, want) in types {
                let mut folder = Folder::new();
                folder.set(json!({
                    "intermediate_size": 128,
                    "quantization": { "group_size": group, "bits": bits },
                }));
                folder.tensors(|t| {
                    for layer in 0..2 {
                        for (module, shape) in
                            [("gate", [128, 32]), ("up", [128, 32]), ("down", [32, 128])]
                        {
                            let name = format!("model.layers.{layer}.mlp.{module}_proj.weight");
                            t.insert(name, f32s(&shape, 0.0));
                        }
                    }
                    quantise(t, QUANTISED, [32, 128], bits, group, stored);
                });
                let checkpoint = open(&folder);
                let weight = checkpoint.weights().get(id).unwrap();
                assert_eq!(weight.shape(), [32, 128]);
                let WeightForm::Affine(scheme) = weight.form() else {
                    panic!("{:?}", weight.form())
                };
                assert_eq!(scheme.bits.get(), bits);
                assert_eq!(scheme.group_size.get(), group);
                assert_eq!(scheme.scale_dtype, want);
                assert!(weight.to_f32().iter().all(|&v| v == 0.0));
            }
        }
    }
}

#[test]
fn stop_tokens_of_both_files_and_only_of_the_vocabulary() {
    let mut folder = Folder::new();
    folder.set(json!({ "eos_token_id": [2, 48] }));
    folder.write("generation_config.json", r#"{"eos_token_id": [5, 7]}"#);
    let checkpoint = open(&folder);
    let stop: Vec<_> = checkpoint.stop_tokens().iter().copied().collect();
    assert_eq!(stop, [2, 5, 7]);
    assert_eq!(checkpoint.bos_token(), Some(1));
    assert!(checkpoint.warnings()[0].contains("eos_token_id 48"));
}

#[test]
fn a_head_beside_a_tied_embedding_is_left_out() {
    let mut folder = Folder::new();
    folder.set(json!({ "tie_word_embeddings": true }));
    let checkpoint = open(&folder);
    assert!(checkpoint.weights().get(WeightId::Head).is_err());
    assert!(checkpoint.warnings()[0].contains("`lm_head.weight` not used"));
    folder.tensors(|t| drop(t.remove("lm_head.weight")));
    assert_eq!(open(&folder).warnings(), &[] as &[String]);
}

#[test]
fn buffers_are_ignored_and_other_models_tensors_are_named() {
    let mut folder = Folder::new();
    folder.tensors(|t| {
        let name = "model.layers.0.self_attn.rotary_emb.inv_freq";
        t.insert(name.into(), f32s(&[4], 1.0));
    });
    assert_eq!(open(&folder).warnings(), &[] as &[String]);
    folder.tensors(|t| {
        for i in 0..5 {
            t.insert(format!("vision.{i}.weight"), f32s(&[4], 1.0));
        }
        t.insert("model.layers.2.mlp.up_proj.weight".into(), f32s(&[4], 1.0));
    });
    let checkpoint = open(&folder);
    assert_eq!(checkpoint.warnings().len(), 1);
    assert!(
        checkpoint.warnings()[0].contains("3 more not used"),
        "{:?}",
        checkpoint.warnings()
    );
}

#[test]
fn shards_are_read_and_what_the_index_forgets_is_named() {
    let folder = Folder::new();
    let single = open(&folder);
    folder.split(None);
    let sharded = open(&folder);
    assert_eq!(sharded.weights().manifest(), single.weights().manifest());
    assert_eq!(sharded.summary().files.len(), 2);
    let mut map = folder.weight_map();
    map.remove("lm_head.weight");
    folder.write(
        "model.safetensors.index.json",
        json!({ "weight_map": map }).to_string(),
    );
    let forgetful = open(&folder);
    assert_eq!(forgetful.weights().manifest(), single.weights().manifest());
    assert!(forgetful.warnings()[0].contains("does not name `lm_head.weight`"));
}

#[test]
fn names_without_the_prefix_of_the_model_are_understood() {
    let mut folder = Folder::new();
    folder.tensors(|t| {
        let bare: BTreeMap<_, _> = std::mem::take(t)
            .into_iter()
            .map(|(name, tensor)| {
                let name = name
                    .strip_prefix("model.")
                    .map(str::to_owned)
                    .unwrap_or(name);
                (name, tensor)
            })
            .collect();
        *t = bare;
    });
    let checkpoint = open(&folder);
    assert_eq!(checkpoint.summary().tensors[0].name, "embed_tokens.weight");
}

#[cfg(unix)]
#[test]
fn links_to_blobs_are_followed_as_download_caches_make_them() {
    let folder = Folder::new();
    let blobs = tempfile::tempdir().unwrap();
    for name in ["model.safetensors", "config.json"] {
        let blob = blobs.path().join(name.len().to_string());
        fs::rename(folder.path().join(name), &blob).unwrap();
        std::os::unix::fs::symlink(&blob, folder.path().join(name)).unwrap();
    }
    open(&folder);
}

#[test]
fn weights_outlive_the_checkpoint_and_its_files() {
    let mut folder = Folder::new();
    folder.tensors(|t| drop(t.insert("model.norm.weight".into(), f32s(&[32], 0.75))));
    let weights = open(&folder).weights().clone();
    drop(folder);
    let norm = weights.get(WeightId::FinalNorm).unwrap().to_f32();
    assert_eq!(norm, [0.75; 32]);
}

#[test]
fn data_need_not_be_aligned() {
    let folder = Folder::new();
    let bytes = folder.read("model.safetensors");
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    for pad in 1..4 {
        let mut shifted = ((length + pad) as u64).to_le_bytes().to_vec();
        shifted.extend_from_slice(&bytes[8..8 + length]);
        shifted.resize(shifted.len() + pad, b' ');
        shifted.extend_from_slice(&bytes[8 + length..]);
        folder.write("model.safetensors", &shifted);
        let checkpoint = open(&folder);
        let head = checkpoint.weights().get(WeightId::Head).unwrap();
        assert_eq!(head.to_f32(), [0.01; 48 * 32]);
    }
}

#[test]
fn the_summary_adds_up() {
    let mut folder = Folder::new();
    folder.set(json!({ "rope_scaling": { "type": "linear", "factor": 2.0 } }));
    let summary = open(&folder).summary();
    assert_eq!(summary.architecture, "llama");
    assert_eq!((summary.layers, summary.heads, summary.kv_heads), (2, 4, 2));
    assert_eq!((summary.head_dim, summary.context), (8, 128));
    let per_layer = 32 * 32 * 2 + 16 * 32 * 2 + 3 * 64 * 32 + 2 * 32;
    assert_eq!(summary.parameters, 2 * 48 * 32 + 32 + 2 * per_layer);
    // 4 bits and an f16 scale and bias to 32 values: 5 bits each.
    let packed = summary
        .forms
        .iter()
        .find(|f| f.label == "affine 4-bit g32 (f16)");
    assert_eq!(packed.unwrap().bytes, 32 * 64 * 5 / 8);
    let dense = summary.parameters - 32 * 64;
    assert_eq!(summary.weight_bytes, dense * 4 + 32 * 64 * 5 / 8);
    assert_eq!(summary.tensors.len(), 3 + 2 * 9);
    assert_eq!(summary.file_bytes, summary.files[0].bytes);
    let json = serde_json::to_value(&summary).unwrap();
    assert_eq!(json["rope"]["scaling"]["linear"]["factor"], 2.0);
}

#[test]
fn pages_that_were_given_back_read_the_same() {
    let folder = Folder::new();
    let checkpoint = open(&folder);
    let read = || -> Vec<Vec<f32>> {
        let weights = checkpoint.weights().iter();
        weights.map(|(_, weight)| weight.to_f32()).collect()
    };
    let before = read();
    checkpoint.release_pages();
    assert_eq!(read(), before);
}
