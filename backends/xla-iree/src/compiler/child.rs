//! One run of the compiler, as a child process: a crash, a hang or a flood of diagnostics in it
//! stays there.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use halfhitch_seam::{ErrorCode, SeamError, SeamResult};

/// How often a running child is looked at.
const POLL: Duration = Duration::from_millis(20);

/// Longest line of a diagnostic that is shown; the rest is in the log.
const SHOWN: usize = 300;

/// What is told of a compiler that ends by a signal without a word.
pub const CRASHED: &str = "the compiler crashed";

/// What the compiler says first where it finds no `iree-lld`.
const NO_LINKER: &str = "required embedded linker tool";

/// A run of the compiler.
pub struct Run<'a> {
    /// The executable.
    pub tool: &'a Path,
    /// Flags.
    pub flags: &'a [String],
    /// The graph's file.
    pub input: &'a Path,
    /// Where the module goes.
    pub output: &'a Path,
    /// Where everything that the compiler prints goes.
    pub log: &'a Path,
    /// Longest time.
    pub limit: Duration,
}

/// A child that is killed with all its own children when it is let go.
struct Group(Child);

impl Drop for Group {
    fn drop(&mut self) {
        if let Ok(Some(_)) = self.0.try_wait() {
            return;
        }
        let group = i32::try_from(self.0.id()).ok();
        if let Some(pid) = group.and_then(rustix::process::Pid::from_raw) {
            // Fails only where the group is gone.
            let _ = rustix::process::kill_process_group(pid, rustix::process::Signal::KILL);
        }
        let _ = self.0.wait();
    }
}

impl Run<'_> {
    /// Runs to the end. `tick` is called every now and then; its error stops the compiler.
    ///
    /// # Errors
    /// `tick`'s; `Backend` with the first diagnostic and the log's path where the compiler fails,
    /// crashes or takes too long; `NotFound` where it cannot be started.
    pub fn run(&self, tick: &mut dyn FnMut() -> SeamResult<()>) -> SeamResult<()> {
        let log = File::create(self.log).map_err(|e| io(self.log, &e))?;
        let also = log.try_clone().map_err(|e| io(self.log, &e))?;
        let mut command = Command::new(self.tool);
        die_with_parent(&mut command);
        let child = command
            .args(self.flags)
            .arg(self.input)
            .arg("-o")
            .arg(self.output)
            // What it leaves when it is killed is then deleted with the rest.
            .env("TMPDIR", self.output.parent().unwrap_or(self.output))
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(also)
            .process_group(0)
            .spawn()
            .map_err(|e| {
                SeamError::new(
                    ErrorCode::NotFound,
                    format!("cannot start {}: {e}", self.tool.display()),
                )
                .hint(super::tool::FIX)
            })?;
        let mut child = Group(child);
        let start = Instant::now();
        let status = loop {
            if let Some(status) = child.0.try_wait().map_err(|e| io(self.tool, &e))? {
                break status;
            }
            tick()?;
            if start.elapsed() > self.limit {
                return Err(SeamError::new(
                    ErrorCode::Backend,
                    format!(
                        "the compiler took more than {} s and was stopped",
                        self.limit.as_secs()
                    ),
                )
                .hint("set HALFHITCH_COMPILE_TIMEOUT to more seconds"));
            }
            std::thread::sleep(POLL);
        };
        if status.success() {
            return Ok(());
        }
        Err(self.failure(status))
    }

    fn failure(&self, status: ExitStatus) -> SeamError {
        let line = first_error(self.log).unwrap_or_else(|| match status.signal() {
            None => format!("exit status {}", status.code().unwrap_or_default()),
            // The system's way to take memory back, or somebody's hand.
            Some(9) => "it was killed".into(),
            Some(signal) => format!("{CRASHED} (signal {signal})"),
        });
        if line.contains(NO_LINKER) {
            return SeamError::new(
                ErrorCode::Backend,
                format!(
                    "`iree-lld` is missing, which belongs beside {}",
                    self.tool.display()
                ),
            )
            .hint(super::tool::FIX);
        }
        SeamError::new(ErrorCode::Backend, format!("the compiler failed: {line}"))
            .hint(format!("the full log is {}", self.log.display()))
    }
}

