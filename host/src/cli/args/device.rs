//! Which model, and where and how it runs.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use halfhitch_seam::{PlanRequest, Precision, QuantRequest, RepresentationName};

use crate::cli::values;
use crate::engine::Selection;

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

    /// How contractions are written: auto, or a name of those that `halfhitch plan` shows.
    #[arg(long, value_name = "NAME", value_parser = values::representation)]
    pub representation: Option<RepresentationWish>,

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
            representation: self.representation.and_then(|wish| wish.0),
        }
    }
}

/// A representation that is wished for; none is `auto`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RepresentationWish(pub Option<RepresentationName>);

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
