//! The program with a plugin, a compiler and a cache of its own, away from the user's.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

/// The backend of every test: it starts no threads.
pub const BACKEND: &str = "xla-iree:local-sync";

/// The plugin's library.
pub const LIBRARY: &str = "libhalfhitch_xla_iree_local_sync.so";

/// Longest that anything which should be prompt may take on a busy machine.
pub const PROMPT: Duration = Duration::from_secs(15);

pub use halfhitch_test_support::root;

fn built() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| halfhitch_test_support::built(&["halfhitch-xla-iree-local-sync"]))
}

/// The pinned compiler.
pub fn compiler() -> PathBuf {
    let script = root().join("csrc/build-runtime.sh");
    let out = Command::new(script).arg("compiler").output().unwrap();
    assert!(out.status.success(), "run `make iree-runtime` first");
    PathBuf::from(String::from_utf8(out.stdout).unwrap().trim())
}

/// Stands before the compiler, notes each run of it, and lets it hang where a test asks for that. Always
/// the same text, so that what one test compiled serves the others.
fn wrapper(at: &Path) {
    let text = format!(
        "#!/bin/sh\n[ \"$1\" = --version ] && exec '{0}' --version\necho $$ >>\"$TEST_COMPILES\"\n\
         [ -n \"$TEST_HANG\" ] && exec sleep 600\nexec '{0}' \"$@\"\n",
        compiler().display()
    );
    fs::write(at, text).unwrap();
    fs::set_permissions(at, Permissions::from_mode(0o755)).unwrap();
}

/// A folder with everything.
pub struct Bench {
    dir: TempDir,
}

impl Bench {
    /// With an empty cache.
    pub fn cold() -> Self {
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let bench = Self { dir };
        for folder in ["bin", "plugins", "cache", "tmp"] {
            fs::create_dir(bench.path(folder)).unwrap();
            fs::set_permissions(bench.path(folder), Permissions::from_mode(0o700)).unwrap();
        }
        // A copy, since plugins beside the program would be found too.
        fs::copy(built().join("halfhitch"), bench.path("bin/halfhitch")).unwrap();
        fs::copy(built().join(LIBRARY), bench.library()).unwrap();
        fs::set_permissions(bench.library(), Permissions::from_mode(0o755)).unwrap();
        wrapper(&bench.path("bin/iree-compile"));
        let out = bench
            .halfhitch()
            .arg("plugin-manifest")
            .arg(bench.library())
            .args(["--name", BACKEND, "--driver", "local-sync"])
            .output()
            .unwrap();
        assert!(out.status.success(), "{}", stderr(&out));
        bench
    }

    /// With a cache in which the whole model is. It is made once and kept in the target folder.
    pub fn warm() -> Self {
        static WARM: OnceLock<PathBuf> = OnceLock::new();
        let warm = WARM.get_or_init(|| {
            let kept = Path::new(env!("CARGO_TARGET_TMPDIR")).join("robustness-cache");
            let bench = Self::cold();
            if kept.is_dir() {
                copy_all(&kept, &bench.cache());
            }
            assert_eq!(bench.tokens(), reference());
            let _ = fs::remove_dir_all(&kept);
            copy_all(&bench.cache(), &kept);
            kept
        });
        let bench = Self::cold();
        copy_all(warm, &bench.cache());
        bench
    }

