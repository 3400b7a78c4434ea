//! Writing model folders in MLX's layout: all or nothing.
//!
//! Files go into a hidden folder beside the target, are brought to the disk, and the folder is
//! renamed. Whoever looks at the target sees nothing, or everything. A failure or a cancellation
//! leaves no trace; what a killed process left is deleted by the next one that writes to that target. A folder
//! that is replaced stands until the new one does.

mod held;
mod safetensors;

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use halfhitch_seam::{ErrorCode, ResultExt, SeamError, SeamResult};
use serde_json::Value;

pub use safetensors::{PlannedTensor, SafetensorsWriter, TensorId};

use crate::checkpoint::Checkpoint;
use crate::files;

/// Marks folders that are not finished.
const PARTIAL: &str = ".partial-";

/// Name of the weights file.
pub const WEIGHTS: &str = "model.safetensors";

/// A failed operation on files; the path comes as context.
pub(crate) fn io_error(what: &str, error: &io::Error) -> SeamError {
    let code = match error.kind() {
        io::ErrorKind::NotFound => ErrorCode::NotFound,
        _ => ErrorCode::Io,
    };
    SeamError::new(code, format!("cannot {what}: {error}"))
}

/// Adds a path to a failed operation on it.
pub(crate) fn at<T>(path: &Path, what: &str, result: io::Result<T>) -> SeamResult<T> {
    result
        .map_err(|e| io_error(what, &e))
        .in_context(|| path.display().to_string())
}

/// A folder that is being written. Dropped without [`Self::commit`] it disappears.
#[derive(Debug)]
pub struct StagedFolder {
    staging: tempfile::TempDir,
    /// Tells others that this process is still writing.
    _lock: Option<File>,
    target: PathBuf,
    force: bool,
}

impl StagedFolder {
    /// Starts a folder that will stand at `target`, or at what that names where it is a link; its
    /// parents are made. With `force`, a model folder that is there is replaced on commit.
    ///
    /// # Errors
    /// `InvalidInput` where something is at `target` already: anything but an empty folder, or,
    /// with `force`, anything but a model folder (one with a config.json). `Io` where the
    /// parent cannot be written.
    pub fn create(target: &Path, force: bool) -> SeamResult<Self> {
        let target = &files::follow(target).in_context(|| target.display().to_string())?;
        check_target(target, force)?;
        let name = target.file_name().ok_or_else(|| {
            SeamError::invalid_input(format!("`{}` has no name to write to", target.display()))
        })?;
        let parent = parent(target);
        at(parent, "create", fs::create_dir_all(parent))?;
        let mut prefix = std::ffi::OsString::from(".");
        prefix.push(name);
        prefix.push(PARTIAL);
        let mut builder = tempfile::Builder::new();
        builder.prefix(&prefix);
        // The finished folder gets what the umask allows, like any other, not a private one.
        #[cfg(unix)]
        builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o777));
        held::delete_abandoned(parent, &prefix);
        let made = held::create(&builder, parent);
        let (staging, lock) = at(parent, "create a folder in", made)?;
        Ok(Self {
            staging,
            _lock: lock,
            target: target.to_owned(),
            force,
        })
    }

    /// Where a file of that name is to be written for now.
    pub fn path(&self, name: &str) -> PathBuf {
        self.staging.path().join(name)
    }

    /// Writes a JSON file, indented, with a newline at the end.
    ///
    /// # Errors
    /// `Io`.
    pub fn write_json(&self, name: &str, value: &Value) -> SeamResult<()> {
        let mut text = serde_json::to_vec_pretty(value)
            .map_err(|e| SeamError::new(ErrorCode::Io, format!("cannot write {name}: {e}")))?;
        text.push(b'\n');
        self.write(name, &text)
    }

    /// Writes a file and brings it to the disk.
    ///
    /// # Errors
    /// `Io`.
    pub fn write(&self, name: &str, bytes: &[u8]) -> SeamResult<()> {
        let path = self.path(name);
        let result = File::create_new(&path).and_then(|mut file| {
            file.write_all(bytes)?;
            file.sync_all()
        });
        at(&path, "write", result)
    }

    /// Puts the folder in its place.
    ///
    /// # Errors
    /// `InvalidInput` where something has appeared at the target since, `Io`.
    pub fn commit(self) -> SeamResult<()> {
        check_target(&self.target, self.force)?;
        sync_folder(self.staging.path())?;
        if self.target.exists() && exchange(self.staging.path(), &self.target) {
            // What was replaced has the staging folder's name now, and goes with it.
            return sync_folder(parent(&self.target));
        }
        let replaced = if self.target.exists() {
            Some(set_aside(&self.target)?)
        } else {
            None
        };
        if let Err(e) = fs::rename(self.staging.path(), &self.target) {
            if let Some((_, aside)) = &replaced {
                // Best effort: the error that is reported is why the new one could not stand there.
                let _ = fs::rename(aside, &self.target);
            }
            return at(&self.target, "put the folder in place", Err(e));
        }
        // The folder has its final name now: nothing is left to delete.
        let _ = self.staging.keep();
        sync_folder(parent(&self.target))
    }

    /// Opens what was written as any checkpoint is opened, so that nothing is put in place that
    /// would not load.
    ///
    /// # Errors
    /// As [`Checkpoint::open`].
    pub fn verify(&self) -> SeamResult<()> {
        Checkpoint::open(self.staging.path())
            .map(drop)
            .in_context(|| "the converted model does not load")
    }
}

