//! Backends in processes of their own: the wish for it, and the hidden command that is such a process.

use std::process::ExitCode;
use std::time::Duration;

use super::args::{Cli, IsolatedBackendArgs};
use super::failure::Failure;
use crate::isolate::Isolation;

/// How backends are isolated, as the command line says.
pub fn isolation(cli: &Cli) -> Isolation {
    let mut isolation = Isolation::of_this_program();
    let verbose = usize::from(cli.verbose.min(3));
    isolation.arguments = vec!["-v".into(); verbose];
    if let Some(seconds) = cli.isolate_timeout {
        isolation.limit = Duration::from_secs(seconds.get() as u64);
    }
    isolation
}

/// Serves a backend until the host is gone.
#[cfg(target_os = "linux")]
pub fn run(args: &IsolatedBackendArgs) -> ExitCode {
    use crate::isolate::child::{self, Source};

    let source = match (&args.built_in, &args.plugin) {
        (Some(name), None) => Source::BuiltIn(name.clone()),
        (_, Some(manifest)) => Source::Plugin(manifest.into()),
        (None, None) => return Failure::Usage("which backend?".into()).report(false),
    };
    match child::run(source) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => Failure::Error(error).report(false),
    }
}

/// There are no such processes here.
#[cfg(not(target_os = "linux"))]
pub fn run(_: &IsolatedBackendArgs) -> ExitCode {
    Failure::Usage("backends run in processes of their own on Linux only".into()).report(false)
}
