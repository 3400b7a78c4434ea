//! GGUF files, imported once each.
//!
//! Below the cache's root:
//!
//! | path | what |
//! | --- | --- |
//! | `gguf/SHA256-vN/` | the imported folder; the key is the file's content and the importer's format |
//! | `gguf/SHA256-vN.lock` | held while that folder is made, so that two processes do not make it twice |
//! | `gguf/memo/SHA256.json` | the content's hash of one path, with the size and time of change that it had |
//!
//! The memo spares reading a file of gigabytes at every start. It is believed while size and time of
//! change stay the same; whoever rewrites a file in place with both unchanged must delete the memo.

use std::fs::{self, File, TryLockError};
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, UNIX_EPOCH};

use halfhitch_seam::{Control, ErrorCode, Event, ResultExt, SeamError, SeamResult};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::folder::{WEIGHTS, at};
use super::{ImportOptions, import_gguf};

/// Counts up when the importer writes something else for the same file.
const FORMAT: u32 = 1;
const MAX_MEMO_BYTES: u64 = 1 << 16;
const LOCK_POLL: Duration = Duration::from_millis(50);

/// Imported files under one root.
#[derive(Clone, Debug)]
pub struct ImportCache {
    pub(super) folder: PathBuf,
}

/// What is looked at to tell that a file is still the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Stamp {
    path: PathBuf,
    size: u64,
    modified_ns: u128,
}

#[derive(Serialize, Deserialize)]
struct Memo {
    #[serde(flatten)]
    stamp: Stamp,
    sha256: String,
}

impl Stamp {
    fn of(path: &Path) -> SeamResult<Self> {
        let meta = at(path, "read", fs::metadata(path))?;
        // Reading a named pipe would wait for a writer, and a device may never end.
        if !meta.is_file() {
            return Err(SeamError::invalid_input(format!(
                "`{}` is not a file",
                path.display()
            )));
        }
        let modified = meta.modified().ok();
        Ok(Self {
            path: path.to_owned(),
            size: meta.len(),
            modified_ns: modified
                .and_then(|t| t.duration_since(UNIX_EPOCH).ok())
                .map_or(0, |d| d.as_nanos()),
        })
    }
}

impl ImportCache {
    /// A cache below `root`, which is made when it is needed.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self {
            folder: root.into().join("gguf"),
        }
    }

    /// The folder that `gguf` was imported to; imports it where that has not happened yet. Safe to
    /// call from several processes at once.
    ///
    /// # Errors
    /// As [`import_gguf`]; `Io` where the cache cannot be written; `InvalidInput` where others can
    /// write it.
    pub fn import(&self, gguf: &Path, control: &Control<'_>) -> SeamResult<PathBuf> {
        let gguf = at(gguf, "read", fs::canonicalize(gguf))?;
        make_private(&self.folder)?;
        let stamp = Stamp::of(&gguf)?;
        let digest = self.digest(&stamp, control)?;
        let key = format!("{digest}-v{FORMAT}");
        let target = self.folder.join(&key);
        if is_complete(&target) {
            return Ok(target);
        }
        let _lock = lock(&self.folder.join(format!("{key}.lock")), control)?;
        if is_complete(&target) {
            return Ok(target);
        }
        import_gguf(&gguf, &target, ImportOptions { force: true }, control)?;
        if Stamp::of(&gguf)? != stamp {
            // The hash may be that of other content than was imported.
            at(&target, "delete", fs::remove_dir_all(&target))?;
            return Err(SeamError::new(
                ErrorCode::Io,
                format!("{} changed while it was imported", gguf.display()),
            )
            .retryable());
        }
        Ok(target)
    }

    fn digest(&self, stamp: &Stamp, control: &Control<'_>) -> SeamResult<String> {
        let memos = self.folder.join("memo");
        let name = hex(&Sha256::digest(stamp.path.as_os_str().as_encoded_bytes()));
        let path = memos.join(format!("{name}.json"));
        if memos.is_dir() {
            check_private(&memos)?;
        }
        if let Some(memo) = read_memo(&path)
            && memo.stamp == *stamp
        {
            return Ok(memo.sha256);
        }
        let sha256 = hash_file(&stamp.path, control)?;
        let memo = Memo {
            stamp: stamp.clone(),
            sha256: sha256.clone(),
        };
        // Without the memo the next start is slower and nothing else: a full disk is no reason to fail.
        if let Err(error) = write_memo(&memos, &path, &memo) {
            tracing::debug!(%error, "the hash of the file is not kept");
        }
        Ok(sha256)
    }
}

