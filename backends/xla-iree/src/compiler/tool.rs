//! Finding `iree-compile`, and knowing which one it is.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::UNIX_EPOCH;

use halfhitch_seam::{ErrorCode, SeamError, SeamResult, environment};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::cache::Cache;
use super::hex;

/// How to get a compiler.
pub(super) const FIX: &str = "run `make iree-runtime`, or name one in HALFHITCH_IREE_COMPILE";

/// Where programs are that the system's owner has installed.
const SYSTEM_PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// A compiler that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tool {
    /// The executable.
    pub path: PathBuf,
    /// Its version, `3.13.0`.
    pub version: String,
    /// Hash of the executable and of the library beside it.
    pub content: String,
}

/// Where to look, in this order.
#[derive(Clone, Debug, Default)]
pub struct Places {
    /// A file that was named outright; nothing else is tried then.
    pub named: Option<PathBuf>,
    /// A checkout of this project, whose pinned tools are used.
    pub checkout: Option<PathBuf>,
    /// Folders of the search path.
    pub path: Vec<PathBuf>,
}

impl Places {
    /// From `HALFHITCH_IREE_COMPILE`, the checkout that this executable was built in, and `PATH`.
    /// The working directory is never looked at. With [elevated](environment) rights only the system's own
    /// folders are.
    pub fn from_environment() -> Self {
        let named = environment::path_variable("HALFHITCH_IREE_COMPILE");
        let exe = std::env::current_exe().unwrap_or_default();
        // A link to this executable, which anybody can make, would put a checkout around it.
        let checkout = exe
            .ancestors()
            .filter(|_| !environment::elevated())
            .find(|folder| folder.join("csrc/build-runtime.sh").is_file());
        let path = environment::path_variable("PATH").unwrap_or_else(|| SYSTEM_PATH.into());
        Self {
            named: named.map(PathBuf::from),
            checkout: checkout.map(Path::to_owned),
            path: std::env::split_paths(&path)
                .filter(|folder| folder.is_absolute())
                .collect(),
        }
    }

    /// The first `iree-compile` there is.
    ///
    /// # Errors
    /// `NotFound`, with the fix.
    pub fn find(&self) -> SeamResult<PathBuf> {
        if let Some(named) = &self.named {
            let told = |what| format!("HALFHITCH_IREE_COMPILE names {}, {what}", named.display());
            if !named.is_file() {
                return Err(missing(told("which is no file".to_owned())));
            }
            if let Some(interpreter) = lacking(named) {
                let lacks = format!("a script for {}, which is not there", interpreter.display());
                return Err(missing(told(lacks)));
            }
            return Ok(named.clone());
        }
        let pinned = self.checkout.iter().flat_map(|c| pinned_tools(c));
        let on_path = self.path.iter().map(|folder| folder.join("iree-compile"));
        pinned
            .chain(on_path)
            .find(|candidate| candidate.is_file() && lacking(candidate).is_none())
            .ok_or_else(|| missing("the IREE compiler `iree-compile` is not there".into()))
    }
}

/// The interpreter that a script names and that is not there: the folder of its environment was moved.
fn lacking(path: &Path) -> Option<PathBuf> {
    let mut start = Vec::new();
    let file = fs::File::open(path).ok()?;
    file.take(512).read_to_end(&mut start).ok()?;
    let line = start.strip_prefix(b"#!")?.split(|b| *b == b'\n').next()?;
    let line = std::str::from_utf8(line).ok()?;
    let interpreter = PathBuf::from(line.split_whitespace().next()?);
    (!interpreter.exists()).then_some(interpreter)
}

fn missing(message: String) -> SeamError {
    SeamError::new(ErrorCode::NotFound, message).hint(FIX)
}

