//! A plugin with a fault, a program to host it, and what processes there are.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use halfhitch::checkpoint::Checkpoint;
use halfhitch::engine::{Registry, Selection};
use halfhitch::isolate::Isolation;
use halfhitch::plugins::manifest::Manifest;
use halfhitch_seam::{
    CancelToken, ComputeBackend, Control, NoObserver, OpenRequest, PlanRequest, SeamResult,
    Session, negotiate,
};
use serde_json::Value;
use tempfile::TempDir;

/// Longest that anything which should be prompt may take on a busy machine.
pub const PROMPT: Duration = Duration::from_secs(20);

/// The tiny model: vocabulary 97, context 256.
pub fn tiny() -> PathBuf {
    fixture("tiny/llama")
}

pub use halfhitch_test_support::fixture;

fn built() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| halfhitch_test_support::built(&["halfhitch-faulty-plugin"]))
}

pub fn program() -> PathBuf {
    built().join("halfhitch")
}

/// A folder with the faulty plugin, and a program that stands before the real one and gives it a fault.
pub struct Bench {
    dir: TempDir,
}

impl Bench {
    pub fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let library = dir.path().join("libfaulty.so");
        fs::copy(built().join("libhalfhitch_faulty_plugin.so"), &library).unwrap();
        fs::set_permissions(&library, fs::Permissions::from_mode(0o755)).unwrap();
        let manifest =
            Manifest::describe(&library, "faulty", "cpu", "0.1.0", BTreeMap::new()).unwrap();
        let at = dir.path().join("faulty.plugin.json");
        fs::write(&at, serde_json::to_string(&manifest).unwrap()).unwrap();
        fs::set_permissions(&at, fs::Permissions::from_mode(0o644)).unwrap();
        Self { dir }
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// How children are started: with a fault, and watched for `limit`.
    pub fn isolation(&self, fault: &str, limit: Duration) -> Isolation {
        let text = format!(
            "#!/bin/sh\nHALFHITCH_FAULT='{fault}' exec '{}' \"$@\"\n",
            program().display()
        );
        self.script(&text, limit)
    }

    /// How children are started that are a script.
    pub fn script(&self, text: &str, limit: Duration) -> Isolation {
        // A file that is open for writing cannot be run, and a fork of another test may hold it open.
        let folder = tempfile::tempdir_in(self.path()).unwrap().keep();
        let at = folder.join("program");
        fs::write(folder.join("text"), text).unwrap();
        let copied = Command::new("install")
            .args(["-m", "755", "text", "program"])
            .current_dir(&folder)
            .status()
            .unwrap();
        assert!(copied.success());
        Isolation {
            program: at,
            limit,
            ..Isolation::of_this_program()
        }
    }

    /// The faulty backend in a process of its own.
    pub fn backend(&self, isolation: &Isolation) -> SeamResult<Arc<dyn ComputeBackend>> {
        let registry = Registry::with_plugins(&[self.path().to_path_buf()]).isolated(isolation);
        let selection: Selection = "faulty".parse()?;
        Ok(registry.select(&selection)?.backend)
    }

    /// The child of this process that has the plugin.
    pub fn child(&self) -> u32 {
        let name = self.path().to_str().unwrap();
        let found = children(std::process::id()).into_iter().find(|pid| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&line).contains(name)
        });
        found.expect("the plugin has a process")
    }

    /// The program, with the plugin and a fault.
    pub fn command(&self, fault: &str, args: &[&str]) -> Command {
        let mut command = Command::new(program());
        command
            .arg("--plugin-dir")
            .arg(self.path())
            .args(args)
            .env("HALFHITCH_FAULT", fault)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        for name in [
            "HALFHITCH_LOG",
            "HALFHITCH_ISOLATE",
            "HALFHITCH_PLUGIN_PATH",
        ] {
            command.env_remove(name);
        }
        command
    }

    /// `generate` on the tiny model with the plugin.
    pub fn generate(&self, fault: &str, more: &[&str]) -> Command {
        let mut command = self.command(fault, &["generate", "--backend", "faulty"]);
        command.args(PROMPTED).args(more).arg("-m").arg(tiny());
        command
    }
}

/// A prompt, and six tokens after it.
pub const PROMPTED: [&str; 5] = ["-n", "6", "--ignore-eos", "--prompt-tokens", "3,1,4,1,5"];

/// A session on a model.
pub fn open(backend: &dyn ComputeBackend, model: &Path) -> SeamResult<Box<dyn Session>> {
    let checkpoint = Checkpoint::open(model)?;
    let device = &backend.devices()?[0];
    let capabilities = backend.capabilities(&device.id)?;
    let manifest = checkpoint.weights().manifest();
    let request = PlanRequest::default();
    let plan = negotiate(checkpoint.spec(), &manifest, &capabilities, &request)?;
    let cancel = CancelToken::new();
    backend.open(OpenRequest {
        plan: &plan,
        model: checkpoint.spec(),
        weights: checkpoint.weights(),
        control: control(&cancel),
    })
}

pub fn control(cancel: &CancelToken) -> Control<'_> {
    Control {
        cancel,
        observer: &NoObserver,
    }
}

pub fn stderr(out: &Output) -> String {
    String::from_utf8_lossy(&out.stderr).into_owned()
}

/// The tokens of a run with `--json` that must have succeeded.
pub fn tokens(out: &Output) -> Value {
    assert!(out.status.success(), "{}", stderr(out));
    let mut object: Value = serde_json::from_slice(&out.stdout).unwrap();
    object["tokens"].take()
}

/// The children of a process.
pub fn children(pid: u32) -> Vec<u32> {
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return Vec::new();
    };
    let lists = tasks.flatten().map(|t| t.path().join("children"));
    let texts: String = lists
        .filter_map(|list| fs::read_to_string(list).ok())
        .collect();
    texts
        .split_whitespace()
        .map(|p| p.parse().unwrap())
        .collect()
}

/// Whether a process runs; one that has ended and that nobody has asked for does not.
pub fn runs(pid: u32) -> bool {
    let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else {
        return false;
    };
    let state = stat.rsplit(')').next().unwrap_or_default().trim_start();
    !state.starts_with(['Z', 'X'])
}

pub fn signal(name: &str, pid: u32) {
    let status = Command::new("kill").args([name, &pid.to_string()]).status();
    assert!(status.unwrap().success());
}

/// Waits until there is something.
pub fn wait<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(start.elapsed() < PROMPT, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
