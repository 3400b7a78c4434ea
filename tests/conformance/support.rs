//! The program and the faulty plugin, as a vendor has them.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use serde_json::Value;
use tempfile::TempDir;

const LIBRARY: &str = "libhalfhitch_faulty_plugin.so";

fn built() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let plugins = ["halfhitch-faulty-plugin", "halfhitch-reference-cpu-plugin"];
        halfhitch_test_support::built(&plugins)
    })
}

/// A folder with the faulty plugin and its manifest.
pub struct Bench(TempDir);

impl Bench {
    /// A plugin that is as faulty as it is told to be.
    pub fn new() -> Self {
        Self::with("faulty", LIBRARY)
    }

    /// The reference as a plugin.
    pub fn reference() -> Self {
        let library = "libhalfhitch_reference_cpu_plugin.so";
        Self::with("reference-cpu-plugin", library)
    }

    fn with(name: &str, library: &str) -> Self {
        let bench = Self(tempfile::tempdir().unwrap());
        let to = bench.path(LIBRARY);
        fs::copy(built().join(library), &to).unwrap();
        fs::set_permissions(&to, fs::Permissions::from_mode(0o755)).unwrap();
        let mut command = bench.halfhitch();
        command.arg("plugin-manifest").arg(to);
        let out = command.args(["--name", name, "--driver", "cpu"]).output();
        let out = out.unwrap();
        assert!(out.status.success(), "{}", stderr(&out));
        bench
    }

    /// A path in the folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// The library.
    pub fn library(&self) -> PathBuf {
        self.path(LIBRARY)
    }

    /// The program, away from whoever runs the tests.
    pub fn halfhitch(&self) -> Command {
        let mut command = Command::new(built().join("halfhitch"));
        for name in ["HALFHITCH_LOG", "HALFHITCH_PLUGIN_PATH", "HALFHITCH_FAULT"] {
            command.env_remove(name);
        }
        command.current_dir(self.0.path());
        command
    }

    /// `conformance --plugin` on the plugin with a fault.
    pub fn conformance(&self, fault: &str, args: &[&str]) -> Output {
        let mut command = self.halfhitch();
        command.env("HALFHITCH_FAULT", fault);
        command
            .args(["conformance", "-q", "--plugin"])
            .arg(self.library());
        command.args(args).output().unwrap()
    }

    /// `verify` of a model on the plugin with a fault, as JSON.
    pub fn verify(&self, fault: &str, args: &[&str]) -> (Option<i32>, Value) {
        let mut command = self.halfhitch();
        command.env("HALFHITCH_FAULT", fault);
        command.args(["verify", "-q", "--json", "-b", "faulty", "--plugin-dir"]);
        let out = command.arg(self.0.path()).args(args).output().unwrap();
        let json = serde_json::from_slice(&out.stdout);
        let json = json.unwrap_or_else(|e| panic!("{e}: {}", stderr(&out)));
        (out.status.code(), json)
    }
}

pub fn stderr(out: &Output) -> String {
    String::from_utf8_lossy(&out.stderr).into_owned()
}

pub fn stdout(out: &Output) -> String {
    String::from_utf8_lossy(&out.stdout).into_owned()
}

pub fn json(out: &Output) -> Value {
    serde_json::from_slice(&out.stdout).unwrap_or_else(|e| panic!("{e}: {}", stderr(out)))
}

/// A file or folder of the fixtures.
pub fn fixture(name: &str) -> String {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures");
    fixtures.join(name).to_str().unwrap().to_owned()
}