/// Compilers in a checkout's `.cache/<tools>/<environment>`, newest first.
fn pinned_tools(checkout: &Path) -> Vec<PathBuf> {
    let folders = |folder: &Path| -> Vec<PathBuf> {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        let mut found: Vec<_> = entries.map(|e| e.path()).collect();
        found.sort();
        found.reverse();
        found
    };
    folders(&checkout.join(".cache"))
        .iter()
        .flat_map(|tools| folders(tools))
        .flat_map(|environment| folders(&environment.join("lib")))
        .map(|python| python.join("site-packages/iree/compiler/_mlir_libs/iree-compile"))
        .filter(|tool| tool.is_file())
        .collect()
}

/// What is kept about a compiler, so that it is hashed once.
#[derive(Serialize, Deserialize)]
struct Memo {
    version: String,
    content: String,
}

/// The note of the compiler that was last used with a cache.
const LAST: &str = "compiler";

/// The compiler that was last used with a cache, where it has the `wanted` version: a name for code that it
/// made, which can make no more.
pub fn remembered(cache: &Cache, wanted: &str) -> Option<Tool> {
    let memo: Memo = serde_json::from_slice(&cache.read_note(LAST)?).ok()?;
    (memo.version == wanted).then(|| Tool {
        path: PathBuf::new(),
        version: memo.version,
        content: memo.content,
    })
}

/// Looks a compiler's version and content up, and refuses one that is not `wanted`. What was learnt
/// is kept in `cache`, by path, size and time of change.
///
/// # Errors
/// `Incompatible` for another version; `NotFound` where it cannot be run.
pub fn identify(path: &Path, wanted: &str, cache: Option<&Cache>) -> SeamResult<Tool> {
    let stamp = stamp(path)?;
    let kept = cache.and_then(|c| c.read_note(&stamp));
    let memo = match kept.and_then(|text| serde_json::from_slice::<Memo>(&text).ok()) {
        Some(memo) => memo,
        None => {
            let memo = Memo {
                version: version(path)?,
                content: content(path)?,
            };
            if let (Some(cache), Ok(text)) = (cache, serde_json::to_vec(&memo)) {
                // A cache that takes no notes costs time only.
                let _ = cache.write_note(&stamp, &text);
            }
            memo
        }
    };
    if memo.version != wanted {
        return Err(SeamError::new(
            ErrorCode::Incompatible,
            format!(
                "{} is version {}, the IREE runtime is {wanted}",
                path.display(),
                memo.version
            ),
        )
        .hint(FIX));
    }
    if let (Some(cache), Ok(text)) = (cache, serde_json::to_vec(&memo))
        && cache.read_note(LAST).as_ref() != Some(&text)
    {
        // A cache that takes no notes needs its compiler again, no more.
        let _ = cache.write_note(LAST, &text);
    }
    Ok(Tool {
        path: path.to_owned(),
        version: memo.version,
        content: memo.content,
    })
}

/// The executable, and its library where there is one beside it.
fn parts(path: &Path) -> Vec<PathBuf> {
    let mut parts = vec![path.to_owned()];
    for name in ["libIREECompiler.so", "libIREECompiler.dylib", "iree-lld"] {
        parts.extend(path.parent().map(|p| p.join(name)).filter(|p| p.is_file()));
    }
    parts
}

fn stamp(path: &Path) -> SeamResult<String> {
    let mut hash = Sha256::new();
    for part in parts(path) {
        let data = fs::metadata(&part).map_err(|e| unusable(&part, &e))?;
        let changed = data.modified().ok();
        let changed = changed.and_then(|t| t.duration_since(UNIX_EPOCH).ok());
        hash.update(part.as_os_str().as_encoded_bytes());
        hash.update(data.len().to_le_bytes());
        hash.update(changed.unwrap_or_default().as_nanos().to_le_bytes());
    }
    Ok(hex(&hash.finalize()))
}

