//! Text from files, made fit for one line of an error.

/// `text` in backquotes, control characters escaped, cut where it is long.
pub(super) fn quoted(text: &str) -> String {
    format!("`{}`", tamed(text, 120))
}

/// A library's message, which may quote a file: control characters escaped, cut where it is long.
pub(crate) fn one_line(message: impl std::fmt::Display) -> String {
    tamed(&message.to_string(), 240)
}

fn tamed(text: &str, most: usize) -> String {
    let mut out = String::new();
    for (i, c) in text.chars().enumerate() {
        if i == most {
            out.push('…');
            break;
        }
        if c.is_control() {
            out.extend(c.escape_default());
        } else {
            out.push(c);
        }
    }
    out
}

/// The first few of `items` and how many more there are.
pub(super) fn listed<S: AsRef<str>>(items: &[S]) -> String {
    const MOST: usize = 3;
    let mut out: Vec<String> = items
        .iter()
        .take(MOST)
        .map(|s| quoted(s.as_ref()))
        .collect();
    if items.len() > MOST {
        out.push(format!("{} more", items.len() - MOST));
    }
    out.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_stays_on_one_line_and_short() {
        assert_eq!(quoted("a\nb\u{1b}"), "`a\\nb\\u{1b}`");
        assert!(quoted(&"x".repeat(10_000)).chars().count() < 130);
        assert_eq!(listed(&["a", "b"]), "`a`, `b`");
        assert_eq!(listed(&["a", "b", "c", "d", "e"]), "`a`, `b`, `c`, 2 more");
    }
}
