//! What a backend keeps on disk between runs (compiled code, laid-out weights), for the host to list
//! and clear.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// What to do with a backend's cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CacheAction {
    /// List the entries.
    List,
    /// Read every entry and say which are damaged; remove nothing.
    Verify,
    /// Remove everything.
    Clear,
}

/// Something that is kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheEntry {
    /// Its name, a hash of all that made it.
    pub key: String,
    /// Its size in bytes.
    pub bytes: u64,
    /// When it was last used, in seconds since 1970.
    pub last_used: u64,
    /// What is wrong with it, where it was looked at and something is.
    pub damage: Option<String>,
}

/// A backend's cache after an action.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheReport {
    /// The folder; backends that share one report the same.
    pub folder: PathBuf,
    /// What is there, the most recently used first; after `Clear` what could not be removed.
    pub entries: Vec<CacheEntry>,
    /// Bytes that were removed.
    pub freed: u64,
}
