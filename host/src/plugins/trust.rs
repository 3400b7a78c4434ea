//! Who could have written a file that is about to run as part of the host.

use std::path::Path;

use halfhitch_seam::{ErrorCode, SeamError, SeamResult};

/// Checks that a folder is one that only its owner, and that only this user or root, can change.
///
/// # Errors
/// `Incompatible` saying who else could; `Io` where the folder cannot be looked at.
pub fn check_folder(path: &Path) -> SeamResult<()> {
    check(path, "folder")
}

/// Checks the same of a file, and that it is a regular file and no link.
///
/// # Errors
/// As [`check_folder`].
pub fn check_file(path: &Path) -> SeamResult<()> {
    let metadata = std::fs::symlink_metadata(path).map_err(io)?;
    if !metadata.is_file() {
        return Err(refused("it is not a regular file"));
    }
    check(path, "file")
}

fn io(e: std::io::Error) -> SeamError {
    SeamError::new(ErrorCode::Io, e.to_string())
}

fn refused(why: impl Into<String>) -> SeamError {
    SeamError::new(ErrorCode::Incompatible, why)
}

#[cfg(unix)]
fn check(path: &Path, what: &str) -> SeamResult<()> {
    use std::os::unix::fs::MetadataExt;

    let metadata = std::fs::metadata(path).map_err(io)?;
    let me = rustix::process::geteuid().as_raw();
    if metadata.uid() != me && metadata.uid() != 0 {
        return Err(refused(format!(
            "the {what} belongs to user {}, not to you or root",
            metadata.uid()
        )));
    }
    if metadata.mode() & 0o022 != 0 {
        return Err(refused(format!(
            "others can write the {what} (mode {:03o})",
            metadata.mode() & 0o777
        ))
        .hint(format!("chmod go-w {}", path.display())));
    }
    Ok(())
}

#[cfg(not(unix))]
fn check(path: &Path, _: &str) -> SeamResult<()> {
    std::fs::metadata(path).map(drop).map_err(io)
}