fn content(path: &Path) -> SeamResult<String> {
    let mut hash = Sha256::new();
    let mut block = vec![0; 1 << 20];
    for part in parts(path) {
        let mut file = fs::File::open(&part).map_err(|e| unusable(&part, &e))?;
        loop {
            match file.read(&mut block).map_err(|e| unusable(&part, &e))? {
                0 => break,
                n => hash.update(&block[..n]),
            }
        }
    }
    Ok(hex(&hash.finalize()))
}

fn version(path: &Path) -> SeamResult<String> {
    let output = Command::new(path)
        .arg("--version")
        .stdin(Stdio::null())
        .output()
        .map_err(|e| unusable(path, &e))?;
    let text = String::from_utf8_lossy(&output.stdout);
    parse_version(&text).ok_or_else(|| {
        SeamError::new(
            ErrorCode::Incompatible,
            format!("{} does not tell its version", path.display()),
        )
        .hint(FIX)
    })
}

/// `IREE compiler version 3.13.0rc2026 @ ...` is `3.13.0`.
fn parse_version(text: &str) -> Option<String> {
    let (_, rest) = text.split_once("compiler version ")?;
    let end = rest
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(rest.len());
    let version = rest[..end].trim_end_matches('.');
    (version.split('.').count() == 3).then(|| version.to_owned())
}

fn unusable(path: &Path, error: &std::io::Error) -> SeamError {
    SeamError::new(
        ErrorCode::NotFound,
        format!("cannot use the compiler {}: {error}", path.display()),
    )
    .hint(FIX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_with_and_without_a_suffix() {
        for (text, want) in [
            (
                "IREE (https://iree.dev):\n  IREE compiler version 3.13.0rc20261016 @ 89ec\n",
                Some("3.13.0"),
            ),
            ("  IREE compiler version 3.12.1 @ 89ec\n", Some("3.12.1")),
            ("something else", None),
            ("IREE compiler version rc", None),
        ] {
            assert_eq!(parse_version(text).as_deref(), want, "{text}");
        }
    }

    #[test]
    fn a_named_compiler_that_is_not_there_is_an_error_with_the_fix() {
        let places = Places {
            named: Some("/nonexistent/iree-compile".into()),
            ..Places::default()
        };
        let e = places.find().unwrap_err();
        assert_eq!(e.code, ErrorCode::NotFound);
        assert!(e.to_string().contains("make iree-runtime"), "{e}");
        assert!(Places::default().find().is_err());
    }

    #[test]
    fn a_script_whose_interpreter_has_moved_is_no_compiler() {
        let folder = tempfile::tempdir().unwrap();
        let script = folder.path().join("iree-compile");
        fs::write(&script, "#!/nonexistent/bin/python3 -E\nprint()\n").unwrap();
        let named = Places {
            named: Some(script.clone()),
            ..Places::default()
        };
        let e = named.find().unwrap_err().to_string();
        assert!(
            e.contains("/nonexistent/bin/python3, which is not there"),
            "{e}"
        );
        let on_path = Places {
            path: vec![folder.path().into()],
            ..Places::default()
        };
        assert!(on_path.find().is_err());
        fs::write(&script, "#! /bin/sh\n").unwrap();
        assert_eq!(on_path.find().unwrap(), script);
    }

    #[test]
    fn the_checkouts_pinned_compiler_is_found_before_the_path() {
        let checkout = tempfile::tempdir().unwrap();
        let bin = checkout
            .path()
            .join(".cache/tools/requirements-py312-ab/lib/python3.12/site-packages/iree/compiler/_mlir_libs");
        fs::create_dir_all(&bin).unwrap();
        let on_path = checkout.path().join("bin");
        fs::create_dir_all(&on_path).unwrap();
        fs::write(on_path.join("iree-compile"), "").unwrap();
        let places = Places {
            named: None,
            checkout: Some(checkout.path().into()),
            path: vec![on_path.clone()],
        };
        assert_eq!(places.find().unwrap(), on_path.join("iree-compile"));
        fs::write(bin.join("iree-compile"), "").unwrap();
        assert_eq!(places.find().unwrap(), bin.join("iree-compile"));
    }
}
