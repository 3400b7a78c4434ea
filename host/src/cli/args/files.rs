//! Flags of what reads and writes files.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use halfhitch_seam::{Bits, CacheAction, DType, GroupSize};

use super::device::ModelArgs;
use crate::cli::values;

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
