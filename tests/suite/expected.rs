//! What a model must give: token sequences and their logits.
//!
//! The shape of the fixtures' `expected.json` (`tests/fixtures/README.md` describes it), read from such
//! a file or made by the [`oracle`].

use halfhitch_seam::{SeamError, SeamResult, TokenId};
use serde::{Deserialize, Serialize};

use crate::models::Generated;
use crate::oracle;

/// A model's expected logits.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Expected {
    /// Sequences; the first two are interleaved.
    pub sequences: Vec<ExpectedSequence>,
    /// A cut of the first sequence.
    pub truncate: ExpectedTruncation,
}

/// One sequence: a prompt, then tokens one by one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ExpectedSequence {
    /// A name for messages.
    pub name: String,
    /// The prompt.
    pub prompt: Vec<TokenId>,
    /// Tokens fed after it.
    pub steps: Vec<TokenId>,
    /// A row of logits after the prompt and after each step: `steps.len() + 1` rows.
    pub logits: Vec<Vec<f32>>,
    /// The best five at positions inside the prompt.
    #[serde(default)]
    pub top5: Vec<ExpectedTop>,
}

/// The best logits at a position of the prompt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ExpectedTop {
    /// Position, from 0.
    pub position: usize,
    /// Tokens, best first.
    pub ids: Vec<TokenId>,
    /// Their logits.
    pub logits: Vec<f32>,
}

/// After prompt and steps of the first sequence: keep `keep` tokens, feed others.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ExpectedTruncation {
    /// Tokens that stay.
    pub keep: usize,
    /// Tokens fed then, one by one.
    pub tokens: Vec<TokenId>,
    /// A row of logits after each.
    pub logits: Vec<Vec<f32>>,
}

impl Expected {
    /// Reads an `expected.json`.
    ///
    /// # Errors
    /// `InvalidInput` where it is not of that shape or its parts do not fit together.
    pub fn from_json(text: &str) -> SeamResult<Self> {
        let expected: Self = serde_json::from_str(text)
            .map_err(|e| SeamError::invalid_input(format!("not an expected.json: {e}")))?;
        let fits = expected.sequences.len() >= 2
            && expected.sequences.iter().all(|s| {
                !s.prompt.is_empty()
                    && s.logits.len() == s.steps.len() + 1
                    && s.top5.iter().all(|t| t.position < s.prompt.len())
            })
            && expected.truncate.logits.len() == expected.truncate.tokens.len()
            && expected.truncate.keep <= expected.sequences[0].prompt.len();
        if !fits {
            return Err(SeamError::invalid_input(
                "an expected.json whose parts do not fit together",
            ));
        }
        Ok(expected)
    }

    /// Checks that every row is of a vocabulary of that size, and every token in it.
    ///
    /// # Errors
    /// `InvalidInput` where one is not.
    pub fn check_vocabulary(&self, size: usize) -> SeamResult<()> {
        let cut = &self.truncate;
        let sequences = self.sequences.iter();
        let mut rows = sequences.clone().flat_map(|s| &s.logits).chain(&cut.logits);
        let tokens = sequences.flat_map(|s| {
            let top = s.top5.iter().flat_map(|t| &t.ids);
            s.prompt.iter().chain(&s.steps).chain(top)
        });
        let known = |&token: &TokenId| (token as usize) < size;
        if rows.all(|row| row.len() == size) && tokens.chain(&cut.tokens).all(known) {
            return Ok(());
        }
        Err(SeamError::invalid_input(format!(
            "an expected.json of another vocabulary than the model's {size} tokens"
        )))
    }

    /// Asks the oracle about a generated model.
    ///
    /// # Errors
    /// What the oracle says.
    pub fn from_oracle(model: &Generated) -> SeamResult<Self> {
        let narrow = |rows: &[Vec<f64>]| -> Vec<Vec<f32>> {
            rows.iter()
                .map(|row| row.iter().map(|&v| v as f32).collect())
                .collect()
        };
        let mut sequences = Vec::new();
        for (name, prompt, steps) in [("first", 11, 4), ("second", 7, 4)] {
            let tokens = model.tokens(name, prompt + steps);
            let rows = narrow(&oracle::logits(&model.spec, &model.weights, &tokens)?);
            let top5 = rows[..prompt - 1]
                .iter()
                .enumerate()
                .map(|(position, row)| {
                    let mut ids: Vec<TokenId> = (0..row.len() as TokenId).collect();
                    ids.sort_by(|a, b| row[*b as usize].total_cmp(&row[*a as usize]));
                    ids.truncate(5);
                    ExpectedTop {
                        position,
                        logits: ids.iter().map(|&id| row[id as usize]).collect(),
                        ids,
                    }
                });
            sequences.push(ExpectedSequence {
                name: name.into(),
                top5: top5.collect(),
                logits: rows[prompt - 1..].to_vec(),
                prompt: tokens[..prompt].to_vec(),
                steps: tokens[prompt..].to_vec(),
            });
        }
        let keep = 6;
        let tokens = model.tokens("after the cut", 3);
        let mut cut = sequences[0].prompt[..keep].to_vec();
        cut.extend(&tokens);
        let rows = narrow(&oracle::logits(&model.spec, &model.weights, &cut)?);
        Ok(Self {
            sequences,
            truncate: ExpectedTruncation {
                keep,
                tokens,
                logits: rows[keep..].to_vec(),
            },
        })
    }
}
