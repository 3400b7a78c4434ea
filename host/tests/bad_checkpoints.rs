//! Damaged, contradictory and hostile folders: each is a one-line error that says what and where,
//! without a panic and without a large allocation.

mod checkpoint_support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::fs::{self, File};
use std::sync::atomic::{AtomicUsize, Ordering};

use checkpoint_support::{Folder, QUANTISED, f32s, serialize, with_header, zeros};
use halfhitch::checkpoint::Checkpoint;
use halfhitch_seam::ErrorCode::{
    self, Cancelled, InvalidInput, InvalidModel, Io, NonFinite, NotFound, Unsupported,
};
use halfhitch_seam::{CancelToken, Control, NoObserver, SeamError};
use safetensors::Dtype;
use serde_json::{Value, json};

/// The system's allocator, which remembers the largest piece that anyone asked for.
struct Watched;

static LARGEST: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call goes to the system's allocator with the arguments it came with.
unsafe impl GlobalAlloc for Watched {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LARGEST.fetch_max(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promise, passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise, passed on; the pointer came from this allocator.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        LARGEST.fetch_max(size, Ordering::Relaxed);
        // SAFETY: the caller's promise, passed on; the pointer came from this allocator.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Watched = Watched;

/// Nothing here needs more than the longest file that a test writes in full.
const MOST_AT_ONCE: usize = 16 << 20;

type Break = fn(&mut Folder);

/// Breaks a good folder and compares the error of opening it: code, and parts of the text.
fn run(cases: &[(&str, Break, ErrorCode, &[&str])]) {
    for (name, spoil, code, texts) in cases {
        let mut folder = Folder::new();
        Checkpoint::open(folder.path()).unwrap();
        spoil(&mut folder);
        let error = match Checkpoint::open(folder.path()) {
            Ok(_) => panic!("{name}: accepted"),
            Err(e) => e,
        };
        check(name, &error, *code, texts);
        let path = folder.path().display().to_string();
        assert!(error.to_string().starts_with(&path), "{name}: {error}");
    }
    let largest = LARGEST.load(Ordering::Relaxed);
    assert!(
        largest < MOST_AT_ONCE,
        "{largest} bytes were allocated at once"
    );
}

fn check(name: &str, error: &SeamError, code: ErrorCode, texts: &[&str]) {
    let text = error.to_string();
    assert_eq!(error.code, code, "{name}: {text}");
    for part in texts {
        assert!(text.contains(part), "{name}: `{part}` is not in: {text}");
    }
    assert!(!text.contains('\n'), "{name}: {text}");
    assert!(text.len() < 900, "{name}: {text}");
}

#[test]
fn files_that_are_missing_or_no_files() {
    run(&[
        (
            "no config",
            |f| f.remove("config.json"),
            NotFound,
            &["there is no config.json"],
        ),
        (
            "no weights",
            |f| f.remove("model.safetensors"),
            NotFound,
            &["model.safetensors.index.json"],
        ),
        (
            "weights of PyTorch",
            |f| {
                f.remove("model.safetensors");
                f.write("pytorch_model.bin", "x");
            },
            NotFound,
            &["PyTorch", "convert"],
        ),
        (
            "config is a folder",
            |f| {
                f.remove("config.json");
                fs::create_dir(f.path().join("config.json")).unwrap();
            },
            InvalidModel,
            &["config.json", "not a regular file"],
        ),
        (
            "weights are a folder",
            |f| {
                f.remove("model.safetensors");
                fs::create_dir(f.path().join("model.safetensors")).unwrap();
            },
            InvalidModel,
            &["model.safetensors", "not a regular file"],
        ),
    ]);
    let folder = Folder::new();
    let absent = Checkpoint::open(folder.path().join("absent")).unwrap_err();
    check(
        "no folder",
        &absent,
        NotFound,
        &["absent", "no such folder"],
    );
    let file = Checkpoint::open(folder.path().join("config.json")).unwrap_err();
    check(
        "a file",
        &file,
        InvalidInput,
        &["config.json", "not a folder"],
    );
    let below = Checkpoint::open(folder.path().join("config.json/x")).unwrap_err();
    check("below a file", &below, Io, &["config.json/x"]);
}

#[test]
fn configurations_that_are_no_configurations() {
    run(&[
        (
            "empty",
            |f| f.write("config.json", ""),
            InvalidModel,
            &["config.json", "not JSON"],
        ),
        (
            "cut off",
            |f| f.write("config.json", "{\"model_type\": \"lla"),
            InvalidModel,
            &["config.json", "not JSON"],
        ),
        (
            "a list",
            |f| f.write("config.json", "[]"),
            InvalidModel,
            &["config.json", "a list"],
        ),
        (
            "not UTF-8",
            |f| f.write("config.json", b"{\"a\": \"\xff\"}"),
            InvalidModel,
            &["config.json"],
        ),
        (
            "nested deeply",
            |f| f.write("config.json", format!("{{\"a\": {}", "[".repeat(200_000))),
            InvalidModel,
            &["config.json", "recursion"],
        ),
        (
            "too long",
            |f| {
                f.write(
                    "config.json",
                    format!("{{\"a\": \"{}\"}}", "x".repeat(5 << 20)),
                )
            },
            InvalidModel,
            &["config.json", "more than"],
        ),
        (
            "NaN",
            |f| {
                f.write(
                    "config.json",
                    "{\"model_type\": \"llama\", \"rms_norm_eps\": NaN}",
                )
            },
            InvalidModel,
            &["config.json", "not JSON"],
        ),
        (
            "no type",
            |f| f.config(|c| drop(c.remove("model_type"))),
            InvalidModel,
            &["config.json", "model_type", "qwen3"],
        ),
        (
            "other type",
            |f| f.set(json!({"model_type": "mamba\n2"})),
            Unsupported,
            &["config.json", "`mamba\\n2`", "llama, mistral, qwen2, qwen3"],
        ),
        (
            "type of type",
            |f| f.set(json!({"model_type": 1})),
            InvalidModel,
            &["config.json", "model_type is 1"],
        ),
        (
            "10^12 layers",
            |f| f.set(json!({"num_hidden_layers": 1_000_000_000_000u64})),
            InvalidModel,
            &["config.json", "num_hidden_layers is 1000000000000"],
        ),
        (
            "-1 layers",
            |f| f.set(json!({"num_hidden_layers": -1})),
            InvalidModel,
            &["config.json", "num_hidden_layers is -1"],
        ),
        (
            "half a layer",
            |f| f.set(json!({"num_hidden_layers": 2.5})),
            InvalidModel,
            &["num_hidden_layers is 2.5"],
        ),
        (
            "layers in words",
            |f| f.set(json!({"num_hidden_layers": "2"})),
            InvalidModel,
            &["num_hidden_layers is the string `2`"],
        ),
        (
            "heads do not divide",
            |f| f.set(json!({"num_attention_heads": 5})),
            InvalidModel,
            &[
                "config.json",
                "num_attention_heads is 5",
                "num_key_value_heads",
            ],
        ),
        (
            "width does not divide",
            |f| f.set(json!({"num_attention_heads": 6})),
            InvalidModel,
            &["hidden_size is 32", "num_attention_heads, 6"],
        ),
        (
            "yarn",
            |f| f.set(json!({"rope_scaling": {"type": "yarn", "factor": 4}})),
            Unsupported,
            &["`yarn`", "llama3"],
        ),
        (
            "activation",
            |f| f.set(json!({"hidden_act": "relu"})),
            Unsupported,
            &["hidden_act `relu`", "silu"],
        ),
        (
            "stop token",
            |f| f.set(json!({"eos_token_id": "</s>"})),
            InvalidModel,
            &["config.json", "eos_token_id"],
        ),
        (
            "generation",
            |f| f.write("generation_config.json", "{"),
            InvalidModel,
            &["generation_config.json", "not JSON"],
        ),
        (
            "gptq",
            |f| {
                f.set(
                    json!({"quantization": null, "quantization_config": {"quant_method": "gptq"}}),
                )
            },
            Unsupported,
            &["config.json", "`gptq`"],
        ),
        (
            "mxfp4",
            |f| f.set(json!({"quantization": {"group_size": 32, "bits": 4, "mode": "mxfp4"}})),
            Unsupported,
            &["config.json", "`mxfp4`"],
        ),
    ]);
}

#[test]
fn damaged_safetensors() {
    run(&[
        (
            "empty",
            |f| f.write("model.safetensors", ""),
            InvalidModel,
            &["model.safetensors", "0 bytes"],
        ),
        (
            "seven bytes",
            |f| f.write("model.safetensors", "1234567"),
            InvalidModel,
            &["7 bytes"],
        ),
        (
            "cut off in the data",
            |f| {
                let bytes = f.read("model.safetensors");
                f.write("model.safetensors", &bytes[..bytes.len() - 100]);
            },
            InvalidModel,
            &["model.safetensors", "ends at byte", "fetch it again"],
        ),
        (
            "cut off in the header",
            |f| {
                let bytes = f.read("model.safetensors");
                f.write("model.safetensors", &bytes[..200]);
            },
            InvalidModel,
            &["model.safetensors", "has only 192"],
        ),
        (
            "a header of 2^64 - 1",
            |f| f.write("model.safetensors", [0xff; 64]),
            InvalidModel,
            &["header claims 18446744073709551615"],
        ),
        (
            "a header over the limit",
            |f| {
                f.write("model.safetensors", (40u64 << 20).to_le_bytes());
                let file = File::options()
                    .write(true)
                    .open(f.path().join("model.safetensors"))
                    .unwrap();
                file.set_len(64 << 20).unwrap();
            },
            InvalidModel,
            &["header claims 41943040 bytes", "allowed"],
        ),
        (
            "not JSON",
            |f| f.header("{\"a\": {", 0),
            InvalidModel,
            &["model.safetensors", "header"],
        ),
        (
            "not UTF-8",
            |f| {
                f.write(
                    "model.safetensors",
                    [b"\x05\0\0\0\0\0\0\0{\"\xff\":".as_slice(), &[0; 9]].concat(),
                )
            },
            InvalidModel,
            &["header"],
        ),
        (
            "nested deeply",
            |f| f.header(&format!("{{\"a\": {}", "[".repeat(100_000)), 0),
            InvalidModel,
            &["header"],
        ),
        (
            "nested metadata",
            |f| f.header(&format!("{{\"__metadata__\": {}", "[".repeat(100_000)), 0),
            InvalidModel,
            &["header"],
        ),
        (
            "a list",
            |f| f.header("[]", 0),
            InvalidModel,
            &["header", "object of tensors"],
        ),
        (
            "no tensors",
            |f| f.header("{}", 0),
            InvalidModel,
            &["no tensors"],
        ),
        (
            "text behind",
            |f| {
                f.header(
                    "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}} x",
                    4,
                )
            },
            InvalidModel,
            &["header"],
        ),
        (
            "element type",
            |f| {
                f.header(
                    "{\"a\":{\"dtype\":\"F\\n3\",\"shape\":[1],\"data_offsets\":[0,4]}}",
                    4,
                )
            },
            InvalidModel,
            &["tensor `a`", "unknown variant"],
        ),
        (
            "twice",
            |f| {
                f.header("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4)
            },
            InvalidModel,
            &["tensor `a` stands twice"],
        ),
        (
            "overlap",
            |f| {
                f.header("{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[4,12]}}", 12)
            },
            InvalidModel,
            &["tensor `b`", "overlaps"],
        ),
        (
            "hole",
            |f| {
                f.header("{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[12,20]}}", 20)
            },
            InvalidModel,
            &["tensor `b`", "hole"],
        ),
        (
            "bytes of no tensor",
            |f| {
                f.header(
                    "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}",
                    12,
                )
            },
            InvalidModel,
            &["last 4 bytes"],
        ),
        (
            "backwards",
            |f| {
                f.header(
                    "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,0]}}",
                    8,
                )
            },
            InvalidModel,
            &["tensor `a`", "before its start"],
        ),
        (
            "offsets that wrap",
            |f| {
                f.header("{\"a\":{\"dtype\":\"U8\",\"shape\":[18446744073709551615],\"data_offsets\":[0,18446744073709551615]}}", 8)
            },
            InvalidModel,
            &["tensor `a`", "ends at byte 18446744073709551615"],
        ),
        (
            "offsets that do not fit",
            |f| {
                f.header(
                    "{\"a\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[-8,8]}}",
                    8,
                )
            },
            InvalidModel,
            &["tensor `a`"],
        ),
        (
            "a sum that wraps",
            |f| {
                let mut header = String::from("{");
                let piece = 1u64 << 60;
                for i in 0..16u64 {
                    let end = if i == 15 { u64::MAX } else { (i + 1) * piece };
                    header += &format!(
                        "\"t{i:02}\":{{\"dtype\":\"U8\",\"shape\":[{}],\"data_offsets\":[{},{end}]}},",
                        end - i * piece,
                        i * piece
                    );
                }
                header.pop();
                header.push('}');
                f.header(&header, 64);
            },
            InvalidModel,
            &["tensor `t00`", "ends at byte"],
        ),
        (
            "shape times type",
            |f| {
                f.header(
                    "{\"a\":{\"dtype\":\"F32\",\"shape\":[3,5],\"data_offsets\":[0,56]}}",
                    56,
                )
            },
            InvalidModel,
            &["tensor `a`", "F32 [3, 5]", "56 bytes"],
        ),
        (
            "a shape that overflows",
            |f| {
                f.header("{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,0]}}", 0)
            },
            InvalidModel,
            &["tensor `a`", "0 bytes"],
        ),
    ]);
}

#[test]
fn indexes_that_lead_elsewhere() {
    fn index(f: &mut Folder, tensor: &str, shard: Value) {
        let mut map = f.weight_map();
        map.insert(tensor.into(), shard);
        f.split(Some(json!({ "weight_map": map })));
    }
    run(&[
        (
            "above the folder",
            |f| index(f, "lm_head.weight", json!("../a.safetensors")),
            InvalidModel,
            &["index.json", "`../a.safetensors`", "plain file name"],
        ),
        (
            "absolute",
            |f| index(f, "lm_head.weight", json!("/etc/a.safetensors")),
            InvalidModel,
            &["`/etc/a.safetensors`"],
        ),
        (
            "below",
            |f| index(f, "lm_head.weight", json!("x/a.safetensors")),
            InvalidModel,
            &["`x/a.safetensors`"],
        ),
        (
            "no safetensors",
            |f| index(f, "lm_head.weight", json!("config.json")),
            InvalidModel,
            &["`config.json`"],
        ),
        (
            "a number",
            |f| index(f, "lm_head.weight", json!(7)),
            InvalidModel,
            &["`lm_head.weight` is 7"],
        ),
        (
            "absent",
            |f| index(f, "lm_head.weight", json!("c.safetensors")),
            NotFound,
            &["c.safetensors", "no such file"],
        ),
        (
            "the other shard",
            |f| index(f, "lm_head.weight", json!("a.safetensors")),
            InvalidModel,
            &["`lm_head.weight` is not in a.safetensors", "b.safetensors"],
        ),
        (
            "no such tensor",
            |f| index(f, "ghost.weight", json!("a.safetensors")),
            InvalidModel,
            &["`ghost.weight` is not in a.safetensors", "none"],
        ),
        (
            "no map",
            |f| f.split(Some(json!({}))),
            InvalidModel,
            &["index.json", "weight_map is missing"],
        ),
        (
            "empty map",
            |f| f.split(Some(json!({"weight_map": {}}))),
            InvalidModel,
            &["weight_map is empty"],
        ),
        (
            "a list",
            |f| f.split(Some(json!({"weight_map": []}))),
            InvalidModel,
            &["weight_map is a list"],
        ),
        (
            "not JSON",
            |f| f.write("model.safetensors.index.json", "x"),
            InvalidModel,
            &["model.safetensors.index.json", "not JSON"],
        ),
        (
            "both",
            |f| {
                let single = f.read("model.safetensors");
                f.split(None);
                f.write("model.safetensors", single);
            },
            InvalidModel,
            &["both model.safetensors and an index"],
        ),
        (
            "in two shards",
            |f| {
                f.split(None);
                let mut tensors = checkpoint_support::Tensors::new();
                tensors.insert("lm_head.weight".into(), f32s(&[48, 32], 0.0));
                f.write("c.safetensors", serialize(&tensors));
                let mut map = f.weight_map();
                map.insert("other".into(), json!("c.safetensors"));
                f.write(
                    "model.safetensors.index.json",
                    json!({"weight_map": map}).to_string(),
                );
            },
            InvalidModel,
            &["`lm_head.weight` is in both b.safetensors and c.safetensors"],
        ),
        (
            "a damaged shard",
            |f| {
                f.split(None);
                f.write("b.safetensors", with_header("{}", 3));
            },
            InvalidModel,
            &["b.safetensors"],
        ),
    ]);
}

#[test]
fn tensors_that_do_not_fit_the_configuration() {
    run(&[
        (
            "missing",
            |f| f.tensors(|t| drop(t.remove("model.layers.1.mlp.up_proj.weight"))),
            InvalidModel,
            &["`model.layers.1.mlp.up_proj.weight`", "missing"],
        ),
        (
            "no head",
            |f| f.tensors(|t| drop(t.remove("lm_head.weight"))),
            InvalidModel,
            &["`lm_head.weight`", "missing", "tie_word_embeddings"],
        ),
        (
            "another shape",
            |f| f.set(json!({"intermediate_size": 128})),
            InvalidModel,
            &["mlp.gate_proj.weight`", "[64, 32]", "[128, 32]"],
        ),
        (
            "three dimensions",
            |f| f.tensors(|t| drop(t.insert("model.norm.weight".into(), f32s(&[1, 1, 32], 1.0)))),
            InvalidModel,
            &["`model.norm.weight`", "[1, 1, 32]"],
        ),
        (
            "f64",
            |f| f.tensors(|t| drop(t.insert("model.norm.weight".into(), zeros(Dtype::F64, &[32])))),
            Unsupported,
            &["`model.norm.weight`", "F64", "BF16"],
        ),
        (
            "i8",
            |f| f.tensors(|t| drop(t.insert("lm_head.weight".into(), zeros(Dtype::I8, &[48, 32])))),
            Unsupported,
            &["model.safetensors", "`lm_head.weight`", "I8"],
        ),
        (
            "f8",
            |f| {
                f.tensors(|t| {
                    drop(t.insert("lm_head.weight".into(), zeros(Dtype::F8_E4M3, &[48, 32])))
                })
            },
            Unsupported,
            &["`lm_head.weight`", "F8_E4M3"],
        ),
        (
            "a bias",
            |f| {
                f.tensors(|t| {
                    drop(t.insert(
                        "model.layers.0.self_attn.q_proj.bias".into(),
                        f32s(&[32], 1.0),
                    ))
                })
            },
            InvalidModel,
            &["`model.layers.0.self_attn.q_proj.bias`", "no place"],
        ),
        (
            "no bias",
            |f| f.set(json!({"attention_bias": true})),
            InvalidModel,
            &["`model.layers.0.self_attn.q_proj.bias`", "missing"],
        ),
        (
            "a norm",
            |f| {
                f.tensors(|t| {
                    drop(t.insert(
                        "model.layers.0.self_attn.q_norm.weight".into(),
                        f32s(&[8], 1.0),
                    ))
                })
            },
            InvalidModel,
            &["`model.layers.0.self_attn.q_norm.weight`", "no place"],
        ),
        (
            "a head's bias",
            |f| f.tensors(|t| drop(t.insert("lm_head.bias".into(), f32s(&[48], 1.0)))),
            InvalidModel,
            &["`lm_head.bias`", "no place"],
        ),
        (
            "a norm's scales",
            |f| f.tensors(|t| drop(t.insert("model.norm.scales".into(), f32s(&[1], 1.0)))),
            InvalidModel,
            &["`model.norm.scales`", "no place"],
        ),
    ]);
}

#[test]
fn quantised_parts_that_do_not_fit() {
    fn part(f: &mut Folder, part: &str, tensor: (Dtype, Vec<usize>, Vec<u8>)) {
        f.tensors(|t| drop(t.insert(format!("{QUANTISED}.{part}"), tensor)));
    }
    run(&[
        (
            "group does not divide",
            |f| f.set(json!({"quantization": {"group_size": 128, "bits": 4}})),
            InvalidModel,
            &[QUANTISED, "groups of 128", "64 columns"],
        ),
        (
            "another group",
            |f| f.set(json!({"quantization": {"group_size": 64, "bits": 4}})),
            InvalidModel,
            &[QUANTISED, "scales", "[32, 2]", "[32, 1]"],
        ),
        (
            "no such group",
            |f| f.set(json!({"quantization": {"group_size": 48, "bits": 4}})),
            Unsupported,
            &["quantization.group_size", "48"],
        ),
        (
            "another width",
            |f| f.set(json!({"quantization": {"group_size": 32, "bits": 8}})),
            InvalidModel,
            &[QUANTISED, "[32, 8]", "[32, 16]"],
        ),
        (
            "no such width",
            |f| f.set(json!({"quantization": {"group_size": 32, "bits": 7}})),
            Unsupported,
            &["quantization.bits", "7 bits"],
        ),
        (
            "width of 10^12",
            |f| f.set(json!({"quantization": {"group_size": 32, "bits": 1_000_000_000_000u64}})),
            InvalidModel,
            &["quantization.bits is 1000000000000"],
        ),
        (
            "another override",
            |f| {
                f.set(
                    json!({"quantization": {"group_size": 32, "bits": 4, QUANTISED: {"bits": 2}}}),
                )
            },
            InvalidModel,
            &[QUANTISED, "2-bit"],
        ),
        (
            "said to be dense",
            |f| f.set(json!({"quantization": {"group_size": 32, "bits": 4, QUANTISED: false}})),
            InvalidModel,
            &[QUANTISED, "not quantised"],
        ),
        (
            "not said at all",
            |f| f.config(|c| drop(c.remove("quantization"))),
            InvalidModel,
            &[QUANTISED, "no quantization"],
        ),
        (
            "no group said",
            |f| f.set(json!({"quantization": {"bits": 4}})),
            InvalidModel,
            &[QUANTISED, "quantization.group_size"],
        ),
        (
            "no biases",
            |f| f.tensors(|t| drop(t.remove(&format!("{QUANTISED}.biases")))),
            InvalidModel,
            &[QUANTISED, "no biases"],
        ),
        (
            "no scales",
            |f| f.tensors(|t| drop(t.remove(&format!("{QUANTISED}.scales")))),
            InvalidModel,
            &[QUANTISED, "no scales"],
        ),
        (
            "types of scales and biases",
            |f| part(f, "biases", zeros(Dtype::BF16, &[32, 2])),
            InvalidModel,
            &[QUANTISED, "biases are bf16", "f16"],
        ),
        (
            "shape of biases",
            |f| part(f, "biases", zeros(Dtype::F16, &[32, 3])),
            InvalidModel,
            &[QUANTISED, "biases", "[32, 3]"],
        ),
        (
            "rows of scales",
            |f| part(f, "scales", zeros(Dtype::F16, &[31, 2])),
            InvalidModel,
            &[QUANTISED, "[31, 2]"],
        ),
        (
            "scales of u8",
            |f| part(f, "scales", zeros(Dtype::U8, &[32, 2])),
            Unsupported,
            &[QUANTISED, "scales", "U8"],
        ),
        (
            "scales of u32",
            |f| part(f, "scales", zeros(Dtype::U32, &[32, 2])),
            InvalidModel,
            &[QUANTISED, "scales are not numbers"],
        ),
        (
            "words of f32",
            |f| part(f, "weight", zeros(Dtype::F32, &[32, 8])),
            InvalidModel,
            &[QUANTISED, "f32 [32, 8]"],
        ),
        (
            "words of a dense shape",
            |f| part(f, "weight", zeros(Dtype::U32, &[32, 64])),
            InvalidModel,
            &[QUANTISED, "[32, 64]"],
        ),
    ]);
}

#[test]
fn numbers_that_are_none_are_found_by_name() {
    let cancel = CancelToken::new();
    let control = Control {
        cancel: &cancel,
        observer: &NoObserver,
    };
    let f16_nan = half::f16::NAN.to_le_bytes();
    let cases: &[(&str, usize, &[u8], &str)] = &[
        (
            "model.norm.weight",
            5 * 4,
            &f32::NAN.to_le_bytes(),
            "element 5",
        ),
        (
            "lm_head.weight",
            47 * 4,
            &f32::INFINITY.to_le_bytes(),
            "element 47",
        ),
        (
            &format!("{QUANTISED}.scales"),
            63 * 2,
            &f16_nan,
            "element 63",
        ),
        (&format!("{QUANTISED}.biases"), 0, &f16_nan, "element 0"),
    ];
    for (name, at, bytes, element) in cases {
        let mut folder = Folder::new();
        let good = Checkpoint::open(folder.path()).unwrap();
        good.check_finite(&control).unwrap();
        folder.tensors(|t| {
            let data = &mut t.get_mut(*name).unwrap().2;
            data[*at..at + bytes.len()].copy_from_slice(bytes);
        });
        let bad = Checkpoint::open(folder.path()).unwrap();
        let e = bad.check_finite(&control).unwrap_err();
        check(name, &e, NonFinite, &[&format!("`{name}`"), element]);
    }
    cancel.cancel();
    let e = Checkpoint::open(Folder::new().path())
        .unwrap()
        .check_finite(&control)
        .unwrap_err();
    check("cancelled", &e, Cancelled, &[]);
}
