//! What a quantised folder holds besides its weights.

use std::fs::{self, File};
use std::io::Read as _;
use std::path::Path;

use halfhitch_seam::{ErrorCode, ResultExt, SeamError, SeamResult};
use serde_json::{Map, Value as Json, json};

use super::QuantizeOptions;
use crate::import::folder::{StagedFolder, at};

const CONFIG: &str = "config.json";
/// No file that describes a model comes near it; tokenizers reach 30 MB.
const MAX_FILE_BYTES: u64 = 256 << 20;
/// Endings of files that describe a model. Weights in other formats and caches are left behind.
const COPIED: [&str; 5] = ["json", "jinja", "model", "txt", "md"];

/// Writes config.json as mlx-lm does: `quantization`, and the same again under its older name.
pub(super) fn write_config(
    input: &Path,
    staged: &StagedFolder,
    options: &QuantizeOptions,
) -> SeamResult<()> {
    let path = input.join(CONFIG);
    let text = read(&path)?;
    let mut config: Map<String, Json> = serde_json::from_slice(&text)
        .map_err(|e| SeamError::new(ErrorCode::InvalidModel, e.to_string()))
        .in_context(|| path.display().to_string())?;
    let quantization = json!({
        "group_size": options.group_size.get(),
        "bits": options.bits.get(),
        "mode": "affine",
    });
    config.insert("quantization".into(), quantization.clone());
    config.insert("quantization_config".into(), quantization);
    staged.write_json(CONFIG, &Json::Object(config))
}

/// Copies tokenizer, chat template, generation settings, licence and the like.
pub(super) fn copy_others(input: &Path, staged: &StagedFolder) -> SeamResult<()> {
    let mut entries = at(input, "read", fs::read_dir(input))?
        .map(|entry| at(input, "read", entry))
        .collect::<SeamResult<Vec<_>>>()?;
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let path = entry.path();
        let file_name = entry.file_name();
        let Some(name) = file_name.to_str() else {
            continue;
        };
        // Links are followed: Hugging Face's own cache consists of them.
        if is_description(name) && path.is_file() {
            staged.write(name, &read(&path)?)?;
        }
    }
    Ok(())
}

fn is_description(name: &str) -> bool {
    let ending = Path::new(name).extension().and_then(|e| e.to_str());
    let kind = ending.map_or_else(
        || name.starts_with("LICENSE") || name.starts_with("NOTICE"),
        |e| COPIED.contains(&e),
    );
    kind && !name.starts_with('.') && name != CONFIG && !name.ends_with(".index.json")
}

fn read(path: &Path) -> SeamResult<Vec<u8>> {
    let file = at(path, "open", File::open(path))?;
    let mut bytes = Vec::new();
    let read = file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes);
    at(path, "read", read)?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(
            SeamError::invalid_model(format!("is longer than {MAX_FILE_BYTES} bytes"))
                .context(path.display().to_string()),
        );
    }
    Ok(bytes)
}
