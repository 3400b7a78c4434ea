//! `halfhitch plugin-manifest`.

use std::io::Write;
use std::path::Path;

use halfhitch_seam::{ErrorCode, ResultExt, SeamError, SeamResult};

use super::args::PluginManifestArgs;
use super::failure::Failure;
use super::output;
use crate::files::OutputFile;
use crate::plugins::manifest::{Manifest, SUFFIX, check_format};

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
    .and_then(|m| check_format(&args.library).map(|()| m))
    .in_context(|| library.to_string())?;
    let stem = manifest
        .library
        .trim_end_matches(std::env::consts::DLL_SUFFIX);
    let stem = stem.strip_prefix("lib").unwrap_or(stem);
    let folder = args.library.parent().filter(|p| !p.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));
    let path = folder.join(format!("{stem}{SUFFIX}"));
    write(&path, &manifest)?;
    if args.json {
        return output::json(&manifest);
    }
    output::line(&format!("{}: {}", path.display(), manifest.name))
}

/// Writes the manifest whole or not at all, for its owner alone to change.
fn write(path: &Path, manifest: &Manifest) -> SeamResult<()> {
    let io = |e: std::io::Error| SeamError::new(ErrorCode::Io, e.to_string());
    let text = serde_json::to_string_pretty(manifest).map_err(|e| io(e.into()))?;
    let mut file = OutputFile::create_with_mode(path, 0o644)?;
    writeln!(file, "{text}").map_err(io)?;
    file.commit()
}
