//! `halfhitch bench`.
//!
//! The command starts itself once a run: see [`crate::bench`].

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::IsTerminal;
use std::num::NonZeroUsize;
use std::process::Command;
use std::thread::available_parallelism;

use halfhitch_seam::{CancelToken, ErrorCode, SeamError, SeamResult};
use indicatif::{ProgressBar, ProgressStyle};

use super::args::BenchArgs;
use super::failure::Failure;
use super::{Context, output, use_threads};
use crate::bench::config::quant_name;
use crate::bench::report::{Impossible, Measured, Overhead, bandwidths};
use crate::bench::{Candidate, Configuration, Matrix, Report, Workload, bandwidth, child};
use crate::engine::{Model, Target};

mod table;

/// Most rounds, and most times of warming up.
const MOST: usize = 10_000;

/// Runs the command.
pub fn run(args: &BenchArgs, context: &Context) -> Result<(), Failure> {
    for (flag, value) in [("--repeats", args.repeats.get()), ("--warmup", args.warmup)] {
        if value > MOST {
            return Err(Failure::Usage(format!("{flag} {value}: at most {MOST}")));
        }
    }
    if args.one_run {
        return one_run(args, context);
    }
    let cancel = context.interrupt.token();
    let target = context.registry().select(&args.backend)?;
    let model = Model::open(&args.model.model, &context.control(&cancel))?;
    context.progress.clear();
    let workload = workload(args);
    let (mut candidates, impossible) = plan_all(args, context, &model, &target, &workload)?;
    if !context.quiet {
        say_notes(&candidates, &impossible);
    }
    let mut rates = BTreeMap::new();
    let whole = rounds(args, context, &cancel, &mut candidates, &mut rates);
    let stopped = match whole {
        Ok(()) => false,
        Err(error) if error.code == ErrorCode::Cancelled => true,
        Err(error) => return Err(error.into()),
    };
    let report = Report {
        model: args.model.model.display().to_string(),
        backend: target.name,
        device: target.capabilities.device,
        workload,
        repeats: args.repeats.get(),
        cache_bytes: bandwidth::cache_bytes(),
        bandwidth: bandwidths(&rates),
        configurations: candidates.iter().filter_map(Measured::new).collect(),
        impossible,
        isolation: Overhead::of(&candidates),
    };
    if args.json {
        output::json(&report)?;
    } else if !report.configurations.is_empty() {
        output::bytes(table::text(&report).as_bytes())?;
    }
    if stopped {
        return Err(Failure::Interrupted);
    }
    Ok(())
}

/// The hidden half: the process of one run.
fn one_run(args: &BenchArgs, context: &Context) -> Result<(), Failure> {
    let all = matrix(args, context).configurations()?;
    let [configuration] = all.as_slice() else {
        return Err(Failure::Usage(format!(
            "one run of {} configurations",
            all.len()
        )));
    };
    use_threads(configuration.threads.and_then(NonZeroUsize::new))?;
    let cancel = context.interrupt.token();
    let control = context.control(&cancel);
    let target = context.registry().select(&args.backend)?;
    let model = Model::open(&args.model.model, &control)?;
    let tokens = args.context.map(NonZeroUsize::get);
    let run = crate::bench::run(
        model,
        target,
        configuration,
        &workload(args),
        tokens,
        &control,
    )?;
    context.progress.clear();
    output::json(&run)
}

fn matrix(args: &BenchArgs, context: &Context) -> Matrix {
    Matrix {
        precisions: args.precision.clone(),
        quants: args.quant.iter().map(|&q| q.into()).collect(),
        representations: args.representation.iter().map(|wish| wish.0).collect(),
        threads: numbers(&args.threads),
        batches: numbers(&args.batch),
        // A run is of one configuration, and the flag says which.
        isolate: context.isolation.is_some() && !args.one_run,
    }
}

fn workload(args: &BenchArgs) -> Workload {
    Workload {
        prefill: numbers(&args.prefill),
        decode: args.decode.get(),
        at: numbers(&args.at),
        warmup: args.warmup,
    }
}

fn numbers(values: &[NonZeroUsize]) -> Vec<usize> {
    values.iter().map(|n| n.get()).collect()
}

/// Plans every configuration before any is run: those that can be, and why the others cannot.
fn plan_all(
    args: &BenchArgs,
    context: &Context,
    model: &Model,
    target: &Target,
    workload: &Workload,
) -> SeamResult<(Vec<Candidate>, Vec<Impossible>)> {
    let tokens = args.context.map(NonZeroUsize::get);
    let tied = model.spec().head.tied;
    let (mut candidates, mut impossible) = (Vec::new(), Vec::new());
    let mut last = None;
    for configuration in matrix(args, context).configurations()? {
        match model.plan(target, &configuration.request(tokens)) {
            Ok(plan) => {
                workload.check(&plan)?;
                candidates.push(Candidate::new(configuration, plan, tied));
            }
            Err(error) => {
                impossible.push(Impossible {
                    configuration,
                    reason: error.to_string(),
                });
                last = Some(error);
            }
        }
    }
    match last {
        Some(error) if candidates.is_empty() => Err(error),
        _ => Ok((candidates, impossible)),
    }
}

