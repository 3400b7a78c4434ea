//! A report as one page that needs nothing beside it.

use std::fmt::Write as _;

use halfhitch_suite::Verdict;

use super::junit::escape;
use super::report::{CaseReport, Outcome, Report};

const STYLE: &str = "\
:root{color-scheme:light dark}body{font:15px/1.45 system-ui,sans-serif;max-width:64rem;margin:2rem auto;padding:0 1rem}\
h1{font-size:1.4rem}h2{font-size:1.1rem;margin-top:2rem}table{border-collapse:collapse}\
th,td{text-align:left;padding:.2rem .9rem .2rem 0;vertical-align:top}td.n,th.n{text-align:right}\
code,pre{font:13px/1.4 ui-monospace,monospace}pre{overflow:auto;padding:.6rem;border:1px solid #8884;border-radius:4px}\
.pass{color:#187a2f}.fail,.stale{color:#c0232c;font-weight:600}.unsupported,.expected_failure{color:#8a6d00}\
section{border-left:3px solid #c0232c;padding-left:1rem;margin:1.2rem 0}summary{cursor:pointer}";

/// The page: who was tested, the counts, each failing case with its details, what is unsupported, and
/// every case in a list.
pub fn html(report: &Report) -> String {
    let title = format!(
        "{}: {}",
        report.backend.name,
        match report.outcome {
            Outcome::Pass => "conforms",
            Outcome::Fail => "does not conform",
            Outcome::Interrupted => "interrupted",
        }
    );
    let mut out = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n\
         <title>{0}</title>\n<style>{STYLE}</style></head><body>\n<h1>{0}</h1>\n",
        escape(&title)
    );
    out += &facts(report);
    out += &counts(report);
    out += &failures(report);
    out += &unsupported(report);
    out += &every_case(report);
    out + "</body></html>\n"
}

fn facts(report: &Report) -> String {
    let mut rows = vec![(
        "backend",
        format!("{} {}", report.backend.name, report.backend.version),
    )];
    for (name, version) in &report.backend.components {
        rows.push(("", format!("{name} {version}")));
    }
    let device = &report.device;
    rows.push((
        "device",
        format!("{} ({}), {}", device.name, device.id, device.driver),
    ));
    if let Some(target) = &report.codegen_target {
        rows.push(("code for", target.clone()));
    }
    let suite = &report.suite;
    let only = match suite.only.as_slice() {
        [] => String::new(),
        only => format!(", only {}", only.join(", ")),
    };
    let ran = report.cases.len();
    rows.push((
        "suite",
        format!("{}, {ran} of {} cases{only}", suite.kind, suite.cases),
    ));
    if let Some(seed) = suite.seed {
        rows.push(("seed", seed.to_string()));
    }
    rows.push((
        "run",
        format!(
            "{} with halfhitch {}, {:.1} s",
            report.date, report.halfhitch, report.seconds
        ),
    ));
    let mut out = String::from("<table>\n");
    for (what, value) in rows {
        // Writing to a string cannot fail.
        let _ = writeln!(out, "<tr><th>{what}</th><td>{}</td></tr>", escape(&value));
    }
    out + "</table>\n"
}

fn counts(report: &Report) -> String {
    let mut out = String::from("<h2>Verdicts</h2>\n<table>\n<tr><th></th>");
    for name in Verdict::NAMES {
        let _ = write!(out, "<th class=\"n\">{}</th>", name.replace('_', " "));
    }
    out += "<th class=\"n\">seconds</th></tr>\n";
    for (name, group) in report.groups() {
        let _ = write!(out, "<tr><td>{}</td>", escape(&name));
        for verdict in Verdict::NAMES {
            let n = group.counts.get(verdict).copied().unwrap_or(0);
            let class = if n > 0 { verdict } else { "" };
            let _ = write!(out, "<td class=\"n {class}\">{n}</td>");
        }
        let _ = writeln!(
            out,
            "<td class=\"n\">{:.1}</td></tr>",
            group.millis as f64 / 1e3
        );
    }
    out + "</table>\n"
}

fn failures(report: &Report) -> String {
    let mut out = String::new();
    for case in report.failures() {
        out += &failure(case);
    }
    for line in &report.stale {
        let _ = writeln!(
            out,
            "<section><h3>{}</h3><p class=\"stale\">listed as an expected failure; no failing \
             case needs the line</p></section>",
            escape(line)
        );
    }
    if out.is_empty() {
        return out;
    }
    format!("<h2>Failures</h2>\n{out}")
}

fn failure(report: &CaseReport) -> String {
    let case = &report.case;
    let mut out = format!("<section><h3>{}</h3>\n", escape(&case.name));
    let _ = match &case.verdict {
        Verdict::Stale { reason } => writeln!(
            out,
            "<p class=\"stale\">passes, and is listed as an expected failure: {}</p>",
            escape(reason)
        ),
        Verdict::Fail { detail } => writeln!(out, "<p class=\"fail\">{}</p>", escape(detail)),
        _ => Ok(()),
    };
    if let Some(command) = &report.reproduce {
        let _ = writeln!(out, "<pre>{}</pre>", escape(command));
    }
    if let Some(model) = &report.model {
        let text = serde_json::to_string_pretty(model).unwrap_or_default();
        let _ = writeln!(
            out,
            "<details><summary>the model</summary><pre>{}</pre></details>",
            escape(&text)
        );
    }
    out + "</section>\n"
}

fn unsupported(report: &Report) -> String {
    let lacking = report.lacking();
    if lacking.is_empty() {
        return String::new();
    }
    let mut out = String::from("<h2>Unsupported</h2>\n<table>\n");
    for (what, n) in lacking {
        let _ = writeln!(
            out,
            "<tr><td class=\"n\">{n}</td><td>{}</td></tr>",
            escape(what)
        );
    }
    out + "</table>\n"
}

fn every_case(report: &Report) -> String {
    let mut out = String::from("<h2>Every case</h2>\n<details><summary>");
    let _ = writeln!(out, "{} cases</summary><table>", report.cases.len());
    for CaseReport { case, .. } in &report.cases {
        let name = case.verdict.name();
        let _ = writeln!(
            out,
            "<tr><td class=\"{name}\">{}</td><td>{}</td><td class=\"n\">{} ms</td></tr>",
            name.replace('_', " "),
            escape(&case.name),
            case.millis
        );
    }
    out + "</table></details>\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conformance::report::sample;

    #[test]
    fn the_page_has_the_failures_with_their_details_and_stands_alone() {
        let text = html(&sample());
        for part in [
            "<title>reference-cpu: does not conform</title>",
            "<h3>contract/plain/two</h3>",
            "1 &lt; 2 &amp; &quot;three&quot;",
            "halfhitch conformance --only &#39;x&#39;",
            "&quot;vocab_size&quot;: 61",
            "<h3>gone/&lt;*&gt;</h3>",
            "<td>&lt;f16&gt;</td>",
        ] {
            assert!(text.contains(part), "{part}:\n{text}");
        }
        for foreign in ["http", "<script", "src=", "href="] {
            assert!(!text.contains(foreign), "{foreign}");
        }
        assert_eq!(text.matches("<section>").count(), 3);
    }
}
