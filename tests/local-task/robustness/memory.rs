//! What a model takes of the process's memory, against what `plan` says before it is loaded.
//!
//! The models are so large that the process's own memory (the program, the backend and their libraries;
//! `plan` tells it apart) does not decide, and of equal layers, so that they compile quickly. Their
//! numbers mean nothing; every weight is read in every step, the embedding as the head.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use halfhitch::import::folder::{PlannedTensor, SafetensorsWriter, TensorId, WEIGHTS};
use halfhitch_seam::DType;
use serde_json::{Value, json};

use crate::bench::{BACKEND, Bench, stderr};

const LAYERS: usize = 8;
const QUERIES: usize = 1024;
const KEYS: usize = 256;
const GROUP: usize = 32;

/// A model's hidden size, feed-forward width and vocabulary.
type Size = [usize; 3];

/// Rows fill blocks: matrices are laid out anew.
const BLOCKS: Size = [1024, 2048, 32_768];
/// Rows do not: all but queries, keys and values are used as they are stored.
const NO_BLOCKS: Size = [1000, 2040, 32_760];

/// Positions that a cache has room for at first; a test uses no more.
const CAPACITY: u64 = 256;

/// How a matrix is stored.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stored {
    Halves,
    /// 4 bits in groups of [`GROUP`], with f16 scales.
    Packed,
}

/// A checkpoint folder.
struct Checkpoint(tempfile::TempDir);

