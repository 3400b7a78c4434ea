//! How a command ends when it does not end well.

use std::io;
use std::process::ExitCode;

use halfhitch_seam::{ErrorCode, SeamError};

use super::output;

/// Exit codes.
pub mod exit {
    /// Success; also where nobody reads stdout any more.
    pub const OK: u8 = 0;
    /// The command failed.
    pub const FAILED: u8 = 1;
    /// The command line makes no sense.
    pub const USAGE: u8 = 2;
    /// Ended by Ctrl-C.
    pub const INTERRUPTED: u8 = 130;
}

/// Why a command did not end well.
#[derive(Debug)]
pub enum Failure {
    /// It failed.
    Error(SeamError),
    /// The command line makes no sense, in a way that only shows at run time.
    Usage(String),
    /// Nobody reads stdout any more.
    BrokenPipe,
    /// Ctrl-C; what was there has been printed.
    Interrupted,
    /// It failed, and has said so on stdout.
    Reported,
    /// Its result is on stdout, and a file that was to hold it could not be written.
    NotKept(SeamError),
}

impl From<SeamError> for Failure {
    fn from(error: SeamError) -> Self {
        Self::Error(error)
    }
}

impl From<io::Error> for Failure {
    /// For writing to stdout alone: other files have their own errors with their names.
    fn from(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe {
            return Self::BrokenPipe;
        }
        Self::Error(SeamError::new(
            ErrorCode::Io,
            format!("writing to standard output: {error}"),
        ))
    }
}

impl Failure {
    /// Tells the user, on one line of stderr, and gives the exit code. With `json`, a failure is
    /// also an object on stdout.
    pub fn report(self, json: bool) -> ExitCode {
        let code = match self {
            Self::BrokenPipe => exit::OK,
            Self::Interrupted => exit::INTERRUPTED,
            Self::Reported => exit::FAILED,
            Self::Usage(message) => {
                output::error_line(&format!("{message}\n\nFor more information, try '--help'."));
                exit::USAGE
            }
            Self::NotKept(error) => {
                output::error_line(&one_line(&error.to_string()));
                exit::FAILED
            }
            Self::Error(error) => {
                output::error_line(&one_line(&error.to_string()));
                if json {
                    // The line on stderr has said it already, whoever reads stdout.
                    let _ = output::json(&serde_json::json!({ "error": error }));
                }
                if error.code == ErrorCode::Cancelled {
                    exit::INTERRUPTED
                } else {
                    exit::FAILED
                }
            }
        };
        ExitCode::from(code)
    }
}

/// The message without line breaks or other control characters: names in it may come from a file.
pub fn one_line(message: &str) -> String {
    message
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect()
}

/// A panic is a bug: it is told on one line, with where to take it, instead of a trace. One that nobody
/// catches ends the program with Rust's own exit code for it, 101.
pub fn install_panic_hook() {
    std::panic::set_hook(Box::new(|panic| {
        let place = panic
            .location()
            .map_or_else(String::new, |l| format!(" at {l}"));
        let what = panic
            .payload_as_str()
            .unwrap_or("a panic without a message");
        output::error_line(&format!(
            "internal error{place}: {} (this is a bug; please report it with the command line)",
            one_line(what)
        ));
        if std::env::var_os("RUST_BACKTRACE").is_some() {
            let trace = std::backtrace::Backtrace::force_capture();
            output::note(&trace.to_string());
        }
    }));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_from_files_cannot_forge_lines() {
        assert_eq!(one_line("a\nerror: b\u{1b}[2Jc"), "a error: b [2Jc");
    }

    #[test]
    fn a_closed_pipe_is_no_failure() {
        let closed = io::Error::from(io::ErrorKind::BrokenPipe);
        assert!(matches!(Failure::from(closed), Failure::BrokenPipe));
        let full = io::Error::from(io::ErrorKind::StorageFull);
        assert!(matches!(Failure::from(full), Failure::Error(_)));
    }
}
