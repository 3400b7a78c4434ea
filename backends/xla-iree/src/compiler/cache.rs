//! Compiled modules, kept by a hash of all that made them.
//!
//! A module is native code, so the folder belongs to its user alone and one that others can write is
//! refused. An entry ends in a hash of itself that is checked at every read; one that is cut short or
//! altered is removed and made again. Entries are written under a temporary name and renamed, so a
//! process that dies leaves no half entry, and a lock a key lets two processes that want the same
//! module compile it once. The least recently used entries go when the folder outgrows its limit.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use halfhitch_seam::{ErrorCode, SeamError, SeamResult, environment};
use serde::Serialize;
use sha2::{Digest, Sha256};

use super::hex;

const MAGIC: &[u8; 8] = b"HHMODUL1";
const FOOTER: usize = 8 + 8 + 32;
const SUFFIX: &str = "vmfb";
/// What tuning found, beside the modules: keys begin with this.
const ANSWER: &str = "tuned-";
const ANSWERS: &str = "answers";
/// Most answers that are read.
const MOST_ANSWERS: usize = 4096;
const POLL: Duration = Duration::from_millis(50);
/// After this long a temporary file is one that a dead process left.
const STALE: Duration = Duration::from_secs(3600);

/// A folder of compiled modules.
#[derive(Clone, Debug)]
pub struct Cache {
    root: PathBuf,
    limit: u64,
}

/// An entry as it is listed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Entry {
    /// Hash of all that made it.
    pub key: String,
    /// Size in bytes.
    pub bytes: u64,
    /// When it was last used.
    pub used: SystemTime,
}

