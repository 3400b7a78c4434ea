//! What the tests of importing and quantising share: a writer of GGUF files that can also write wrong
//! ones, tiny models, and a control.
#![allow(dead_code)] // each test program uses a part

use std::fs;
use std::path::{Path, PathBuf};

use halfhitch::import::{ImportOptions, import_gguf};
use halfhitch_seam::{CancelToken, Control, NoObserver, SeamError};

/// The fixtures' folder.
pub fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures")
}

/// Calls `f` with a control that is not cancelled and not observed.
pub fn quietly<T>(f: impl FnOnce(&Control<'_>) -> T) -> T {
    let cancel = CancelToken::new();
    f(&Control {
        cancel: &cancel,
        observer: &NoObserver,
    })
}

/// Numbers that look random and are the same every time.
pub struct Noise(pub u64);

impl Noise {
    pub fn next(&mut self) -> u64 {
        // xorshift64*
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub fn byte(&mut self) -> u8 {
        (self.next() >> 40) as u8
    }

    /// Uniform in -1..1.
    pub fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }
}

/// ggml's numbers of tensor types.
pub mod ggml {
    pub const F32: u32 = 0;
    pub const F16: u32 = 1;
    pub const Q4_0: u32 = 2;
    pub const Q4_1: u32 = 3;
    pub const Q5_0: u32 = 6;
    pub const Q5_1: u32 = 7;
    pub const Q8_0: u32 = 8;
    pub const Q4_K: u32 = 12;
    pub const BF16: u32 = 30;
}

/// A metadata value with the type it is written as.
#[derive(Clone, Debug)]
pub enum V {
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    Str(String),
    Strs(Vec<String>),
    I32s(Vec<i32>),
    F32s(Vec<f32>),
    /// A type's number and the bytes that follow it.
    Raw(u32, Vec<u8>),
}

impl From<&str> for V {
    fn from(s: &str) -> Self {
        Self::Str(s.into())
    }
}

fn put_str(out: &mut Vec<u8>, s: &str) {
    out.extend((s.len() as u64).to_le_bytes());
    out.extend(s.as_bytes());
}

fn put_list<T>(out: &mut Vec<u8>, kind: u32, items: &[T], put: impl Fn(&mut Vec<u8>, &T)) {
    out.extend(9u32.to_le_bytes());
    out.extend(kind.to_le_bytes());
    out.extend((items.len() as u64).to_le_bytes());
    items.iter().for_each(|item| put(out, item));
}

fn put_value(out: &mut Vec<u8>, value: &V) {
    let mut scalar = |kind: u32, bytes: &[u8]| {
        out.extend(kind.to_le_bytes());
        out.extend(bytes);
    };
    match value {
        V::U32(v) => scalar(4, &v.to_le_bytes()),
        V::I32(v) => scalar(5, &v.to_le_bytes()),
        V::F32(v) => scalar(6, &v.to_le_bytes()),
        V::Bool(v) => scalar(7, &[u8::from(*v)]),
        V::Str(s) => {
            scalar(8, &[]);
            put_str(out, s);
        }
        V::Strs(list) => put_list(out, 8, list, |out, s| put_str(out, s)),
        V::I32s(list) => put_list(out, 5, list, |out, v| out.extend(v.to_le_bytes())),
        V::F32s(list) => put_list(out, 6, list, |out, v| out.extend(v.to_le_bytes())),
        V::Raw(kind, bytes) => scalar(*kind, bytes),
    }
}

/// A tensor of a file; `dims` are in the file's order, innermost first.
#[derive(Clone, Debug)]
pub struct T {
    pub name: String,
    pub dims: Vec<u64>,
    pub kind: u32,
    pub data: Vec<u8>,
    /// Written instead of the right offset.
    pub offset: Option<u64>,
}

/// A GGUF file to be.
#[derive(Clone, Debug)]
pub struct File {
    pub magic: [u8; 4],
    pub version: u32,
    pub alignment: usize,
    pub keys: Vec<(String, V)>,
    pub tensors: Vec<T>,
    /// Written instead of the right number of keys and tensors.
    pub key_count: Option<u64>,
    pub tensor_count: Option<u64>,
}

impl File {
    pub fn new() -> Self {
        Self {
            magic: *b"GGUF",
            version: 3,
            alignment: 32,
            keys: Vec::new(),
            tensors: Vec::new(),
            key_count: None,
            tensor_count: None,
        }
    }

    /// Sets a key, in its place where it is there already.
    pub fn set(&mut self, key: &str, value: V) -> &mut Self {
        match self.keys.iter_mut().find(|(k, _)| k == key) {
            Some((_, old)) => *old = value,
            None => self.keys.push((key.into(), value)),
        }
        self
    }

    pub fn unset(&mut self, key: &str) -> &mut Self {
        self.keys.retain(|(k, _)| k != key);
        self
    }

    /// Adds a tensor of `shape`, outermost first.
    pub fn tensor(&mut self, name: &str, shape: &[usize], kind: u32, data: Vec<u8>) -> &mut Self {
        self.tensors.push(T {
            name: name.into(),
            dims: shape.iter().rev().map(|&n| n as u64).collect(),
            kind,
            data,
            offset: None,
        });
        self
    }

    pub fn find(&mut self, name: &str) -> &mut T {
        self.tensors.iter_mut().find(|t| t.name == name).unwrap()
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut out = self.magic.to_vec();
        out.extend(self.version.to_le_bytes());
        let tensors = self.tensor_count.unwrap_or(self.tensors.len() as u64);
        let keys = self.key_count.unwrap_or(self.keys.len() as u64);
        out.extend(tensors.to_le_bytes());
        out.extend(keys.to_le_bytes());
        for (key, value) in &self.keys {
            put_str(&mut out, key);
            put_value(&mut out, value);
        }
        let mut offset = 0u64;
        for tensor in &self.tensors {
            put_str(&mut out, &tensor.name);
            out.extend((tensor.dims.len() as u32).to_le_bytes());
            tensor.dims.iter().for_each(|d| out.extend(d.to_le_bytes()));
            out.extend(tensor.kind.to_le_bytes());
            out.extend(tensor.offset.unwrap_or(offset).to_le_bytes());
            offset += tensor.data.len().next_multiple_of(self.alignment) as u64;
        }
        out.resize(out.len().next_multiple_of(self.alignment), 0);
        for tensor in &self.tensors {
            out.extend(&tensor.data);
            out.resize(out.len().next_multiple_of(self.alignment), 0);
        }
        out
    }

    /// Writes the file into `dir` and returns its path.
    pub fn write(&self, dir: &Path) -> PathBuf {
        let path = dir.join("model.gguf");
        fs::write(&path, self.bytes()).unwrap();
        path
    }
}

/// Bytes of a block of a quantised type.
pub fn block_bytes(kind: u32) -> usize {
    match kind {
        ggml::Q4_0 => 18,
        ggml::Q4_1 => 20,
        ggml::Q5_0 => 22,
        ggml::Q5_1 => 24,
        ggml::Q8_0 => 34,
        ggml::F32 => 4,
        _ => 2,
    }
}

/// Random data for `n` values: any nibbles, factors of moderate size and either sign.
pub fn random_data(kind: u32, n: usize, noise: &mut Noise) -> Vec<u8> {
    let half = |noise: &mut Noise| half::f16::from_f32(noise.unit() * 0.05).to_le_bytes();
    match kind {
        ggml::F32 => (0..n).flat_map(|_| noise.unit().to_le_bytes()).collect(),
        ggml::F16 => (0..n).flat_map(|_| half(noise)).collect(),
        ggml::BF16 => (0..n)
            .flat_map(|_| half::bf16::from_f32(noise.unit()).to_le_bytes())
            .collect(),
        _ => (0..n / 32)
            .flat_map(|_| {
                let mut block: Vec<u8> = (0..block_bytes(kind)).map(|_| noise.byte()).collect();
                block[..2].copy_from_slice(&half(noise));
                if matches!(kind, ggml::Q4_1 | ggml::Q5_1) {
                    block[2..4].copy_from_slice(&half(noise));
                }
                block
            })
            .collect(),
    }
}

/// Dimensions of [`tiny`].
pub const HIDDEN: usize = 64;
pub const WIDE: usize = 96;
pub const HEADS: usize = 4;
pub const KV_HEADS: usize = 2;
pub const HEAD_DIM: usize = 16;
pub const VOCAB: usize = 40;

/// A complete one-layer model without a tokenizer; matrices are of type `kind`, vectors F32.
pub fn tiny(architecture: &str, kind: u32) -> File {
    let mut file = File::new();
    file.set("general.architecture", architecture.into());
    for (key, value) in [
        ("block_count", 1),
        ("context_length", 128),
        ("embedding_length", HIDDEN as u32),
        ("feed_forward_length", WIDE as u32),
        ("attention.head_count", HEADS as u32),
        ("attention.head_count_kv", KV_HEADS as u32),
    ] {
        file.set(&format!("{architecture}.{key}"), V::U32(value));
    }
    let mut float = |key: &str, value| {
        file.set(&format!("{architecture}.{key}"), V::F32(value));
    };
    float("attention.layer_norm_rms_epsilon", 1e-5);
    float("rope.freq_base", 10_000.0);
    let mut noise = Noise(7);
    let mut add = |name: &str, shape: &[usize], kind| {
        let data = random_data(kind, shape.iter().product(), &mut noise);
        file.tensor(name, shape, kind, data);
    };
    let (q, kv) = (HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM);
    add("token_embd.weight", &[VOCAB, HIDDEN], kind);
    add("output_norm.weight", &[HIDDEN], ggml::F32);
    for (name, shape) in [
        ("attn_norm.weight", vec![HIDDEN]),
        ("ffn_norm.weight", vec![HIDDEN]),
        ("attn_q.weight", vec![q, HIDDEN]),
        ("attn_k.weight", vec![kv, HIDDEN]),
        ("attn_v.weight", vec![kv, HIDDEN]),
        ("attn_output.weight", vec![HIDDEN, q]),
        ("ffn_gate.weight", vec![WIDE, HIDDEN]),
        ("ffn_up.weight", vec![WIDE, HIDDEN]),
        ("ffn_down.weight", vec![HIDDEN, WIDE]),
    ] {
        let kind = if shape.len() == 1 { ggml::F32 } else { kind };
        add(&format!("blk.0.{name}"), &shape, kind);
    }
    match architecture {
        "qwen2" => {
            for (name, rows) in [("attn_q", q), ("attn_k", kv), ("attn_v", kv)] {
                add(&format!("blk.0.{name}.bias"), &[rows], ggml::F32);
            }
        }
        "qwen3" => {
            add("blk.0.attn_q_norm.weight", &[HEAD_DIM], ggml::F32);
            add("blk.0.attn_k_norm.weight", &[HEAD_DIM], ggml::F32);
        }
        _ => {}
    }
    file
}

/// Imports the bytes, which must fail, and checks the manners of the failure.
pub fn refusal(bytes: &[u8]) -> SeamError {
    let dir = tempfile::tempdir().unwrap();
    let gguf = dir.path().join("bad.gguf");
    fs::write(&gguf, bytes).unwrap();
    let out = dir.path().join("out");
    let e = quietly(|c| import_gguf(&gguf, &out, ImportOptions::default(), c)).unwrap_err();
    let text = e.to_string();
    assert!(text.contains("bad.gguf"), "the file is not named: {text}");
    assert_eq!(text.lines().count(), 1, "{text}");
    assert_eq!(
        fs::read_dir(dir.path()).unwrap().count(),
        1,
        "something is left: {text}"
    );
    e
}

/// With a small tokenizer, so that its keys can go wrong.
pub fn with_tokenizer() -> File {
    let mut file = tiny("llama", ggml::Q4_0);
    let tokens = (0..VOCAB).map(|i| match i {
        0 => "a".into(),
        1 => "b".into(),
        2 => "ab".into(),
        i => format!("t{i}"),
    });
    file.set("tokenizer.ggml.model", "gpt2".into())
        .set("tokenizer.ggml.pre", "gpt-2".into())
        .set("tokenizer.ggml.tokens", V::Strs(tokens.collect()))
        .set("tokenizer.ggml.token_type", V::I32s(vec![1; VOCAB]))
        .set("tokenizer.ggml.merges", V::Strs(vec!["a b".into()]))
        .set("tokenizer.ggml.bos_token_id", V::U32(0));
    file
}

/// Makes a good file bad.
pub type Change = fn(&mut File);

/// What is wrong, how it is made so, and what the message must say.
pub type Bad<'a> = (&'a str, Change, &'a [&'a str]);

/// Applies each change to a good file, which must then be refused with each of the words.
pub fn refuse_all(cases: &[Bad<'_>]) {
    for (what, change, said) in cases {
        let mut file = with_tokenizer();
        change(&mut file);
        let text = refusal(&file.bytes()).to_string();
        for part in *said {
            assert!(text.contains(part), "{what}: no `{part}` in: {text}");
        }
    }
}
