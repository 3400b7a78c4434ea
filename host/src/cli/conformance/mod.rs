//! `halfhitch conformance`.

mod text;

use std::ffi::OsString;
use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use halfhitch_seam::{
    DeviceCapabilities, ErrorCode, Event, Observer as _, ResultExt, SeamError, SeamResult, Stage,
};
use halfhitch_suite::catalogue::{Surroundings, catalogue, selects};
use halfhitch_suite::expectations::Expectations;
use halfhitch_suite::{Case, Miss, Subject, Test, Tier, Verdict, Watch, resources, run_tests};
use serde_json::json;

use super::args::ConformanceArgs;
use super::failure::{Failure, exit, one_line};
use super::{Context, output};
use crate::conformance::{
    self, Answer, CHECKPOINTS, CaseReport, Found, Outcome, Report, SubjectWish, SuiteSummary,
};
use crate::engine::rss_bytes;
use crate::files::{self, OutputFile};

/// Most bytes of a list of expected failures.
const MOST: u64 = 1 << 20;

/// The name of the thread that a case runs on.
const THREAD: &str = "conformance";

/// Runs the command.
pub fn run(args: &ConformanceArgs, context: &Context) -> Result<(), Failure> {
    let wish = match &args.plugin {
        Some(path) => SubjectWish::File {
            path,
            device: args.device.as_deref(),
        },
        None => SubjectWish::Listed(&args.backend),
    };
    let (mut subject, capabilities) = conformance::subject(wish, &context.registry())?;
    subject.cancel = context.interrupt.token();
    quieten_panics();
    if args.confined {
        return confined(args, &subject);
    }
    let expectations = context.interrupt.ending(|| expectations(args))?;
    if let Some(models) = args.random {
        return random(args, models, &subject, &capabilities, context);
    }
    let Chosen { tests, names } = tests(args, &subject, context)?;
    if args.list {
        return list(args, &tests);
    }
    // What cannot be written must not show after minutes.
    let pages = context.interrupt.ending(|| pages(args))?;
    let expected = (expectations, names);
    let report = run_suite(args, &subject, &capabilities, &tests, expected, context);
    finish(args, report, pages, context)
}

/// A backend that panics fails a case, which says so: that is no error of this program's.
fn quieten_panics() {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if std::thread::current().name() == Some(THREAD) {
            tracing::info!("in a case: {panic}");
        } else {
            before(panic);
        }
    }));
}

fn expectations(args: &ConformanceArgs) -> SeamResult<Expectations> {
    let mut list = match &args.expect_failures {
        Some(path) => {
            let place = || format!("--expect-failures {}", path.display());
            let text = read(path).in_context(place)?;
            Expectations::parse(&text).in_context(place)?
        }
        None => Expectations::default(),
    };
    for name in &args.expect_failure {
        list.add(name, "--expect-failure");
    }
    Ok(list)
}

fn read(path: &Path) -> SeamResult<String> {
    let io = |e: std::io::Error| SeamError::new(ErrorCode::Io, e.to_string());
    let mut text = String::new();
    let file = fs::File::open(path).map_err(io)?;
    file.take(MOST + 1).read_to_string(&mut text).map_err(io)?;
    if text.len() as u64 > MOST {
        return Err(SeamError::invalid_input(format!("over {MOST} bytes")));
    }
    Ok(text)
}

/// The cases that were asked for, and the names of all that there are.
struct Chosen {
    tests: Vec<Test>,
    names: Vec<String>,
}

fn tests(args: &ConformanceArgs, subject: &Subject, context: &Context) -> Result<Chosen, Failure> {
    let surroundings = Surroundings {
        resident: rss_bytes,
        confined: conformance::confine(confined_args(args, context)),
    };
    let mut tests = catalogue(subject, true, surroundings).map_err(|miss| match miss {
        Miss::Fail(detail) | Miss::Unsupported(detail) => {
            SeamError::new(ErrorCode::Backend, detail)
        }
    })?;
    for folder in &args.checkpoints {
        let more = conformance::checkpoint_tests(folder).in_context(|| "--checkpoints")?;
        tests.extend(more);
    }
    let names = tests.iter().map(|t| t.name.clone()).collect();
    if !args.full && args.only.is_empty() {
        tests.retain(|t| t.tier == Tier::Quick);
    }
    if !args.only.is_empty() {
        // A whole name means that case alone, whatever else begins so.
        let whole = |wish: &String| tests.iter().any(|t| t.name == *wish);
        let wishes: Vec<(&String, bool)> = args.only.iter().map(|w| (w, whole(w))).collect();
        tests.retain(|t| {
            let mut all = wishes.iter();
            all.any(|&(wish, whole)| match whole {
                true => *wish == t.name,
                false => selects(wish, &t.name),
            })
        });
    }
    if tests.is_empty() {
        return Err(SeamError::new(
            ErrorCode::NotFound,
            format!("no case is called {}", args.only.join(" or ")),
        )
        .hint("`halfhitch conformance --list --full` prints every name")
        .into());
    }
    Ok(Chosen { tests, names })
}