fn say_notes(candidates: &[Candidate], impossible: &[Impossible]) {
    for one in impossible {
        output::note(&format!(
            "note: {} is left out: {}",
            one.configuration,
            super::failure::one_line(&one.reason)
        ));
    }
    if cfg!(debug_assertions) {
        output::note("note: this is a debug build; only an optimised one is worth measuring");
    }
    let small = candidates.iter().map(|c| c.step_bytes).min();
    if let (Some(cache), Some(bytes)) = (bandwidth::cache_bytes(), small)
        && bytes < cache
    {
        output::note(
            "note: the smallest weights fit the processor's largest cache, where that is not shared: \
             the bandwidth of memory need not limit them",
        );
    }
}

/// All rounds, or those until it is cancelled. A round starts one configuration later than the last
/// one did, so that none always comes first.
fn rounds(
    args: &BenchArgs,
    context: &Context,
    cancel: &CancelToken,
    candidates: &mut [Candidate],
    rates: &mut BTreeMap<usize, Vec<f64>>,
) -> SeamResult<()> {
    let program = std::env::current_exe()
        .map_err(|e| SeamError::new(ErrorCode::Io, format!("finding this program: {e}")))?;
    let cores = available_parallelism().map_or(1, NonZeroUsize::get);
    let count = candidates.len();
    let shown = Shown::new(context, args.repeats.get() * count);
    for round in 0..args.repeats.get() {
        let mut round_rates = BTreeMap::new();
        for candidate in candidates.iter() {
            cancel.check()?;
            let threads = candidate.configuration.threads.unwrap_or(cores);
            if let std::collections::btree_map::Entry::Vacant(slot) = round_rates.entry(threads) {
                let rate = *slot.insert(bandwidth::read_bandwidth(threads)?);
                rates.entry(threads).or_default().push(rate);
            }
        }
        for step in 0..count {
            let candidate = &mut candidates[(round + step) % count];
            let configuration = candidate.configuration;
            shown.next(round, args.repeats.get(), &configuration);
            let mut command = Command::new(&program);
            // Of two alike only one is isolated, whatever the environment wishes.
            command.env("HALFHITCH_ISOLATE", "0");
            command.args(child_args(args, context, &configuration));
            let run = child::run(command, cancel)
                .map_err(|e| e.context(format!("measuring {configuration}")))?;
            let threads = configuration.threads.unwrap_or(cores);
            candidate.runs.push((run, round_rates[&threads]));
        }
    }
    Ok(())
}

/// The command line of one run.
fn child_args(args: &BenchArgs, context: &Context, configuration: &Configuration) -> Vec<OsString> {
    let mut line: Vec<OsString> = vec!["--quiet".into()];
    for folder in &context.plugin_dirs {
        line.extend(["--plugin-dir".into(), folder.into()]);
    }
    if let Some(isolation) = &context.isolation
        && configuration.isolated
    {
        line.push("--isolate".into());
        let seconds = isolation.limit.as_secs();
        line.push(format!("--isolate-timeout={seconds}").into());
    }
    line.extend(["bench".into(), "--one-run".into(), "--model".into()]);
    line.push(args.model.model.clone().into());
    let mut flag = |name: &str, value: String| {
        if !value.is_empty() {
            line.push(format!("--{name}={value}").into());
        }
    };
    flag("backend", args.backend.to_string());
    flag("quant", quant_name(configuration.quant).into());
    let representation = configuration.representation;
    let representation = representation.as_ref().map(|name| name.as_str().to_owned());
    flag("representation", representation.unwrap_or_default());
    let precision = configuration.precision.map(|p| p.to_string());
    flag("precision", precision.unwrap_or_default());
    flag("threads", list(configuration.threads));
    flag("batch", configuration.batch.to_string());
    flag("prefill", list(args.prefill.iter()));
    flag("decode", args.decode.to_string());
    flag("at", list(args.at.iter()));
    flag("context", list(args.context));
    flag("warmup", args.warmup.to_string());
    line
}

fn list<T: ToString>(values: impl IntoIterator<Item = T>) -> String {
    let values: Vec<String> = values.into_iter().map(|v| v.to_string()).collect();
    values.join(",")
}

/// Which run it is at: a bar at a terminal, else a line a round.
struct Shown {
    bar: Option<ProgressBar>,
    lines: bool,
}

impl Shown {
    fn new(context: &Context, runs: usize) -> Self {
        let terminal = std::io::stderr().is_terminal();
        let bar = (terminal && !context.quiet).then(|| {
            let bar = ProgressBar::new(runs as u64);
            if let Ok(style) =
                ProgressStyle::with_template("{spinner} {msg} [{bar:24}] {pos} of {len}, {elapsed}")
            {
                bar.set_style(style.progress_chars("=> "));
            }
            // Once a second: whatever draws more often takes part in what is measured.
            bar.enable_steady_tick(std::time::Duration::from_secs(1));
            bar
        });
        Self {
            bar,
            lines: !terminal && !context.quiet,
        }
    }

    fn next(&self, round: usize, rounds: usize, configuration: &Configuration) {
        let text = format!("round {} of {rounds}: {configuration}", round + 1);
        match &self.bar {
            Some(bar) => {
                if !bar.message().is_empty() {
                    bar.inc(1);
                }
                bar.set_message(text);
            }
            None if self.lines => output::note(&text),
            None => {}
        }
    }
}

impl Drop for Shown {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
