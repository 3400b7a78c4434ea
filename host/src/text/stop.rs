//! Stop strings in a text that arrives in pieces.

use halfhitch_seam::{SeamError, SeamResult};

/// Longest stop string, in bytes, and most of them.
const MAX_STOP_BYTES: usize = 4096;
const MAX_STOPS: usize = 64;

/// Passes text through until a stop string is complete.
///
/// Text that may be the beginning of a stop string is withheld until it is certain. The text ends
/// where the first stop string to be completed begins; where two are completed by the same
/// character, the longer one counts. So the result does not depend on how the text is cut into
/// pieces.
#[derive(Clone, Debug)]
pub struct StopMatcher {
    stops: Vec<String>,
    withheld: String,
    matched: Option<usize>,
}

impl StopMatcher {
    /// A matcher for these stop strings; with none, all text passes at once.
    ///
    /// # Errors
    /// `InvalidInput` for an empty stop string, one longer than 4096 bytes, or more than 64.
    pub fn new(stops: impl IntoIterator<Item = impl Into<String>>) -> SeamResult<Self> {
        let stops: Vec<String> = stops.into_iter().map(Into::into).collect();
        if stops.len() > MAX_STOPS {
            return Err(SeamError::invalid_input(format!(
                "--stop: {} stop strings, at most {MAX_STOPS} are allowed",
                stops.len()
            )));
        }
        if stops.iter().any(String::is_empty) {
            return Err(SeamError::invalid_input("--stop: a stop string is empty"));
        }
        if let Some(long) = stops.iter().find(|s| s.len() > MAX_STOP_BYTES) {
            return Err(SeamError::invalid_input(format!(
                "--stop: a stop string has {} bytes, at most {MAX_STOP_BYTES} are allowed",
                long.len()
            )));
        }
        Ok(Self {
            stops,
            withheld: String::new(),
            matched: None,
        })
    }

    /// Takes the next piece, gives the text that is certain to stand before any stop string. After
    /// a match nothing more is given.
    pub fn push(&mut self, piece: &str) -> String {
        if self.matched.is_some() {
            return String::new();
        }
        self.withheld.push_str(piece);
        let first = self
            .stops
            .iter()
            .enumerate()
            .filter_map(|(index, stop)| {
                let start = self.withheld.find(stop.as_str())?;
                Some((start + stop.len(), start, index))
            })
            .min();
        if let Some((_, start, index)) = first {
            self.matched = Some(index);
            let mut text = std::mem::take(&mut self.withheld);
            text.truncate(start);
            return text;
        }
        let keep = self
            .stops
            .iter()
            .map(|stop| open_prefix(&self.withheld, stop))
            .max()
            .unwrap_or(0);
        let rest = self.withheld.split_off(self.withheld.len() - keep);
        std::mem::replace(&mut self.withheld, rest)
    }

    /// The text ends here: gives what was withheld and turned out to be no stop string.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.withheld)
    }

    /// The stop string that ended the text.
    pub fn matched(&self) -> Option<&str> {
        self.matched.map(|index| self.stops[index].as_str())
    }
}

/// Bytes at the end of `text` that are the longest proper beginning of `stop`.
fn open_prefix(text: &str, stop: &str) -> usize {
    let longest = text.len().min(stop.len() - 1);
    (1..=longest)
        .rev()
        .find(|&n| stop.is_char_boundary(n) && text.ends_with(&stop[..n]))
        .unwrap_or(0)
}
