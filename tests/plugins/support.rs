//! Folders with plugins in them, and what is done with a backend once it is loaded.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use halfhitch::checkpoint::Checkpoint;
use halfhitch::plugins::Plugin;
use halfhitch::plugins::deadline::within;
use halfhitch::plugins::manifest::Manifest;
use halfhitch::plugins::search::SearchPath;
use halfhitch_seam::{
    CancelToken, ComputeBackend, Control, DecodeStep, DeviceCapabilities, ErrorCode, NoObserver,
    OpenRequest, OutputRequest, PlanRequest, SeamResult, Session, Tap, negotiate,
};
use tempfile::TempDir;

/// The target that everything here is built for.
pub const TARGET: &str = "x86_64-unknown-linux-gnu";

/// A folder with one plugin.
pub struct Folder {
    dir: TempDir,
    stem: &'static str,
}

impl Folder {
    pub fn faulty() -> Self {
        Self::with("faulty", "faulty", "halfhitch-faulty-plugin")
    }

    pub fn reference() -> Self {
        Self::with(
            "reference",
            "reference-cpu-plugin",
            "halfhitch-reference-cpu-plugin",
        )
    }

    pub fn local_task() -> Self {
        Self::with(
            "local-task",
            "xla-iree:local-task",
            "halfhitch-xla-iree-local-task",
        )
    }

    fn with(stem: &'static str, name: &str, package: &str) -> Self {
        let folder = Self {
            dir: tempfile::tempdir().unwrap(),
            stem,
        };
        fs::copy(built(package), folder.library()).unwrap();
        folder.describe(name);
        folder
    }

    fn describe(&self, name: &str) {
        fs::set_permissions(self.library(), fs::Permissions::from_mode(0o755)).unwrap();
        let manifest =
            Manifest::describe(&self.library(), name, "cpu", "0.1.0", BTreeMap::new()).unwrap();
        self.write_manifest(&manifest);
    }

    fn write_manifest(&self, manifest: &Manifest) {
        self.write(
            &format!("{}.plugin.json", self.stem),
            serde_json::to_string(manifest).unwrap().as_bytes(),
        );
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    pub fn library(&self) -> PathBuf {
        self.path().join(format!("lib{}.so", self.stem))
    }

    pub fn manifest(&self) -> PathBuf {
        self.path().join(format!("{}.plugin.json", self.stem))
    }

    pub fn search_path(&self) -> SearchPath {
        SearchPath::new(&[self.path().to_path_buf()])
    }

    pub fn write(&self, name: &str, bytes: &[u8]) {
        let path = self.path().join(name);
        fs::write(&path, bytes).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o644)).unwrap();
    }

    pub fn edit(&self, change: impl FnOnce(&mut Manifest)) {
        let mut manifest = Manifest::read(&self.manifest()).unwrap();
        change(&mut manifest);
        self.write_manifest(&manifest);
    }

    pub fn mode(&self, name: &str, mode: u32) {
        fs::set_permissions(self.path().join(name), fs::Permissions::from_mode(mode)).unwrap();
    }

    pub fn append_to_library(&self, bytes: &[u8]) {
        let mut file = fs::OpenOptions::new()
            .append(true)
            .open(self.library())
            .unwrap();
        file.write_all(bytes).unwrap();
    }

    /// Puts another file in the library's place, with a manifest that vouches for it.
    pub fn replace_library(&self, bytes: &[u8]) {
        fs::remove_file(self.library()).unwrap();
        fs::write(self.library(), bytes).unwrap();
        self.describe("faulty");
    }

    /// The same with a library compiled from C.
    pub fn replace_library_with_c(&self, source: &str) {
        let c = self.path().join("library.c");
        fs::write(&c, source).unwrap();
        fs::remove_file(self.library()).unwrap();
        let status = Command::new("cc")
            .args(["-shared", "-fPIC", "-o"])
            .arg(self.library())
            .arg(&c)
            .status()
            .expect("a C compiler, `cc`, is needed");
        assert!(status.success());
        self.describe("faulty");
    }
}

/// A plugin header in C.
pub fn header_in_c(abi_major: u16, triple: &str, panic: u8) -> String {
    format!(
        "struct {{ char magic[8]; unsigned size; unsigned short major, minor; unsigned char panic, \
         zero[7]; char triple[64]; }} halfhitch_plugin_header = \
         {{ \"HLFHITCH\", 88, {abi_major}, 0, {panic}, {{0}}, \"{triple}\" }};"
    )
}

