//! The cache of modules as the seam reports it.

use std::collections::BTreeMap;
use std::time::UNIX_EPOCH;

use halfhitch_seam::{CacheAction, CacheEntry, CacheReport, SeamResult};

use super::{Cache, CompilerOptions};

impl CompilerOptions {
    /// Does an action on the cache that these options name; nothing where they name none or none
    /// was made yet.
    ///
    /// # Errors
    /// `Io`; `InvalidInput` where others can write the folder.
    pub fn cache_report(&self, action: CacheAction) -> SeamResult<Option<CacheReport>> {
        let Some(root) = self.cache.as_deref().filter(|root| root.exists()) else {
            return Ok(None);
        };
        let cache = Cache::open(root, self.cache_limit)?;
        let freed = match action {
            CacheAction::Clear => cache.clear()?,
            CacheAction::List | CacheAction::Verify => 0,
        };
        let mut damaged: BTreeMap<String, String> = match action {
            CacheAction::Verify => cache.verify()?.into_iter().collect(),
            CacheAction::List | CacheAction::Clear => BTreeMap::new(),
        };
        let entries = cache
            .list()?
            .into_iter()
            .map(|e| CacheEntry {
                damage: damaged.remove(&e.key),
                bytes: e.bytes,
                last_used: e.used.duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs()),
                key: e.key,
            })
            .collect();
        Ok(Some(CacheReport {
            folder: root.to_path_buf(),
            entries,
            freed,
        }))
    }
}
