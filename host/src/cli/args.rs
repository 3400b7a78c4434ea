//! Every flag of every command, in one place: help, completions and parsing all come from here.
//!
//! Values are checked as far as they can be without looking at a model; what is wrong here is a usage
//! error (exit code 2), what is wrong with a model or a file is a failure (exit code 1).

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::{ArgAction, Args, Parser, Subcommand, ValueEnum};
use halfhitch_seam::{
    Bits, CacheAction, DType, GroupSize, PlanRequest, Precision, QuantRequest, StepShape, TokenId,
};

use super::values;
use crate::engine::Selection;

const ROOT_EXAMPLES: &str = "\
Examples:
  halfhitch generate --model smollm2-135m --prompt \"The capital of France is\"
  halfhitch chat --model smollm2-135m
  halfhitch import model.gguf models/my-model
  halfhitch plan --model smollm2-135m --quant packed
  halfhitch doctor

Exit codes: 0 success, 1 failure, 2 wrong usage, 130 interrupted.
Environment: HALFHITCH_MODELS (a folder of models, after ./models), HALFHITCH_CACHE_DIR (cache, else
in XDG_CACHE_HOME or ~/.cache), HALFHITCH_LOG (log filter, such as debug), HALFHITCH_PLUGIN_PATH
(folders of plugins), HALFHITCH_IREE_COMPILE (the IREE compiler to use), NO_COLOR.";

/// Run language models from quantised checkpoints, on any compute backend.
#[derive(Debug, Parser)]
#[command(name = "halfhitch", version, after_help = ROOT_EXAMPLES, max_term_width = 100)]
#[command(propagate_version = true, arg_required_else_help = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,

    /// Log more on stderr: -v for info, -vv for debug, -vvv for everything.
    #[arg(short, long, global = true, action = ArgAction::Count, conflicts_with = "quiet")]
    pub verbose: u8,

    /// No progress, notes or statistics on stderr; errors are still printed.
    #[arg(short, long, global = true)]
    pub quiet: bool,

    /// A folder of backend plugins, looked in before the usual ones; may be given several times.
    #[arg(long, global = true, value_name = "DIR")]
    pub plugin_dir: Vec<PathBuf>,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Generate text, or tokens, from a prompt.
    Generate(GenerateArgs),
    /// Talk with a model.
    Chat(ChatArgs),
    /// Show what is in a checkpoint.
    Inspect(InspectArgs),
    /// Show how a model would run on a device, and the memory it would take, without loading it.
    Plan(PlanArgs),
    /// Show the graph of a step that a backend compiles, or what a step costs.
    Graph(GraphArgs),
    /// Compare a backend's logits with those of one that is trusted: the accuracy gate.
    Verify(Box<VerifyArgs>),
    /// Measure how fast a model runs, and how near that is to what memory allows.
    Bench(BenchArgs),
    /// List the compute backends, their devices and what those can do.
    Backends(JsonArgs),
    /// Turn a GGUF file into a checkpoint folder, without loss.
    Import(ImportArgs),
    /// Quantise a dense checkpoint folder.
    Quantize(QuantizeArgs),
    /// List, check or clear what is kept on disk: compiled code and imported models.
    Cache(CacheArgs),
    /// Write the manifest that makes a library a plugin.
    PluginManifest(PluginManifestArgs),
    /// Print a shell completion script.
    Completions(CompletionsArgs),
    /// Check this machine, its models and backends, and say how to fix what is wrong.
    Doctor(JsonArgs),
}

impl Command {
    /// Whether the command's result on stdout is one JSON object.
    pub const fn json(&self) -> bool {
        match self {
            Self::Generate(a) => a.json,
            Self::Inspect(a) => a.json,
            Self::Plan(a) => a.json,
            Self::Graph(a) => a.json,
            Self::Verify(a) => a.json,
            Self::Bench(a) => a.json || a.one_run,
            Self::Backends(a) | Self::Doctor(a) => a.json,
            Self::Import(a) => a.json,
            Self::Quantize(a) => a.json,
            Self::Cache(a) => a.json,
            Self::PluginManifest(a) => a.json,
            Self::Chat(_) | Self::Completions(_) => false,
        }
    }
}

