//! Greedy trajectories of the real model, by transformers in f32.

use std::path::PathBuf;

use serde::Deserialize;

use crate::root;

/// All of them.
#[derive(Deserialize)]
pub struct Oracle {
    /// One a prompt.
    pub cases: Vec<Case>,
}

/// A prompt and what follows it.
#[derive(Deserialize)]
pub struct Case {
    /// The prompt.
    pub text: String,
    /// Its tokens.
    pub prompt_ids: Vec<u32>,
    /// What was generated.
    pub generated_ids: Vec<u32>,
    /// The largest logits before each generated token.
    pub top5: Vec<Top>,
}

/// The largest logits of a position.
#[derive(Deserialize)]
pub struct Top {
    /// Tokens, the likeliest first.
    pub ids: Vec<u32>,
    /// Their logits.
    pub logits: Vec<f32>,
    /// The logarithm of the sum of all logits' exponentials.
    pub logsumexp: f64,
}

/// SmolLM2-135M's.
///
/// # Panics
/// Where the fixture is not there.
pub fn smollm2() -> Oracle {
    let path = crate::fixture("oracle/smollm2-135m-float32.json");
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Where the real model lies.
///
/// # Panics
/// Where it does not: a model that is not there must not look like one that is right.
pub fn model() -> PathBuf {
    let folder = root().join("models/smollm2-135m");
    assert!(
        folder.join("config.json").exists(),
        "the model is not there; run `make model` first"
    );
    folder
}