impl Checkpoint {
    fn new(size @ [hidden, wide, vocabulary]: Size, stored: Stored) -> Self {
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let mut config = json!({
            "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
            "hidden_size": hidden, "intermediate_size": wide, "num_hidden_layers": LAYERS,
            "num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": QUERIES / 16,
            "vocab_size": vocabulary, "max_position_embeddings": 512, "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0, "tie_word_embeddings": true, "torch_dtype": "float16",
        });
        if stored == Stored::Packed {
            config["quantization"] = json!({"group_size": GROUP, "bits": 4});
        }
        fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
        let mut tensors = Vec::new();
        for (name, rows, columns) in matrices(size) {
            tensors.extend(parts(&name, rows, columns, stored));
        }
        let layer = |i, name| format!("model.layers.{i}.{name}_layernorm.weight");
        let norms =
            (0..LAYERS).flat_map(|i| ["input", "post_attention"].map(|name| layer(i, name)));
        for name in norms.chain(["model.norm.weight".into()]) {
            tensors.push(tensor(&name, DType::F32, &[hidden]));
        }
        let path = dir.path().join(WEIGHTS);
        let mut writer = SafetensorsWriter::create(&path, &tensors).unwrap();
        for (i, t) in tensors.iter().enumerate() {
            write(&mut writer, TensorId(i), t);
        }
        writer.finish().unwrap();
        Self(dir)
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    /// Moves the file's data by 8 bytes: as valid as before, and aligned no more.
    fn misalign(self) -> Self {
        let path = self.path().join(WEIGHTS);
        let mut file = File::open(&path).unwrap();
        let mut prefix = [0; 8];
        file.read_exact(&mut prefix).unwrap();
        let header = u64::from_le_bytes(prefix);
        let mut bytes = (header + 8).to_le_bytes().to_vec();
        file.take(header).read_to_end(&mut bytes).unwrap();
        bytes.extend([b' '; 8]);
        let mut rest = File::open(&path).unwrap();
        std::io::Seek::seek(&mut rest, std::io::SeekFrom::Start(8 + header)).unwrap();
        rest.read_to_end(&mut bytes).unwrap();
        fs::write(&path, bytes).unwrap();
        self
    }
}

fn matrices([hidden, wide, vocabulary]: Size) -> Vec<(String, usize, usize)> {
    let layer = |i| {
        [
            ("self_attn.q_proj", QUERIES, hidden),
            ("self_attn.k_proj", KEYS, hidden),
            ("self_attn.v_proj", KEYS, hidden),
            ("self_attn.o_proj", hidden, QUERIES),
            ("mlp.gate_proj", wide, hidden),
            ("mlp.up_proj", wide, hidden),
            ("mlp.down_proj", hidden, wide),
        ]
        .map(|(name, rows, columns)| (format!("model.layers.{i}.{name}"), rows, columns))
    };
    let embedding = ("model.embed_tokens".into(), vocabulary, hidden);
    (0..LAYERS).flat_map(layer).chain([embedding]).collect()
}

fn tensor(name: &str, dtype: DType, shape: &[usize]) -> PlannedTensor {
    PlannedTensor {
        name: name.into(),
        dtype,
        shape: shape.to_vec(),
    }
}

fn parts(name: &str, rows: usize, columns: usize, stored: Stored) -> Vec<PlannedTensor> {
    let part =
        |suffix, dtype, columns| tensor(&format!("{name}.{suffix}"), dtype, &[rows, columns]);
    match stored {
        Stored::Halves => vec![part("weight", DType::F16, columns)],
        Stored::Packed => vec![
            part("weight", DType::U32, columns / 8),
            part("scales", DType::F16, columns / GROUP),
            part("biases", DType::F16, columns / GROUP),
        ],
    }
}

/// Small numbers, or any words.
fn write(writer: &mut SafetensorsWriter, id: TensorId, tensor: &PlannedTensor) {
    let elements: usize = tensor.shape.iter().product();
    // 2^-7 for halves, 1 for norms.
    let element: &[u8] = match tensor.dtype {
        DType::F16 => &[0x00, 0x20],
        DType::F32 => &[0x00, 0x00, 0x80, 0x3f],
        _ => &[0x10, 0x32, 0x54, 0x76],
    };
    let block = element.repeat(1 << 16);
    let mut left = elements * element.len();
    while left > 0 {
        let n = left.min(block.len());
        writer.append(id, &block[..n]).unwrap();
        left -= n;
    }
}

/// A run's figures, in bytes.
#[derive(Debug)]
struct Figures {
    /// The weights alone, as `plan` says.
    weights: u64,
    /// What `plan` says: weights, workspace and cache in use.
    resident: u64,
    /// What `plan` says of the process before the model is loaded.
    process: u64,
    /// The most that was resident in the run.
    peak: u64,
    /// The most of it that was of no file.
    anonymous: u64,
}

fn command(name: &str, checkpoint: &Checkpoint, bench: &Bench, how: [&str; 2]) -> Command {
    let mut command = bench.halfhitch();
    // What was compiled is kept for the next run of these tests.
    let kept = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("memory-cache");
    command
        .env("HALFHITCH_CACHE_DIR", kept)
        .args([name, "--json", "--backend", BACKEND, "-m"])
        .arg(checkpoint.path())
        .args(["--precision", how[0], "--quant", how[1]]);
    command
}

fn number(value: &Value, pointer: &str) -> u64 {
    value
        .pointer(pointer)
        .and_then(Value::as_u64)
        .unwrap_or_else(|| panic!("no {pointer} in {value}"))
}

fn figures(checkpoint: &Checkpoint, how: [&str; 2]) -> Figures {
    let bench = Bench::cold();
    let out = command("plan", checkpoint, &bench, how).output().unwrap();
    assert!(out.status.success(), "{}", stderr(&out));
    let plan: Value = serde_json::from_slice(&out.stdout).unwrap();
    let memory = |name: &str| number(&plan, &format!("/plan/memory/{name}"));
    // Long enough for the largest step, whose workspace is planned.
    let prompt: Vec<String> = (1..=100).map(|token: u32| token.to_string()).collect();
    let prompt = prompt.join(",");
    let mut child = command("generate", checkpoint, &bench, how)
        .args(["-n", "6", "--ignore-eos", "--prompt-tokens", &prompt])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut anonymous = 0;
    while child.try_wait().unwrap().is_none() {
        anonymous = anonymous.max(anonymous_of(child.id()));
        std::thread::sleep(Duration::from_millis(2));
    }
    let out = child.wait_with_output().unwrap();
    assert!(out.status.success(), "{}", stderr(&out));
    let run: Value = serde_json::from_slice(&out.stdout).unwrap();
    Figures {
        weights: memory("weights"),
        resident: memory("weights") + memory("workspace") + CAPACITY * memory("kv_per_token"),
        process: number(&plan, "/process_bytes"),
        peak: number(&run, "/peak_rss_bytes"),
        anonymous,
    }
}

/// Memory of a process that is no file's; 0 where it has ended.
fn anonymous_of(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("RssAnon:"));
    let kib = line.and_then(|l| l.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

/// `plan` is right within a tenth, and no more than 1.15 times the resident bytes are ever needed beside
/// the process's own.
fn assert_planned(what: &str, f: &Figures) {
    let planned = (f.resident + f.process) as f64;
    let off = f.peak as f64 / planned;
    assert!(
        (0.9..=1.1).contains(&off),
        "{what}: {off:.3} of what is planned: {f:?}"
    );
    let times = f.peak.saturating_sub(f.process) as f64 / f.resident as f64;
    assert!(
        times <= 1.15,
        "{what}: {times:.3} times the resident bytes: {f:?}"
    );
}

#[test]
fn weights_that_lie_aligned_as_they_are_used_are_not_copied() {
    let halves = ["f16", "dequant"];
    let aligned = Checkpoint::new(NO_BLOCKS, Stored::Halves);
    let f = figures(&aligned, halves);
    assert_planned("aligned", &f);
    assert!(f.anonymous < f.weights / 3, "they were copied: {f:?}");
    // The same a few bytes on has to be copied, which shows that the figure tells.
    let f = figures(&aligned.misalign(), halves);
    assert!(f.anonymous > f.weights, "{f:?}");
    assert_planned("not aligned", &f);
}

#[test]
fn weights_that_are_laid_out_anew_are_in_memory_once() {
    let halves = figures(&Checkpoint::new(BLOCKS, Stored::Halves), ["f16", "dequant"]);
    assert_planned("halves", &halves);
    let packed = Checkpoint::new(BLOCKS, Stored::Packed);
    for how in [["f32", "packed"], ["f16", "dequant"], ["bf16", "dequant"]] {
        assert_planned(&how.join(", "), &figures(&packed, how));
    }
}

/// The most memory that the program and its children have together, in bytes. A page that several have
/// counts in parts.
fn together(checkpoint: &Checkpoint, how: [&str; 2], more: &[&str]) -> u64 {
    let bench = Bench::cold();
    let mut child = command("generate", checkpoint, &bench, how)
        .args(["-n", "6", "--ignore-eos", "--prompt-tokens", "1,2,3,4,5,6"])
        .args(more)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut most = 0;
    while child.try_wait().unwrap().is_none() {
        let all = [child.id()].into_iter().chain(children(child.id()));
        most = most.max(all.map(proportional).sum());
        std::thread::sleep(Duration::from_millis(5));
    }
    let out = child.wait_with_output().unwrap();
    assert!(out.status.success(), "{}", stderr(&out));
    most
}

fn children(pid: u32) -> Vec<u32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task"))
        .into_iter()
        .flatten();
    let lists = tasks.flatten().map(|t| t.path().join("children"));
    let texts: String = lists.filter_map(|l| fs::read_to_string(l).ok()).collect();
    texts
        .split_whitespace()
        .map(|p| p.parse().unwrap())
        .collect()
}

/// A process's part of memory; 0 where it has ended.
fn proportional(pid: u32) -> u64 {
    let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
    let line = rollup.lines().find_map(|l| l.strip_prefix("Pss:"));
    let kib = line.and_then(|l| l.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

#[test]
fn an_isolated_backend_shares_the_weights() {
    let stored = Checkpoint::new(NO_BLOCKS, Stored::Halves);
    let packed = Checkpoint::new(BLOCKS, Stored::Packed);
    for (what, checkpoint, how) in [
        ("used as stored", &stored, ["f16", "dequant"]),
        ("laid out anew", &packed, ["f32", "packed"]),
    ] {
        let f = figures(checkpoint, how);
        let here = together(checkpoint, how, &[]);
        let there = together(checkpoint, how, &["--isolate"]);
        // A second program, and no second copy.
        let allowed = here + f.process + f.weights / 4;
        assert!(there < allowed, "{what}: {here} -> {there}, {f:?}");
    }
}
