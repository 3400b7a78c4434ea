//! Imported models that are kept, as the cache command reports them.

use std::fs;
use std::path::Path;
use std::time::UNIX_EPOCH;

use halfhitch_seam::{CacheAction, CacheEntry, CacheReport, ErrorCode, SeamError, SeamResult};

use super::cache::ImportCache;
use crate::checkpoint::Checkpoint;

impl ImportCache {
    /// Lists, verifies or clears what was imported; nothing where nothing ever was. Verifying opens
    /// every model as a run would.
    ///
    /// # Errors
    /// `Io`.
    pub fn report(&self, action: CacheAction) -> SeamResult<Option<CacheReport>> {
        if !self.folder.exists() {
            return Ok(None);
        }
        let mut report = CacheReport {
            folder: self.folder.clone(),
            entries: Vec::new(),
            freed: 0,
        };
        for entry in fs::read_dir(&self.folder).map_err(|e| failed(&self.folder, &e))? {
            let path = entry.map_err(|e| failed(&self.folder, &e))?.path();
            // Lock files stay: somebody may hold one.
            if !path.is_dir() {
                continue;
            }
            let bytes = size(&path);
            if action == CacheAction::Clear {
                fs::remove_dir_all(&path).map_err(|e| failed(&path, &e))?;
                report.freed += bytes;
            } else if path.join("config.json").exists() {
                let name = path.file_name().unwrap_or_default();
                report.entries.push(CacheEntry {
                    key: name.to_string_lossy().into_owned(),
                    bytes,
                    last_used: modified(&path),
                    damage: match action {
                        CacheAction::Verify => Checkpoint::open(&path).err().map(|e| e.message),
                        CacheAction::List | CacheAction::Clear => None,
                    },
                });
            }
        }
        report.entries.sort_by(|a, b| {
            b.last_used
                .cmp(&a.last_used)
                .then_with(|| a.key.cmp(&b.key))
        });
        Ok(Some(report))
    }
}

fn failed(path: &Path, e: &std::io::Error) -> SeamError {
    SeamError::new(ErrorCode::Io, format!("{}: {e}", path.display()))
}

/// Bytes of the files in a folder; what cannot be looked at counts nothing.
fn size(folder: &Path) -> u64 {
    fs::read_dir(folder).map_or(0, |entries| {
        entries
            .flatten()
            .filter_map(|e| e.metadata().ok())
            .map(|m| m.len())
            .sum()
    })
}

fn modified(path: &Path) -> u64 {
    let time = fs::metadata(path).and_then(|m| m.modified()).ok();
    time.and_then(|t| t.duration_since(UNIX_EPOCH).ok())
        .map_or(0, |d| d.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_listed_checked_and_cleared() {
        let root = tempfile::tempdir().unwrap();
        let cache = ImportCache::new(root.path());
        assert_eq!(cache.report(CacheAction::List).unwrap(), None);
        let model = root.path().join("gguf/abc-v1");
        fs::create_dir_all(&model).unwrap();
        fs::write(model.join("config.json"), "{}").unwrap();
        let listed = cache.report(CacheAction::List).unwrap().unwrap();
        assert_eq!(listed.entries[0].key, "abc-v1");
        assert_eq!((listed.entries[0].bytes, listed.freed), (2, 0));
        assert_eq!(listed.entries[0].damage, None);
        let verified = cache.report(CacheAction::Verify).unwrap().unwrap();
        assert!(verified.entries[0].damage.is_some(), "{{}} is no model");
        let cleared = cache.report(CacheAction::Clear).unwrap().unwrap();
        assert_eq!((cleared.entries.len(), cleared.freed), (0, 2));
        assert!(!model.exists());
    }
}
