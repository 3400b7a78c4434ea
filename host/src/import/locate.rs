//! What `--model` means.

use std::path::{Component, Path, PathBuf};

use halfhitch_seam::{Control, ErrorCode, SeamError, SeamResult, environment};

use super::cache::ImportCache;

/// Models that an error names.
const MOST_NAMES: usize = 8;

/// Where models are looked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelLocator {
    /// Folders that hold models under their names, in the order in which they are looked through.
    pub collections: Vec<PathBuf>,
    /// Where imported files are kept, where there is such a place.
    pub cache: Option<PathBuf>,
}

impl ModelLocator {
    /// As the environment says: models by name are in `models/` in the working directory, then in
    /// `$HALFHITCH_MODELS`; the cache is `$HALFHITCH_CACHE_DIR`, else `$XDG_CACHE_HOME/halfhitch`, else
    /// `$HOME/.cache/halfhitch`. Variables that are empty count as not set, and all of them where the
    /// process runs with [elevated](environment) rights.
    pub fn from_env() -> Self {
        let var = |name: &str| environment::path_variable(name).map(PathBuf::from);
        let mut collections = vec![PathBuf::from("models")];
        collections.extend(var("HALFHITCH_MODELS"));
        let cache = var("HALFHITCH_CACHE_DIR")
            .or_else(|| Some(var("XDG_CACHE_HOME")?.join("halfhitch")))
            .or_else(|| Some(var("HOME")?.join(".cache/halfhitch")));
        Self { collections, cache }
    }

    /// The folder of a model: `model` itself where it is one; where it is a GGUF file, the folder
    /// it was imported to, now or earlier; where it is a bare name that does not exist as a path,
    /// the model of that name in the first collection that has it.
    ///
    /// # Errors
    /// `NotFound`, listing where was looked; `InvalidInput` for a file that is not GGUF; and what
    /// importing can fail with.
    pub fn resolve(&self, model: &Path, control: &Control<'_>) -> SeamResult<PathBuf> {
        if model.exists() {
            return self.open(model, control);
        }
        let mut looked = vec![model.to_owned()];
        if is_bare_name(model) {
            for collection in &self.collections {
                let candidate = collection.join(model);
                if candidate.exists() {
                    return self.open(&candidate, control);
                }
                looked.push(candidate);
            }
        }
        let list: Vec<_> = looked.iter().map(|p| p.display().to_string()).collect();
        Err(SeamError::new(
            ErrorCode::NotFound,
            format!("no model `{}`", model.display()),
        )
        .hint(match self.names().as_slice() {
            [] => format!("looked for {}", list.join(", ")),
            names => format!(
                "looked for {}; there is {}",
                list.join(", "),
                names.join(", ")
            ),
        }))
    }

    /// Names of the models in the collections, a few of them.
    fn names(&self) -> Vec<String> {
        let folders = self.collections.iter().filter_map(|c| c.read_dir().ok());
        let mut names: Vec<String> = folders
            .flat_map(|entries| entries.flatten())
            .filter(|e| e.path().join("config.json").is_file())
            .filter_map(|e| e.file_name().into_string().ok())
            .take(MOST_NAMES)
            .collect();
        names.sort();
        names
    }

    fn open(&self, path: &Path, control: &Control<'_>) -> SeamResult<PathBuf> {
        if path.is_dir() {
            return Ok(path.to_owned());
        }
        let gguf = path
            .extension()
            .is_some_and(|e| e.eq_ignore_ascii_case("gguf"));
        if !gguf {
            return Err(SeamError::invalid_input(format!(
                "`{}` is neither a model folder nor a .gguf file",
                path.display()
            )));
        }
        let root = self.cache.clone().ok_or_else(|| {
            SeamError::invalid_input("there is no place to keep the imported model")
                .hint("set HALFHITCH_CACHE_DIR, or import the file to a folder first")
        })?;
        ImportCache::new(root).import(path, control)
    }
}

/// [`ModelLocator::resolve`] with the environment's places.
///
/// # Errors
/// As there.
pub fn resolve_model(model: &Path, control: &Control<'_>) -> SeamResult<PathBuf> {
    ModelLocator::from_env().resolve(model, control)
}

/// Whether a path is one plain name, without a separator.
fn is_bare_name(path: &Path) -> bool {
    let mut parts = path.components();
    matches!(parts.next(), Some(Component::Normal(name)) if name == path.as_os_str())
        && parts.next().is_none()
}