/// Which model.
#[derive(Debug, Args)]
pub struct ModelArgs {
    /// A checkpoint folder, a .gguf file, or the name of a folder in ./models.
    ///
    /// A .gguf file is imported into the cache the first time. Bare names are looked up in ./models,
    /// then in $HALFHITCH_MODELS.
    #[arg(short, long, value_name = "PATH|NAME")]
    pub model: PathBuf,
}

/// On what, and how, a model runs.
#[derive(Debug, Args)]
#[command(next_help_heading = "Where and how it runs")]
pub struct DeviceArgs {
    /// Compute backend and device: `backend[:driver[:selector]]`.
    ///
    /// The selector is a device's position or its stable id; `halfhitch backends` lists both.
    #[arg(short, long, value_name = "BACKEND", default_value = "reference-cpu")]
    pub backend: Selection,

    /// Precision of contractions: f32, f16 or bf16 [default: the device's preference].
    #[arg(long, value_name = "P", value_parser = values::precision)]
    pub precision: Option<Precision>,

    /// Quantised weights: auto, packed or dequant.
    #[arg(long, value_name = "MODE", default_value = "auto")]
    pub quant: QuantMode,

    /// Tokens that prompt and answer may take together [default: what the model allows].
    #[arg(long, value_name = "N", value_parser = values::positive)]
    pub context: Option<NonZeroUsize>,

    /// CPU threads [default: all cores].
    #[arg(long, value_name = "N", value_parser = values::threads)]
    pub threads: Option<NonZeroUsize>,
}

impl DeviceArgs {
    /// The wishes as negotiation takes them.
    pub fn plan_request(&self) -> PlanRequest {
        PlanRequest {
            precision: self.precision,
            quant: self.quant.into(),
            context: self.context.map(NonZeroUsize::get),
            sequences: 1,
            threads: self.threads.map(NonZeroUsize::get),
        }
    }
}

/// `halfhitch cache`.
#[derive(Debug, Args)]
pub struct CacheArgs {
    /// What to do.
    #[arg(value_name = "ACTION", default_value = "list")]
    pub action: CacheCommand,

    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// What to do with the caches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CacheCommand {
    /// Show what is kept.
    List,
    /// Read everything and say what is damaged (exit code 1 where something is).
    Verify,
    /// Remove everything. It is made again when it is needed.
    Clear,
}

impl From<CacheCommand> for CacheAction {
    fn from(command: CacheCommand) -> Self {
        match command {
            CacheCommand::List => Self::List,
            CacheCommand::Verify => Self::Verify,
            CacheCommand::Clear => Self::Clear,
        }
    }
}

/// `halfhitch plugin-manifest`.
#[derive(Debug, Args)]
#[command(after_help = "\
Writes NAME.plugin.json beside the library: for libmine.so, mine.plugin.json. Put both in a folder that
only you can write and name it with --plugin-dir or HALFHITCH_PLUGIN_PATH.

Example:
  halfhitch plugin-manifest plugins/libmine.so --name mine:npu --driver npu")]
pub struct PluginManifestArgs {
    /// The library, built for this machine with this version of halfhitch.
    #[arg(value_name = "LIBRARY")]
    pub library: PathBuf,

    /// The name that its backend calls itself: `backend` or `backend:driver`.
    #[arg(long, value_name = "NAME")]
    pub name: String,

    /// The driver or engine.
    #[arg(long, value_name = "DRIVER")]
    pub driver: String,

    /// The plugin's version.
    #[arg(long, value_name = "VERSION", default_value = env!("CARGO_PKG_VERSION"))]
    pub plugin_version: String,

    /// Version of something that it stands on, as NAME=VERSION; may be given several times.
    #[arg(long, value_name = "NAME=VERSION", value_parser = values::pair)]
    pub component: Vec<(String, String)>,

    /// Print the manifest as JSON as well.
    #[arg(long)]
    pub json: bool,
}

/// What to do with quantised weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum QuantMode {
    /// Whatever suits the device.
    Auto,
    /// Keep every quantised weight packed, or fail.
    Packed,
    /// Expand every quantised weight.
    Dequant,
}

impl From<QuantMode> for QuantRequest {
    fn from(mode: QuantMode) -> Self {
        match mode {
            QuantMode::Auto => Self::Auto,
            QuantMode::Packed => Self::Packed,
            QuantMode::Dequant => Self::Dequant,
        }
    }
}

/// How tokens are chosen.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Sampling")]
pub struct SamplingArgs {
    /// Randomness; 0 always takes the likeliest token.
    #[arg(long, value_name = "T", default_value_t = 0.0, allow_negative_numbers = true, value_parser = values::temperature)]
    pub temperature: f32,