/// Lets the kernel end the child where this process is killed and can end it no more.
#[cfg(target_os = "linux")]
fn die_with_parent(command: &mut Command) {
    use rustix::process::{Signal, getpid, getppid, set_parent_process_death_signal};
    let parent = getpid();
    let prepare = move || {
        set_parent_process_death_signal(Some(Signal::KILL))?;
        // It may be gone since the fork.
        if getppid() != Some(parent) {
            return Err(rustix::io::Errno::SRCH.into());
        }
        Ok(())
    };
    // SAFETY: between fork and exec this makes three system calls and allocates nothing.
    unsafe { command.pre_exec(prepare) };
}

#[cfg(not(target_os = "linux"))]
fn die_with_parent(_: &mut Command) {}

/// The first line of a log that tells of an error, else its first line.
fn first_error(log: &Path) -> Option<String> {
    let lines = || {
        let file = File::open(log).ok()?;
        Some(BufReader::new(file).split(b'\n').map_while(Result::ok))
    };
    let shown = |line: Vec<u8>| {
        let text = String::from_utf8_lossy(&line);
        text.trim().chars().take(SHOWN).collect::<String>()
    };
    lines()?
        .map(shown)
        .find(|line| line.contains("error:"))
        .or_else(|| lines()?.map(shown).find(|line| !line.is_empty()))
}

fn io(path: &Path, error: &std::io::Error) -> SeamError {
    SeamError::new(ErrorCode::Io, format!("{}: {error}", path.display()))
}

/// Reads a module that was written.
///
/// # Errors
/// `Io`.
pub fn read(path: &Path) -> SeamResult<Vec<u8>> {
    fs::read(path).map_err(|e| io(path, &e))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    /// Runs a shell script as if it were the compiler.
    fn compile(
        script: &str,
        limit: Duration,
        tick: &mut dyn FnMut() -> SeamResult<()>,
    ) -> (SeamResult<()>, tempfile::TempDir) {
        let folder = tempfile::tempdir().unwrap();
        let tool = folder.path().join("iree-compile");
        fs::write(&tool, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&tool, fs::Permissions::from_mode(0o755)).unwrap();
        let run = Run {
            tool: &tool,
            flags: &["--flag".into()],
            input: &folder.path().join("in"),
            output: &folder.path().join("out"),
            log: &folder.path().join("log"),
            limit,
        };
        (run.run(tick), folder)
    }

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn a_module_is_written() {
        let (result, folder) = compile("echo $1 > $4", LONG, &mut || Ok(()));
        result.unwrap();
        assert_eq!(read(&folder.path().join("out")).unwrap(), b"--flag\n");
    }

    #[test]
    fn the_first_error_is_shown_and_the_log_named() {
        let script =
            "echo note: hm >&2; echo 'm.mlir:1:2: error: bad op' >&2; echo error: other; exit 1";
        let (result, _folder) = compile(script, LONG, &mut || Ok(()));
        let e = result.unwrap_err();
        assert_eq!(e.code, ErrorCode::Backend);
        assert!(e.message.ends_with("m.mlir:1:2: error: bad op"), "{e}");
        assert!(e.hint.unwrap().contains("log"));
    }

    #[test]
    fn a_crash_without_a_word_is_told() {
        let (result, _folder) = compile("kill -SEGV $$", LONG, &mut || Ok(()));
        assert!(result.unwrap_err().message.contains("crashed"));
    }

    #[test]
    fn cancelling_and_time_limits_kill_the_whole_group() {
        // The child's own child would write the file later.
        let script = "(sleep 1; touch $4) & wait";
        let mut ticks = 0;
        let mut cancel = || {
            ticks += 1;
            if ticks < 3 {
                return Ok(());
            }
            Err(SeamError::new(ErrorCode::Cancelled, "cancelled"))
        };
        let (cancelled, one) = compile(script, LONG, &mut cancel);
        assert_eq!(cancelled.unwrap_err().code, ErrorCode::Cancelled);
        let (late, two) = compile(script, Duration::from_millis(50), &mut || Ok(()));
        assert!(late.unwrap_err().message.contains("took more than"));
        std::thread::sleep(Duration::from_millis(1500));
        for folder in [one, two] {
            assert!(!folder.path().join("out").exists());
        }
    }
}