/// Held while a module is made; let go with the value or the process.
pub struct Lock(#[allow(dead_code)] File);

impl Cache {
    /// Opens a folder, and makes it where it is not there. `limit` is the most bytes it may hold.
    ///
    /// # Errors
    /// `Io` where it cannot be made; `InvalidInput` where it belongs to or can be written by others.
    pub fn open(root: &Path, limit: u64) -> SeamResult<Self> {
        let cache = Self {
            root: root.to_owned(),
            limit,
        };
        for folder in [
            root.to_owned(),
            cache.folder("modules"),
            cache.folder("locks"),
            cache.folder("notes"),
            cache.folder(ANSWERS),
            cache.folder("logs"),
        ] {
            private_folder(&folder)?;
        }
        Ok(cache)
    }

    /// `$HALFHITCH_CACHE_DIR`, else `$XDG_CACHE_HOME/halfhitch`, else `$HOME/.cache/halfhitch`; modules
    /// lie in its `xla-iree`. None in a process with [elevated](environment) rights.
    pub fn default_root() -> Option<PathBuf> {
        let var = |name: &str| environment::path_variable(name).map(PathBuf::from);
        let root = var("HALFHITCH_CACHE_DIR")
            .or_else(|| Some(var("XDG_CACHE_HOME")?.join("halfhitch")))
            .or_else(|| Some(var("HOME")?.join(".cache/halfhitch")))?;
        Some(root.join("xla-iree"))
    }

    /// Where the log of a failed compilation is kept.
    pub fn log_path(&self, key: &str) -> PathBuf {
        self.folder("logs").join(format!("{key}.log"))
    }

    /// An entry's module, if it is there and whole. A damaged one is removed.
    pub fn get(&self, key: &str) -> Option<Vec<u8>> {
        let path = self.entry(key);
        let file = fs::read(&path).ok()?;
        match checked(file) {
            Ok(module) => {
                // Marks the use; a read-only folder forgets the order of uses and nothing else.
                if let Ok(file) = File::options().append(true).open(&path) {
                    let _ = file.set_modified(SystemTime::now());
                }
                Some(module)
            }
            Err(reason) => {
                tracing::warn!(key, reason, "a damaged cache entry is made again");
                let _ = fs::remove_file(&path);
                None
            }
        }
    }

    /// Keeps a module, and removes the least recently used ones beyond the limit.
    ///
    /// # Errors
    /// `Io` where the folder is full or read-only; what was there stays whole.
    pub fn put(&self, key: &str, module: &[u8]) -> SeamResult<()> {
        self.write(&self.entry(key), &[module, &footer(module)])?;
        self.evict(key);
        Ok(())
    }

    /// Waits until no other process makes this module. `tick` is called while it waits; its error
    /// ends that. `None` where the folder takes no lock.
    ///
    /// # Errors
    /// `tick`'s.
    pub fn lock(
        &self,
        key: &str,
        tick: &mut dyn FnMut() -> SeamResult<()>,
    ) -> SeamResult<Option<Lock>> {
        let path = self.folder("locks").join(key);
        let opened = OpenOptions::new()
            .create(true)
            .append(true)
            .mode(0o600)
            .open(path);
        let Ok(file) = opened else {
            return Ok(None);
        };
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(Some(Lock(file))),
                Err(TryLockError::WouldBlock) => {
                    tick()?;
                    std::thread::sleep(POLL);
                }
                Err(TryLockError::Error(_)) => return Ok(None),
            }
        }
    }

    /// Keeps what tuning found, under `tuned-` and the key.
    ///
    /// # Errors
    /// `Io`.
    pub fn put_answer(&self, key: &str, text: &[u8]) -> SeamResult<()> {
        self.write(
            &self.entry(&format!("{ANSWER}{key}")),
            &[text, &footer(text)],
        )
    }

    /// Whether tuning found anything yet.
    pub fn has_answers(root: &Path) -> bool {
        fs::read_dir(root.join(ANSWERS)).is_ok_and(|mut files| files.next().is_some())
    }

    /// Whatever tuning found, of at most `longest` bytes each. Damaged entries are passed over, with a
    /// warning.
    pub fn answers(&self, longest: usize) -> Vec<(String, Vec<u8>)> {
        let entries = self.list().unwrap_or_default();
        let answers = entries.into_iter().filter(|e| e.key.starts_with(ANSWER));
        let read = |entry: Entry| {
            if entry.bytes > (longest + FOOTER) as u64 {
                tracing::warn!(key = entry.key, "a tuned entry is passed over: too long");
                return None;
            }
            let file = fs::read(self.entry(&entry.key)).ok()?;
            match checked(file) {
                Ok(text) => Some((entry.key, text)),
                Err(reason) => {
                    tracing::warn!(key = entry.key, "a tuned entry is passed over: {reason}");
                    None
                }
            }
        };
        answers.take(MOST_ANSWERS).filter_map(read).collect()
    }

    /// All entries, the most recently used first.
    ///
    /// # Errors
    /// `Io`.
    pub fn list(&self) -> SeamResult<Vec<Entry>> {
        let mut entries = self.list_in("modules")?;
        entries.extend(self.list_in(ANSWERS)?);
        entries.sort_by(|a, b| b.used.cmp(&a.used).then_with(|| a.key.cmp(&b.key)));
        Ok(entries)
    }

    fn list_in(&self, name: &str) -> SeamResult<Vec<Entry>> {
        let folder = self.folder(name);
        let mut entries = Vec::new();
        for file in fs::read_dir(&folder).map_err(|e| failed(&folder, &e))? {
            let file = file.map_err(|e| failed(&folder, &e))?;
            let path = file.path();
            let (Some(key), Some(SUFFIX)) = (
                path.file_stem().and_then(|s| s.to_str()),
                path.extension().and_then(|s| s.to_str()),
            ) else {
                continue;
            };
            // One that another process removes meanwhile is not there.
            let Ok(data) = file.metadata() else { continue };
            entries.push(Entry {
                key: key.to_owned(),
                bytes: data.len(),
                used: data.modified().unwrap_or(SystemTime::UNIX_EPOCH),
            });
        }
        Ok(entries)
    }

    /// Removes all entries, logs, notes and what dead processes left; the bytes of entries that went.
    ///
    /// # Errors
    /// `Io` for the first that cannot be removed.
    pub fn clear(&self) -> SeamResult<u64> {
        let mut bytes = 0;
        for name in ["modules", ANSWERS, "notes", "logs"] {
            let folder = self.folder(name);
            for file in fs::read_dir(&folder)
                .map_err(|e| failed(&folder, &e))?
                .flatten()
            {
                let size = file.metadata().map(|m| m.len()).unwrap_or(0);
                let path = file.path();
                match fs::remove_file(&path) {
                    Ok(()) if name == "modules" || name == ANSWERS => bytes += size,
                    Ok(()) => {}
                    Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                    Err(e) => return Err(failed(&path, &e)),
                }
            }
        }
        Ok(bytes)
    }

    /// Reads every entry; the keys of damaged ones, with the reason. Removes nothing.
    ///
    /// # Errors
    /// `Io`.
    pub fn verify(&self) -> SeamResult<Vec<(String, String)>> {
        let mut damaged = Vec::new();
        for entry in self.list()? {
            let result = fs::read(self.entry(&entry.key))
                .map_err(|e| e.to_string())
                .and_then(|file| checked(file).map_err(ToOwned::to_owned));
            if let Err(reason) = result {
                damaged.push((entry.key, reason));
            }
        }
        Ok(damaged)
    }

    /// A small note that was kept under a name.
    pub(super) fn read_note(&self, name: &str) -> Option<Vec<u8>> {
        fs::read(self.folder("notes").join(name)).ok()
    }

    pub(super) fn write_note(&self, name: &str, text: &[u8]) -> SeamResult<()> {
        self.write(&self.folder("notes").join(name), &[text])
    }

    fn write(&self, path: &Path, parts: &[&[u8]]) -> SeamResult<()> {
        let folder = path.parent().unwrap_or(&self.root);
        let write = || -> io::Result<()> {
            let mut file = tempfile::Builder::new()
                .prefix("tmp-")
                .tempfile_in(folder)?;
            for part in parts {
                file.write_all(part)?;
            }
            file.as_file().sync_data()?;
            file.persist(path).map_err(|e| e.error)?;
            Ok(())
        };
        write().map_err(|e| failed(path, &e))
    }

    fn evict(&self, newest: &str) {
        let Ok(mut entries) = self.list_in("modules") else {
            return;
        };
        entries.sort_by_key(|entry| std::cmp::Reverse(entry.used));
        let mut total: u64 = entries.iter().map(|e| e.bytes).sum();
        for entry in entries.iter().rev() {
            if total <= self.limit {
                break;
            }
            if entry.key != newest && fs::remove_file(self.entry(&entry.key)).is_ok() {
                total -= entry.bytes;
            }
        }
        let leftovers = fs::read_dir(self.folder("modules"))
            .into_iter()
            .flatten()
            .flatten();
        for file in leftovers.filter(|f| f.file_name().to_string_lossy().starts_with("tmp-")) {
            let age = file.metadata().and_then(|m| m.modified()).ok();
            if age
                .and_then(|t| t.elapsed().ok())
                .is_some_and(|age| age > STALE)
            {
                let _ = fs::remove_file(file.path());
            }
        }
    }

    pub(super) fn entry(&self, key: &str) -> PathBuf {
        if key.starts_with(ANSWER) {
            return self.folder(ANSWERS).join(format!("{key}.{SUFFIX}"));
        }
        self.folder("modules").join(format!("{key}.{SUFFIX}"))
    }

    fn folder(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }
}

