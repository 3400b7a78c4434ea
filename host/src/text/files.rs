//! Reading the small text files of a model folder, none of which is trusted.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::Path;

use halfhitch_seam::{ErrorCode, SeamError, SeamResult};
use serde_json::{Map, Value};

/// Largest `tokenizer.json`; those of the largest vocabularies known take some 35 MB.
pub(super) const MAX_TOKENIZER_BYTES: u64 = 256 << 20;
/// Largest of the other JSON files; `tokenizer_config.json` of large vocabularies takes 1 MB.
pub(super) const MAX_CONFIG_BYTES: u64 = 32 << 20;

/// The file's content, or `None` where there is no such file.
///
/// # Errors
/// `Io` where it cannot be read or is no regular file, `InvalidModel` where it is larger than
/// `limit` bytes; both name the file.
pub(super) fn read_bytes(path: &Path, limit: u64) -> SeamResult<Option<Vec<u8>>> {
    let io = |e: std::io::Error| {
        SeamError::new(
            ErrorCode::Io,
            format!("cannot read {}: {e}", path.display()),
        )
    };
    // Asked before it is opened: opening a named pipe would wait for a writer.
    let meta = match std::fs::metadata(path) {
        Ok(meta) => meta,
        Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            return Ok(None);
        }
        Err(e) => return Err(io(e)),
    };
    if !meta.is_file() {
        return Err(SeamError::new(
            ErrorCode::Io,
            format!("{} is not a file", path.display()),
        ));
    }
    let mut bytes = Vec::new();
    File::open(path)
        .and_then(|f| f.take(limit + 1).read_to_end(&mut bytes))
        .map_err(io)?;
    if bytes.len() as u64 > limit {
        return Err(SeamError::invalid_model(format!(
            "{} is larger than {} bytes",
            path.display(),
            limit
        )));
    }
    Ok(Some(bytes))
}

/// The file's content as UTF-8, or `None` where there is no such file.
pub(super) fn read_text(path: &Path, limit: u64) -> SeamResult<Option<String>> {
    let Some(bytes) = read_bytes(path, limit)? else {
        return Ok(None);
    };
    String::from_utf8(bytes).map(Some).map_err(|e| {
        SeamError::invalid_model(format!(
            "{} is not UTF-8 at byte {}",
            path.display(),
            e.utf8_error().valid_up_to()
        ))
    })
}

/// The file's JSON object, or `None` where there is no such file.
pub(super) fn read_object(path: &Path) -> SeamResult<Option<Map<String, Value>>> {
    let Some(bytes) = read_bytes(path, MAX_CONFIG_BYTES)? else {
        return Ok(None);
    };
    match serde_json::from_slice(&bytes) {
        Ok(Value::Object(map)) => Ok(Some(map)),
        Ok(_) => Err(SeamError::invalid_model(format!(
            "{} is not a JSON object",
            path.display()
        ))),
        Err(e) => Err(SeamError::invalid_model(format!(
            "{} is not valid JSON: {e}",
            path.display()
        ))),
    }
}
