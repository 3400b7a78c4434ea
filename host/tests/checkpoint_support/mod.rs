//! A small, whole checkpoint that tests change or break.
#![allow(dead_code)] // each test file uses a part

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use safetensors::Dtype;
use safetensors::tensor::TensorView;
use serde_json::{Value, json};
use tempfile::TempDir;

/// Tensors by name: element type, shape, bytes.
pub type Tensors = BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>;

/// The matrix of the small checkpoint that is quantised: `[32, 64]`, 4 bits in groups of 32.
pub const QUANTISED: &str = "model.layers.1.mlp.down_proj";

/// A model folder. Every change is written at once.
pub struct Folder {
    dir: TempDir,
    config: Value,
    tensors: Tensors,
}

impl Folder {
    /// A llama of two layers with an untied head; all f32 but for [`QUANTISED`].
    pub fn new() -> Self {
        let config = json!({
            "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 48,
            "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128,
            "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": false,
            "eos_token_id": 2, "bos_token_id": 1,
            "quantization": { "group_size": 32, "bits": 4 },
        });
        let mut tensors = Tensors::new();
        let mut add = |name: &str, shape: &[usize]| {
            tensors.insert(name.to_owned(), f32s(shape, 0.01));
        };
        add("model.embed_tokens.weight", &[48, 32]);
        add("model.norm.weight", &[32]);
        add("lm_head.weight", &[48, 32]);
        for layer in 0..2 {
            for (module, shape) in [
                ("self_attn.q_proj", &[32, 32][..]),
                ("self_attn.k_proj", &[16, 32]),
                ("self_attn.v_proj", &[16, 32]),
                ("self_attn.o_proj", &[32, 32]),
                ("mlp.gate_proj", &[64, 32]),
                ("mlp.up_proj", &[64, 32]),
                ("mlp.down_proj", &[32, 64]),
                ("input_layernorm", &[32]),
                ("post_attention_layernorm", &[32]),
            ] {
                add(&format!("model.layers.{layer}.{module}.weight"), shape);
            }
        }
        let mut folder = Self {
            dir: tempfile::tempdir().unwrap(),
            config,
            tensors,
        };
        folder.config(|_| {});
        folder.tensors(|tensors| quantise(tensors, QUANTISED, [32, 64], 4, 32, Dtype::F16));
        folder
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Changes `config.json`.
    pub fn config(&mut self, change: impl FnOnce(&mut serde_json::Map<String, Value>)) {
        change(self.config.as_object_mut().unwrap());
        self.write("config.json", self.config.to_string());
    }

    /// Sets keys of `config.json`.
    pub fn set(&mut self, changes: Value) {
        let changes = changes.as_object().unwrap().clone();
        self.config(|config| config.extend(changes));
    }

    /// Changes `model.safetensors`.
    pub fn tensors(&mut self, change: impl FnOnce(&mut Tensors)) {
        change(&mut self.tensors);
        self.write("model.safetensors", serialize(&self.tensors));
    }

    /// Writes any file.
    pub fn write(&self, name: &str, bytes: impl AsRef<[u8]>) {
        fs::write(self.path().join(name), bytes).unwrap();
    }

    pub fn read(&self, name: &str) -> Vec<u8> {
        fs::read(self.path().join(name)).unwrap()
    }

    pub fn remove(&self, name: &str) {
        fs::remove_file(self.path().join(name)).unwrap();
    }

    /// Replaces `model.safetensors` by a file of two tensors with this header and data.
    pub fn header(&self, header: &str, data: usize) {
        self.write("model.safetensors", with_header(header, data));
    }

    /// Splits the tensors into two shards and writes `index` as the index, `None` for a right one.
    pub fn split(&self, index: Option<Value>) {
        self.remove("model.safetensors");
        let (a, b): (Tensors, Tensors) = self
            .tensors
            .clone()
            .into_iter()
            .partition(|(name, _)| name.starts_with("model.layers.0."));
        self.write("a.safetensors", serialize(&a));
        self.write("b.safetensors", serialize(&b));
        let index = index.unwrap_or_else(|| json!({ "weight_map": self.weight_map() }));
        self.write("model.safetensors.index.json", index.to_string());
    }

    /// The right map from tensors to the shards of [`split`](Self::split).
    pub fn weight_map(&self) -> serde_json::Map<String, Value> {
        let shard = |name: &str| match name.starts_with("model.layers.0.") {
            true => "a.safetensors",
            false => "b.safetensors",
        };
        self.tensors
            .keys()
            .map(|name| (name.clone(), shard(name).into()))
            .collect()
    }
}

/// A safetensors file of any header and so many zero bytes.
pub fn with_header(header: &str, data: usize) -> Vec<u8> {
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend_from_slice(header.as_bytes());
    file.resize(file.len() + data, 0);
    file
}

/// An f32 tensor of one value.
pub fn f32s(shape: &[usize], value: f32) -> (Dtype, Vec<usize>, Vec<u8>) {
    let elements = shape.iter().product();
    let bytes = value.to_le_bytes().repeat(elements);
    (Dtype::F32, shape.to_vec(), bytes)
}

/// A tensor of zeros.
pub fn zeros(dtype: Dtype, shape: &[usize]) -> (Dtype, Vec<usize>, Vec<u8>) {
    let bits = shape.iter().product::<usize>() * dtype.bitsize();
    (dtype, shape.to_vec(), vec![0; bits / 8])
}

/// Replaces a module's weight by the three parts of a quantised one.
pub fn quantise(
    tensors: &mut Tensors,
    module: &str,
    [rows, columns]: [usize; 2],
    bits: usize,
    group: usize,
    scales: Dtype,
) {
    let mut put = |part: &str, tensor| tensors.insert(format!("{module}.{part}"), tensor);
    put("weight", zeros(Dtype::U32, &[rows, columns * bits / 32]));
    put("scales", zeros(scales, &[rows, columns / group]));
    put("biases", zeros(scales, &[rows, columns / group]));
}

pub fn serialize(tensors: &Tensors) -> Vec<u8> {
    let views = tensors.iter().map(|(name, (dtype, shape, bytes))| {
        let view = TensorView::new(*dtype, shape.clone(), bytes).unwrap();
        (name.clone(), view)
    });
    safetensors::serialize(views, None).unwrap()
}
