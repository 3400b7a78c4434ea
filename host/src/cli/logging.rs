//! Logs on stderr: off until asked for with `-v` or `HALFHITCH_LOG`.

use std::io::{self, IsTerminal};

use tracing_subscriber::EnvFilter;

/// Starts logging. `HALFHITCH_LOG` (`debug`, `halfhitch=trace,warn`) wins over `-v`.
pub fn init(verbose: u8) {
    let started = tracing_subscriber::fmt()
        .with_env_filter(filter(verbose))
        .with_writer(io::stderr)
        .with_target(true)
        .with_ansi(io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none())
        .try_init();
    // Only a second start can fail, and then the first one's logs go on.
    drop(started);
}

/// The same in a process whose log its host reads: a level and a line, and the host has the time.
pub fn init_for_host(verbose: u8) {
    let started = tracing_subscriber::fmt()
        .with_env_filter(filter(verbose))
        .with_writer(io::stderr)
        .with_ansi(false)
        .without_time()
        .try_init();
    drop(started);
}

fn filter(verbose: u8) -> EnvFilter {
    let level = match verbose {
        0 => "error",
        1 => "info",
        2 => "debug",
        _ => "trace",
    };
    match std::env::var("HALFHITCH_LOG") {
        Ok(wish) if !wish.is_empty() => EnvFilter::try_new(&wish).unwrap_or_else(|e| {
            super::output::note(&format!("warning: HALFHITCH_LOG is not a log filter: {e}"));
            EnvFilter::new(level)
        }),
        _ => EnvFilter::new(level),
    }
}