/// What follows an entry's content in its file.
fn footer(content: &[u8]) -> Vec<u8> {
    let mut footer = Vec::with_capacity(FOOTER);
    footer.extend_from_slice(MAGIC);
    footer.extend_from_slice(&(content.len() as u64).to_le_bytes());
    footer.extend_from_slice(&Sha256::digest(content));
    footer
}

/// The module of an entry's file, without the footer.
fn checked(mut file: Vec<u8>) -> Result<Vec<u8>, &'static str> {
    let length = file.len().checked_sub(FOOTER).ok_or("it is cut short")?;
    let (module, footer) = file.split_at(length);
    let (magic, rest) = footer.split_at(8);
    let (size, hash) = rest.split_at(8);
    if magic != MAGIC || size != (length as u64).to_le_bytes() {
        return Err("it is cut short or no entry");
    }
    if hash != Sha256::digest(module).as_slice() {
        return Err("its content was altered");
    }
    file.truncate(length);
    Ok(file)
}

fn private_folder(path: &Path) -> SeamResult<()> {
    if !path.is_dir() {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(path)
            .map_err(|e| failed(path, &e))?;
    }
    let data = fs::metadata(path).map_err(|e| failed(path, &e))?;
    let refuse = |what: String, hint: &str| {
        SeamError::new(
            ErrorCode::InvalidInput,
            format!("the cache folder {} {what}", path.display()),
        )
        .hint(hint)
    };
    if data.uid() != rustix::process::geteuid().as_raw() {
        return Err(refuse(
            "belongs to another user".into(),
            "set HALFHITCH_CACHE_DIR to a folder of your own",
        ));
    }
    if data.mode() & 0o022 != 0 {
        return Err(refuse(
            format!("can be written by others (mode {:o})", data.mode() & 0o777),
            "chmod go-w it, or set HALFHITCH_CACHE_DIR to another folder",
        ));
    }
    Ok(())
}