/// A plugin's library.
pub fn built(package: &str) -> PathBuf {
    halfhitch_test_support::built(&[package]).join(halfhitch_test_support::library(package))
}

const CHILD: &str = "HALFHITCH_TEST_CHILD";

/// Whether this process is a child of [`run_in_child`].
pub fn is_child() -> bool {
    std::env::var_os(CHILD).is_some()
}

/// Runs one test of this binary in a process with a fault; returns all it printed.
pub fn run_in_child(test: &str, fault: &str) -> String {
    let out = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(CHILD, "1")
        .env("HALFHITCH_FAULT", fault)
        .output()
        .unwrap();
    format!(
        "{}{}",
        String::from_utf8_lossy(&out.stdout),
        String::from_utf8_lossy(&out.stderr)
    )
}

/// A plugin's devices with what each can do, unless it hangs.
pub fn survey(plugin: &Arc<Plugin>, limit: Duration) -> SeamResult<Vec<DeviceCapabilities>> {
    let asked = Arc::clone(plugin);
    within(limit, move || {
        let backend = asked.backend()?;
        let devices = backend.devices()?;
        devices
            .iter()
            .map(|d| backend.capabilities(&d.id))
            .collect()
    })
}

const PROMPT: [u32; 5] = [3, 1, 4, 1, 5];

fn open(backend: &dyn ComputeBackend, model: &Path) -> SeamResult<Box<dyn Session>> {
    let checkpoint = Checkpoint::open(model)?;
    let device = &backend.devices()?[0];
    let capabilities = backend.capabilities(&device.id)?;
    let plan = negotiate(
        checkpoint.spec(),
        &checkpoint.weights().manifest(),
        &capabilities,
        &PlanRequest::default(),
    )?;
    backend.open(OpenRequest {
        plan: &plan,
        model: checkpoint.spec(),
        weights: checkpoint.weights(),
        control: Control {
            cancel: &CancelToken::new(),
            observer: &NoObserver,
        },
    })
}

/// Every method of a session once.
pub fn exercise(backend: &dyn ComputeBackend, model: &Path) -> SeamResult<()> {
    let mut session = open(backend, model)?;
    let sequence = session.create_sequence()?;
    let control = Control {
        cancel: &CancelToken::new(),
        observer: &NoObserver,
    };
    session.prefill(sequence, &PROMPT, OutputRequest::GREEDY, &control)?;
    let step = DecodeStep { sequence, token: 2 };
    session.decode(&[step], OutputRequest::GREEDY)?;
    session.truncate(sequence, 2)?;
    assert_eq!(session.sequence_len(sequence)?, 2);
    session.release(sequence)
}

/// Logits after a prompt and after a step more.
pub fn logits(backend: &dyn ComputeBackend, model: &Path) -> SeamResult<Vec<f32>> {
    let mut session = open(backend, model)?;
    let sequence = session.create_sequence()?;
    let control = Control {
        cancel: &CancelToken::new(),
        observer: &NoObserver,
    };
    let mut all = session
        .prefill(sequence, &PROMPT, OutputRequest::ALL_LOGITS, &control)?
        .logits;
    let step = DecodeStep { sequence, token: 2 };
    all.extend(&session.decode(&[step], OutputRequest::LOGITS)?[0].logits);
    Ok(all)
}

/// Intermediate results of a prompt.
pub fn taps(backend: &dyn ComputeBackend, model: &Path) -> SeamResult<Vec<Tap>> {
    let control = Control {
        cancel: &CancelToken::new(),
        observer: &NoObserver,
    };
    open(backend, model)?.tap(&PROMPT, &control)
}

/// What a session answers after its decode failed.
pub fn after_a_failed_decode(backend: &dyn ComputeBackend, model: &Path) -> ErrorCode {
    let mut session = open(backend, model).unwrap();
    let sequence = session.create_sequence().unwrap();
    let step = DecodeStep { sequence, token: 2 };
    session.decode(&[step], OutputRequest::GREEDY).unwrap_err();
    session.sequence_len(sequence).unwrap_err().code
}
