//! `halfhitch plan`.

use std::fmt::Write as _;

use halfhitch_seam::{ExecutionPlan, Size};

use super::args::PlanArgs;
use super::failure::Failure;
use super::{Context, output, use_threads};
use crate::engine::{Model, Target, rss_bytes};

/// Runs the command.
pub fn run(args: &PlanArgs, context: &Context) -> Result<(), Failure> {
    use_threads(args.device.threads)?;
    let cancel = context.interrupt.token();
    let target = context.registry().select(&args.device.backend)?;
    let model = Model::open(&args.model.model, &context.control(&cancel))?;
    let plan = model.plan(&target, &args.device.plan_request())?;
    context.progress.clear();
    if args.json {
        return output::json(&serde_json::json!({
            "backend": target.name,
            "architecture": model.spec().architecture,
            "parameters": model.spec().parameters(),
            "plan": plan,
            // Model, tokenizer and backend are open, and no weight was read.
            "process_bytes": rss_bytes(),
        }));
    }
    output::bytes(text(&model, &target, &plan).as_bytes())
}

fn text(model: &Model, target: &Target, plan: &ExecutionPlan) -> String {
    let mut out = String::new();
    let spec = model.spec();
    // Writing to a string cannot fail.
    let _ = writeln!(
        out,
        "model       {}, {} parameters, {} layers",
        spec.architecture,
        count(spec.parameters()),
        spec.layers.len()
    );
    let _ = writeln!(out, "backend     {}", target.name);
    let _ = writeln!(out, "{plan}");
    let _ = write!(
        out,
        "total       {} at full context",
        Size(plan.memory.total())
    );
    if let Some(free) = target.capabilities.memory.free {
        let _ = write!(out, "; {} are free on the device", Size(free));
    }
    out.push('\n');
    if let Some(bytes) = rss_bytes() {
        let _ = writeln!(
            out,
            "process     {} beside that: the program, its tokenizer and backend",
            Size(bytes)
        );
    }
    out
}

/// A count for people: `134.5 M`.
pub fn count(n: u64) -> String {
    let (value, unit) = match n {
        0..1_000 => return n.to_string(),
        1_000..1_000_000 => (n as f64 / 1e3, "K"),
        1_000_000..1_000_000_000 => (n as f64 / 1e6, "M"),
        _ => (n as f64 / 1e9, "B"),
    };
    format!("{value:.1} {unit}")
}

#[cfg(test)]
mod tests {
    #[test]
    fn counts_read_well() {
        let cases = [
            (0, "0"),
            (999, "999"),
            (31_000, "31.0 K"),
            (134_515_008, "134.5 M"),
        ];
        for (n, text) in cases {
            assert_eq!(super::count(n), text);
        }
        assert_eq!(super::count(7_241_732_096), "7.2 B");
    }
}