    /// Sample among the K likeliest tokens only; 0 for all.
    #[arg(long, value_name = "K", default_value_t = 0)]
    pub top_k: u32,

    /// Sample among the likeliest tokens whose probabilities add up to P.
    #[arg(long, value_name = "P", default_value_t = 1.0, allow_negative_numbers = true, value_parser = values::top_p)]
    pub top_p: f32,

    /// Drop tokens less likely than P times the likeliest.
    #[arg(long, value_name = "P", default_value_t = 0.0, allow_negative_numbers = true, value_parser = values::min_p)]
    pub min_p: f32,

    /// Make tokens that already occurred less likely; 1 changes nothing.
    #[arg(long, value_name = "R", default_value_t = 1.0, allow_negative_numbers = true, value_parser = values::penalty)]
    pub repetition_penalty: f32,

    /// Seed of the random choice; the same seed gives the same text [default: a new one each run].
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
}

impl SamplingArgs {
    /// Whether flags were given that change nothing, since nothing is random.
    pub fn is_idle(&self) -> bool {
        let filters = self.top_k != 0 || self.top_p != 1.0 || self.min_p != 0.0;
        self.temperature == 0.0 && (filters || self.seed.is_some())
    }
}

/// When an answer ends.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "When to stop")]
pub struct StopArgs {
    /// Most tokens to generate.
    #[arg(short = 'n', long, value_name = "N", default_value = "512", value_parser = values::positive)]
    pub max_tokens: NonZeroUsize,

    /// Stop before this text; may be given several times.
    #[arg(long, value_name = "TEXT", value_parser = values::stop_string)]
    pub stop: Vec<String>,

    /// Go on when the model says that it is done.
    #[arg(long)]
    pub ignore_eos: bool,
}

const GENERATE_EXAMPLES: &str = "\
Examples:
  # The prompt as an argument, from a file, or from a pipe:
  halfhitch generate -m smollm2-135m -p \"What is a half hitch?\"
  halfhitch generate -m smollm2-135m --prompt-file question.txt
  git diff | halfhitch generate -m smollm2-135m --system \"Write a commit message.\"

  # Continue a text instead of answering it:
  halfhitch generate -m smollm2-135m --raw -p \"Once upon a time\"

  # Random, but the same each time:
  halfhitch generate -m smollm2-135m -p \"A poem\" --temperature 0.8 --top-p 0.95 --seed 7

  # For programs: token ids in, one JSON object with ids and logits out:
  halfhitch generate -m smollm2-135m --prompt-tokens 504,3575,282 -n 8 --top-logits 5 --json";

/// `halfhitch generate`.
#[derive(Debug, Args)]
#[command(after_help = GENERATE_EXAMPLES)]
pub struct GenerateArgs {
    /// The model.
    #[command(flatten)]
    pub model: ModelArgs,

    /// The prompt.
    #[command(flatten)]
    pub prompt: PromptArgs,

    /// When to stop.
    #[command(flatten)]
    pub stop: StopArgs,

    /// Sampling.
    #[command(flatten)]
    pub sampling: SamplingArgs,

    /// Device and plan.
    #[command(flatten)]
    pub device: DeviceArgs,

    /// Print one JSON object at the end instead of streaming text.
    #[arg(long, help_heading = "Output")]
    pub json: bool,

    /// Record the N largest logits of each step, before any penalty or temperature; needs --json.
    #[arg(long, value_name = "N", requires = "json", help_heading = "Output")]
    pub top_logits: Option<NonZeroUsize>,
}

/// Where a prompt comes from and what is done with it.
#[derive(Debug, Args)]
#[command(next_help_heading = "Prompt")]
pub struct PromptArgs {
    /// The prompt's text.
    #[arg(short, long, value_name = "TEXT", group = "source")]
    pub prompt: Option<String>,

    /// A file with the prompt; `-` is standard input. One newline at its end is dropped.
    ///
    /// Standard input is also read where no prompt is given and it is not a terminal.
    #[arg(short = 'f', long, value_name = "FILE", group = "source")]
    pub prompt_file: Option<PathBuf>,

    /// The prompt as token ids (`1,2,3`); taken as they are, and needs no tokenizer.
    #[arg(long, value_name = "IDS", group = "source", value_parser = values::token_ids)]
    pub prompt_tokens: Option<TokenIds>,

