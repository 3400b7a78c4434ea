//! Backends in dynamic libraries: found by their manifests, checked, and loaded when they are used.
//!
//! Beside each library lies a manifest (`NAME.plugin.json`), so that every plugin can be listed, with
//! its state and the reason for it, without running a line of its code. A bad plugin is one row; it
//! hides no other. A library runs as part of the host once loaded, so one that somebody else could
//! have written is refused ([`trust`]).

pub mod deadline;
pub mod manifest;
pub mod provider;
pub mod search;
pub mod trust;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use halfhitch_seam::{ComputeBackend, ErrorCode, SeamError, SeamResult, abi};
use once_cell::sync::OnceCell;

use manifest::Manifest;

/// A plugin that was found, usable or not.
pub struct Plugin {
    manifest_path: PathBuf,
    /// The name in a manifest that was read, also where its library is refused: whoever asks for it
    /// hears why.
    claimed: Option<String>,
    state: Result<Checked, SeamError>,
}

/// A plugin that passed all checks that need no loading.
struct Checked {
    manifest: Manifest,
    library: PathBuf,
    backend: OnceCell<Arc<dyn ComputeBackend>>,
}

impl Plugin {
    /// Reads and checks a manifest and its library; loads nothing.
    pub fn inspect(manifest_path: &Path) -> Self {
        let manifest = read(manifest_path);
        let claimed = manifest.as_ref().ok().map(|m| m.name.clone());
        let state = manifest.and_then(|manifest| {
            let folder = manifest_path.parent().unwrap_or(Path::new("."));
            let library = folder.join(&manifest.library);
            check_library(&manifest, &library)?;
            Ok(Checked {
                manifest,
                library,
                backend: OnceCell::new(),
            })
        });
        Self {
            manifest_path: manifest_path.to_path_buf(),
            claimed,
            state,
        }
    }

    /// Where its manifest lies.
    pub fn manifest_path(&self) -> &Path {
        &self.manifest_path
    }

    /// What it says of itself, if it passed the checks.
    pub fn manifest(&self) -> Option<&Manifest> {
        self.state.as_ref().ok().map(|c| &c.manifest)
    }

    /// Its backend's name, or its manifest's file name where that could not be read or another has the
    /// name.
    pub fn name(&self) -> String {
        self.claimed.clone().unwrap_or_else(|| {
            let file = self.manifest_path.file_name().unwrap_or_default();
            let file = file.to_string_lossy();
            file.strip_suffix(manifest::SUFFIX)
                .unwrap_or(&file)
                .to_string()
        })
    }

    /// Why it cannot be used, where that is known without loading it.
    pub fn refusal(&self) -> Option<&SeamError> {
        self.state.as_ref().err()
    }

    /// Marks it as hidden behind another of the same name.
    fn shadow(&mut self, by: &Path) {
        self.state = Err(SeamError::new(
            ErrorCode::Unsupported,
            format!("hidden by {}, which comes first", by.display()),
        ));
    }

    /// The backend, loaded on first use. The hash is compared again right before that.
    ///
    /// # Errors
    /// The refusal; whatever loading answers.
    pub fn backend(&self) -> SeamResult<Arc<dyn ComputeBackend>> {
        let checked = self.state.as_ref().map_err(Clone::clone)?;
        checked
            .backend
            .get_or_try_init(|| {
                tracing::debug!("loading {}", checked.library.display());
                check_library(&checked.manifest, &checked.library)?;
                let backend = abi::load_plugin(&checked.library)?;
                check_identity(&checked.manifest, &*backend)?;
                Ok::<Arc<dyn ComputeBackend>, SeamError>(Arc::from(backend))
            })
            .cloned()
            .map_err(|e: SeamError| e.context(format!("plugin {}", checked.library.display())))
    }
}

/// The backend of a plugin that is named by its file, a manifest or a library. A library needs no
/// manifest: who names it vouches for it, but nobody else may be able to write it.
///
/// # Errors
/// `NotFound` where there is no such file; what checking and loading say.
pub fn load_file(path: &Path) -> SeamResult<Arc<dyn ComputeBackend>> {
    // The whole path: the system looks for a bare name elsewhere.
    let path = path
        .canonicalize()
        .map_err(|e| SeamError::new(ErrorCode::NotFound, e.to_string()))?;
    if path.to_string_lossy().ends_with(manifest::SUFFIX) {
        return Plugin::inspect(&path).backend();
    }
    trust::check_file(&path)?;
    Ok(Arc::from(abi::load_plugin(&path)?))
}

fn read(manifest_path: &Path) -> SeamResult<Manifest> {
    let context = |e: SeamError| e.context(manifest_path.display().to_string());
    trust::check_file(manifest_path).map_err(context)?;
    let manifest = Manifest::read(manifest_path).map_err(context)?;
    manifest.check().map_err(context)?;
    Ok(manifest)
}

fn check_library(manifest: &Manifest, library: &Path) -> SeamResult<()> {
    let context = |e: SeamError| e.context(library.display().to_string());
    let there = std::fs::symlink_metadata(library);
    if there.is_err_and(|e| e.kind() == std::io::ErrorKind::NotFound) {
        return Err(context(
            SeamError::new(ErrorCode::NotFound, "the plugin's library is not there")
                .hint("install the plugin again"),
        ));
    }
    trust::check_file(library).map_err(context)?;
    let found = manifest::sha256(library).map_err(context)?;
    if found != manifest.sha256 {
        return Err(context(
            SeamError::new(
                ErrorCode::Incompatible,
                "it is not the library that its manifest describes (the SHA-256 differs)",
            )
            .hint("install the plugin again"),
        ));
    }
    Ok(())
}

fn check_identity(manifest: &Manifest, backend: &dyn ComputeBackend) -> SeamResult<()> {
    let name = backend.identity().name;
    if name == manifest.name {
        return Ok(());
    }
    Err(SeamError::new(
        ErrorCode::Incompatible,
        format!("it calls itself `{name}`, its manifest `{}`", manifest.name),
    )
    .hint(format!(
        "make the manifest again: `halfhitch plugin-manifest {} --name {} --driver {}`",
        manifest.library,
        name.escape_debug(),
        name.rsplit(':').next().unwrap_or_default().escape_debug(),
    )))
}

/// Every plugin in the folders of `path`, in order. Where two have the same name the first counts and
/// the others say so.
pub fn discover(path: &search::SearchPath) -> Vec<Plugin> {
    let mut plugins: Vec<Plugin> = Vec::new();
    for folder in path.folders() {
        for manifest_path in search::manifests(folder) {
            let mut plugin = match trust::check_folder(folder) {
                Ok(()) => Plugin::inspect(&manifest_path),
                Err(e) => Plugin {
                    manifest_path,
                    claimed: None,
                    state: Err(e.context(folder.display().to_string())),
                },
            };
            if plugin.refusal().is_none() {
                let name = plugin.name();
                let first = plugins
                    .iter()
                    .find(|p| p.refusal().is_none() && p.name() == name);
                if let Some(first) = first {
                    let by = first.manifest_path.clone();
                    plugin.shadow(&by);
                }
            }
            plugins.push(plugin);
        }
    }
    give_names(&mut plugins);
    plugins
}

/// Leaves each name to one plugin: the usable one, else the first.
fn give_names(plugins: &mut [Plugin]) {
    for i in 0..plugins.len() {
        let plugin = &plugins[i];
        let taken = plugins.iter().enumerate().any(|(k, other)| {
            k != i && other.claimed == plugin.claimed && (k < i || other.refusal().is_none())
        });
        if plugin.refusal().is_some() && taken {
            plugins[i].claimed = None;
        }
    }
}
