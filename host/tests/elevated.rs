//! A program with rights that its caller has not believes nothing that the caller's environment says.
#![cfg(target_os = "linux")]

mod cli_support;

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use cli_support::fixture;

/// A copy of the program that takes on another group; nothing where this user cannot make one.
fn setgid(folder: &Path) -> Option<PathBuf> {
    let copy = folder.join("halfhitch");
    fs::copy(assert_cmd::cargo::cargo_bin!("halfhitch"), &copy).unwrap();
    let mine = fs::metadata(&copy).unwrap().gid();
    let groups = rustix::process::getgroups().unwrap();
    // Root may take any.
    let others = groups.iter().map(|g| g.as_raw()).chain([65534]);
    let other = others
        .filter(|&g| g != mine)
        .find(|&g| chown(&copy, None, Some(g)).is_ok())?;
    fs::set_permissions(&copy, fs::Permissions::from_mode(0o2755)).unwrap();
    let honoured = || {
        let status = fs::read_to_string("/proc/self/status").unwrap();
        status.contains("NoNewPrivs:\t0") && fs::metadata(&copy).unwrap().gid() == other
    };
    honoured().then_some(copy)
}

fn run(program: &Path, folder: &Path, args: &[&str]) -> Output {
    Command::new(program)
        .args(args)
        .current_dir(folder)
        .env("HALFHITCH_PLUGIN_PATH", folder.join("named"))
        .env("HALFHITCH_MODELS", folder.join("elsewhere"))
        .env("HALFHITCH_CACHE_DIR", folder.join("cache"))
        .output()
        .unwrap()
}

#[test]
fn the_environment_names_no_places() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let folder = folder.path();
    let Some(elevated) = setgid(folder) else {
        eprintln!("skipped: this user has no second group, or the system honours no setgid files");
        return;
    };
    let plain = PathBuf::from(assert_cmd::cargo::cargo_bin!("halfhitch"));
    fs::create_dir_all(folder.join("named")).unwrap();
    fs::write(folder.join("named/planted.plugin.json"), "{}").unwrap();
    fs::create_dir_all(folder.join("elsewhere")).unwrap();
    fs::copy(
        fixture("gguf/llama-q4_1.gguf"),
        folder.join("elsewhere/planted.gguf"),
    )
    .unwrap();

    for (program, believes) in [(&plain, true), (&elevated, false)] {
        let said = |args: &[&str]| {
            let output = run(program, folder, args);
            format!(
                "{}{}",
                String::from_utf8_lossy(&output.stdout),
                String::from_utf8_lossy(&output.stderr)
            )
        };
        let plugins = said(&["backends"]);
        assert!(plugins.contains("reference-cpu"), "{plugins}");
        assert_eq!(plugins.contains("planted"), believes, "{plugins}");
        let named = said(&["inspect", "-m", "planted.gguf"]);
        assert_eq!(
            named.contains("no model `planted.gguf`"),
            !believes,
            "{named}"
        );
        let cached = said(&["inspect", "-m", "elsewhere/planted.gguf"]);
        let refused = cached.contains("there is no place to keep the imported model");
        assert_eq!(refused, !believes, "{cached}");
    }
    assert!(folder.join("cache").is_dir(), "the plain one used it");
}
