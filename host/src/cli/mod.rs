//! The command line: flags in, text or JSON out, one line on stderr for a failure.
//!
//! * stdout carries the result and nothing else; with `--json` it is exactly one object, also for a
//!   failure: `{"error": {"code", "message", "context", "hint", "retryable"}}`.
//! * stderr carries progress, notes, statistics, logs and errors.
//! * Exit codes: 0 success, 1 failure, 2 wrong usage, 130 ended by Ctrl-C.
//! * A closed stdout (`halfhitch ... | head`) ends the program quietly.
//! * The first Ctrl-C ends the work cleanly, with what there is; the second one ends the program.
//!
//! This module alone prints; everything below it returns values and errors.

pub mod args;
mod backends;
mod bench;
mod cache;
mod chat;
mod conformance;
mod convert;
mod doctor;
mod failure;
mod generate;
mod graph;
mod inspect;
mod interrupt;
mod isolated;
mod logging;
mod output;
mod plan;
mod plugin_manifest;
mod progress;
mod prompt;
mod tune;
mod values;
mod verify;

use std::io::Write as _;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{CommandFactory, Parser};
use halfhitch_seam::{CancelToken, Control};

use self::args::{Cli, Command};
use self::failure::{Failure, exit};
use self::interrupt::Interrupt;
use self::progress::Progress;
use crate::engine::Registry;
use crate::isolate::Isolation;

/// What every command works with.
struct Context {
    interrupt: Interrupt,
    progress: Progress,
    quiet: bool,
    plugin_dirs: Vec<PathBuf>,
    isolation: Option<Isolation>,
}

impl Context {
    /// All backends: built in and plugins; each in a process of its own where that is wished.
    fn registry(&self) -> Registry {
        let registry = Registry::with_plugins(&self.plugin_dirs);
        match &self.isolation {
            Some(isolation) => registry.isolated(&Isolation {
                // Known by now, whatever the command was told.
                threads: NonZeroUsize::new(rayon::current_num_threads()),
                ..isolation.clone()
            }),
            None => registry,
        }
    }

    /// Cancellation by Ctrl-C, and progress on stderr.
    fn control<'a>(&'a self, cancel: &'a CancelToken) -> Control<'a> {
        Control {
            cancel,
            observer: &self.progress,
        }
    }
}

/// Runs the program with the process's arguments.
pub fn main() -> ExitCode {
    failure::install_panic_hook();
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return usage(&error),
    };
    if let Command::IsolatedBackend(args) = &cli.command {
        logging::init_for_host(cli.verbose);
        return isolated::run(args);
    }
    logging::init(cli.verbose);
    let json = cli.command.json();
    let isolation = cli.isolate.then(|| isolated::isolation(&cli));
    let result = Interrupt::install()
        .map_err(Failure::from)
        .and_then(|interrupt| {
            let context = Context {
                interrupt,
                progress: Progress::new(cli.quiet),
                quiet: cli.quiet,
                plugin_dirs: cli.plugin_dir,
                isolation,
            };
            let result = check_plugin_dirs(&context).and_then(|()| run(cli.command, &context));
            // A bar must not stay above what is said next.
            context.progress.clear();
            result
        });
    match result {
        Ok(()) => ExitCode::from(exit::OK),
        Err(failure) => failure.report(json),
    }
}

/// A folder that is named and is not there is a slip, not a wish for nothing.
fn check_plugin_dirs(context: &Context) -> Result<(), Failure> {
    match context.plugin_dirs.iter().find(|dir| !dir.is_dir()) {
        Some(dir) => Err(Failure::Usage(format!(
            "--plugin-dir {}: no such folder",
            dir.display()
        ))),
        None => Ok(()),
    }
}

fn run(command: Command, context: &Context) -> Result<(), Failure> {
    match command {
        Command::Generate(args) => generate::run(args, context),
        Command::Chat(args) => chat::run(args, context),
        Command::Inspect(args) => inspect::run(&args, context),
        Command::Plan(args) => plan::run(&args, context),
        Command::Graph(args) => graph::run(&args, context),
        Command::Tune(args) => tune::run(&args, context),
        Command::Verify(args) => verify::run(&args, context),
        Command::Conformance(args) => conformance::run(&args, context),
        Command::Bench(args) => bench::run(&args, context),
        Command::Backends(args) => backends::run(args, context),
        Command::Import(args) => convert::import(&args, context),
        Command::Quantize(args) => convert::quantize(&args, context),
        Command::Cache(args) => cache::run(&args, context),
        Command::PluginManifest(args) => plugin_manifest::run(&args),
        Command::Completions(args) => completions(args),
        Command::Doctor(args) => doctor::run(args, context),
        // Its process has nothing of what the others work with: `main` runs it.
        Command::IsolatedBackend(_) => Ok(()),
    }
}

fn completions(args: args::CompletionsArgs) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "halfhitch", &mut script);
    output::bytes(&script)
}

/// Help and version are answers; everything else that clap says is wrong usage.
fn usage(error: &clap::Error) -> ExitCode {
    let printed = error.print();
    if error.use_stderr() {
        // Nobody is left to tell where that failed.
        return ExitCode::from(exit::USAGE);
    }
    // Standard output keeps what does not end a line; writing that can fail as well.
    match printed.and_then(|()| std::io::stdout().flush()) {
        Ok(()) => ExitCode::from(exit::OK),
        Err(error) => Failure::from(error).report(false),
    }
}

/// CPU threads for all parallel work of this process.
fn use_threads(threads: Option<NonZeroUsize>) -> Result<(), Failure> {
    let Some(threads) = threads else {
        return Ok(());
    };
    rayon::ThreadPoolBuilder::new()
        .num_threads(threads.get())
        .build_global()
        .map_err(|e| {
            halfhitch_seam::SeamError::new(
                halfhitch_seam::ErrorCode::Backend,
                format!("starting {threads} threads: {e}"),
            )
            .into()
        })
}
