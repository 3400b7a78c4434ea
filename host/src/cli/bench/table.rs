//! The figures as a table for people.

use std::fmt::Write as _;

use halfhitch_seam::Size;

use super::output;
use crate::bench::config::quant_name;
use crate::bench::report::Measured;
use crate::bench::{Report, Spread};

/// A table, and below it what it stands on.
pub fn text(report: &Report) -> String {
    let mut rows = vec![header(report)];
    let isolated = has_isolated(report);
    rows.extend(report.configurations.iter().map(|m| row(m, isolated)));
    let mut out = output::table(&rows);
    out.push('\n');
    // Writing to a string cannot fail.
    let _ = writeln!(
        out,
        "tok/s: median (smallest-largest) of {} rounds on {}, {}",
        rounds(report),
        report.backend,
        report.device.name
    );
    for one in &report.bandwidth {
        let rate = &one.bytes_per_s;
        let _ = writeln!(
            out,
            "limit: {:.1} GB/s ({:.1}-{:.1}) read by {} thread{}",
            rate.median / 1e9,
            rate.min / 1e9,
            rate.max / 1e9,
            one.threads,
            if one.threads == 1 { "" } else { "s" }
        );
    }
    for one in &report.isolation {
        let _ = write!(
            out,
            "isolation: {}: a token takes {}",
            one.configuration,
            times(&one.decode)
        );
        if let Some(prefill) = &one.prefill {
            let _ = write!(out, ", prompts {}", times(prefill));
        }
        out.push('\n');
    }
    out
}

/// Rounds that every configuration was in.
fn rounds(report: &Report) -> usize {
    let all = report.configurations.iter();
    all.map(|m| m.load_s.values.len()).min().unwrap_or(0)
}

fn header(report: &Report) -> Vec<String> {
    let mut cells: Vec<String> = ["precision", "quant", "threads", "batch"]
        .map(String::from)
        .into();
    if has_isolated(report) {
        cells.push("isolated".into());
    }
    cells.extend(["load", "first token"].map(String::from));
    let workload = &report.workload;
    cells.extend(workload.prefill.iter().map(|n| format!("prefill {n}")));
    cells.push(format!("decode {}", workload.decode));
    cells.push("of limit".into());
    cells.extend(workload.at.iter().map(|n| format!("step at {n}")));
    cells.extend(["weights".into(), "peak".into()]);
    cells
}

/// Whether it is told of each configuration if it is isolated.
fn has_isolated(report: &Report) -> bool {
    let mut all = report.configurations.iter();
    all.any(|m| m.configuration.isolated)
}

fn row(m: &Measured, isolated: bool) -> Vec<String> {
    let c = &m.configuration;
    let mut cells = vec![
        m.precision.to_string(),
        quant_name(c.quant).into(),
        c.threads.map_or_else(|| "all".into(), |n| n.to_string()),
        c.batch.to_string(),
    ];
    if isolated {
        cells.push(if c.isolated { "yes" } else { "no" }.into());
    }
    cells.push(format!("{:.2} s", m.load_s.median));
    cells.push(format!("{:.3} s", m.first_token_s.median));
    cells.extend(m.prefill.iter().map(|p| rate(&p.tokens_per_s)));
    cells.push(rate(&m.decode_tokens_per_s));
    cells.push(format!("{:.0} %", 100.0 * m.bandwidth_share.median));
    cells.extend(
        m.at.iter()
            .map(|s| format!("{:.2} ms", 1e3 * s.step_s.median)),
    );
    cells.push(Size(m.step_bytes).to_string());
    cells.push(match &m.peak_rss_bytes {
        Some(peak) => Size(peak.median as u64).to_string(),
        None => "?".into(),
    });
    cells
}

fn times(ratio: &Spread) -> String {
    format!(
        "{:.3} times as long ({:.3}-{:.3})",
        ratio.median, ratio.min, ratio.max
    )
}

fn rate(spread: &Spread) -> String {
    let digits = if spread.median < 99.95 { 1 } else { 0 };
    format!(
        "{:.digits$} ({:.digits$}-{:.digits$})",
        spread.median, spread.min, spread.max
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_have_as_many_digits_as_mean_something() {
        let spread = |values: [f64; 3]| rate(&Spread::of(values).unwrap());
        assert_eq!(spread([84.46, 80.0, 90.04]), "84.5 (80.0-90.0)");
        assert_eq!(spread([1234.5, 1200.0, 1300.4]), "1234 (1200-1300)");
    }
}