fn failed(path: &Path, error: &io::Error) -> SeamError {
    SeamError::new(ErrorCode::Io, format!("{}: {error}", path.display()))
        .hint("free some space, make it writable, or set HALFHITCH_CACHE_DIR to another folder")
}

/// Hash of the things that make a module, each of any length.
pub fn key(parts: &[&[u8]]) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    hex(&hash.finalize())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn cache(limit: u64) -> (Cache, tempfile::TempDir) {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::open(&folder.path().join("c"), limit).unwrap();
        (cache, folder)
    }

    fn set_used(cache: &Cache, key: &str, seconds: u64) {
        let file = File::options().append(true).open(cache.entry(key)).unwrap();
        file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds))
            .unwrap();
    }

    #[test]
    fn what_was_put_is_got_and_nothing_else() {
        let (cache, _folder) = cache(1 << 20);
        cache.put("a", b"module").unwrap();
        assert_eq!(cache.get("a").unwrap(), b"module");
        assert_eq!(cache.get("b"), None);
        assert_eq!(cache.list().unwrap().len(), 1);
        assert!(cache.verify().unwrap().is_empty());
        assert_eq!(cache.clear().unwrap(), 6 + FOOTER as u64);
        assert_eq!(cache.get("a"), None);
    }

    #[test]
    fn damaged_entries_are_told_and_removed() {
        for (name, damage) in [
            (
                "cut",
                (|f: &mut Vec<u8>| f.truncate(30)) as fn(&mut Vec<u8>),
            ),
            ("empty", |f| f.clear()),
            ("altered", |f| f[2] ^= 1),
            ("footer", |f| {
                let n = f.len();
                f[n - 1] ^= 1
            }),
            ("longer", |f| f.push(0)),
        ] {
            let (cache, _folder) = cache(1 << 20);
            cache.put("a", b"module").unwrap();
            let mut file = fs::read(cache.entry("a")).unwrap();
            damage(&mut file);
            fs::write(cache.entry("a"), file).unwrap();
            assert_eq!(cache.verify().unwrap().len(), 1, "{name}");
            assert_eq!(cache.get("a"), None, "{name}");
            assert!(cache.list().unwrap().is_empty(), "{name}");
        }
    }

    #[test]
    fn the_least_recently_used_go_first() {
        let (cache, _folder) = cache(3 * (100 + FOOTER as u64));
        for (i, key) in ["a", "b", "c"].into_iter().enumerate() {
            cache.put(key, &[0; 100]).unwrap();
            set_used(&cache, key, i as u64);
        }
        cache.get("a").unwrap();
        cache.put("d", &[0; 100]).unwrap();
        let mut keys: Vec<_> = cache.list().unwrap().into_iter().map(|e| e.key).collect();
        keys.sort();
        assert_eq!(keys, ["a", "c", "d"]);
        // One entry larger than the limit stays alone.
        cache.put("e", &[0; 4000]).unwrap();
        assert_eq!(cache.list().unwrap()[0].key, "e");
        assert_eq!(cache.list().unwrap().len(), 1);
    }

    #[test]
    fn folders_that_others_can_write_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("c");
        Cache::open(&root, 1).unwrap();
        assert_eq!(fs::metadata(&root).unwrap().mode() & 0o777, 0o700);
        for inner in ["", "modules"] {
            let path = root.join(inner);
            fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).unwrap();
            let e = Cache::open(&root, 1).unwrap_err();
            assert!(e.to_string().contains("chmod go-w"), "{e}");
            fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
        }
    }

    #[test]
    fn a_key_is_held_by_one_at_a_time() {
        let (cache, _folder) = cache(1);
        let held = cache.lock("a", &mut || Ok(())).unwrap().unwrap();
        let mut waited = 0;
        let result = cache.lock("a", &mut || {
            waited += 1;
            if waited < 3 {
                Ok(())
            } else {
                Err(SeamError::invalid_input("enough"))
            }
        });
        assert!(result.is_err());
        assert!(cache.lock("b", &mut || Ok(())).unwrap().is_some());
        drop(held);
        assert!(cache.lock("a", &mut || Ok(())).unwrap().is_some());
    }

    #[test]
    fn keys_tell_where_parts_end() {
        assert_ne!(key(&[b"ab", b"c"]), key(&[b"a", b"bc"]));
        assert_eq!(key(&[b"a"]).len(), 64);
    }
}
