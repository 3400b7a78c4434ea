//! `halfhitch graph`.

use std::fmt::Write as _;

use halfhitch_seam::{
    Event, GraphReport, GraphStats, Observer, ResultExt, SeamError, Size, StepShape, Traffic,
};

use super::args::GraphArgs;
use super::failure::Failure;
use super::{Context, output};
use crate::engine::Model;
use crate::files;

/// Runs the command: the backend makes the graph, and compiles it where it is to be counted.
pub fn run(args: &GraphArgs, context: &Context) -> Result<(), Failure> {
    let cancel = context.interrupt.token();
    let control = context.control(&cancel);
    let target = context.registry().select(&args.device.backend)?;
    let model = Model::open(&args.model.model, &control)?;
    let mut request = model.graph_request(&target, &args.device.plan_request(), args.shape);
    request.target.clone_from(&args.target);
    request.stats_at = args.stats.then_some(args.position);
    request.ahead = args.ahead;
    let report = target.backend.graph(&request, &control)?.ok_or_else(|| {
        SeamError::unsupported(format!("{} compiles no graphs", target.name))
            .hint("name a backend that does, such as --backend xla-iree:local-task")
    })?;
    if let Some(path) = &args.out {
        let write = || files::write(path, report.text.as_bytes());
        let written = context.interrupt.ending(write);
        written.in_context(|| "--out")?;
        let lines = report.text.lines().count();
        let note = format!("{lines} lines to {}", path.display());
        context.progress.on_event(Event::Note(note));
    }
    context.progress.clear();
    if args.json {
        return output::json(&json(args, &report));
    }
    match &report.stats {
        Some(stats) => output::bytes(text(args.shape, &report, stats).as_bytes()),
        None if args.out.is_none() && !args.ahead => output::bytes(report.text.as_bytes()),
        None => Ok(()),
    }
}

/// The report as an object; the text only where it went to no file.
fn json(args: &GraphArgs, report: &GraphReport) -> serde_json::Value {
    let stats = report.stats.as_ref().map(|stats| {
        serde_json::json!({
            "counts": stats,
            "dispatches_a_layer": stats.dispatches_a_layer(),
            "rebuilds_a_weight": stats.rebuilds_a_weight(),
        })
    });
    serde_json::json!({
        "target": report.target,
        "shape": args.shape.to_string(),
        "plan": report.plan,
        "text": args.out.is_none().then_some(&report.text),
        "stats": stats,
    })
}

fn text(shape: StepShape, report: &GraphReport, stats: &GraphStats) -> String {
    let mut out = String::new();
    let plan = &report.plan;
    // Writing to a string cannot fail.
    let _ = writeln!(out, "target      {}", report.target);
    let _ = writeln!(
        out,
        "step        {shape} at position {}, {}, with the choice of a token",
        stats.position, plan.precision
    );
    for choice in plan.choices.iter().filter(|c| c.topic == "quantised") {
        let _ = writeln!(out, "{:<11} {}", choice.topic, choice.chosen);
    }
    let row = |name: &str, t: &Traffic| {
        let counts = [t.dispatches, t.copies, t.fills].map(|n| n.to_string());
        let bytes = [t.bytes_read, t.bytes_written].map(|n| Size(n).to_string());
        let cells = [name.to_owned()].into_iter().chain(counts).chain(bytes);
        cells.collect::<Vec<String>>()
    };
    let heads = ["part", "kernels", "copies", "fills", "read", "written"];
    let mut rows = vec![heads.map(ToOwned::to_owned).to_vec()];
    rows.extend(stats.parts.iter().map(|p| row(&p.part, &p.traffic)));
    rows.push(row("total", &stats.total));
    let _ = write!(out, "\n{}\n", output::table(&rows));
    let _ = writeln!(
        out,
        "a layer     {:.1} kernels, {:.1} copies",
        stats.dispatches_a_layer(),
        stats.in_layers.copies as f64 / stats.layers.max(1) as f64
    );
    if let Some(largest) = &stats.largest {
        let verdict = if stats.rebuilds_a_weight() {
            "as large as a weight"
        } else {
            "smaller than any weight"
        };
        let _ = writeln!(
            out,
            "largest     {} ({}) between kernels, in {}: {verdict}",
            largest.shape,
            Size(largest.bytes),
            largest.part
        );
    }
    if stats.unresolved > 0 {
        let _ = writeln!(
            out,
            "incomplete  the sizes of {} tensors could not be told and are missing above",
            stats.unresolved
        );
    }
    out
}
