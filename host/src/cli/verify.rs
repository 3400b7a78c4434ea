//! `halfhitch verify`.

use std::fmt::Write as _;
use std::io::Write as _;
use std::sync::Arc;

use halfhitch_seam::{ErrorCode, PlanRequest, ResultExt, SeamError, SeamResult};

use super::args::VerifyArgs;
use super::failure::Failure;
use super::{Context, output, use_threads};
use crate::engine::{Model, Target};
use crate::files::OutputFile;
use crate::gate::{
    self, Check, Limits, Localization, LocalizeInput, Measured, Method, ModelSummary, PromptSet,
    PromptSource, PromptSummary, Report, Side, SideSummary, Sides, Verdict,
};

/// Runs the command.
pub fn run(args: &VerifyArgs, context: &Context) -> Result<(), Failure> {
    use_threads(args.device.threads)?;
    let cancel = context.interrupt.token();
    let control = context.control(&cancel);
    let registry = context.registry();
    let target = registry.select(&args.device.backend)?;
    let against_target = registry.select(&args.against).in_context(|| "--against")?;
    let model = Model::open(&args.model.model, &control)?;
    let other = match &args.against_model {
        Some(path) => Some(Model::open(path, &control).in_context(|| "--against-model")?),
        None => None,
    };
    let against_model = other.as_ref().unwrap_or(&model);
    check_same_vocabulary(&model, against_model)?;

    let request = args.device.plan_request();
    let candidate = side(&target, &model, request);
    let against = side(
        &against_target,
        against_model,
        PlanRequest {
            precision: args.against_precision,
            quant: args.against_quant.into(),
            ..request
        },
    );
    let plan = candidate.plan()?;
    let against_plan = against.plan().in_context(|| "--against")?;
    let mut limits = Limits::of(plan.precision, plan.kv_dtype)
        .looser(Limits::of(against_plan.precision, against_plan.kv_dtype));
    for (name, value) in &args.limit {
        limits.set(name, *value).in_context(|| "--limit")?;
    }
    let source = match (&args.prompts, &args.tokens) {
        (Some(path), _) => PromptSource::Text(path),
        (None, Some(path)) => PromptSource::Tokens(path),
        (None, None) => PromptSource::BuiltIn,
    };
    let load = || PromptSet::load(source, &model, plan.context.min(against_plan.context));
    let prompts = context.interrupt.ending(load)?;
    // What cannot be written must not show after minutes.
    let create = || args.record.as_deref().map(OutputFile::create).transpose();
    let record = context.interrupt.ending(create);
    let record = record.in_context(|| "--record")?;

    for model in [Some(&model), other.as_ref()].into_iter().flatten() {
        model.checkpoint().check_finite(&control)?;
        model.checkpoint().release_pages();
    }
    let mut reference = against.open(&control).in_context(|| "--against")?;
    let mut session = candidate.open(&control)?;
    model.checkpoint().release_pages();
    let mut sides = Sides {
        against: &mut *reference,
        candidate: &mut *session,
        vocabulary: model.spec().vocab_size,
    };
    let positions = gate::compare(&mut sides, &prompts, args.decode_steps, &control)?;
    let measured = Measured::of(&positions, &limits);
    let localization = match LocalizeInput::worst(&positions, &prompts, model.spec()) {
        Some(input) if args.localize => Some(gate::localize(
            &against, &candidate, &mut sides, input, &limits, &control,
        )?),
        _ => None,
    };
    context.progress.clear();

    let verdict = measured.verdict();
    let [prefill, decode, overall] = measured.metrics;
    let report = Report {
        format: gate::FORMAT,
        halfhitch: env!("CARGO_PKG_VERSION").into(),
        date: jiff::Timestamp::now().strftime("%Y-%m-%d").to_string(),
        verdict,
        model: ModelSummary::of(&model),
        candidate: SideSummary::of(&model, &target, &plan),
        against: SideSummary::of(against_model, &against_target, &against_plan),
        prompts: PromptSummary::of(&prompts),
        checks: measured.checks,
        prefill,
        decode,
        overall,
        perplexity: measured.perplexity,
        first_divergence: measured.first_divergence,
        localization,
    };
    let kept = record.map_or(Ok(()), |record| write_record(record, &report));
    if args.json {
        output::json(&report)?;
    } else {
        output::bytes(text(&report).as_bytes())?;
    }
    // After the result, which took minutes and needs no disk.
    kept.in_context(|| "--record").map_err(Failure::NotKept)?;
    match verdict {
        Verdict::Pass => Ok(()),
        Verdict::Fail => Err(Failure::Reported),
    }
}

