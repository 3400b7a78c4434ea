//! Where plugins are looked for.

use std::path::{Path, PathBuf};

use halfhitch_seam::environment;

use super::manifest::SUFFIX;

/// Environment variable with folders to look in; ignored where the process runs with elevated
/// privileges, since whoever starts it then is not who it acts for.
pub const PATH_VARIABLE: &str = "HALFHITCH_PLUGIN_PATH";

/// Folders to look in, in order. The working directory is never among them unless it is named.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SearchPath(Vec<PathBuf>);

impl SearchPath {
    /// The folders named on the command line, then [`PATH_VARIABLE`], then
    /// `<executable>/../lib/halfhitch/plugins`, then `plugins` beside the executable (the build
    /// tree).
    pub fn new(named: &[PathBuf]) -> Self {
        let variable = environment::path_variable(PATH_VARIABLE);
        let executable = std::env::current_exe().and_then(|p| p.canonicalize()).ok();
        Self::assemble(
            named,
            variable.as_deref(),
            executable.as_deref().and_then(Path::parent),
        )
    }

    fn assemble(
        named: &[PathBuf],
        variable: Option<&std::ffi::OsStr>,
        executable: Option<&Path>,
    ) -> Self {
        let mut folders = named.to_vec();
        if let Some(list) = variable {
            // A relative entry would mean the working directory; an empty one is that.
            folders.extend(std::env::split_paths(list).filter(|p| p.is_absolute()));
        }
        if let Some(folder) = executable {
            if let Some(prefix) = folder.parent() {
                folders.push(prefix.join("lib/halfhitch/plugins"));
            }
            folders.push(folder.join("plugins"));
        }
        Self(folders)
    }

    /// The folders.
    pub fn folders(&self) -> &[PathBuf] {
        &self.0
    }
}

/// Manifests in a folder, by name; none where the folder is not there.
pub fn manifests(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return Vec::new();
    };
    let mut found: Vec<_> = entries
        .flatten()
        .map(|e| e.path())
        .filter(|p| {
            p.file_name()
                .is_some_and(|n| n.to_string_lossy().ends_with(SUFFIX))
        })
        .collect();
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_is_named_then_environment_then_installation() {
        let path = SearchPath::assemble(
            &["here".into()],
            Some("/a:relative::/b".as_ref()),
            Some(Path::new("/opt/halfhitch/bin")),
        );
        let folders: Vec<_> = path.folders().iter().map(|p| p.to_str().unwrap()).collect();
        assert_eq!(
            folders,
            [
                "here",
                "/a",
                "/b",
                "/opt/halfhitch/lib/halfhitch/plugins",
                "/opt/halfhitch/bin/plugins"
            ]
        );
    }
}