fn parent(target: &Path) -> &Path {
    match target.parent() {
        Some(p) if !p.as_os_str().is_empty() => p,
        _ => Path::new("."),
    }
}

/// Checks that what is read would survive the writing: a folder that is replaced takes all with it that
/// lies in it.
///
/// # Errors
/// `InvalidInput` where `input` is `target` or lies in it.
pub(crate) fn check_apart(input: &Path, target: &Path) -> SeamResult<()> {
    let (Ok(from), Ok(to)) = (input.canonicalize(), target.canonicalize()) else {
        return Ok(());
    };
    let (input, target) = (input.display(), target.display());
    if from == to {
        return Err(SeamError::invalid_input(format!(
            "`{target}` is both input and output"
        )));
    }
    if from.starts_with(to) {
        return Err(SeamError::invalid_input(format!(
            "`{input}`, the input, lies in `{target}`, the output"
        ))
        .hint("choose a folder that the input is not in"));
    }
    Ok(())
}

fn check_target(target: &Path, force: bool) -> SeamResult<()> {
    let refuse = |why: &str| {
        Err(SeamError::invalid_input(format!(
            "`{}` {why}",
            target.display()
        )))
    };
    let Ok(meta) = fs::symlink_metadata(target) else {
        return Ok(());
    };
    if !meta.is_dir() {
        return refuse("exists and is not a folder");
    }
    let mut entries = at(target, "read", fs::read_dir(target))?;
    if entries.next().is_none() {
        return Ok(());
    }
    if !force {
        return refuse("exists and is not empty")
            .map_err(|e: SeamError| e.hint("choose another folder, or replace it with --force"));
    }
    if !target.join("config.json").is_file() {
        return refuse("is not a model folder, and is not replaced");
    }
    Ok(())
}

/// Swaps two folders, so that there is one under each name at any moment; whether the system could. What
/// keeps it from that may keep a plain renaming from it too, which then says why.
#[cfg(any(target_os = "linux", target_os = "android", target_vendor = "apple"))]
fn exchange(one: &Path, other: &Path) -> bool {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE).is_ok()
}

#[cfg(not(any(target_os = "linux", target_os = "android", target_vendor = "apple")))]
fn exchange(_: &Path, _: &Path) -> bool {
    false
}

/// Where folders cannot be swapped: moves what is at `target` to a name beside it; it is deleted when the returned folder drops.
fn set_aside(target: &Path) -> SeamResult<(tempfile::TempDir, PathBuf)> {
    let parent = parent(target);
    let holder = at(
        parent,
        "create a folder in",
        tempfile::Builder::new()
            .prefix(".replaced-")
            .tempdir_in(parent),
    )?;
    let aside = holder.path().join("old");
    at(target, "replace", fs::rename(target, &aside))?;
    Ok((holder, aside))
}

/// Brings a folder's entries to the disk, where the system can.
fn sync_folder(path: &Path) -> SeamResult<()> {
    if cfg!(unix) {
        at(path, "sync", File::open(path).and_then(|f| f.sync_all()))?;
    }
    Ok(())
}
