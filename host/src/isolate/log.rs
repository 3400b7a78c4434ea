//! What a child prints: its last lines are kept, and each goes on to this process's log.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// Lines that are kept.
const LINES: usize = 40;

/// Most bytes of a line; what is longer is cut.
const LINE: usize = 1000;

/// Most characters of an error that are of the log.
const SHOWN: usize = 1200;

/// The last lines that a child printed.
#[derive(Default)]
pub struct LogTail {
    state: Mutex<State>,
    ended: Condvar,
}

#[derive(Default)]
struct State {
    lines: VecDeque<String>,
    ended: bool,
}

impl LogTail {
    /// Reads `from` to its end, on a thread of its own.
    ///
    /// # Errors
    /// Where no thread can be started.
    pub fn follow(from: impl Read + Send + 'static) -> std::io::Result<Arc<Self>> {
        let tail = Arc::new(Self::default());
        let kept = Arc::clone(&tail);
        let name = "isolated-log".into();
        std::thread::Builder::new().name(name).spawn(move || {
            let mut from = BufReader::new(from);
            while let Some(line) = next_line(&mut from) {
                relay(&line);
                kept.push(line);
            }
            kept.state.lock().ended = true;
            kept.ended.notify_all();
        })?;
        Ok(tail)
    }

    fn push(&self, line: String) {
        let mut state = self.state.lock();
        if state.lines.len() == LINES {
            state.lines.pop_front();
        }
        state.lines.push_back(line);
    }

    /// The last lines on one, the newest whole; empty where nothing was printed. Waits for what is still
    /// under way, but no longer than `patience`.
    pub fn last_words(&self, patience: Duration) -> String {
        let mut state = self.state.lock();
        if !state.ended {
            self.ended.wait_for(&mut state, patience);
        }
        let mut shown: Vec<&str> = Vec::new();
        let mut length = 0;
        for line in state.lines.iter().rev() {
            length += line.len() + 3;
            if length > SHOWN && !shown.is_empty() {
                break;
            }
            shown.push(line);
        }
        shown.reverse();
        shown.join(" | ")
    }
}

/// A line without what ends it, cut to [`LINE`] bytes and free of control characters; nothing at the end.
/// Empty ones are left out.
fn next_line(from: &mut impl BufRead) -> Option<String> {
    loop {
        let mut bytes = Vec::new();
        let mut some = false;
        loop {
            let Ok(part) = from.fill_buf() else {
                return None;
            };
            if part.is_empty() {
                break;
            }
            some = true;
            let end = part.iter().position(|&b| b == b'\n');
            let taken = end.unwrap_or(part.len());
            let room = LINE - bytes.len();
            bytes.extend_from_slice(&part[..taken.min(room)]);
            from.consume(end.map_or(taken, |at| at + 1));
            if end.is_some() {
                break;
            }
        }
        let text = String::from_utf8_lossy(&bytes);
        let text: String = text
            .chars()
            .map(|c| if c.is_control() { ' ' } else { c })
            .collect();
        match text.trim() {
            "" if !some => return None,
            "" => {}
            line => return Some(line.to_owned()),
        }
    }
}

/// Gives a line to this process's log: at the level that it begins with, as the child's own log does,
/// else as information.
fn relay(line: &str) {
    let (level, rest) = line.split_once(' ').unwrap_or((line, ""));
    match level {
        "ERROR" => tracing::error!(target: "isolated", "{rest}"),
        "WARN" => tracing::warn!(target: "isolated", "{rest}"),
        "DEBUG" => tracing::debug!(target: "isolated", "{rest}"),
        "TRACE" => tracing::trace!(target: "isolated", "{rest}"),
        "INFO" => tracing::info!(target: "isolated", "{rest}"),
        _ => tracing::info!(target: "isolated", "{line}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: Vec<u8>) -> String {
        let tail = LogTail::follow(std::io::Cursor::new(text)).unwrap();
        tail.last_words(Duration::from_secs(20))
    }

    #[test]
    fn the_last_lines_are_kept_and_no_more() {
        assert_eq!(
            read(b"one\n\ntwo\x1b[2J\r\nthree".to_vec()),
            "one | two [2J | three"
        );
        assert_eq!(read(Vec::new()), "");
        let many: String = (0..10_000).map(|i| format!("line {i}\n")).collect();
        let kept = read(many.into_bytes());
        assert!(kept.ends_with("line 9998 | line 9999"), "{kept}");
        assert!(kept.len() < 1000, "{}", kept.len());
    }

    #[test]
    fn an_endless_line_is_cut() {
        let mut text = vec![b'a'; 1 << 20];
        text.extend(b"\n\xff\xfelast");
        let kept = read(text);
        assert!(kept.len() < 2 * LINE && kept.ends_with("last"), "{kept}");
    }
}