/// Arguments that make this program run the case in which memory runs out, on the same backend.
fn confined_args(args: &ConformanceArgs, context: &Context) -> Vec<OsString> {
    let mut out: Vec<OsString> = vec!["conformance".into(), "--quiet".into(), "--confined".into()];
    for dir in &context.plugin_dirs {
        out.extend(["--plugin-dir".into(), dir.into()]);
    }
    match &args.plugin {
        Some(path) => out.extend(["--plugin".into(), path.into()]),
        None => out.extend(["--backend".into(), args.backend.to_string().into()]),
    }
    if let Some(device) = &args.device {
        out.extend(["--device".into(), device.into()]);
    }
    out.extend(["--time-limit".into(), args.time_limit.to_string().into()]);
    out
}

fn confined(args: &ConformanceArgs, subject: &Subject) -> Result<(), Failure> {
    let limit = Duration::from_secs(args.time_limit.into());
    std::thread::spawn(move || {
        std::thread::sleep(limit);
        // Whoever waited does so no more.
        std::process::exit(exit::FAILED.into());
    });
    let case = Case::run("confined", || {
        resources::out_of_memory(subject, &conformance::limit_memory)
    });
    output::json(&Answer {
        confined: case.verdict,
    })
}

fn list(args: &ConformanceArgs, tests: &[Test]) -> Result<(), Failure> {
    let names = || tests.iter().map(|t| t.name.as_str());
    if args.json {
        return output::json(&json!({ "cases": names().collect::<Vec<_>>() }));
    }
    let lines: String = names().flat_map(|name| [name, "\n"]).collect();
    output::bytes(lines.as_bytes())
}

/// A file, and what is written to it.
struct Page {
    flag: &'static str,
    file: OutputFile,
    make: fn(&Report) -> String,
}

fn pages(args: &ConformanceArgs) -> SeamResult<Vec<Page>> {
    type Make = fn(&Report) -> String;
    let wanted: [(_, _, Make); 2] = [
        ("--junit", &args.junit, conformance::junit),
        ("--html", &args.html, conformance::html),
    ];
    let apart = |a: (&str, &PathBuf), b: (&str, &PathBuf)| match files::one_place(a.1, b.1)? {
        true => {
            Err(
                SeamError::invalid_input(format!("{} and {} are both {}", a.0, b.0, a.1.display()))
                    .hint("give each a file of its own"),
            )
        }
        false => Ok(()),
    };
    let named = |at: usize| Some((wanted[at].0, wanted[at].1.as_ref()?));
    let plugin = args.plugin.as_ref().map(|path| ("--plugin", path));
    for (a, b) in [(plugin, named(0)), (plugin, named(1)), (named(0), named(1))] {
        if let (Some(a), Some(b)) = (a, b) {
            apart(a, b)?;
        }
    }
    let mut pages = Vec::new();
    for (flag, path, make) in wanted {
        if let Some(path) = path {
            let file = OutputFile::create(path).in_context(|| flag)?;
            pages.push(Page { flag, file, make });
        }
    }
    Ok(pages)
}

/// Says what happens while it happens.
struct Progress<'a> {
    context: &'a Context,
    total: usize,
    expectations: Expectations,
}

impl Watch for Progress<'_> {
    fn starts(&mut self, index: usize, test: &Test) {
        tracing::info!("{}", test.name);
        let event = Event::Progress {
            stage: Stage::Check,
            done: index as u64,
            total: self.total as u64,
        };
        self.context.progress.on_event(event);
    }

    fn ended(&mut self, case: &mut Case) {
        self.expectations.apply(case);
        if let Verdict::Fail { detail } = &case.verdict {
            let note = format!("{} fails: {detail}", case.name);
            self.context.progress.on_event(Event::Note(note));
        }
    }
}

