//! The folder of one compilation, and those that a killed process left.
//!
//! The folder itself is locked as long as it is used. The system lets go of the lock when the process
//! ends, however it ends: a folder whose lock can be had has no owner left, and the next compilation
//! deletes it. Where the system locks no folders, nothing is taken for left behind.

use std::fs::{self, File, TryLockError};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use halfhitch_seam::{ErrorCode, SeamError, SeamResult};
use tempfile::TempDir;

/// Not the name that versions used which did not lock: theirs must not be taken for left behind.
const PREFIX: &str = "halfhitch-work-";
/// A folder with a log that an error names. Nobody deletes it.
const KEPT: &str = "halfhitch-log-";
/// How often a folder is made anew because it was taken for left behind before it was locked.
const TRIES: usize = 16;

/// A folder that is deleted when it is let go, or, where that never happens, by a later process.
pub struct WorkFolder {
    folder: TempDir,
    _lock: Option<File>,
}

impl WorkFolder {
    /// A new one in the system's folder for such (`TMPDIR`), in which others are tidied up.
    ///
    /// # Errors
    /// `Io`.
    pub fn new() -> SeamResult<Self> {
        Self::new_in(&std::env::temp_dir())
    }

    fn new_in(parent: &Path) -> SeamResult<Self> {
        delete_abandoned(parent);
        Self::create(parent).map_err(|e| {
            SeamError::new(ErrorCode::Io, format!("no temporary folder: {e}"))
                .hint("free some space, or set TMPDIR to another folder")
        })
    }

    fn create(parent: &Path) -> io::Result<Self> {
        for _ in 0..TRIES {
            let folder = tempfile::Builder::new().prefix(PREFIX).tempdir_in(parent)?;
            let lock = match File::open(folder.path()) {
                Ok(lock) => lock,
                // Here and below: somebody who tidies up was faster.
                Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
                Err(e) => return Err(e),
            };
            let lock = match lock.try_lock() {
                Ok(()) if is_at(&lock, folder.path()) => Some(lock),
                Ok(()) | Err(TryLockError::WouldBlock) => continue,
                Err(TryLockError::Error(_)) => None,
            };
            return Ok(Self {
                folder,
                _lock: lock,
            });
        }
        Err(io::Error::other("a new one was deleted again and again"))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Keeps it, under a name that nobody tidies up; where it is then.
    pub fn keep(self) -> PathBuf {
        let folder = self.folder.keep();
        let Some(unique) = folder
            .file_name()
            .and_then(|name| name.to_str()?.strip_prefix(PREFIX))
        else {
            return folder;
        };
        let kept = folder.with_file_name(format!("{KEPT}{unique}"));
        match fs::rename(&folder, &kept) {
            Ok(()) => kept,
            Err(_) => folder,
        }
    }
}

/// Deletes this user's folders whose owners are gone. What cannot be deleted stays.
fn delete_abandoned(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        if !entry.file_name().to_string_lossy().starts_with(PREFIX) {
            continue;
        }
        let path = entry.path();
        let own = rustix::process::geteuid().as_raw();
        // Of a link itself: what it points to is nobody's leftover.
        if !fs::symlink_metadata(&path).is_ok_and(|meta| meta.is_dir() && meta.uid() == own) {
            continue;
        }
        let Ok(lock) = File::open(&path) else {
            continue;
        };
        if lock.try_lock().is_ok()
            && is_at(&lock, &path)
            && let Err(e) = fs::remove_dir_all(&path)
        {
            tracing::debug!("{} stays: {e}", path.display());
        }
    }
}

/// Whether an open folder still has this name.
fn is_at(file: &File, path: &Path) -> bool {
    let (Ok(file), Ok(path)) = (file.metadata(), fs::symlink_metadata(path)) else {
        return false;
    };
    (file.dev(), file.ino()) == (path.dev(), path.ino())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_nobody_holds_is_deleted() {
        let parent = tempfile::tempdir().unwrap();
        let held = WorkFolder::new_in(parent.path()).unwrap();
        let dead = WorkFolder::new_in(parent.path()).unwrap();
        assert!(held._lock.is_some());
        fs::write(dead.path().join("graph.mlir"), "").unwrap();
        // As a killed process leaves it: there, and locked by nobody.
        let WorkFolder { folder, _lock } = dead;
        let dead = folder.keep();
        drop(_lock);
        let kept = WorkFolder::new_in(parent.path()).unwrap();
        assert!(!dead.exists());
        fs::write(kept.path().join("compile.log"), "why").unwrap();
        let kept = kept.keep();
        let other = parent.path().join("other");
        fs::create_dir(&other).unwrap();
        let link = parent.path().join(format!("{PREFIX}link"));
        std::os::unix::fs::symlink(&other, &link).unwrap();

        let last = WorkFolder::new_in(parent.path()).unwrap();
        for stays in [held.path(), &kept.join("compile.log"), &link, last.path()] {
            assert!(stays.symlink_metadata().is_ok(), "{}", stays.display());
        }
    }

    #[test]
    fn folders_are_made_while_others_tidy_up() {
        let parent = tempfile::tempdir().unwrap();
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..100 {
                        let folder = WorkFolder::new_in(parent.path()).unwrap();
                        fs::write(folder.path().join("graph.mlir"), "").unwrap();
                    }
                });
            }
        });
        assert_eq!(fs::read_dir(parent.path()).unwrap().count(), 0);
    }
}
