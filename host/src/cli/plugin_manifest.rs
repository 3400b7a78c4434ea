//! `halfhitch plugin-manifest`.

use std::io::Write;
use std::path::Path;

use halfhitch_seam::{ErrorCode, ResultExt, SeamError, SeamResult};

use super::args::PluginManifestArgs;
use super::failure::Failure;
use super::output;
use crate::plugins::manifest::{Manifest, SUFFIX};

/// Runs the command.
pub fn run(args: &PluginManifestArgs) -> Result<(), Failure> {
    let library = args.library.display();
    let manifest = Manifest::describe(
        &args.library,
        &args.name,
        &args.driver,
        &args.plugin_version,
        args.component.iter().cloned().collect(),
    )
    .and_then(|m| m.check().map(|()| m))
    .in_context(|| library.to_string())?;
    let stem = manifest
        .library
        .trim_end_matches(std::env::consts::DLL_SUFFIX);
    let stem = stem.strip_prefix("lib").unwrap_or(stem);
    let folder = args.library.parent().filter(|p| !p.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));
    let path = folder.join(format!("{stem}{SUFFIX}"));
    write(folder, &path, &manifest).in_context(|| path.display().to_string())?;
    if args.json {
        return output::json(&manifest);
    }
    output::line(&format!("{}: {}", path.display(), manifest.name))
}

/// Writes the manifest whole or not at all, for its owner alone to change.
fn write(folder: &Path, path: &Path, manifest: &Manifest) -> SeamResult<()> {
    let io = |e: std::io::Error| SeamError::new(ErrorCode::Io, e.to_string());
    let text = serde_json::to_string_pretty(manifest).map_err(|e| io(e.into()))?;
    let mut file = tempfile::NamedTempFile::new_in(folder).map_err(io)?;
    writeln!(file, "{text}").map_err(io)?;
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let mode = std::fs::Permissions::from_mode(0o644);
        file.as_file().set_permissions(mode).map_err(io)?;
    }
    file.persist(path).map_err(|e| io(e.error))?;
    Ok(())
}