fn run_suite(
    args: &ConformanceArgs,
    subject: &Subject,
    capabilities: &DeviceCapabilities,
    tests: &[Test],
    (expectations, names): (Expectations, Vec<String>),
    context: &Context,
) -> Report {
    let full = args.full || !args.only.is_empty();
    let suite = SuiteSummary {
        kind: if full { "full" } else { "quick" }.into(),
        only: args.only.clone(),
        cases: tests.len(),
        seed: None,
    };
    let mut report = Report::new(subject.backend.identity(), capabilities, suite);
    let mut progress = Progress {
        context,
        total: tests.len(),
        expectations,
    };
    let start = Instant::now();
    let limit = Duration::from_secs(args.time_limit.into());
    let ran = run_tests(subject, tests, limit, &mut progress);
    context.progress.clear();
    let interrupted = ran.cases.len() < tests.len();
    // A line is stale where its cases ran, and where it names no case at all. Which folders of
    // checkpoints another run is given is not known here.
    report.stale = progress.expectations.unused(|pattern| {
        let elsewhere = pattern.as_str().starts_with(CHECKPOINTS);
        let names_one = elsewhere || names.iter().any(|name| pattern.matches(name));
        !names_one || ran.cases.iter().any(|c| pattern.matches(&c.name))
    });
    // A case that is listed and passes has said so itself.
    let said = |name: &str| ran.cases.iter().any(|c| c.name == name);
    report.stale.retain(|line| !said(line));
    for case in ran.cases {
        let failed = case.verdict.is_failure();
        let model = tests.iter().find(|t| t.name == case.name && failed);
        report.push(CaseReport {
            reproduce: failed.then(|| text::reproduce(args, context, &case.name)),
            model: model.and_then(|t| Some(t.model.as_ref()?.spec.clone())),
            case,
        });
    }
    report.finish(start.elapsed().as_secs_f64(), interrupted);
    report
}

fn random(
    args: &ConformanceArgs,
    models: u32,
    subject: &Subject,
    capabilities: &DeviceCapabilities,
    context: &Context,
) -> Result<(), Failure> {
    let suite = SuiteSummary {
        kind: "random".into(),
        only: Vec::new(),
        cases: 1,
        seed: Some(args.seed),
    };
    let pages = context.interrupt.ending(|| pages(args))?;
    let mut report = Report::new(subject.backend.identity(), capabilities, suite);
    let start = Instant::now();
    let told = |done: u32| {
        context.progress.on_event(Event::Progress {
            stage: Stage::Check,
            done: done.into(),
            total: models.into(),
        });
    };
    let found = conformance::search(subject, models, args.seed, &told)?;
    context.progress.clear();
    let interrupted = subject.cancel.is_cancelled();
    let mut case = CaseReport {
        case: Case {
            name: format!("random/{models}-models-seed-{}", args.seed),
            verdict: Verdict::Pass,
            millis: start.elapsed().as_millis().try_into().unwrap_or(u64::MAX),
        },
        reproduce: None,
        model: None,
    };
    context.progress.on_event(Event::Note(format!(
        "{} models compared; {} are not supported, {} magnify rounding",
        found.compared, found.unsupported, found.unsteady
    )));
    if let Some(wrong) = &found.wrong {
        let kept = match &args.save {
            Some(folder) => Some(Found::keep(wrong, folder, args.seed)?),
            None => None,
        };
        case.case.verdict = Verdict::Fail {
            detail: format!(
                "{} (model {}, shrunk in {} steps to {} layers of width {} with {} tokens)",
                wrong.detail,
                found.compared,
                wrong.shrinks,
                wrong.model.spec.layers.len(),
                wrong.model.spec.hidden_size,
                wrong.tokens.len()
            ),
        };
        case.model = Some(wrong.model.spec.clone());
        case.reproduce = Some(match kept {
            Some(kept) => text::verify(args, context, &report.backend.name, &kept, wrong.decode),
            None => text::search_again(args, context, models),
        });
    }
    // A search that was stopped has found nothing, or something that could be smaller.
    if found.wrong.is_some() || !interrupted {
        report.push(case);
    }
    report.finish(start.elapsed().as_secs_f64(), interrupted);
    finish(args, report, pages, context)
}

fn finish(
    args: &ConformanceArgs,
    report: Report,
    pages: Vec<Page>,
    context: &Context,
) -> Result<(), Failure> {
    let kept = pages.into_iter().map(|Page { flag, file, make }| {
        let text = make(&report);
        file.commit_with(text.as_bytes()).in_context(|| flag)
    });
    let kept: Vec<SeamResult<()>> = kept.collect();
    context.progress.clear();
    if args.json {
        output::json(&report)?;
    } else {
        output::bytes(text::text(&report).as_bytes())?;
    }
    // After the result, which took minutes and needs no disk.
    kept.into_iter()
        .collect::<SeamResult<()>>()
        .map_err(Failure::NotKept)?;
    match report.outcome {
        Outcome::Pass => Ok(()),
        Outcome::Fail if report.cases.len() < report.suite.cases => Err(Failure::Interrupted),
        Outcome::Fail => Err(Failure::Reported),
        Outcome::Interrupted => Err(Failure::Interrupted),
    }
}

/// Paths and names that `text` shows may come from anywhere.
fn shown(path: &Path) -> String {
    one_line(&path.display().to_string())
}