    /// Put the prompt into the model's chat template [default where the model has one].
    #[arg(long, conflicts_with_all = ["raw", "prompt_tokens"])]
    pub chat: bool,

    /// Continue the prompt as it stands, without the chat template.
    #[arg(long, conflicts_with_all = ["system", "prompt_tokens"])]
    pub raw: bool,

    /// System message for the chat template.
    #[arg(long, value_name = "TEXT", conflicts_with = "prompt_tokens")]
    pub system: Option<String>,
}

/// A list of token ids from the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenIds(pub Vec<TokenId>);

const CHAT_EXAMPLES: &str = "\
Commands in the chat:
  /help            what can be done
  /system TEXT     set the system message and start over; without TEXT, remove it
  /reset           start over
  /exit            leave (as does Ctrl-D)
Ctrl-C stops an answer; pressed twice it leaves. Lines are read from a pipe too, one message each.

Examples:
  halfhitch chat -m smollm2-135m
  halfhitch chat -m smollm2-135m --system \"Answer in one sentence.\" --temperature 0.7";

/// `halfhitch chat`.
#[derive(Debug, Args)]
#[command(after_help = CHAT_EXAMPLES)]
pub struct ChatArgs {
    /// The model.
    #[command(flatten)]
    pub model: ModelArgs,

    /// System message.
    #[arg(long, value_name = "TEXT")]
    pub system: Option<String>,

    /// When an answer ends.
    #[command(flatten)]
    pub stop: StopArgs,

    /// Sampling.
    #[command(flatten)]
    pub sampling: SamplingArgs,

    /// Device and plan.
    #[command(flatten)]
    pub device: DeviceArgs,
}

/// `halfhitch inspect`.
#[derive(Debug, Args)]
pub struct InspectArgs {
    /// The model.
    #[command(flatten)]
    pub model: ModelArgs,

    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// `halfhitch plan`.
#[derive(Debug, Args)]
pub struct PlanArgs {
    /// The model.
    #[command(flatten)]
    pub model: ModelArgs,

    /// Device and wishes.
    #[command(flatten)]
    pub device: DeviceArgs,

    /// Print JSON, with every weight's form.
    #[arg(long)]
    pub json: bool,
}

const GRAPH_EXAMPLES: &str = "\
Kernels, copies and bytes are those of the compiled graph, by parts of the model; a kernel fused
from several belongs to the part of its main operation. Nothing is loaded and nothing runs, so a
target need not be here: the backend says which it knows.

Examples:
  halfhitch graph -m smollm2-135m -b xla-iree:local-task --stats
  halfhitch graph -m smollm2-135m -b xla-iree:local-task --target cuda:sm_80 --stats --json
  halfhitch graph -m smollm2-135m -b xla-iree:local-task --shape chunk=128 --out chunk.mlir";

/// `halfhitch graph`.
#[derive(Debug, Args)]
#[command(after_help = GRAPH_EXAMPLES)]
pub struct GraphArgs {
    /// The model.
    #[command(flatten)]
    pub model: ModelArgs,

    /// Which step: decode, batch=N (sequences) or chunk=N (tokens of a prompt).
    #[arg(long, value_name = "SHAPE", default_value = "decode", value_parser = values::step_shape)]
    pub shape: StepShape,

    /// Compile, and print what a step costs in place of the graph.
    #[arg(long)]
    pub stats: bool,

    /// Tokens that each sequence holds before the step that is counted.
    #[arg(long, value_name = "N", default_value_t = 128, requires = "stats")]
    pub position: usize,

    /// Write the graph to a file.
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,

    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,

    /// Make code for this in place of the device: local, cuda:sm_80, vulkan, metal, rocm:gfx942, ...
    #[arg(long, value_name = "NAME", help_heading = "Where and how it runs")]
    pub target: Option<String>,

    /// Device and wishes.
    #[command(flatten)]
    pub device: DeviceArgs,
}

const VERIFY_EXAMPLES: &str = "\
Both sides are given the same tokens, and the logits of every position are compared: most of each prompt
as prefill, its end as decode steps. Limits depend on precision and cache type; the exit code is 1 where
one is passed over. The built-in prompts are prose, code, numbers, chat and several languages; a model
without a tokenizer gets random tokens.

A file of --prompts is one prompt, or several, each after a line `=== NAME` (`=== chat: NAME` for one
that goes through the chat template).

Examples:
  # Is the default of this device accurate? If not: which layer, which tensor?
  halfhitch verify -m smollm2-135m -b xla-iree:local-task --localize

