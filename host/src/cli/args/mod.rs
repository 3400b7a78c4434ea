//! Every flag of every command, in one place: help, completions and parsing all come from here.
//!
//! Values are checked as far as they can be without looking at a model; what is wrong here is a usage
//! error (exit code 2), what is wrong with a model or a file is a failure (exit code 1).

mod conformance;
mod device;
mod files;
mod generate;
mod measure;

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::builder::FalseyValueParser;
use clap::{ArgAction, Args, Parser, Subcommand};

pub use self::conformance::*;
pub use self::device::*;
pub use self::files::*;
pub use self::generate::*;
pub use self::measure::*;

use super::values;

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
(folders of plugins), HALFHITCH_ISOLATE and HALFHITCH_ISOLATE_TIMEOUT (as the flags),
HALFHITCH_IREE_COMPILE (the IREE compiler to use), HALFHITCH_IREE_TARGET (what it makes code for, such
as cuda:sm_80), NO_COLOR.";

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

    /// Run backends in processes of their own: a crash of a driver is then an error.
    ///
    /// Weights are shared, not copied. What the backend prints goes to the log (-v), and its last lines
    /// into the error. HALFHITCH_ISOLATE=1 does the same.
    #[arg(long, global = true, env = "HALFHITCH_ISOLATE", hide_env = true)]
    #[arg(value_parser = FalseyValueParser::new())]
    pub isolate: bool,

    /// Seconds that an isolated backend may go without a sign of life before it is ended
    /// [default: 960].
    #[arg(
        long,
        global = true,
        value_name = "SECONDS",
        env = "HALFHITCH_ISOLATE_TIMEOUT"
    )]
    #[arg(hide_env = true, value_parser = values::positive)]
    pub isolate_timeout: Option<NonZeroUsize>,
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
    /// Measure the ways to run a model's contractions on a device, and keep the fastest.
    Tune(TuneArgs),
    /// Show the graph of a step that a backend compiles, or what a step costs.
    Graph(GraphArgs),
    /// Compare a backend's logits with those of one that is trusted: the accuracy gate.
    Verify(Box<VerifyArgs>),
    /// Hold a backend, or a plugin's file, to the contract and to the numbers: the conformance kit.
    Conformance(Box<ConformanceArgs>),
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
    /// Be the process of an isolated backend, driven over standard input.
    #[command(hide = true)]
    IsolatedBackend(IsolatedBackendArgs),
}

impl Command {
    /// Whether the command's result on stdout is one JSON object.
    pub const fn json(&self) -> bool {
        match self {
            Self::Generate(a) => a.json,
            Self::Inspect(a) => a.json,
            Self::Plan(a) => a.json,
            Self::Graph(a) => a.json,
            Self::Tune(a) => a.json,
            Self::Verify(a) => a.json,
            Self::Conformance(a) => a.json || a.confined,
            Self::Bench(a) => a.json || a.one_run,
            Self::Backends(a) | Self::Doctor(a) => a.json,
            Self::Import(a) => a.json,
            Self::Quantize(a) => a.json,
            Self::Cache(a) => a.json,
            Self::PluginManifest(a) => a.json,
            Self::Chat(_) | Self::Completions(_) | Self::IsolatedBackend(_) => false,
        }
    }
}

/// A command whose only choice is its output.
#[derive(Clone, Copy, Debug, Args)]
pub struct JsonArgs {
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// `halfhitch isolated-backend`.
#[derive(Clone, Debug, Args)]
#[group(required = true, multiple = false)]
pub struct IsolatedBackendArgs {
    /// A backend that is part of this program.
    #[arg(long, value_name = "NAME")]
    pub built_in: Option<String>,

    /// A plugin's manifest.
    #[arg(long, value_name = "FILE")]
    pub plugin: Option<PathBuf>,
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