fn side<'a>(target: &'a Target, model: &'a Model, request: PlanRequest) -> Side<'a> {
    Side {
        backend: Arc::clone(&target.backend),
        capabilities: &target.capabilities,
        spec: model.spec(),
        weights: model.checkpoint().weights(),
        request,
    }
}

fn check_same_vocabulary(model: &Model, other: &Model) -> SeamResult<()> {
    let (a, b) = (model.spec().vocab_size, other.spec().vocab_size);
    if a == b {
        return Ok(());
    }
    Err(SeamError::invalid_input(format!(
        "the models' vocabularies differ: {a} tokens, and {b} of --against-model"
    ))
    .hint("--against-model takes another form of the same model"))
}

/// Writes the record, and puts it in its place.
fn write_record(mut file: OutputFile, report: &Report) -> SeamResult<()> {
    serde_json::to_writer_pretty(&mut file, report)
        .map_err(std::io::Error::from)
        .and_then(|()| file.write_all(b"\n"))
        .map_err(|e| SeamError::new(ErrorCode::Io, e.to_string()))?;
    file.commit()
}

fn text(report: &Report) -> String {
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = writeln!(out, "candidate   {}", side_line(&report.candidate));
    let _ = writeln!(out, "against     {}", side_line(&report.against));
    let _ = writeln!(
        out,
        "prompts     {}: {} with {} tokens, {} of them as decode steps\n",
        report.prompts.source,
        report.prompts.prompts,
        report.prompts.tokens,
        report.decode.positions
    );
    out += &metrics(report);
    if let Some(d) = &report.first_divergence {
        let clear = if d.clear {
            "a clear one"
        } else {
            "a close one"
        };
        let _ = writeln!(
            out,
            "first other token: {}: {} and not {}, {clear} (margin {})",
            d.at,
            d.candidate,
            d.against,
            number(d.margin)
        );
    }
    out.push('\n');
    let failed: Vec<&Check> = report.checks.iter().filter(|c| !c.passed).collect();
    for c in &failed {
        let bound = if c.limit.is_least() { "under" } else { "over" };
        let at =
            c.at.as_ref()
                .map_or_else(String::new, |at| format!(" at {at}"));
        let _ = writeln!(
            out,
            "FAIL  {} of {} is {}, {bound} the limit of {}{at}",
            c.limit,
            c.over,
            number(c.value),
            number(c.allowed)
        );
    }
    if let Some(found) = &report.localization {
        out += &localization(found);
    }
    let _ = match report.verdict {
        Verdict::Pass => writeln!(out, "PASS  within all {} limits", report.checks.len()),
        Verdict::Fail => writeln!(
            out,
            "FAIL  {} of {} limits exceeded",
            failed.len(),
            report.checks.len()
        ),
    };
    out
}

fn side_line(side: &SideSummary) -> String {
    let weights = side
        .plan
        .get("quantised")
        .or_else(|| side.plan.get("weights"));
    format!(
        "{} on {}: {} with {} cache{}",
        side.model,
        side.backend,
        side.precision,
        side.kv_dtype,
        weights.map_or_else(String::new, |w| format!(", {w}"))
    )
}

