//! Failures that are known: listed, so that a run with them passes, and found out when they are gone.

use halfhitch_seam::{SeamError, SeamResult};

use crate::report::{Case, Verdict};

/// Most lines of a list.
const MOST: usize = 10_000;

/// A name of cases, in which `*` stands for any text, also across `/`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern(String);

impl Pattern {
    /// A pattern.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// Whether it is the whole name.
    pub fn matches(&self, name: &str) -> bool {
        let mut parts = self.0.split('*');
        let Some(mut rest) = parts.next().and_then(|first| name.strip_prefix(first)) else {
            return false;
        };
        let mut last = None;
        for part in parts {
            if let Some(middle) = last.replace(part) {
                let Some(at) = rest.find(middle) else {
                    return false;
                };
                rest = &rest[at + middle.len()..];
            }
        }
        last.map_or(rest.is_empty(), |end| rest.ends_with(end))
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A line of the list.
#[derive(Clone, Debug)]
pub struct Expectation {
    /// Which cases fail.
    pub pattern: Pattern,
    /// Why.
    pub reason: String,
    failed: bool,
}

/// The list.
#[derive(Clone, Debug, Default)]
pub struct Expectations(Vec<Expectation>);

impl Expectations {
    /// Reads a list: a line a name or pattern, with the reason after a `#`. Empty lines, and lines of
    /// a reason alone, are comments.
    ///
    /// # Errors
    /// `InvalidInput` where a line has a blank inside its name, or there are too many.
    pub fn parse(text: &str) -> SeamResult<Self> {
        let mut list = Self::default();
        for (i, line) in text.lines().enumerate() {
            let (name, reason) = line.split_once('#').unwrap_or((line, ""));
            let name = name.trim();
            if name.is_empty() {
                continue;
            }
            if name.contains(char::is_whitespace) {
                return Err(SeamError::invalid_input(format!(
                    "line {}: `{}` is not one case's name",
                    i + 1,
                    name.escape_debug()
                ))
                .hint("a line is NAME # REASON; `*` in a name stands for any text"));
            }
            if list.0.len() == MOST {
                return Err(SeamError::invalid_input(format!("over {MOST} lines")));
            }
            list.add(name, reason.trim());
        }
        Ok(list)
    }

    /// Adds a line.
    pub fn add(&mut self, pattern: &str, reason: &str) {
        self.0.push(Expectation {
            pattern: Pattern::new(pattern),
            reason: reason.into(),
            failed: false,
        });
    }

    /// Changes the verdict of a case that is listed: a failure is expected, and a pass is stale.
    pub fn apply(&mut self, case: &mut Case) {
        let mut listed = self.0.iter_mut().filter(|e| e.pattern.matches(&case.name));
        let Some(first) = listed.next() else {
            return;
        };
        let reason = first.reason.clone();
        match &mut case.verdict {
            Verdict::Fail { detail } => {
                first.failed = true;
                listed.for_each(|e| e.failed = true);
                case.verdict = Verdict::ExpectedFailure {
                    detail: std::mem::take(detail),
                    reason,
                };
            }
            Verdict::Pass => case.verdict = Verdict::Stale { reason },
            _ => {}
        }
    }

    /// Lines that no failing case needed, of those for which `ran` says that their cases ran.
    pub fn unused(&self, ran: impl Fn(&Pattern) -> bool) -> Vec<String> {
        let unused = self.0.iter().filter(|e| !e.failed && ran(&e.pattern));
        unused.map(|e| e.pattern.0.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Miss;

    #[test]
    fn stars_stand_for_any_text() {
        for (pattern, name, matches) in [
            ("a/b", "a/b", true),
            ("a/b", "a/bc", false),
            ("a/*", "a/b/c", true),
            ("a/*", "b/a/c", false),
            ("*", "", true),
            ("*/f16/*", "generated/x/f16/prompt", true),
            ("*/f16/*", "generated/x/bf16/prompt", false),
            ("a*a", "a", false),
            ("a*a", "aa", true),
            ("a*b*c", "a/b/b/c", true),
            ("a*b*c", "a/c/b", false),
            ("", "", true),
        ] {
            assert_eq!(
                Pattern::new(pattern).matches(name),
                matches,
                "{pattern} {name}"
            );
        }
    }

    fn case(name: &str, outcome: crate::Outcome) -> Case {
        Case::run(name, || outcome.clone())
    }

    #[test]
    fn known_failures_are_expected_and_gone_ones_are_stale() {
        let mut list =
            Expectations::parse("# known\n\na/*  # our bug 7\nb\nc # never runs\n").unwrap();
        let fails = || Err(Miss::Fail("off".into()));
        let mut cases = [
            case("a/1", fails()),
            case("a/2", Ok(())),
            case("a/3", Err(Miss::Unsupported("it".into()))),
            case("b", Ok(())),
            case("d", fails()),
        ];
        cases.iter_mut().for_each(|c| list.apply(c));
        let names: Vec<_> = cases.iter().map(|c| c.verdict.name()).collect();
        let want = ["expected_failure", "stale", "unsupported", "stale", "fail"];
        assert_eq!(names, want);
        assert_eq!(
            cases[0].verdict,
            Verdict::ExpectedFailure {
                detail: "off".into(),
                reason: "our bug 7".into()
            }
        );
        assert_eq!(list.unused(|_| true), ["b", "c"]);
        assert_eq!(list.unused(|p| p.as_str() != "c"), ["b"]);
    }

    #[test]
    fn a_line_is_one_name() {
        let error = Expectations::parse("ok\ntwo names # reason\n").unwrap_err();
        assert!(error.message.starts_with("line 2: `two names`"), "{error}");
        assert!(Expectations::parse(&"x\n".repeat(MOST + 1)).is_err());
    }
}
