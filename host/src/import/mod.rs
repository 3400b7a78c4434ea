//! GGUF files become model folders.
//!
//! [`import_gguf`] converts without loss: the folder dequantises to exactly the numbers the file
//! stands for (see [`blocks`]), in MLX's layout, with tokenizer and chat template. What cannot be
//! converted exactly is refused by name. [`resolve_model`] is how `--model` is read: a folder, a
//! GGUF file, or the name of a model.
//!
//! | module | what for |
//! | --- | --- |
//! | [`gguf`] | reading the file, distrusting it |
//! | [`architecture`], [`names`] | what the metadata and the tensors' names mean |
//! | [`blocks`], [`convert`] | the numbers |
//! | [`tokenizer`] | the vocabulary and the chat template |
//! | [`cache`] | importing a file once |
//! | [`folder`] | writing model folders, all or nothing |

pub mod architecture;
pub mod blocks;
pub mod cache;
pub mod convert;
pub mod folder;
pub mod gguf;
mod json;
mod kept;
mod locate;
pub mod names;
mod rope;
pub mod tokenizer;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use halfhitch_seam::{Control, DType, ResultExt, SeamResult};
use serde::Serialize;
use serde_json::{Map, Value as Json, json};

use architecture::Model;
use convert::Conversion;
use folder::{SafetensorsWriter, StagedFolder};
use gguf::Gguf;
pub use locate::{ModelLocator, resolve_model};
use tokenizer::{SpecialIds, TokenizerFiles};

/// How to import.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ImportOptions {
    /// Replace a model folder that is there.
    pub force: bool,
}

/// What was imported.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ImportReport {
    /// The folder.
    pub output: PathBuf,
    /// Architecture.
    pub architecture: String,
    /// Number of parameters.
    pub parameters: u64,
    /// How many tensors the file has of each of ggml's types.
    pub tensors: BTreeMap<String, usize>,
    /// Whether there is a tokenizer.
    pub tokenizer: bool,
    /// Whether there is a chat template.
    pub chat_template: bool,
    /// Bytes of the tensors in the file.
    pub source_bytes: u64,
    /// Bytes of the weights file in the folder.
    pub weights_bytes: u64,
    /// What a user should know, one line each.
    pub notes: Vec<String>,
}

/// Converts the GGUF file `gguf` to a model folder at `out`, which appears only when it is complete.
/// Takes no more memory than a few rows. Progress is [`Stage::Convert`](halfhitch_seam::Stage), in
/// bytes of the file.
///
/// # Errors
/// `InvalidInput` where something is at `out` (see [`StagedFolder::create`]) or the file lies in it; `Unsupported` for what
/// is not converted, by name; `InvalidModel` and `NonFinite` for files that contradict themselves or
/// hold no numbers; `Io`, `NotFound`, `Cancelled`.
pub fn import_gguf(
    gguf: &Path,
    out: &Path,
    options: ImportOptions,
    control: &Control<'_>,
) -> SeamResult<ImportReport> {
    let file = Gguf::open(gguf)?;
    folder::check_apart(gguf, out)?;
    import_opened(&file, out, options, control).in_context(|| gguf.display().to_string())
}

pub(crate) fn import_opened(
    gguf: &Gguf,
    out: &Path,
    options: ImportOptions,
    control: &Control<'_>,
) -> SeamResult<ImportReport> {
    let model = Model::read(gguf)?;
    let (tensors, traits) = names::map_tensors(gguf, &model)?;
    let tokenizer = tokenizer::read(gguf, model.vocab, model.context)?;
    let parameters = tensors
        .iter()
        .map(|t| t.source.shape.iter().map(|&n| n as u64).product::<u64>())
        .sum();
    let conversion = Conversion::plan(gguf, tensors, control)?;

    let folder = StagedFolder::create(out, options.force)?;
    let mut config = model.config(traits);
    finish_config(&mut config, &conversion, &tokenizer.ids);
    folder.write_json("config.json", &Json::Object(config))?;
    write_tokenizer(&folder, &tokenizer)?;
    let mut weights =
        SafetensorsWriter::create(&folder.path(folder::WEIGHTS), conversion.planned())?;
    conversion.write(&mut weights, control)?;
    let weights_bytes = weights.finish()?;
    folder.verify()?;
    folder.commit()?;
    Ok(ImportReport {
        output: out.to_owned(),
        architecture: model.architecture.name().into(),
        parameters,
        tensors: conversion.types(),
        tokenizer: tokenizer.tokenizer.is_some(),
        chat_template: tokenizer
            .config
            .is_some_and(|c| c.get("chat_template").is_some()),
        source_bytes: conversion.source_bytes(),
        weights_bytes,
        notes: tokenizer.notes,
    })
}

fn set_id(map: &mut Map<String, Json>, key: &str, id: Option<Json>) {
    if let Some(id) = id {
        map.insert(key.into(), id);
    }
}

fn finish_config(config: &mut Map<String, Json>, conversion: &Conversion<'_>, ids: &SpecialIds) {
    set_id(config, "bos_token_id", ids.bos.map(|id| json!(id)));
    set_id(config, "eos_token_id", ids.eos.map(|id| json!(id)));
    set_id(config, "pad_token_id", ids.padding.map(|id| json!(id)));
    let dtype = match conversion.main_dtype() {
        DType::F16 => "float16",
        DType::BF16 => "bfloat16",
        _ => "float32",
    };
    config.insert("torch_dtype".into(), json!(dtype));
    if let Some(quantization) = conversion.quantization() {
        config.insert("quantization".into(), quantization);
    }
}

fn write_tokenizer(folder: &StagedFolder, files: &TokenizerFiles) -> SeamResult<()> {
    if let Some(tokenizer) = &files.tokenizer {
        folder.write_json("tokenizer.json", tokenizer)?;
    }
    if let Some(config) = &files.config {
        folder.write_json("tokenizer_config.json", config)?;
    }
    let mut generation = Map::new();
    set_id(
        &mut generation,
        "bos_token_id",
        files.ids.bos.map(|id| json!(id)),
    );
    set_id(&mut generation, "eos_token_id", files.ids.stop_ids());
    set_id(
        &mut generation,
        "pad_token_id",
        files.ids.padding.map(|id| json!(id)),
    );
    if generation.is_empty() {
        return Ok(());
    }
    folder.write_json("generation_config.json", &Json::Object(generation))
}