/// The metrics: a row each, a column a phase, and the limit.
fn metrics(report: &Report) -> String {
    let phases = [&report.prefill, &report.decode, &report.overall];
    let limit = |name: &str| {
        let check = report.checks.iter().find(|c| c.limit.name() == name);
        check.map_or_else(String::new, |c| {
            let sign = if c.limit.is_least() { ">=" } else { "<=" };
            format!("{sign} {}", number(c.allowed))
        })
    };
    let row = |label: &str, name: &str, of: &dyn Fn(&gate::Metrics) -> String| {
        let mut row = vec![label.to_owned()];
        row.extend(phases.iter().map(|m| match m.positions {
            0 => "-".into(),
            _ => of(m),
        }));
        row.push(limit(name));
        row
    };
    let head = ["", "prefill", "decode", "all", "limit"].map(str::to_owned);
    let mut rows = vec![
        head.to_vec(),
        row("positions", "", &|m| m.positions.to_string()),
        row("KL mean, nats", "kl-mean", &|m| number(m.kl_mean)),
        row("KL 99.9 %", "kl-p999", &|m| number(m.kl_p999)),
        row("KL max", "kl-max", &|m| number(m.kl_max)),
        row("same top token", "top1", &|m| percent(m.top1)),
        row("same where clear", "clear-top1", &|m| {
            format!("{} of {}", percent(m.clear_top1), m.clear)
        }),
        row("max |dlogit|", "", &|m| number(m.max_dlogit)),
        row("rms dlogit", "", &|m| number(m.rms_dlogit)),
        row("max, relative", "dlogit", &|m| number(m.dlogit)),
        row("rms, relative", "dlogit-rms", &|m| number(m.dlogit_rms)),
    ];
    if let Some(p) = &report.perplexity {
        let line = format!("{:.4} and {:.4}", p.against, p.candidate);
        let cells = ["perplexity", "", "", &line, ""];
        rows.push(cells.map(str::to_owned).to_vec());
        let (off, limit) = (number(p.difference), limit("perplexity"));
        let cells = ["  relative difference", "", "", &off, &limit];
        rows.push(cells.map(str::to_owned).to_vec());
    }
    output::table(&rows)
}

fn localization(found: &Localization) -> String {
    let mut out = String::new();
    let input = &found.input;
    let _ = writeln!(
        out,
        "localised on `{}`, tokens {} to {}:",
        input.prompt,
        input.from,
        input.from + input.tokens.len() - 1
    );
    let mut rows = Vec::new();
    match found.method {
        Method::Taps => {
            rows.push(
                ["layer", "tensor", "error", "of its inputs", ""]
                    .map(str::to_owned)
                    .to_vec(),
            );
            rows.extend(found.taps.iter().map(|row| {
                vec![
                    row.site.layer.map_or_else(String::new, |l| l.to_string()),
                    row.site.point.to_string(),
                    number(row.error),
                    number(row.inputs),
                    if row.jumps {
                        "<-- jumps".into()
                    } else {
                        String::new()
                    },
                ]
            }));
        }
        Method::Prefix => {
            rows.push(
                ["layers", "relative difference of logits", ""]
                    .map(str::to_owned)
                    .to_vec(),
            );
            rows.extend(found.prefixes.iter().map(|p| {
                let mark = if p.parts { "<-- apart" } else { "" };
                vec![p.layers.to_string(), number(p.error), mark.into()]
            }));
        }
    }
    out += &output::table(&rows);
    let _ = match &found.finding {
        Some(finding) => writeln!(
            out,
            "they part at: {finding} (error {}, of what it reads {}, tolerance {})",
            number(finding.error),
            number(finding.inputs),
            number(found.tolerance)
        ),
        None => writeln!(
            out,
            "no part of the prefill is off by more than {} beyond what it reads",
            number(found.tolerance)
        ),
    };
    if let Some(step) = &found.step {
        let _ = if step.parts {
            writeln!(
                out,
                "the candidate's one-token step differs from its own prefill at token {} by {} (limit {})",
                input.from + step.position,
                number(step.error),
                number(step.allowed)
            )
        } else {
            writeln!(
                out,
                "the candidate's one-token step agrees with its own prefill within {}",
                number(step.error)
            )
        };
    }
    out.push('\n');
    out
}

fn percent(share: f64) -> String {
    // Never rounded up to all.
    format!("{:.2} %", (share * 1e4).floor() / 100.0)
}

fn number(value: f64) -> String {
    match value.abs() {
        0.0 => "0".into(),
        1e-3..1e5 => {
            let text = format!("{value:.5}");
            text.trim_end_matches('0').trim_end_matches('.').into()
        }
        _ => format!("{value:.2e}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_well() {
        for (value, text) in [
            (0.0, "0"),
            (0.25, "0.25"),
            (-0.0123456, "-0.01235"),
            (12.0, "12"),
            (1.234e-7, "1.23e-7"),
            (f64::INFINITY, "inf"),
        ] {
            assert_eq!(number(value), text);
        }
        assert_eq!(percent(0.99999), "99.99 %");
        assert_eq!(percent(1.0), "100.00 %");
    }
}
