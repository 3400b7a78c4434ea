//! How a backend may write a contraction of activations with a weight: named alternatives, of which a
//! plan chooses.
//!
//! What an alternative is, and where it is the better one, is the backend's knowledge; it advertises
//! them in [`DeviceCapabilities::representations`](crate::DeviceCapabilities), the preferred first,
//! with reasons. [`negotiate`](crate::negotiate) picks from them by weight and by rows of a step, and
//! the backend does what the plan says.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::dtype::Precision;
use crate::error::{SeamError, SeamResult};
use crate::quant::Bits;
use crate::weights::WeightForm;

/// Longest name of a representation.
const LONGEST: usize = 24;

/// A representation's name: `words`, `fused-reduce`. Lower-case letters, digits and hyphens.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct RepresentationName {
    bytes: [u8; LONGEST],
    len: u8,
}

impl RepresentationName {
    /// A name from a constant.
    ///
    /// # Panics
    /// Where it is no name; a constant's is checked when it is first used.
    pub fn of(name: &'static str) -> Self {
        match name.parse() {
            Ok(name) => name,
            Err(e) => panic!("{e}"),
        }
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.bytes[..usize::from(self.len)]).unwrap_or_default()
    }
}

impl FromStr for RepresentationName {
    type Err = SeamError;

    fn from_str(text: &str) -> SeamResult<Self> {
        let known = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
        if text.is_empty() || text.len() > LONGEST || !text.bytes().all(known) {
            return Err(SeamError::invalid_input(format!(
                "`{}` is no representation's name",
                text.chars().take(2 * LONGEST).collect::<String>()
            ))
            .hint(
                "names have lower-case letters, digits and hyphens; `halfhitch plan` shows them",
            ));
        }
        let mut bytes = [0; LONGEST];
        bytes[..text.len()].copy_from_slice(text.as_bytes());
        Ok(Self {
            bytes,
            len: text.len() as u8,
        })
    }
}

impl TryFrom<String> for RepresentationName {
    type Error = SeamError;
    fn try_from(text: String) -> SeamResult<Self> {
        text.parse()
    }
}

impl From<RepresentationName> for String {
    fn from(name: RepresentationName) -> Self {
        name.as_str().to_owned()
    }
}

impl fmt::Display for RepresentationName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl fmt::Debug for RepresentationName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// Rows of activations that meet a weight in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StepRows {
    /// One: a token of one sequence.
    One,
    /// A few: a token of each of several sequences.
    Batch,
    /// Many: a chunk of a prompt.
    Chunk,
}

impl StepRows {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::One, Self::Batch, Self::Chunk];

    /// What such steps do, as plans call it.
    pub const fn label(self) -> &'static str {
        match self {
            Self::One => "decode",
            Self::Batch => "batch",
            Self::Chunk => "prefill",
        }
    }
}

/// An alternative that a device offers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RepresentationSupport {
    /// Its name, unique in the device's list.
    pub name: RepresentationName,
    /// What it is, in one line.
    pub description: String,
    /// Why it is taken, where it comes first: what was measured.
    pub reason: String,
    /// Why it is not, where another comes first.
    pub against: String,
    /// Widths of packed weights that it contracts.
    pub bits: BTreeSet<Bits>,
    /// Whether it contracts dense weights.
    pub dense: bool,
    /// For which steps.
    pub rows: BTreeSet<StepRows>,
    /// In which precisions.
    pub precisions: BTreeSet<Precision>,
}

impl RepresentationSupport {
    /// Whether it can contract weights of `form` in such steps. Shapes may still stand against it for
    /// single weights; the next in the plan's order is taken for these.
    pub fn covers(&self, form: WeightForm, rows: StepRows, precision: Precision) -> bool {
        let weight = match form {
            WeightForm::Dense(_) => self.dense,
            WeightForm::Affine(scheme) => self.bits.contains(&scheme.bits),
        };
        weight && self.rows.contains(&rows) && self.precisions.contains(&precision)
    }
}

/// The representations of weights of one form in one kind of step, the chosen one first; the others
/// follow for weights whose shape does not suit it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedRepresentation {
    /// The weights' form on the device.
    pub form: WeightForm,
    /// The kind of step.
    pub rows: StepRows,
    /// Names, in order; never empty.
    pub order: Vec<RepresentationName>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_bounded_and_plain() {
        for good in ["words", "fused-reduce", "a1"] {
            let name: RepresentationName = good.parse().unwrap();
            assert_eq!(name.as_str(), good);
            let json = serde_json::to_string(&name).unwrap();
            assert_eq!(
                serde_json::from_str::<RepresentationName>(&json).unwrap(),
                name
            );
        }
        let long = "x".repeat(25);
        for bad in ["", "Words", "a b", "ä", "a/b", &long] {
            assert!(bad.parse::<RepresentationName>().is_err(), "{bad}");
            let json = serde_json::to_string(bad).unwrap();
            assert!(serde_json::from_str::<RepresentationName>(&json).is_err());
        }
    }
}