  # What does f16 cost, on texts of one's own?
  halfhitch verify -m smollm2-135m -b xla-iree:local-task --precision f16 --prompts texts.txt

  # Packed weights against the same dequantised, on one device:
  halfhitch verify -m smollm2-135m -b xla-iree:local-task --quant packed \\
      --against xla-iree:local-task --against-quant dequant

  # Keep the record; tighten a limit:
  halfhitch verify -m smollm2-135m -b xla-iree:local-task --limit kl-mean=1e-9 --record gate.json";

/// `halfhitch verify`.
#[derive(Debug, Args)]
#[command(after_help = VERIFY_EXAMPLES)]
pub struct VerifyArgs {
    /// The model.
    #[command(flatten)]
    pub model: ModelArgs,

    /// Device and wishes of the side that is gated.
    #[command(flatten)]
    pub device: DeviceArgs,

    /// The side that is trusted: `backend[:driver[:selector]]`.
    #[arg(
        long,
        value_name = "BACKEND",
        default_value = "reference-cpu",
        help_heading = "Against what"
    )]
    pub against: Selection,

    /// Its precision [default: the device's preference].
    #[arg(long, value_name = "P", value_parser = values::precision, help_heading = "Against what")]
    pub against_precision: Option<Precision>,

    /// Its quantised weights: auto, packed or dequant.
    #[arg(
        long,
        value_name = "MODE",
        default_value = "auto",
        help_heading = "Against what"
    )]
    pub against_quant: QuantMode,

    /// Its model: another form of the same checkpoint (dense, GGUF, other bits) [default: the same].
    #[arg(long, value_name = "PATH|NAME", help_heading = "Against what")]
    pub against_model: Option<PathBuf>,

    /// A text file of prompts [default: the built-in ones].
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with = "tokens",
        help_heading = "What is run"
    )]
    pub prompts: Option<PathBuf>,

    /// A file of token ids, a line a prompt; needs no tokenizer.
    #[arg(long, value_name = "FILE", help_heading = "What is run")]
    pub tokens: Option<PathBuf>,

    /// Tokens at each prompt's end that run as decode steps, at most half of it.
    #[arg(long, value_name = "N", default_value_t = crate::gate::DECODE_STEPS, help_heading = "What is run")]
    pub decode_steps: usize,

    /// Replace a limit; may be given several times. Names: kl-mean, kl-p999, kl-max (nats), top1,
    /// clear-top1 (shares), dlogit, dlogit-rms, perplexity (relative), tap (for --localize).
    #[arg(long, value_name = "NAME=VALUE", value_parser = values::limit, help_heading = "Verdict")]
    pub limit: Vec<(String, f64)>,

    /// Find the layer and tensor where the two part.
    #[arg(long, help_heading = "Verdict")]
    pub localize: bool,

    /// Print one JSON object: the record.
    #[arg(long, help_heading = "Output")]
    pub json: bool,

    /// Write the record, as JSON, to a file.
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub record: Option<PathBuf>,
}

const BENCH_EXAMPLES: &str = "\
Every combination of --precision, --quant, --threads and --batch is a configuration. Each round
runs each of them once, in a process of its own: load, a first prompt, everything once untimed
(--warmup), everything once timed. Printed are medians over the rounds, with the smallest and the
largest value.

Rates count the tokens of all sequences of a batch. The limit is the bandwidth at which the same
number of threads reads memory, measured in the same round, over the bytes of weights that a step
reads: a share near 100 % means that nothing but fewer bytes could make it faster.

Examples:
  halfhitch bench -m smollm2-135m -b xla-iree:local-task
  halfhitch bench -m smollm2-135m -b xla-iree:local-task --precision f32,f16 --threads 1,2
  halfhitch bench -m smollm2-135m --prefill 512 --decode 64 --at 50,1000 --repeats 3 --json";

/// `halfhitch bench`.
#[derive(Debug, Args)]
#[command(after_help = BENCH_EXAMPLES)]
pub struct BenchArgs {
    /// The model.
    #[command(flatten)]
    pub model: ModelArgs,

