//! `halfhitch tune`.

use std::fmt::Write as _;

use halfhitch_seam::{Measured, SeamError, TuneReport, TuneResult};

use super::args::TuneArgs;
use super::failure::{Failure, one_line};
use super::{Context, output, use_threads};
use crate::engine::Model;

/// Runs the command: the backend measures and keeps.
pub fn run(args: &TuneArgs, context: &Context) -> Result<(), Failure> {
    use_threads(args.device.threads)?;
    let cancel = context.interrupt.token();
    let control = context.control(&cancel);
    let target = context.registry().select(&args.device.backend)?;
    let model = Model::open(&args.model.model, &control)?;
    let wishes = args.device.plan_request();
    let request = model.tune_request(&target, &wishes, args.repeats.get());
    let report = target.backend.tune(&request, &control)?.ok_or_else(|| {
        SeamError::unsupported(format!("{} has nothing to tune", target.name))
            .hint("name a backend that does, such as --backend xla-iree:local-task")
    })?;
    context.progress.clear();
    if args.json {
        return output::json(&report);
    }
    output::bytes(text(&report).as_bytes())
}

fn text(report: &TuneReport) -> String {
    let mut out = format!("target  {}\n", report.target);
    if report.results.is_empty() {
        return out + "nothing to choose: every contraction has one way to run\n";
    }
    // Writing to a string cannot fail.
    for result in &report.results {
        let [rows, columns] = result.answer.shape;
        let _ = writeln!(
            out,
            "\n{} {rows}x{columns} {}, {} of them",
            result.answer.rows.label(),
            result.answer.form,
            result.count
        );
        let rows: Vec<Vec<String>> = result.measured.iter().map(|m| row(result, m)).collect();
        out += &output::table(&rows);
    }
    let fate = if report.kept {
        "kept: the next plan on this device uses them"
    } else {
        "not kept: the cache takes nothing"
    };
    let _ = writeln!(out, "\n{} answers {fate}", report.results.len());
    out
}

fn row(result: &TuneResult, m: &Measured) -> Vec<String> {
    let answer = &result.answer;
    let taken = answer.representation == m.representation && answer.tasks == m.tasks;
    let time = match (&m.failed, m.microseconds, m.spread) {
        (Some(why), ..) => one_line(why),
        (None, Some(median), Some(spread)) => format!("{median:.1} us ± {:.1}", spread / 2.0),
        _ => String::new(),
    };
    vec![
        format!("  {} {}", if taken { "*" } else { " " }, m.representation),
        m.tasks.map_or(String::new(), |n| format!("{n} tasks")),
        time,
        if m.untuned { "untuned" } else { "" }.into(),
    ]
}
