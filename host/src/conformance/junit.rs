//! A report in JUnit's form, as servers that run tests read it.

use std::fmt::Write as _;

use halfhitch_suite::Verdict;

use super::report::{CaseReport, Report};

/// The file's text. A suite a group of cases; expected failures and what is unsupported count as
/// skipped, with the reason.
pub fn junit(report: &Report) -> String {
    let mut out = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
    let name = escape(&format!("{} {}", report.backend.name, report.device.id));
    let failed = report.failures().count() + report.stale.len();
    let skipped = report.count("unsupported") + report.count("expected_failure");
    // Writing to a string cannot fail.
    let _ = writeln!(
        out,
        "<testsuites name=\"halfhitch conformance: {name}\" tests=\"{}\" failures=\"{failed}\" \
         skipped=\"{skipped}\" time=\"{:.3}\">",
        report.cases.len() + report.stale.len(),
        report.seconds
    );
    for (group, counts) in report.groups() {
        let own = |c: &&CaseReport| {
            let rest = c.case.name.strip_prefix(group.as_str());
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        let cases: Vec<&CaseReport> = report.cases.iter().filter(own).collect();
        let failed = cases.iter().filter(|c| c.case.verdict.is_failure()).count();
        let _ = writeln!(
            out,
            "  <testsuite name=\"{}\" tests=\"{}\" failures=\"{failed}\" time=\"{}\">",
            escape(&group),
            cases.len(),
            seconds(counts.millis)
        );
        for case in cases {
            out += &one(&group, case);
        }
        out += "  </testsuite>\n";
    }
    if !report.stale.is_empty() {
        let n = report.stale.len();
        let _ = writeln!(
            out,
            "  <testsuite name=\"expected failures\" tests=\"{n}\" failures=\"{n}\">"
        );
        for line in &report.stale {
            let _ = writeln!(
                out,
                "    <testcase classname=\"expected failures\" name=\"{0}\"><failure \
                 message=\"no failing case needs this line\"/></testcase>",
                escape(line)
            );
        }
        out += "  </testsuite>\n";
    }
    out + "</testsuites>\n"
}

fn seconds(millis: u64) -> String {
    format!("{}.{:03}", millis / 1000, millis % 1000)
}

fn one(group: &str, report: &CaseReport) -> String {
    let case = &report.case;
    let name = case.name.strip_prefix(group).unwrap_or(&case.name);
    let open = format!(
        "    <testcase classname=\"{}\" name=\"{}\" time=\"{}\"",
        escape(group),
        escape(name.trim_start_matches('/')),
        seconds(case.millis)
    );
    let body = match &case.verdict {
        Verdict::Pass => return format!("{open}/>\n"),
        Verdict::Fail { detail } => {
            let command = report.reproduce.as_deref().unwrap_or_default();
            format!(
                "<failure message=\"{}\">{}</failure>",
                escape(detail),
                escape(command)
            )
        }
        Verdict::Stale { reason } => format!(
            "<failure message=\"passes, though it is listed as an expected failure: {}\"/>",
            escape(reason)
        ),
        Verdict::Unsupported { capability } => {
            format!("<skipped message=\"unsupported: {}\"/>", escape(capability))
        }
        Verdict::ExpectedFailure { detail, reason } => format!(
            "<skipped message=\"expected failure: {}: {}\"/>",
            escape(reason),
            escape(detail)
        ),
    };
    format!("{open}>{body}</testcase>\n")
}

/// Text for attributes and elements, of XML and HTML alike. Characters that XML has no place for, which
/// a backend's messages may hold, become question marks.
pub(super) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out += "&amp;",
            '<' => out += "&lt;",
            '>' => out += "&gt;",
            '"' => out += "&quot;",
            '\'' => out += "&#39;",
            '\t' | '\n' => out.push(c),
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => out.push('?'),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conformance::report::sample;

    #[test]
    fn every_verdict_has_its_element_and_nothing_breaks_out() {
        let text = junit(&sample());
        for part in [
            "tests=\"6\" failures=\"3\" skipped=\"2\" time=\"7.500\"",
            "<testsuite name=\"contract/plain\" tests=\"2\" failures=\"1\" time=\"3.000\">",
            "<testcase classname=\"contract/plain\" name=\"one\" time=\"1.500\"/>",
            "<failure message=\"1 &lt; 2 &amp; &quot;three&quot; ?? ]]&gt;\">halfhitch",
            "<skipped message=\"unsupported: &lt;f16&gt;\"/>",
            "<skipped message=\"expected failure: ",
            "passes, though it is listed",
            "name=\"gone/&lt;*&gt;\"",
        ] {
            assert!(text.contains(part), "{part}:\n{text}");
        }
        let opened = text.matches("<testsuite ").count();
        assert_eq!(opened, text.matches("</testsuite>").count());
        assert!(text.chars().all(|c| c == '\n' || !c.is_control()));
    }
}
