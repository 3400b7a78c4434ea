//! Files that a command writes where its user says.
//!
//! A file stands there whole or not at all: it is written beside its place and renamed. That would
//! replace what must not be replaced, so a pipe or a terminal is written to as it is, a disk is
//! refused, and a link is followed to what it names. Every command that takes the name of a file to
//! write uses [`OutputFile`]; what Halfhitch keeps under names of its own, in folders that are its
//! user's alone, does not need it.

use std::fs::{self, File, FileType, Metadata};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use halfhitch_seam::{ErrorCode, ResultExt, SeamError, SeamResult};
use tempfile::NamedTempFile;

/// Links that are followed one after another; more are a circle.
const MOST_LINKS: usize = 40;

/// A file that is being written. Dropped without [`Self::commit`], nothing has changed at its place,
/// unless that is a pipe or a terminal.
#[derive(Debug)]
pub struct OutputFile {
    path: PathBuf,
    into: Into,
}

#[derive(Debug)]
enum Into {
    /// A file beside the place, and the place.
    Beside(NamedTempFile, PathBuf),
    /// What is there takes bytes as they come.
    Through(File),
}

impl OutputFile {
    /// Makes sure that `path` can be written, and begins. A pipe is opened here, which waits for its
    /// reader.
    ///
    /// A regular file that is there keeps its permissions; a new one gets what the umask leaves.
    ///
    /// # Errors
    /// `NotFound` where the folder is missing, `InvalidInput` for a folder or a disk, `Io` where it
    /// cannot be written.
    pub fn create(path: &Path) -> SeamResult<Self> {
        Self::begin(path, None)
    }

    /// As [`Self::create`], with these permissions (the bits of `chmod`) whatever the umask and
    /// whatever was there.
    ///
    /// # Errors
    /// As [`Self::create`].
    pub fn create_with_mode(path: &Path, mode: u32) -> SeamResult<Self> {
        Self::begin(path, Some(mode))
    }

    fn begin(path: &Path, mode: Option<u32>) -> SeamResult<Self> {
        let into = into(path, mode).in_context(|| path.display().to_string())?;
        Ok(Self {
            path: path.to_owned(),
            into,
        })
    }

    /// Writes `bytes`, and puts the file in its place.
    ///
    /// # Errors
    /// As [`Self::commit`].
    pub fn commit_with(mut self, bytes: &[u8]) -> SeamResult<()> {
        self.write_all(bytes)
            .map_err(|e| cannot("write", &e))
            .in_context(|| self.path.display().to_string())?;
        self.commit()
    }

    /// Puts the file in its place.
    ///
    /// # Errors
    /// `Io`; what was there stays then.
    pub fn commit(mut self) -> SeamResult<()> {
        let result = self.flush().and_then(|()| match self.into {
            Into::Beside(file, target) => file.persist(target).map(drop).map_err(|e| e.error),
            Into::Through(_) => Ok(()),
        });
        result
            .map_err(|e| cannot("write", &e))
            .in_context(|| self.path.display().to_string())
    }
}

impl Write for OutputFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.into {
            Into::Beside(file, _) => file.write(bytes),
            Into::Through(file) => file.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match &mut self.into {
            Into::Beside(file, _) => file.flush(),
            Into::Through(file) => file.flush(),
        }
    }
}

/// Writes `bytes` to the file that a user named, whole or not at all.
///
/// # Errors
/// As [`OutputFile::create`] and [`OutputFile::commit`].
pub fn write(path: &Path, bytes: &[u8]) -> SeamResult<()> {
    OutputFile::create(path)?.commit_with(bytes)
}

/// Whether two names lead to one place, which need not be there.
///
/// # Errors
/// `Io` for links that lead in a circle.
pub fn one_place(a: &Path, b: &Path) -> SeamResult<bool> {
    let place = |path| {
        let path = follow(path)?;
        // A folder that is not there is known by its name alone.
        let within = fs::canonicalize(folder(&path)).unwrap_or_else(|_| folder(&path).to_owned());
        SeamResult::Ok((within, path.file_name().map(ToOwned::to_owned)))
    };
    Ok(place(a)? == place(b)?)
}

/// Where a path leads: what the last of its links names, which need not be there.
///
/// # Errors
/// `Io` for links that lead in a circle.
pub(crate) fn follow(path: &Path) -> SeamResult<PathBuf> {
    let mut path = path.to_owned();
    for _ in 0..MOST_LINKS {
        match fs::read_link(&path) {
            // A relative one counts from the folder that the link is in.
            Ok(next) => path = folder(&path).join(next),
            Err(_) => return Ok(path),
        }
    }
    Err(SeamError::new(
        ErrorCode::Io,
        "the link leads in a circle, or through too many others",
    ))
}

fn into(path: &Path, mode: Option<u32>) -> SeamResult<Into> {
    let there = match fs::metadata(path) {
        Ok(meta) => Some(meta),
        Err(e) if e.kind() == io::ErrorKind::NotFound => None,
        Err(e) => return Err(cannot("look at what is there", &e)),
    };
    if let Some(meta) = &there {
        let kind = meta.file_type();
        if kind.is_dir() {
            return Err(SeamError::invalid_input("this is a folder").hint("name a file in it"));
        }
        if is_disk(kind) {
            return Err(
                SeamError::invalid_input("this is a disk, and is not written to")
                    .hint("name a file"),
            );
        }
        // Renaming over the file that stdout goes to would lose what follows there.
        if !kind.is_file() || is_standard_stream(meta) {
            let file = File::options().append(true).open(path);
            return Ok(Into::Through(file.map_err(|e| cannot("open", &e))?));
        }
    }
    let target = follow(path)?;
    let mut builder = tempfile::Builder::new();
    builder.prefix(".halfhitch-");
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    let file = builder
        .tempfile_in(folder(&target))
        .map_err(|e| cannot("write a file in that folder", &e))?;
    set_mode(&file, mode, there.as_ref()).map_err(|e| cannot("set its permissions", &e))?;
    Ok(Into::Beside(file, target))
}

