//! Compiles the C shim against a runtime that `csrc/build-runtime.sh` has built, and links both in.
//!
//! The runtime is the one that the recipe names for this checkout and these features, or the folder
//! in `HALFHITCH_IREE_RUNTIME_DIR`. Nothing is downloaded or built here: without a runtime the build
//! stops with one line that says what to run.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What `link.txt` in a runtime's folder says, by key.
struct Runtime {
    prefix: PathBuf,
    values: HashMap<String, String>,
}

impl Runtime {
    fn list(&self, key: &str) -> impl Iterator<Item = &str> {
        let value = self.values.get(key).map_or("", String::as_str);
        value.split(',').filter(|item| !item.is_empty())
    }
}

fn main() {
    if let Err(line) = build() {
        eprintln!("error: {line}");
        std::process::exit(1);
    }
}

fn build() -> Result<(), String> {
    let manifest = PathBuf::from(var("CARGO_MANIFEST_DIR")?);
    let csrc = manifest.join("../../../csrc");
    let csrc = csrc
        .canonicalize()
        .map_err(|error| format!("{}: {error}", csrc.display()))?;
    for name in [
        "HALFHITCH_IREE_RUNTIME_DIR",
        "IREE_SOURCE_DIR",
        "PYTHON",
        "CC",
        "CXX",
    ] {
        println!("cargo::rerun-if-env-changed={name}");
    }
    // Of a folder, cargo watches all the files.
    for name in [
        "xla_iree",
        "xla_iree.h",
        "build_runtime.py",
        "iree_corrections.py",
        "runtime/CMakeLists.txt",
        "source/Cargo.lock",
    ] {
        println!("cargo::rerun-if-changed={}", csrc.join(name).display());
    }
    println!(
        "cargo::rerun-if-changed={}",
        manifest.join("build.rs").display()
    );

    let drivers = wanted_drivers();
    let runtime = find_runtime(&csrc, &drivers)?;
    for driver in &drivers {
        if !runtime.list("drivers").any(|built| built == driver) {
            return Err(format!(
                "the IREE runtime in {} has no driver '{driver}'",
                runtime.prefix.display()
            ));
        }
    }
    compile_shim(&csrc, &runtime)?;
    link(&runtime);
    let version = runtime
        .values
        .get("version")
        .ok_or("link.txt has no version")?;
    println!("cargo::rustc-env=HALFHITCH_IREE_VERSION={version}");
    // For crates that depend on this one: DEP_HALFHITCH_IREE_VERSION, ..._PREFIX.
    println!("cargo::metadata=version={version}");
    println!("cargo::metadata=prefix={}", runtime.prefix.display());
    Ok(())
}

fn var(name: &str) -> Result<String, String> {
    std::env::var(name).map_err(|error| format!("{name}: {error}"))
}

/// Every feature of this crate is a driver's name.
fn wanted_drivers() -> Vec<String> {
    let features = std::env::vars_os().filter_map(|(name, _)| {
        let name = name.into_string().ok()?;
        let feature = name.strip_prefix("CARGO_FEATURE_")?;
        Some(feature.to_lowercase().replace('_', "-"))
    });
    let mut drivers: Vec<String> = features.filter(|f| f != "default").collect();
    drivers.sort_unstable();
    drivers
}

fn find_runtime(csrc: &Path, drivers: &[String]) -> Result<Runtime, String> {
    if let Some(folder) = std::env::var_os("HALFHITCH_IREE_RUNTIME_DIR") {
        return read_runtime(PathBuf::from(folder));
    }
    if var("HOST")? != var("TARGET")? {
        return Err(
            "cross-compiling needs HALFHITCH_IREE_RUNTIME_DIR, a runtime built for the target"
                .into(),
        );
    }
    let script = csrc.join("build-runtime.sh");
    let output = Command::new(&script)
        .args(["print-paths", "--drivers", &drivers.join(",")])
        .output()
        .map_err(|error| format!("{}: {error}", script.display()))?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        let line = text
            .lines()
            .last()
            .unwrap_or("build-runtime.sh failed and said nothing");
        return Err(line.trim_start_matches("iree-runtime: error: ").to_owned());
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let prefix = text.lines().find_map(|line| line.strip_prefix("prefix="));
    read_runtime(PathBuf::from(
        prefix.ok_or("build-runtime.sh print-paths names no prefix")?,
    ))
}

fn read_runtime(prefix: PathBuf) -> Result<Runtime, String> {
    let path = prefix.join("link.txt");
    let text = std::fs::read_to_string(&path).map_err(|error| {
        format!(
            "no IREE runtime in {}: run `make iree-runtime` ({error})",
            prefix.display()
        )
    })?;
    println!("cargo::rerun-if-changed={}", path.display());
    let pairs = text.lines().filter_map(|line| line.split_once('='));
    let values = pairs
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .collect();
    Ok(Runtime { prefix, values })
}

fn compile_shim(csrc: &Path, runtime: &Runtime) -> Result<(), String> {
    let mut build = cc::Build::new();
    build
        .files(shim_sources(csrc)?)
        .include(csrc)
        .std("c11")
        .warnings(true)
        .extra_warnings(true);
    // IREE's headers do not pass -Wextra: they are system headers here.
    build.flag("-isystem").flag(runtime.prefix.join("include"));
    build.define("_GNU_SOURCE", None);
    for definition in runtime.list("defines") {
        let (name, value) = definition
            .split_once('=')
            .map_or((definition, None), |(n, v)| (n, Some(v)));
        build.define(name, value);
    }
    let version = runtime
        .values
        .get("version")
        .ok_or("link.txt has no version")?;
    build.define("HH_IREE_VERSION", format!("\"{version}\"").as_str());
    build
        .try_compile("halfhitch_xla_iree")
        .map_err(|error| format!("csrc/xla_iree: {error}"))
}

/// The C files of the shim, in an order that does not change from build to build.
fn shim_sources(csrc: &Path) -> Result<Vec<PathBuf>, String> {
    let folder = csrc.join("xla_iree");
    let failed = |error: std::io::Error| format!("{}: {error}", folder.display());
    let entries = std::fs::read_dir(&folder).map_err(failed)?;
    let mut sources = Vec::new();
    for entry in entries {
        let path = entry.map_err(failed)?.path();
        if path.extension().is_some_and(|extension| extension == "c") {
            sources.push(path);
        }
    }
    sources.sort_unstable();
    Ok(sources)
}

fn link(runtime: &Runtime) {
    println!(
        "cargo::rustc-link-search=native={}",
        runtime.prefix.join("lib").display()
    );
    for library in runtime.list("libs") {
        println!("cargo::rustc-link-lib=static={library}");
    }
    for library in runtime.list("system_libs") {
        println!("cargo::rustc-link-lib=dylib={library}");
    }
    for framework in runtime.list("frameworks") {
        println!("cargo::rustc-link-lib=framework={framework}");
    }
}
