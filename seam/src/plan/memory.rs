//! What a plan takes of the device's memory.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::dtype::DType;
use crate::model::{FeedForward, ModelSpec};

/// Estimated memory, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryEstimate {
    /// Resident weights.
    pub weights: u64,
    /// Key-value cache a token of one sequence. Caches grow with use.
    pub kv_per_token: u64,
    /// Key-value caches with every sequence at full context.
    pub kv_full: u64,
    /// Activations of the largest step.
    pub workspace: u64,
    /// Attention scores, and what the softmax makes of them, of the widest layer for the last full chunk
    /// of a prompt at full context. They grow with the context.
    #[serde(default)]
    pub scores_full: u64,
}

impl MemoryEstimate {
    /// Estimates for a session.
    pub fn new(
        model: &ModelSpec,
        weights: u64,
        kv: DType,
        chunk: usize,
        context: usize,
        sequences: usize,
    ) -> Self {
        let kv_per_token: u64 = model
            .layers
            .iter()
            .map(|l| 2 * l.attention.kv_width() as u64 * kv.size() as u64)
            .sum();
        let widest = model
            .layers
            .iter()
            .map(|l| {
                let a = &l.attention;
                let mlp = match &l.feed_forward {
                    FeedForward::Gated(mlp) => mlp.intermediate,
                    FeedForward::MixtureOfExperts(moe) => moe.expert.intermediate,
                };
                2 * model.hidden_size + 2 * a.query_width() + 2 * a.kv_width() + 2 * mlp
            })
            .max()
            .unwrap_or(0);
        let heads = model.layers.iter().map(|l| l.attention.heads).max();
        let scores = [2 * size_of::<f32>(), heads.unwrap_or(0), chunk, context];
        Self {
            weights,
            kv_per_token,
            kv_full: kv_per_token
                .saturating_mul(context as u64)
                .saturating_mul(sequences as u64),
            workspace: 4 * ((chunk as u64).saturating_mul(widest as u64) + model.vocab_size as u64),
            scores_full: scores
                .into_iter()
                .fold(1, |all, n| all.saturating_mul(n as u64)),
        }
    }

    /// What must be there before the first token: weights and workspace.
    pub const fn at_start(&self) -> u64 {
        self.weights.saturating_add(self.workspace)
    }

    /// Everything with full caches, while a long prompt runs.
    pub const fn total(&self) -> u64 {
        self.at_start()
            .saturating_add(self.kv_full)
            .saturating_add(self.scores_full)
    }
}

impl fmt::Display for MemoryEstimate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "memory      {} weights + {} workspace + {} cache a token ({} at full context, where a prompt's scores take {})",
            Size(self.weights),
            Size(self.workspace),
            Size(self.kv_per_token),
            Size(self.kv_full),
            Size(self.scores_full)
        )
    }
}

/// Prints bytes for people, in powers of 1024.
#[derive(Clone, Copy, Debug)]
pub struct Size(pub u64);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut value = self.0 as f64;
        let mut unit = "B";
        for larger in ["KiB", "MiB", "GiB", "TiB"] {
            if value < 1024.0 {
                break;
            }
            value /= 1024.0;
            unit = larger;
        }
        if unit == "B" {
            write!(f, "{} B", self.0)
        } else {
            write!(f, "{value:.1} {unit}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Size;

    #[test]
    fn sizes_read_well() {
        assert_eq!(Size(512).to_string(), "512 B");
        assert_eq!(Size(98 << 20).to_string(), "98.0 MiB");
        assert_eq!(Size(u64::MAX).to_string(), "16777216.0 TiB");
    }
}
