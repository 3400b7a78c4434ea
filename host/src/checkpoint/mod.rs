//! A model folder, read and distrusted.
//!
//! [`Checkpoint::open`] takes a folder as mlx-lm and Hugging Face write it and gives a
//! [`ModelSpec`] with the [`Weights`] that fit it. Only configuration and tensor headers are read;
//! weights are views of the mapped files, so opening is quick whatever the size.
//!
//! | file | what is taken from it |
//! | --- | --- |
//! | `config.json` | the architecture, quantisation, stop tokens |
//! | `generation_config.json` (optional) | more stop tokens |
//! | `model.safetensors`, or the shards that `model.safetensors.index.json` names | weights |
//!
//! What it guarantees: the spec passed [`ModelSpec::validate`], the weights passed
//! [`check_weights`], every stop token is inside the vocabulary, and nothing that would change the
//! computation was left out. What it does not look at is the weights' values: see
//! [`Checkpoint::check_finite`].
//!
//! # Files that change while they are mapped
//!
//! Weights share the page cache with the file. A file that another program overwrites in place
//! changes under the reader, and one that is truncated ends the process with `SIGBUS`. Every
//! program that maps weights lives with that; the alternative is to copy gigabytes. Folders that
//! Halfhitch writes are put in place by renaming, which leaves existing maps alone.

mod assemble;
mod config;
mod finite;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing;
mod json;
pub mod mapped;
mod names;
mod quantization;
pub(crate) mod quote;
mod safetensors;
mod shards;
mod stop;
mod summary;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use halfhitch_seam::{
    Control, ErrorCode, ModelSpec, ResultExt, SeamError, SeamResult, TokenId, WeightId, Weights,
    check_weights,
};

use mapped::MappedFile;
pub(crate) use names::tensor_module;
pub use summary::{CheckpointSummary, FileSummary, FormSummary, TensorSummary};

/// A model folder that was opened and checked. Cheap to clone; the mapped files are shared.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    dir: PathBuf,
    spec: ModelSpec,
    weights: Weights,
    tensor_names: BTreeMap<WeightId, String>,
    files: Vec<FileSummary>,
    maps: Vec<Arc<MappedFile>>,
    stop_tokens: BTreeSet<TokenId>,
    bos_token: Option<TokenId>,
    warnings: Vec<String>,
}

impl Checkpoint {
    /// Opens the folder `dir`: reads the configuration and the headers of the weight files, maps the
    /// weights and checks that all fits together.
    ///
    /// # Errors
    /// `NotFound` where the folder or a file is missing, `Io` where one cannot be read,
    /// `InvalidModel` where one is damaged or they contradict each other, `Unsupported` where the
    /// model is of a kind that is not computed here (the hint lists what is).
    pub fn open(dir: impl AsRef<Path>) -> SeamResult<Self> {
        let dir = dir.as_ref();
        Self::read(dir).in_context(|| dir.display().to_string())
    }

    fn read(dir: &Path) -> SeamResult<Self> {
        check_folder(dir)?;
        let config = json::read_object(dir, "config.json", json::CONFIG_LIMIT)?;
        let generation =
            json::read_optional_object(dir, "generation_config.json", json::CONFIG_LIMIT)?;
        let model = config::parse(&config).in_context(|| "config.json")?;
        let quantization =
            quantization::Quantization::parse(&config).in_context(|| "config.json")?;
        let mut warnings = model.warnings;
        let stop = stop::read(
            &config,
            generation.as_ref(),
            model.spec.vocab_size,
            &mut warnings,
        )?;
        let (tensors, files, maps) = shards::open(dir, &mut warnings)?;
        let assembled = assemble::assemble(&model.spec, model.names, &quantization, tensors)?;
        warnings.extend(assembled.warnings);
        check_weights(&model.spec, &assembled.weights.manifest())?;
        Ok(Self {
            dir: dir.to_path_buf(),
            spec: model.spec,
            weights: assembled.weights,
            tensor_names: assembled.names,
            files,
            maps,
            stop_tokens: stop.eos,
            bos_token: stop.bos,
            warnings,
        })
    }

    /// What the model computes.
    pub fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    /// The weights: exactly those the spec asks for.
    pub fn weights(&self) -> &Weights {
        &self.weights
    }

    /// What a weight is called in the files; of a quantised one, the name of its packed values.
    pub fn tensor_name(&self, id: WeightId) -> Option<&str> {
        self.tensor_names.get(&id).map(String::as_str)
    }

    /// The folder, as it was given.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Tokens that end a text, by `config.json` and `generation_config.json` together.
    pub fn stop_tokens(&self) -> &BTreeSet<TokenId> {
        &self.stop_tokens
    }

    /// The token a text begins with, by `config.json` or else `generation_config.json`. Whether a
    /// prompt is given one is the tokenizer's business.
    pub fn bos_token(&self) -> Option<TokenId> {
        self.bos_token
    }

    /// What a user should know about the folder, a line each; nothing that changes the result.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Gives back what the weights' files take of this process's memory so far. What is read again is
    /// there as before, so that this may be called at any time.
    pub fn release_pages(&self) {
        self.maps.iter().for_each(|file| file.release_pages());
    }

    /// Reads every weight and checks that each number is finite: dense values, and the scales and
    /// biases of quantised ones. It touches all of the files, in parallel.
    ///
    /// # Errors
    /// `NonFinite` with the name of the tensor and the index of the first bad element; `Cancelled`.
    pub fn check_finite(&self, control: &Control<'_>) -> SeamResult<()> {
        finite::check(&self.weights, &self.tensor_names, control.cancel)
            .in_context(|| self.dir.display().to_string())
    }

    /// What is in the folder, for display.
    pub fn summary(&self) -> CheckpointSummary {
        summary::summarise(self)
    }
}

fn check_folder(dir: &Path) -> SeamResult<()> {
    match std::fs::metadata(dir) {
        Ok(m) if m.is_dir() => Ok(()),
        Ok(_) => Err(SeamError::invalid_input("this is not a folder")
            .hint("give the folder that holds config.json")),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Err(SeamError::new(
            ErrorCode::NotFound,
            "there is no such folder",
        )),
        Err(e) => Err(SeamError::new(ErrorCode::Io, e.to_string())),
    }
}
