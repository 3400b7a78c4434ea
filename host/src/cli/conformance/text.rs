//! A report at a terminal, and command lines to go on with.

use std::fmt::Write as _;

use halfhitch_suite::Verdict;

use super::shown;
use crate::cli::args::ConformanceArgs;
use crate::cli::failure::one_line;
use crate::cli::{Context, output};
use crate::conformance::{CaseReport, Found, Outcome, Report};

/// Most failing cases that are shown with their details.
const MOST: usize = 50;

/// The report.
pub fn text(report: &Report) -> String {
    let mut out = head(report);
    out += &table(report);
    out.push('\n');
    for case in report.failures().take(MOST) {
        out += &failure(case);
    }
    let left = report.failures().count().saturating_sub(MOST);
    // Writing to a string cannot fail.
    if left > 0 {
        let _ = writeln!(out, "... and {left} more; --json or --html has all\n");
    }
    for line in &report.stale {
        let _ = writeln!(
            out,
            "STALE  `{}` is listed as an expected failure, and no failing case needs it",
            one_line(line)
        );
    }
    out += &lacking(report);
    out += &verdict(report);
    out
}

fn head(report: &Report) -> String {
    let backend = &report.backend;
    let components: Vec<String> = backend
        .components
        .iter()
        .map(|(name, version)| format!("{name} {version}"))
        .collect();
    let components = match components.as_slice() {
        [] => String::new(),
        all => format!(" ({})", all.join(", ")),
    };
    let target = report
        .codegen_target
        .as_ref()
        .map_or_else(String::new, |t| format!(", code for {t}"));
    let device = &report.device;
    let lines = [
        format!(
            "backend     {} {}{components}",
            backend.name, backend.version
        ),
        format!("device      {} ({}){target}", device.name, device.id),
        format!(
            "suite       {}: {} cases, {:.1} s",
            report.suite.kind,
            report.cases.len(),
            report.seconds
        ),
    ];
    lines.iter().map(|l| one_line(l) + "\n").collect::<String>() + "\n"
}

fn table(report: &Report) -> String {
    let mut header = vec![String::new()];
    header.extend(Verdict::NAMES.map(|name| name.replace('_', " ")));
    let mut rows = vec![header];
    for (name, group) in report.groups() {
        let mut row = vec![name];
        row.extend(
            Verdict::NAMES.map(|verdict| match group.counts.get(verdict) {
                None | Some(0) => "-".into(),
                Some(n) => n.to_string(),
            }),
        );
        rows.push(row);
    }
    output::table(&rows)
}

fn failure(report: &CaseReport) -> String {
    let case = &report.case;
    let (sign, detail) = match &case.verdict {
        Verdict::Fail { detail } => ("FAIL ", detail.clone()),
        Verdict::Stale { reason } => (
            "STALE",
            format!("passes, and is listed as an expected failure: {reason}"),
        ),
        _ => return String::new(),
    };
    let mut out = format!("{sign}  {}\n       {}\n", case.name, one_line(&detail));
    if let Some(command) = &report.reproduce {
        let _ = writeln!(out, "       {command}");
    }
    out.push('\n');
    out
}

fn lacking(report: &Report) -> String {
    let lacking = report.lacking();
    if lacking.is_empty() {
        return String::new();
    }
    let mut out = String::from("unsupported\n");
    for (what, n) in lacking {
        let _ = writeln!(out, "{n:>6}  {}", one_line(what));
    }
    out.push('\n');
    out
}

fn verdict(report: &Report) -> String {
    let failed = report.failures().count() + report.stale.len();
    let (ran, all) = (report.cases.len(), report.suite.cases);
    let expected = match report.count("expected_failure") {
        0 => String::new(),
        n => format!(", {n} expected failures"),
    };
    if ran < all {
        return format!("INTERRUPTED  {ran} of {all} cases ran, {failed} failures{expected}\n");
    }
    match report.outcome {
        Outcome::Pass => format!(
            "PASS  {} cases pass, {} unsupported{expected}\n",
            report.count("pass"),
            report.count("unsupported")
        ),
        _ => format!("FAIL  {failed} failures in {ran} cases{expected}\n"),
    }
}

/// An argument as a shell takes it.
fn quoted(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/-_.:=,+".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        return text.into();
    }
    format!("'{}'", text.replace('\'', "'\\''"))
}

/// The program, and who is tested.
fn program(args: &ConformanceArgs, context: &Context, command: &str) -> String {
    let mut out = format!("halfhitch {command}");
    for dir in &context.plugin_dirs {
        let _ = write!(out, " --plugin-dir {}", quoted(&shown(dir)));
    }
    match &args.plugin {
        Some(path) => {
            let _ = write!(out, " --plugin {}", quoted(&shown(path)));
        }
        None => {
            let _ = write!(out, " -b {}", quoted(&args.backend.to_string()));
        }
    }
    if let Some(device) = &args.device {
        let _ = write!(out, " --device {}", quoted(&one_line(device)));
    }
    out
}

/// A command that runs one case.
pub fn reproduce(args: &ConformanceArgs, context: &Context, name: &str) -> String {
    let mut out = program(args, context, "conformance");
    for folder in &args.checkpoints {
        let _ = write!(out, " --checkpoints {}", quoted(&shown(folder)));
    }
    out + " --only " + &quoted(name)
}

/// A command that searches again.
pub fn search_again(args: &ConformanceArgs, context: &Context, models: u32) -> String {
    let program = program(args, context, "conformance");
    format!(
        "{program} --random {models} --seed {} --save DIR",
        args.seed
    )
}

/// A command that compares a kept model. A plugin's file is named by its folder there: `verify` selects
/// by name, for which a manifest lies beside the library.
pub fn verify(
    args: &ConformanceArgs,
    context: &Context,
    name: &str,
    kept: &Found,
    decode: usize,
) -> String {
    let mut out = String::from("halfhitch verify");
    let beside = args.plugin.as_ref().map(|path| match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => ".".into(),
    });
    for dir in context.plugin_dirs.iter().chain(&beside) {
        let _ = write!(out, " --plugin-dir {}", quoted(&shown(dir)));
    }
    let backend = match &args.plugin {
        Some(_) => one_line(name),
        None => args.backend.to_string(),
    };
    format!(
        "{out} -b {} -m {} --tokens {} --decode-steps {decode} --localize",
        quoted(&backend),
        quoted(&shown(&kept.folder)),
        quoted(&shown(&kept.tokens))
    )
}

#[cfg(test)]
mod tests {
    use super::quoted;

    #[test]
    fn arguments_are_what_a_shell_makes_of_them() {
        for (text, want) in [
            ("xla-iree:local-task", "xla-iree:local-task"),
            ("a b", "'a b'"),
            ("*", "'*'"),
            ("it's", "'it'\\''s'"),
            ("", "''"),
        ] {
            assert_eq!(quoted(text), want);
        }
    }
}
