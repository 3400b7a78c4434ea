//! Files that a run leaves: made before it, whole or not there after it.

use std::io::Write as _;
use std::path::Path;

use halfhitch_seam::{ErrorCode, SeamError, SeamResult};

/// A file that is being made: a temporary one in its folder, renamed when it is whole.
pub struct OutputFile<'a> {
    flag: &'static str,
    path: &'a Path,
    file: tempfile::NamedTempFile,
}

impl<'a> OutputFile<'a> {
    /// Starts the file that `flag` names.
    ///
    /// # Errors
    /// `Io` where its folder cannot be written; `InvalidInput` where something other than a file is
    /// there.
    pub fn create(flag: &'static str, path: &'a Path) -> SeamResult<Self> {
        let place = || format!("{flag} {}", path.display());
        // A device or a folder would be replaced by a file.
        if std::fs::symlink_metadata(path).is_ok_and(|m| !m.is_file()) {
            return Err(
                SeamError::invalid_input("something is there that is not a file").context(place()),
            );
        }
        let folder = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        let mut builder = tempfile::Builder::new();
        // A report is there to be read: as readable as any other file of the user's.
        #[cfg(unix)]
        builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
        let file = builder
            .tempfile_in(folder)
            .map_err(|e| SeamError::new(ErrorCode::Io, e.to_string()).context(place()))?;
        Ok(Self { flag, path, file })
    }

    /// Writes it and puts it in its place.
    ///
    /// # Errors
    /// `Io`.
    pub fn write(mut self, text: &str) -> SeamResult<()> {
        let written = self.file.write_all(text.as_bytes());
        let written = written.and_then(|()| self.file.flush());
        let (flag, path) = (self.flag, self.path);
        let kept = written.and_then(|()| self.file.persist(path).map_err(|e| e.error));
        match kept {
            Ok(_) => Ok(()),
            Err(e) => Err(SeamError::new(ErrorCode::Io, e.to_string())
                .context(format!("{flag} {}", path.display()))),
        }
    }
}
