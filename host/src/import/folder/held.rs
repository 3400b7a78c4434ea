//! Folders that belong to a running process, and those that one left which was killed.
//!
//! Whoever makes a folder locks the folder itself. The system lets go of the lock when the process
//! ends, however it ends: a folder whose lock can be had has no owner left. No process id is compared,
//! so one that is used again, or that means something else in a container, misleads nobody. Where the
//! system locks no folders, nothing is taken for left behind.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::path::Path;

use tempfile::TempDir;

/// How often a folder is made anew because it was taken for left behind before it was locked.
const TRIES: usize = 16;

/// Makes a folder with `builder` below `parent`, locked where the system can do that. The lock is held
/// as long as the file.
///
/// # Errors
/// What making the folder says.
pub(super) fn create(
    builder: &tempfile::Builder<'_, '_>,
    parent: &Path,
) -> io::Result<(TempDir, Option<File>)> {
    for _ in 0..TRIES {
        let folder = builder.tempdir_in(parent)?;
        let lock = match File::open(folder.path()) {
            Ok(lock) => lock,
            // Here and below: somebody who tidies up was faster.
            Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
            // A system on which folders are not opened.
            Err(_) => return Ok((folder, None)),
        };
        match lock.try_lock() {
            Ok(()) if is_at(&lock, folder.path()) => return Ok((folder, Some(lock))),
            Ok(()) | Err(fs::TryLockError::WouldBlock) => {}
            Err(fs::TryLockError::Error(_)) => return Ok((folder, None)),
        }
    }
    Err(io::Error::other("a new folder was deleted again and again"))
}

/// Deletes folders below `parent` whose names begin with `prefix`, that are this user's and whose owner
/// is gone. What cannot be deleted stays, for another time.
pub(super) fn delete_abandoned(parent: &Path, prefix: &OsStr) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let named = name
            .as_encoded_bytes()
            .starts_with(prefix.as_encoded_bytes());
        if !named || !is_own_folder(&entry.path()) {
            continue;
        }
        let path = entry.path();
        let Ok(lock) = File::open(&path) else {
            continue;
        };
        if lock.try_lock().is_ok() && is_at(&lock, &path) {
            match fs::remove_dir_all(&path) {
                Ok(()) => tracing::info!("deleted {}, left by a killed run", path.display()),
                Err(e) => tracing::debug!("{} stays: {e}", path.display()),
            }
        }
    }
}

#[cfg(unix)]
fn is_own_folder(path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt as _;
    // Of a link itself: what it points to is nobody's leftover.
    fs::symlink_metadata(path)
        .is_ok_and(|meta| meta.is_dir() && meta.uid() == rustix::process::geteuid().as_raw())
}

#[cfg(not(unix))]
fn is_own_folder(_: &Path) -> bool {
    false
}

/// Whether an open folder still has this name.
#[cfg(unix)]
fn is_at(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt as _;
    let (Ok(file), Ok(path)) = (file.metadata(), fs::symlink_metadata(path)) else {
        return false;
    };
    (file.dev(), file.ino()) == (path.dev(), path.ino())
}

#[cfg(not(unix))]
fn is_at(_: &File, _: &Path) -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn make(parent: &Path) -> (TempDir, Option<File>) {
        create(tempfile::Builder::new().prefix("x-"), parent).unwrap()
    }

    #[test]
    fn only_what_nobody_holds_is_deleted() {
        let parent = tempfile::tempdir().unwrap();
        let (held, lock) = make(parent.path());
        assert!(lock.is_some());
        let (left, gone) = make(parent.path());
        fs::write(left.path().join("file"), "content").unwrap();
        let left = left.keep();
        drop(gone);
        let other = parent.path().join("y-other");
        fs::create_dir(&other).unwrap();
        let link = parent.path().join("x-link");
        std::os::unix::fs::symlink(&other, &link).unwrap();
        let file = parent.path().join("x-file");
        fs::write(&file, "").unwrap();

        delete_abandoned(parent.path(), "x-".as_ref());
        assert!(!left.exists());
        for stays in [held.path(), &other, &link, &file] {
            assert!(stays.symlink_metadata().is_ok(), "{}", stays.display());
        }
        drop(lock);
        delete_abandoned(parent.path(), "x-".as_ref());
        assert!(!held.path().exists());
    }

    #[test]
    fn folders_are_made_while_others_tidy_up() {
        let parent = tempfile::tempdir().unwrap();
        std::thread::scope(|scope| {
            let busy = scope.spawn(|| {
                for _ in 0..200 {
                    let (folder, lock) = make(parent.path());
                    fs::write(folder.path().join("file"), "content").unwrap();
                    assert!(lock.is_some());
                }
            });
            while !busy.is_finished() {
                delete_abandoned(parent.path(), "x-".as_ref());
            }
        });
    }
}
