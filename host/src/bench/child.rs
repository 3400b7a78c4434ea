//! A run in a process of its own.

use std::io::Read;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use halfhitch_seam::{CancelToken, ErrorCode, SeamError, SeamResult};
use serde::Deserialize;
use serde::de::DeserializeOwned;

/// How often a wish to stop is looked for.
const LOOK: Duration = Duration::from_millis(50);

/// Most bytes of output that are kept.
const MOST: u64 = 4 << 20;

/// What the process prints: a result, or what kept it from one.
#[derive(Deserialize)]
#[serde(untagged)]
enum Answer<T> {
    Failed { error: SeamError },
    Run(T),
}

/// Starts `command`, which prints a `T` or `{"error": ...}` as JSON, and waits for it. Cancelled,
/// it ends the process.
///
/// # Errors
/// The error that the process printed; `Backend`, with its last line on stderr, where it printed
/// nothing that can be read; `Cancelled`; `Io` where it cannot be started.
pub fn run<T: DeserializeOwned>(mut command: Command, cancel: &CancelToken) -> SeamResult<T> {
    cancel.check()?;
    let io = |what: &str, e: std::io::Error| SeamError::new(ErrorCode::Io, format!("{what}: {e}"));
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| io("starting a run", e))?;
    let (sender, output) = channel();
    let stderr = child.stderr.take();
    let stdout = child.stdout.take();
    thread::spawn(move || {
        let errors = thread::spawn(|| read_all(stderr));
        let text = read_all(stdout);
        let errors = errors.join().unwrap_or_default();
        // Nobody waits any more where it was cancelled.
        let _ = sender.send((text, errors));
    });
    let (text, errors) = loop {
        match output.recv_timeout(LOOK) {
            Ok(output) => break output,
            Err(RecvTimeoutError::Timeout) if cancel.is_cancelled() => {
                end(&mut child);
                cancel.check()?;
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                end(&mut child);
                return Err(SeamError::new(ErrorCode::Io, "a run's output was lost"));
            }
        }
    };
    let status = child.wait().map_err(|e| io("waiting for a run", e))?;
    // Ctrl-C reaches both processes; the other one may be the first to notice.
    cancel.check()?;
    read_answer(&text, &errors, status)
}

fn end(child: &mut Child) {
    // It may have ended by itself; either way it is gone afterwards.
    let _ = child.kill();
    let _ = child.wait();
}

fn read_all(pipe: Option<impl Read>) -> String {
    let mut bytes = Vec::new();
    if let Some(pipe) = pipe {
        // What was read before a failure is all there is.
        let _ = pipe.take(MOST).read_to_end(&mut bytes);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn read_answer<T: DeserializeOwned>(text: &str, errors: &str, status: ExitStatus) -> SeamResult<T> {
    match serde_json::from_str(text) {
        Ok(Answer::Run(run)) if status.success() => Ok(run),
        Ok(Answer::Failed { error }) => Err(error),
        _ => {
            let last = errors.lines().rfind(|line| !line.trim().is_empty());
            let last = last.map_or_else(String::new, |line| format!(": {line}"));
            Err(SeamError::new(
                ErrorCode::Backend,
                format!("the run ended with {status}{last}"),
            ))
        }
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use crate::bench::Run;
    use std::time::Instant;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn a_run_is_read_and_an_error_is_handed_on() {
        let good = r#"{"load_s":1,"compile_s":0,"first_token_s":0.5,"prefill":[],
            "decode_tokens_per_s":3,"at":[{"position":7,"step_s":0.1}],"peak_rss_bytes":null}"#;
        let cancel = CancelToken::new();
        let run = super::run::<Run>(shell(&format!("echo '{good}'")), &cancel).unwrap();
        assert_eq!((run.load_s, run.at[0].position), (1.0, 7));

        let error = SeamError::unsupported("no such thing").hint("another");
        let json = serde_json::json!({ "error": error });
        let failed = super::run::<Run>(shell(&format!("echo '{json}'; exit 1")), &cancel);
        assert_eq!(failed.unwrap_err(), error);
    }

    #[test]
    fn a_process_that_dies_says_how() {
        let cancel = CancelToken::new();
        let died = super::run::<Run>(shell("echo one >&2; echo two >&2; kill -9 $$"), &cancel);
        let message = died.unwrap_err().to_string();
        assert!(
            message.contains("signal: 9") && message.ends_with("two"),
            "{message}"
        );
        assert!(super::run::<Run>(shell("echo '{}'"), &cancel).is_err());
        let gone = super::run::<Run>(Command::new("/nonexistent/program"), &cancel);
        assert_eq!(gone.unwrap_err().code, ErrorCode::Io);
    }

    #[test]
    fn a_wish_to_stop_ends_the_process() {
        let cancel = CancelToken::new();
        let start = Instant::now();
        let stopper = cancel.clone();
        thread::spawn(move || {
            thread::sleep(Duration::from_millis(100));
            stopper.cancel();
        });
        let stopped = super::run::<Run>(shell("exec sleep 60"), &cancel);
        assert_eq!(stopped.unwrap_err().code, ErrorCode::Cancelled);
        assert!(start.elapsed() < Duration::from_secs(30));
    }
}