    /// Compute backend and device: `backend[:driver[:selector]]`.
    #[arg(short, long, value_name = "BACKEND", default_value = "reference-cpu")]
    pub backend: Selection,

    /// Precisions of contractions, of f32, f16, bf16 [default: the device's preference].
    #[arg(long, value_name = "P,..", value_delimiter = ',', value_parser = values::precision, help_heading = "Configurations")]
    pub precision: Vec<Precision>,

    /// Ways with quantised weights, of auto, packed, dequant.
    #[arg(
        long,
        value_name = "MODE,..",
        value_delimiter = ',',
        default_value = "auto",
        hide_possible_values = true,
        help_heading = "Configurations"
    )]
    pub quant: Vec<QuantMode>,

    /// Numbers of CPU threads [default: all cores].
    #[arg(long, value_name = "N,..", value_delimiter = ',', value_parser = values::threads, help_heading = "Configurations")]
    pub threads: Vec<NonZeroUsize>,

    /// Numbers of sequences that are decoded together.
    #[arg(long, value_name = "N,..", value_delimiter = ',', default_value = "1", value_parser = values::positive, help_heading = "Configurations")]
    pub batch: Vec<NonZeroUsize>,

    /// Lengths of prompts, in tokens.
    #[arg(long, value_name = "N,..", value_delimiter = ',', default_value = "32,512", value_parser = values::positive, help_heading = "What is measured")]
    pub prefill: Vec<NonZeroUsize>,

    /// Tokens to decode, after a prompt of 32.
    #[arg(long, value_name = "N", default_value = "128", value_parser = values::positive, help_heading = "What is measured")]
    pub decode: NonZeroUsize,

    /// Time a decode step after this many tokens, too.
    #[arg(long, value_name = "N,..", value_delimiter = ',', value_parser = values::positive, help_heading = "What is measured")]
    pub at: Vec<NonZeroUsize>,

    /// Tokens that a sequence may grow to [default: what the model allows].
    #[arg(long, value_name = "N", value_parser = values::positive, help_heading = "What is measured")]
    pub context: Option<NonZeroUsize>,

    /// Rounds.
    #[arg(long, value_name = "N", default_value = "5", value_parser = values::positive, help_heading = "How often")]
    pub repeats: NonZeroUsize,

    /// Times that a run does everything before it is timed.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        help_heading = "How often"
    )]
    pub warmup: usize,

    /// Print JSON, with every single value.
    #[arg(long)]
    pub json: bool,

    /// Be the process of one run: measure the one configuration once and print that as JSON.
    #[arg(long, hide = true)]
    pub one_run: bool,
}

/// A command whose only choice is its output.
#[derive(Clone, Copy, Debug, Args)]
pub struct JsonArgs {
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// `halfhitch import`.
#[derive(Debug, Args)]
pub struct ImportArgs {
    /// The GGUF file. Tensors may be F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1 or Q8_0.
    pub gguf: PathBuf,

    /// The folder to write.
    pub output: PathBuf,

    /// Replace a model folder that is there.
    #[arg(long)]
    pub force: bool,

    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// `halfhitch quantize`.
#[derive(Debug, Args)]
pub struct QuantizeArgs {
    /// The dense checkpoint folder.
    pub input: PathBuf,

    /// The folder to write.
    pub output: PathBuf,

    /// Replace a model folder that is there.
    #[arg(long)]
    pub force: bool,

    /// Bits a weight: 2, 3, 4, 5, 6 or 8.
    #[arg(long, value_name = "N", default_value = "4", value_parser = values::bits)]
    pub bits: Bits,

    /// Weights that share a scale: 32, 64 or 128.
    #[arg(long, value_name = "N", default_value = "64", value_parser = values::group_size)]
    pub group_size: GroupSize,

    /// Type of scales and biases: f32, f16 or bf16 [default: the checkpoint's own].
    #[arg(long, value_name = "TYPE", value_parser = values::scale_dtype)]
    pub scale_dtype: Option<DType>,

    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// `halfhitch completions`.
#[derive(Clone, Copy, Debug, Args)]
#[command(after_help = "Example:\n  halfhitch completions bash > \
    ~/.local/share/bash-completion/completions/halfhitch")]
pub struct CompletionsArgs {
    /// The shell.
    pub shell: clap_complete::Shell,
}

#[cfg(test)]
mod tests {
    use super::Cli;
    use clap::CommandFactory;

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }
}
