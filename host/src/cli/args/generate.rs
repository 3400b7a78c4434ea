//! Flags of what writes text.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::Args;
use halfhitch_seam::TokenId;

use super::device::{DeviceArgs, ModelArgs};
use crate::cli::values;

/// How tokens are chosen.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Sampling")]
pub struct SamplingArgs {
    /// Randomness; 0 always takes the likeliest token.
    #[arg(long, value_name = "T", default_value_t = 0.0, allow_negative_numbers = true, value_parser = values::temperature)]
    pub temperature: f32,

    /// Sample among the K likeliest tokens only; 0 for all.
    #[arg(long, value_name = "K", default_value_t = 0, value_parser = values::whole::<u32>)]
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
    #[arg(long, value_name = "N", value_parser = values::whole::<u64>)]
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
    #[arg(long, value_name = "N", requires = "json", value_parser = values::positive, help_heading = "Output")]
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