#[cfg(unix)]
fn set_mode(file: &NamedTempFile, mode: Option<u32>, there: Option<&Metadata>) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    // What runs with another's rights is not made of a file that is written anew.
    let kept = there.map(|m| m.permissions().mode() & 0o777);
    match mode.or(kept) {
        Some(mode) => {
            let mode = fs::Permissions::from_mode(mode);
            file.as_file().set_permissions(mode)
        }
        None => Ok(()),
    }
}

#[cfg(not(unix))]
fn set_mode(_: &NamedTempFile, _: Option<u32>, _: Option<&Metadata>) -> io::Result<()> {
    Ok(())
}

#[cfg(unix)]
fn is_disk(kind: FileType) -> bool {
    std::os::unix::fs::FileTypeExt::is_block_device(&kind)
}

#[cfg(not(unix))]
fn is_disk(_: FileType) -> bool {
    false
}

/// Whether a file is the one that stdout or stderr goes to.
#[cfg(unix)]
fn is_standard_stream(meta: &Metadata) -> bool {
    use std::os::fd::AsFd as _;
    use std::os::unix::fs::MetadataExt as _;
    let same = |stream: std::os::fd::BorrowedFd<'_>| {
        let Ok(copy) = stream.try_clone_to_owned() else {
            return false;
        };
        File::from(copy)
            .metadata()
            .is_ok_and(|s| (s.dev(), s.ino()) == (meta.dev(), meta.ino()))
    };
    same(io::stdout().as_fd()) || same(io::stderr().as_fd())
}

#[cfg(not(unix))]
fn is_standard_stream(_: &Metadata) -> bool {
    false
}

fn folder(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

fn cannot(what: &str, error: &io::Error) -> SeamError {
    let code = match error.kind() {
        io::ErrorKind::NotFound => ErrorCode::NotFound,
        _ => ErrorCode::Io,
    };
    // A temporary file's error tells that file's made-up name; its kind is enough.
    let told = match error.raw_os_error() {
        Some(_) => error.to_string(),
        None => io::Error::from(error.kind()).to_string(),
    };
    SeamError::new(code, format!("cannot {what}: {told}"))
        .hint("name a file in a folder that is there and that you can write")
}

#[cfg(test)]
#[cfg(unix)]
mod tests {
    use std::io::Read as _;
    use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _, symlink};
    use std::process::Command;

    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap();
        let mut names: Vec<_> = entries
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn a_file_stands_there_whole_or_as_it_was() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out");
        fs::write(&path, "old").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        let mut file = OutputFile::create(&path).unwrap();
        file.write_all(b"half").unwrap();
        drop(file);
        assert_eq!(fs::read(&path).unwrap(), b"old");
        assert_eq!(names(dir.path()), ["out"]);

        write(&path, b"new").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        let mode = |p: &Path| fs::metadata(p).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&path), 0o640);
        OutputFile::create_with_mode(&path, 0o604)
            .unwrap()
            .commit()
            .unwrap();
        assert_eq!(mode(&path), 0o604);
        assert_eq!(names(dir.path()), ["out"]);
    }

    #[test]
    fn a_pipe_is_written_to_and_stays_one() {
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("fifo");
        assert!(
            Command::new("mkfifo")
                .arg(&fifo)
                .status()
                .unwrap()
                .success()
        );
        let link = dir.path().join("link");
        symlink("fifo", &link).unwrap();
        for path in [&fifo, &link] {
            let from = fifo.clone();
            let reader = std::thread::spawn(move || {
                let mut text = String::new();
                File::open(from).unwrap().read_to_string(&mut text).unwrap();
                text
            });
            write(path, b"through").unwrap();
            assert_eq!(reader.join().unwrap(), "through");
            assert!(fs::symlink_metadata(&fifo).unwrap().file_type().is_fifo());
        }
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(names(dir.path()), ["fifo", "link"]);
    }

    #[test]
    fn links_are_followed_and_stay() {
        let dir = tempfile::tempdir().unwrap();
        let other = dir.path().join("other");
        fs::create_dir(&other).unwrap();
        // To a file, to a link, and to what is not there yet.
        symlink("other/file", dir.path().join("one")).unwrap();
        symlink("one", dir.path().join("two")).unwrap();
        for (i, name) in ["one", "two", "one"].into_iter().enumerate() {
            let text = i.to_string();
            write(&dir.path().join(name), text.as_bytes()).unwrap();
            assert_eq!(fs::read_to_string(other.join("file")).unwrap(), text);
        }
        assert_eq!(names(dir.path()), ["one", "other", "two"]);
        for link in ["one", "two"] {
            let path = dir.path().join(link);
            assert!(fs::symlink_metadata(path).unwrap().is_symlink());
        }
        symlink("b", dir.path().join("a")).unwrap();
        symlink("a", dir.path().join("b")).unwrap();
        write(&dir.path().join("a"), b"").unwrap_err();
    }

    #[test]
    fn what_cannot_be_written_is_told_at_once() {
        let dir = tempfile::tempdir().unwrap();
        for (path, code) in [
            (dir.path().to_owned(), ErrorCode::InvalidInput),
            (dir.path().join("no/file"), ErrorCode::NotFound),
        ] {
            let error = OutputFile::create(&path).unwrap_err();
            assert_eq!(error.code, code, "{error}");
            assert!(error.to_string().contains(&*path.to_string_lossy()));
            assert!(!error.to_string().contains('\n'), "{error}");
        }
    }
}
