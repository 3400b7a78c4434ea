//! What is checked.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use halfhitch_seam::Size;

use super::{Check, Verdict};
use crate::checkpoint::Checkpoint;
use crate::cli::backends::state_name;
use crate::engine::{Registry, State};
use crate::import::ModelLocator;

/// Free memory under which even small models are tight.
const LITTLE_MEMORY: u64 = 1 << 30;

/// Every check, in the order in which they are printed.
pub fn all(registry: &Registry) -> Vec<Check> {
    let locator = ModelLocator::from_env();
    let mut out = vec![processor(), memory()];
    out.extend(backends(registry));
    out.push(match &locator.cache {
        Some(folder) => cache(folder),
        None => {
            let fix = "set HOME or HALFHITCH_CACHE_DIR";
            Check::bad("cache", Verdict::Warn, "there is no place for one", fix)
        }
    });
    out.push(models(&locator.collections));
    out.extend(building());
    out
}

fn processor() -> Check {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let name = fs::read_to_string("/proc/cpuinfo").ok().and_then(|info| {
        let line = info.lines().find(|l| l.starts_with("model name"))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    });
    let name = name.map_or_else(String::new, |n| format!(", {n}"));
    Check::ok(
        "processor",
        format!("{} cores, {}{name}", cores, std::env::consts::ARCH),
    )
}

fn memory() -> Check {
    let info = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let (Some(total), Some(free)) = (meminfo(&info, "MemTotal:"), meminfo(&info, "MemAvailable:"))
    else {
        return Check::ok("memory", "this system does not tell");
    };
    let found = format!("{} available of {}", Size(free), Size(total));
    if free < LITTLE_MEMORY {
        let fix = "end other programs; a model needs its size and a little more";
        return Check::bad("memory", Verdict::Warn, found, fix);
    }
    Check::ok("memory", found)
}

fn meminfo(info: &str, key: &str) -> Option<u64> {
    let line = info.lines().find_map(|l| l.strip_prefix(key))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

fn backends(registry: &Registry) -> Vec<Check> {
    let rows = registry.list();
    let any = rows.iter().any(|r| r.state == State::Ready);
    rows.into_iter()
        .map(|row| {
            let devices: Vec<String> = row.devices.iter().map(|d| d.device.name.clone()).collect();
            let found = format!(
                "{} {}: {}",
                row.name,
                state_name(row.state),
                devices.join(", ")
            );
            if row.state == State::Ready {
                return Check::ok("backend", found);
            }
            let verdict = if any { Verdict::Warn } else { Verdict::Fail };
            let reason = row.reason.unwrap_or_else(|| "no reason was given".into());
            Check::bad("backend", verdict, found, reason)
        })
        .collect()
}

/// The folder itself, or the nearest one above it that exists, must be writable; the folder must be
/// its owner's alone, since compiled code and imported models in it are trusted.
fn cache(folder: &Path) -> Check {
    let shown = folder.display().to_string();
    let existing = folder.ancestors().find(|p| p.exists());
    let Some(existing) = existing else {
        let fix = "set HALFHITCH_CACHE_DIR to a folder that can be made";
        return Check::bad(
            "cache",
            Verdict::Warn,
            format!("{shown} cannot be made"),
            fix,
        );
    };
    if let Err(error) = tempfile::tempfile_in(existing) {
        let found = format!("{} is not writable: {error}", existing.display());
        let fix = "make it writable, or set HALFHITCH_CACHE_DIR to another folder";
        return Check::bad("cache", Verdict::Warn, found, fix);
    }
    if existing == folder && others_can_write(folder) {
        let fix = format!("chmod go-w {shown}");
        return Check::bad(
            "cache",
            Verdict::Fail,
            format!("others can write to {shown}"),
            fix,
        );
    }
    Check::ok("cache", shown)
}

#[cfg(unix)]
fn others_can_write(folder: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    fs::metadata(folder).is_ok_and(|m| m.mode() & 0o022 != 0)
}

#[cfg(not(unix))]
fn others_can_write(_: &Path) -> bool {
    false
}

fn models(collections: &[PathBuf]) -> Check {
    let entries = collections
        .iter()
        .flat_map(|c| fs::read_dir(c).into_iter().flatten());
    let mut paths: Vec<PathBuf> = entries.flatten().map(|e| e.path()).collect();
    paths.retain(|p| p.join("config.json").is_file());
    paths.sort();
    let places: Vec<String> = collections
        .iter()
        .map(|c| c.display().to_string())
        .collect();
    let places = places.join(", ");
    let (mut good, mut bad) = (Vec::new(), Vec::new());
    for path in paths {
        let name = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        match Checkpoint::open(&path) {
            Ok(_) => good.push(name),
            Err(error) => bad.push(error.to_string()),
        }
    }
    if let Some(error) = bad.first() {
        let fix = "import or copy the model again, or remove its folder";
        return Check::bad("models", Verdict::Warn, error, fix);
    }
    if good.is_empty() {
        let fix = "`make model` fetches a small one; or give a folder or .gguf file as --model";
        let found = format!("none in {places}");
        return Check::bad("models", Verdict::Warn, found, fix);
    }
    Check::ok("models", format!("{} in {places}", good.join(", ")))
}

/// Tools that only building needs.
fn building() -> Vec<Check> {
    let tools: [(&'static str, &[&str], &str); 3] = [
        (
            "cargo",
            &["--version"],
            "install Rust; only building needs it",
        ),
        (
            "cc",
            &["--version"],
            "install a C compiler (Debian: build-essential); only building needs it",
        ),
        (
            "python3",
            &[
                "-c",
                "import sys, venv, ensurepip; print('Python', sys.version.split()[0])",
            ],
            "install python3 with venv (Debian: python3-venv); only `make model` needs it",
        ),
    ];
    tools
        .map(|(tool, args, fix)| tool_check(tool, args, fix))
        .into()
}

fn tool_check(tool: &'static str, args: &[&str], fix: &str) -> Check {
    let output = Command::new(tool).args(args).output();
    match output {
        Ok(o) if o.status.success() => {
            let text = String::from_utf8_lossy(&o.stdout);
            Check::ok(tool, text.lines().next().unwrap_or_default())
        }
        Ok(_) => Check::bad(tool, Verdict::Warn, "there, but does not work", fix),
        Err(_) => Check::bad(tool, Verdict::Warn, "not found", fix),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_read_as_the_kernel_writes_it() {
        let info = "MemTotal:       24000 kB\nMemAvailable:   12 kB\n";
        assert_eq!(meminfo(info, "MemTotal:"), Some(24_000 * 1024));
        assert_eq!(meminfo(info, "SwapTotal:"), None);
    }

    #[test]
    fn a_missing_tool_says_how_to_get_it() {
        let check = tool_check("halfhitch-no-such-tool", &[], "install it");
        assert_eq!(check.verdict, Verdict::Warn);
        assert_eq!(check.fix.as_deref(), Some("install it"));
    }

    #[cfg(unix)]
    #[test]
    fn a_cache_that_others_can_write_fails() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(cache(&dir.path().join("not/yet")).verdict, Verdict::Ok);
        for (mode, verdict) in [
            (0o700, Verdict::Ok),
            (0o770, Verdict::Fail),
            (0o707, Verdict::Fail),
        ] {
            fs::set_permissions(dir.path(), fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(cache(dir.path()).verdict, verdict, "{mode:o}");
        }
    }
}
