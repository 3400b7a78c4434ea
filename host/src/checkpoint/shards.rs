//! Which weight files a folder has, and all their tensors in one table.
//!
//! Where there is an index, its shards are read, and every tensor in them counts whether the index
//! names it or not (transformers and mlx-lm do the same); one that it names must be where it says. A
//! tensor in two shards is an error, since programs disagree on which one wins. A shard's name must
//! be a plain file name; the file itself may be a link, as download caches make them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path};
use std::sync::Arc;

use halfhitch_seam::{ErrorCode, ResultExt, SeamError, SeamResult};

use super::json::{self, Keys, describe};
use super::mapped::MappedFile;
use super::quote::{listed, quoted};
use super::safetensors::{self, RawTensor};
use super::summary::FileSummary;

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// Bytes an index may have: some 100 a tensor.
const INDEX_LIMIT: u64 = 32 << 20;

/// Files a model may be split into.
const SHARD_LIMIT: usize = 4096;

/// All tensors of a folder, by name.
pub(super) type TensorTable = BTreeMap<String, RawTensor>;

/// Maps the weight files of a folder.
///
/// # Errors
/// `NotFound` for a missing file, `InvalidModel` for a damaged or contradictory one; both name it.
pub(super) fn open(
    dir: &Path,
    warnings: &mut Vec<String>,
) -> SeamResult<(TensorTable, Vec<FileSummary>, Vec<Arc<MappedFile>>)> {
    let index = json::read_optional_object(dir, INDEX, INDEX_LIMIT)?
        .map(|index| weight_map(&index).in_context(|| INDEX))
        .transpose()?;
    let names: BTreeSet<&str> = match &index {
        Some(map) => map.values().map(String::as_str).collect(),
        None => BTreeSet::from([SINGLE]),
    };
    if names.len() > SHARD_LIMIT {
        return Err(SeamError::invalid_model(format!(
            "{INDEX} names {} files, more than {SHARD_LIMIT}",
            names.len()
        )));
    }
    if index.is_none() && !dir.join(SINGLE).exists() {
        return Err(no_weights(dir));
    }
    if !names.contains(SINGLE) && dir.join(SINGLE).exists() {
        return Err(SeamError::invalid_model(format!(
            "there are both {SINGLE} and an index that does not name it"
        ))
        .hint("remove the one that is not meant"));
    }
    let mut table = TensorTable::new();
    let mut files = Vec::new();
    let mut maps = Vec::new();
    for name in names {
        let shard = safetensors::open(dir, name).in_context(|| name)?;
        files.push(FileSummary {
            name: name.to_owned(),
            bytes: shard.length,
        });
        maps.push(shard.file);
        for (tensor, raw) in shard.tensors {
            if let Some(earlier) = table.get(&tensor) {
                return Err(SeamError::invalid_model(format!(
                    "tensor {} is in both {} and {name}",
                    quoted(&tensor),
                    earlier.file
                )));
            }
            table.insert(tensor, raw);
        }
    }
    if let Some(map) = &index {
        check_index(map, &table, warnings)?;
    }
    Ok((table, files, maps))
}

/// The index's map from tensor to shard, with every shard's name checked.
pub(super) fn weight_map(
    index: &serde_json::Map<String, serde_json::Value>,
) -> SeamResult<BTreeMap<String, String>> {
    let keys = Keys::new(index);
    let map = keys
        .object("weight_map")?
        .ok_or_else(|| keys.wrong("weight_map", "is missing"))?;
    let mut out = BTreeMap::new();
    for (tensor, shard) in map.iter() {
        let shard = shard.as_str().ok_or_else(|| {
            SeamError::invalid_model(format!(
                "the shard of {} is {}, not a string",
                quoted(tensor),
                describe(shard)
            ))
        })?;
        if !is_plain_name(shard) {
            return Err(SeamError::invalid_model(format!(
                "shard {} is not a plain file name that ends in .safetensors",
                quoted(shard)
            ))
            .hint("shards must lie in the model's folder"));
        }
        out.insert(tensor.to_owned(), shard.to_owned());
    }
    if out.is_empty() {
        return Err(SeamError::invalid_model("weight_map is empty"));
    }
    Ok(out)
}

/// Whether `name` can only mean a file right inside the folder, on any system.
fn is_plain_name(name: &str) -> bool {
    let mut parts = Path::new(name).components();
    matches!(parts.next(), Some(Component::Normal(part)) if part == name)
        && parts.next().is_none()
        && name.ends_with(".safetensors")
        && name.len() <= 255
        && !name.contains(['/', '\\', ':'])
        && !name.contains(char::is_control)
}

fn check_index(
    map: &BTreeMap<String, String>,
    table: &TensorTable,
    warnings: &mut Vec<String>,
) -> SeamResult<()> {
    for (tensor, shard) in map {
        let found = table.get(tensor).map(|raw| &*raw.file);
        if found != Some(shard.as_str()) {
            let place = found.map_or_else(
                || "it is in none".to_owned(),
                |file| format!("it is in {file}"),
            );
            return Err(SeamError::invalid_model(format!(
                "{INDEX}: tensor {} is not in {shard}: {place}",
                quoted(tensor)
            )));
        }
    }
    let extra: Vec<_> = table.keys().filter(|t| !map.contains_key(*t)).collect();
    if !extra.is_empty() {
        warnings.push(format!(
            "{INDEX} does not name {} that the shards have",
            listed(&extra)
        ));
    }
    Ok(())
}

/// The error for a folder without weights that are read here; the hint says what is there instead.
fn no_weights(dir: &Path) -> SeamError {
    let mut hint = "weights are read from safetensors files only";
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name.ends_with(".safetensors") {
            hint = "the folder has other safetensors files, but no index that names them";
            break;
        } else if name.ends_with(".bin") || name.ends_with(".pt") || name.ends_with(".pth") {
            hint = "the folder has PyTorch files; convert them to safetensors";
        } else if name.ends_with(".gguf") {
            hint = "the folder has a GGUF file; give that file instead, or import it";
        }
    }
    SeamError::new(
        ErrorCode::NotFound,
        format!("there is neither {SINGLE} nor {INDEX}"),
    )
    .hint(hint)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_names_are_shards() {
        for good in [
            "model.safetensors",
            "model-00001-of-00002.safetensors",
            "a b.safetensors",
        ] {
            assert!(is_plain_name(good), "{good}");
        }
        for bad in [
            "",
            ".",
            "..",
            "../x.safetensors",
            "a/x.safetensors",
            "./x.safetensors",
            "x.safetensors/",
            "/etc/x.safetensors",
            "..\\x.safetensors",
            "c:x.safetensors",
            "x\0.safetensors",
            "x\n.safetensors",
            "/etc/passwd",
            "pytorch_model.bin",
        ] {
            assert!(!is_plain_name(bad), "{bad:?}");
        }
    }
}