/// Folders appear complete; what is looked for is that nobody has deleted parts of one since.
fn is_complete(folder: &Path) -> bool {
    ["config.json", WEIGHTS]
        .iter()
        .all(|name| folder.join(name).is_file())
}

/// Makes the folder, for this user alone, and refuses one that others can write: they could put
/// another model in the place of the user's.
fn make_private(folder: &Path) -> SeamResult<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    at(folder, "create", builder.create(folder))?;
    check_private(folder)
}

/// Refuses a folder that is not this user's alone to write.
#[cfg(unix)]
fn check_private(folder: &Path) -> SeamResult<()> {
    use std::os::unix::fs::MetadataExt as _;
    let meta = at(folder, "read", fs::metadata(folder))?;
    let refuse = |why: String, hint: &str| {
        let name = folder.display();
        Err(SeamError::invalid_input(format!("the cache `{name}` {why}")).hint(hint))
    };
    if meta.uid() != rustix::process::geteuid().as_raw() {
        return refuse(
            format!("belongs to another user ({})", meta.uid()),
            "set HALFHITCH_CACHE_DIR to a folder of your own",
        );
    }
    if meta.mode() & 0o022 != 0 {
        return refuse(
            "can be written by other users".into(),
            "chmod go-w it, or set HALFHITCH_CACHE_DIR to another folder",
        );
    }
    Ok(())
}

#[cfg(not(unix))]
fn check_private(_: &Path) -> SeamResult<()> {
    Ok(())
}

/// Takes the lock, waiting for another process that has it. Released when the file is dropped.
fn lock(path: &Path, control: &Control<'_>) -> SeamResult<File> {
    let open = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(path);
    let file = at(path, "open", open)?;
    let mut told = false;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) => {
                if !told {
                    control.observer.on_event(Event::Note(
                        "waiting for another process that imports the same file".into(),
                    ));
                    told = true;
                }
                control.cancel.check()?;
                thread::sleep(LOCK_POLL);
            }
            Err(TryLockError::Error(e)) => return at(path, "lock", Err(e)),
        }
    }
}

fn hash_file(path: &Path, control: &Control<'_>) -> SeamResult<String> {
    let mut file = at(path, "open", File::open(path))?;
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        control.cancel.check()?;
        let n = at(path, "read", file.read(&mut buffer))?;
        if n == 0 {
            return Ok(hex(&hasher.finalize()));
        }
        hasher.update(&buffer[..n]);
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// A memo, where there is one that makes sense.
fn read_memo(path: &Path) -> Option<Memo> {
    let mut text = Vec::new();
    let file = File::open(path).ok()?;
    file.take(MAX_MEMO_BYTES).read_to_end(&mut text).ok()?;
    let memo: Memo = serde_json::from_slice(&text).ok()?;
    // It becomes part of a path.
    let plain = memo.sha256.len() == 64 && memo.sha256.bytes().all(|b| b.is_ascii_hexdigit());
    plain.then_some(memo)
}

fn write_memo(folder: &Path, path: &Path, memo: &Memo) -> SeamResult<()> {
    make_private(folder)?;
    let text = serde_json::to_vec(memo)
        .map_err(|e| SeamError::new(ErrorCode::Io, e.to_string()))
        .in_context(|| path.display().to_string())?;
    let result = tempfile::NamedTempFile::new_in(folder).and_then(|mut file| {
        file.write_all(&text)?;
        file.persist(path).map_err(std::io::Error::from)
    });
    at(path, "write", result).map(drop)
}
