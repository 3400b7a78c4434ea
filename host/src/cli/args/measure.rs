//! Flags of what plans, compares and measures.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::Args;
use halfhitch_seam::{Precision, StepShape};

use super::device::{DeviceArgs, ModelArgs, QuantMode, RepresentationWish};
use crate::cli::values;
use crate::engine::Selection;

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

const TUNE_EXAMPLES: &str = "\
Every contraction of the model is compiled in each way that the device offers and run on random
numbers; ways that compute something else are left out. The answers stay in the cache, for this
device, compiler and number of threads: `halfhitch plan` shows them, and the next session uses
them. Measure on an idle machine. `halfhitch cache clear` forgets them, as everything there.

Examples:
  halfhitch tune -m smollm2-135m -b xla-iree:local-task
  halfhitch tune -m smollm2-135m -b xla-iree:local-task --threads 1 --repeats 100 --json";

/// `halfhitch tune`.
#[derive(Debug, Args)]
#[command(after_help = TUNE_EXAMPLES)]
pub struct TuneArgs {
    /// The model.
    #[command(flatten)]
    pub model: ModelArgs,

    /// Measurements of each way, at most 1000.
    #[arg(long, value_name = "N", default_value = "30", value_parser = values::positive)]
    pub repeats: NonZeroUsize,

    /// Print one JSON object, with every measurement.
    #[arg(long)]
    pub json: bool,

    /// Device and wishes.
    #[command(flatten)]
    pub device: DeviceArgs,
}

const GRAPH_EXAMPLES: &str = "\
Kernels, copies and bytes are those of the compiled graph, by parts of the model; a kernel fused
from several belongs to the part of its main operation. Nothing is loaded and nothing runs, so a
target need not be here: the backend says which it knows.

Examples:
  halfhitch graph -m smollm2-135m -b xla-iree:local-task --stats
  halfhitch graph -m smollm2-135m -b xla-iree:local-task --target cuda:sm_80 --stats --json
  halfhitch graph -m smollm2-135m -b xla-iree:local-task --shape chunk=128 --out chunk.mlir
  halfhitch graph -m smollm2-135m -b xla-iree:local-task --target cuda:sm_80 --ahead";

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
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = values::whole::<usize>, requires = "stats")]
    pub position: usize,

    /// Compile all that a session would run into the cache, for a machine without a compiler.
    #[arg(long)]
    pub ahead: bool,

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
    #[arg(long, value_name = "N", default_value_t = crate::gate::DECODE_STEPS, value_parser = values::whole::<usize>, help_heading = "What is run")]
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

    /// Ways to write contractions: auto, or names of those that `halfhitch plan` shows.
    #[arg(long, value_name = "NAME,..", value_delimiter = ',', value_parser = values::representation, help_heading = "Configurations")]
    pub representation: Vec<RepresentationWish>,

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
        value_parser = values::whole::<usize>,
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
