//! Writing to stdout and stderr.
//!
//! Text of a model goes out as it is: what it says may hold control characters, as any file may that
//! is printed to a terminal. Messages about files are cleaned of them.

use std::io::{self, IsTerminal, Write};

use serde::Serialize;

use super::failure::Failure;

/// Writes bytes to stdout.
///
/// # Errors
/// [`Failure::BrokenPipe`] where nobody reads; an error where writing fails.
pub fn bytes(bytes: &[u8]) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    out.write_all(bytes)?;
    Ok(out.flush()?)
}

/// Writes text to stdout and a line break after it.
///
/// # Errors
/// As [`bytes`].
pub fn line(text: &str) -> Result<(), Failure> {
    bytes(format!("{text}\n").as_bytes())
}

/// Writes one JSON value to stdout: indented for a person at a terminal, on one line for a program.
///
/// # Errors
/// As [`bytes`].
pub fn json(value: &impl Serialize) -> Result<(), Failure> {
    let text = if io::stdout().is_terminal() {
        serde_json::to_string_pretty(value)
    } else {
        serde_json::to_string(value)
    };
    line(&text.map_err(io::Error::from)?)
}

/// Writes an error to stderr. Where even that fails nobody is left to tell.
pub fn error_line(message: &str) {
    let _ = writeln!(io::stderr().lock(), "error: {message}");
}

/// Writes something worth knowing to stderr.
pub fn note(message: &str) {
    let _ = writeln!(io::stderr().lock(), "{message}");
}

/// Lays rows out in columns, two spaces apart; the last column is as long as it likes.
pub fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|r| r.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut out = String::new();
    for row in rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            line += &format!("{cell:<width$}  ");
        }
        out += line.trim_end();
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::table;

    #[test]
    fn columns_line_up_and_lines_end_clean() {
        let row = |cells: &[&str]| cells.iter().map(ToString::to_string).collect();
        let text = table(&[row(&["a", "bcd", "e"]), row(&["fgh", "", "i"]), row(&["j"])]);
        assert_eq!(text, "a    bcd  e\nfgh       i\nj\n");
    }
}
