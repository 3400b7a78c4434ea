//! Checkpoint folders with the logits that another program gave, as cases beside the suite's own.

use std::fs;
use std::path::{Path, PathBuf};

use halfhitch_seam::{ErrorCode, Precision, ResultExt, SeamError, SeamResult};
use halfhitch_suite::expected::Expected;
use halfhitch_suite::models::Generated;
use halfhitch_suite::numerics::Grounded;
use halfhitch_suite::{Test, Tier};

use crate::checkpoint::Checkpoint;

/// The file with a checkpoint's logits.
const EXPECTED: &str = "expected.json";

/// Most bytes of it.
const MOST: u64 = 64 << 20;

/// What the names of these cases begin with.
pub const CHECKPOINTS: &str = "checkpoints/";

/// Most folders.
const FOLDERS: usize = 1000;

/// Cases of `folder`, where an `expected.json` lies in it, or of every folder in it that has one:
/// `checkpoints/NAME/PRECISION[-packed]/CASE`.
///
/// # Errors
/// `NotFound` where there is none; what reading a checkpoint or its logits says.
pub fn checkpoint_tests(folder: &Path) -> SeamResult<Vec<Test>> {
    let place = || folder.display().to_string();
    let mut folders = Vec::new();
    if folder.join(EXPECTED).is_file() {
        folders.push(folder.to_owned());
    } else {
        for entry in fs::read_dir(folder).map_err(io).in_context(place)? {
            let path = entry.map_err(io).in_context(place)?.path();
            if path.join(EXPECTED).is_file() {
                folders.push(path);
            }
        }
    }
    if folders.is_empty() || folders.len() > FOLDERS {
        return Err(SeamError::new(
            ErrorCode::NotFound,
            format!("{} folders with an {EXPECTED}", folders.len()),
        )
        .hint("a folder of --checkpoints holds a checkpoint and its expected.json, or such folders")
        .context(place()));
    }
    folders.sort();
    let mut tests = Vec::new();
    for folder in &folders {
        let read = read(folder).in_context(|| folder.display().to_string());
        let (name, truth) = read?;
        for precision in Precision::ALL {
            tests.extend(truth.tests(&name, precision, Tier::Quick));
        }
    }
    Ok(tests)
}

fn read(folder: &PathBuf) -> SeamResult<(String, std::sync::Arc<Grounded>)> {
    let file = folder.join(EXPECTED);
    let size = fs::metadata(&file).map_err(io)?.len();
    if size > MOST {
        return Err(SeamError::invalid_input(format!(
            "{EXPECTED} has {size} bytes, more than {MOST}"
        )));
    }
    let expected = Expected::from_json(&fs::read_to_string(&file).map_err(io)?)?;
    let checkpoint = Checkpoint::open(folder)?;
    let vocabulary = checkpoint.spec().vocab_size;
    expected.check_vocabulary(vocabulary)?;
    let name = folder.file_name().unwrap_or_default().to_string_lossy();
    // Names of cases go to terminals and files.
    let plain = |c: char| {
        if c.is_ascii_alphanumeric() || "-_.".contains(c) {
            c
        } else {
            '_'
        }
    };
    let name: String = name.chars().map(plain).collect();
    let name = format!("{CHECKPOINTS}{name}");
    let model = Generated {
        name: name.clone(),
        spec: checkpoint.spec().clone(),
        weights: checkpoint.weights().clone(),
    };
    Ok((name, Grounded::given(model, expected)))
}

fn io(e: std::io::Error) -> SeamError {
    let code = match e.kind() {
        std::io::ErrorKind::NotFound => ErrorCode::NotFound,
        _ => ErrorCode::Io,
    };
    SeamError::new(code, e.to_string())
}