    /// With a cache in which one module of the model is missing.
    pub fn nearly_warm() -> Self {
        let bench = Self::warm();
        fs::remove_file(&bench.modules()[0]).unwrap();
        bench
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn cache(&self) -> PathBuf {
        self.path("cache")
    }

    pub fn library(&self) -> PathBuf {
        self.path("plugins").join(LIBRARY)
    }

    /// The cache's entries, the smallest first.
    pub fn modules(&self) -> Vec<PathBuf> {
        let mut found: Vec<PathBuf> = names(&self.cache().join("xla-iree/modules"))
            .into_iter()
            .filter(|p| p.extension().is_some_and(|e| e == "vmfb"))
            .collect();
        found.sort_by_key(|p| fs::metadata(p).unwrap().len());
        found
    }

    /// The program.
    pub fn halfhitch(&self) -> Command {
        let mut command = Command::new(self.path("bin/halfhitch"));
        self.environment(&mut command);
        command
    }

    /// The program under another one, which starts it as its arguments say.
    pub fn halfhitch_under(&self, program: &str, args: &[&str]) -> Command {
        let mut command = Command::new(program);
        command.args(args).arg(self.path("bin/halfhitch"));
        self.environment(&mut command);
        command
    }

    fn environment(&self, command: &mut Command) {
        for name in ["HALFHITCH_LOG", "HALFHITCH_MODELS", "COLUMNS", "TEST_HANG"] {
            command.env_remove(name);
        }
        command
            .env("HALFHITCH_PLUGIN_PATH", self.path("plugins"))
            .env("HALFHITCH_CACHE_DIR", self.cache())
            .env("HALFHITCH_IREE_COMPILE", self.path("bin/iree-compile"))
            .env("TEST_COMPILES", self.path("compiles"))
            .env("TMPDIR", self.path("tmp"))
            .stdin(Stdio::null());
    }

    /// Process ids of all runs of the compiler.
    pub fn compiles(&self) -> Vec<u32> {
        let text = fs::read_to_string(self.path("compiles")).unwrap_or_default();
        text.lines().map(|l| l.parse().unwrap()).collect()
    }

    /// What `generate` gives; it must succeed.
    pub fn tokens(&self) -> Value {
        tokens(&generate(self.halfhitch()).output().unwrap())
    }

    /// Starts `generate`, with a compiler that hangs, and waits until that runs.
    pub fn start_hanging(&self) -> (Child, u32) {
        let child = generate(self.halfhitch())
            .env("TEST_HANG", "1")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        wait("the compiler", || !self.compiles().is_empty());
        (child, self.compiles()[0])
    }
}

/// Adds `generate` on the tiny model.
pub fn generate(mut command: Command) -> Command {
    command
        .args(["generate", "--json", "--backend", BACKEND, "-n", "6"])
        .args(["--ignore-eos", "--prompt-tokens", "3,1,4,1,5", "-m"])
        .arg(root().join("tests/fixtures/tiny/llama"));
    command
}

/// The tokens that a run gave; it must have succeeded.
pub fn tokens(out: &Output) -> Value {
    assert!(out.status.success(), "{}", stderr(out));
    let mut object: Value = serde_json::from_slice(&out.stdout).unwrap();
    object["tokens"].take()
}

/// The tokens that the reference gives.
pub fn reference() -> Value {
    let args = ["generate", "--json", "-q", "--backend", "reference-cpu"];
    let out = Command::new(built().join("halfhitch"))
        .args(args)
        .args([
            "-n",
            "6",
            "--ignore-eos",
            "--prompt-tokens",
            "3,1,4,1,5",
            "-m",
        ])
        .arg(root().join("tests/fixtures/tiny/llama"))
        .output()
        .unwrap();
    tokens(&out)
}

/// The last line of stderr of a run that must have failed; there must be only one, but for progress.
pub fn failure(out: &Output) -> String {
    assert_eq!(out.status.code(), Some(1), "{}", stderr(out));
    let text = stderr(out);
    let errors: Vec<&str> = text.lines().filter(|l| l.starts_with("error:")).collect();
    assert_eq!(errors.len(), 1, "{text}");
    errors[0].to_owned()
}

pub fn stderr(out: &Output) -> String {
    String::from_utf8_lossy(&out.stderr).into_owned()
}

/// Waits until `done`.
pub fn wait(what: &str, done: impl Fn() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < PROMPT, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
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

/// What is in a folder.
pub fn names(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else {
        return Vec::new();
    };
    entries.map(|e| e.unwrap().path()).collect()
}

fn copy_all(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    fs::set_permissions(to, fs::metadata(from).unwrap().permissions()).unwrap();
    for path in names(from) {
        let target = to.join(path.file_name().unwrap());
        match path.is_dir() {
            true => copy_all(&path, &target),
            false => drop(fs::copy(&path, &target).unwrap()),
        }
    }
}
