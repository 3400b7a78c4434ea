//! What is measured: configurations, and what each is made to do.

use std::fmt;

use halfhitch_seam::{
    ExecutionPlan, PlanRequest, Precision, QuantRequest, RepresentationName, SeamError, SeamResult,
};
use serde::{Deserialize, Serialize};

/// Tokens of the prompt before decoding, and of the one whose first token is timed.
pub const PROMPT: usize = 32;

/// Steps timed at a position; their median counts.
pub const STEPS_AT: usize = 9;

/// Most configurations of one measurement.
const MOST: usize = 1024;

/// One way to run a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Configuration {
    /// Precision of contractions; nothing leaves it to the device.
    pub precision: Option<Precision>,
    /// What is done with quantised weights.
    pub quant: QuantRequest,
    /// How contractions are written; nothing leaves it to the backend.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub representation: Option<RepresentationName>,
    /// Processor threads; nothing leaves it to the backend.
    pub threads: Option<usize>,
    /// Sequences that are decoded together.
    pub batch: usize,
    /// Whether the backend runs in a process of its own.
    #[serde(default)]
    pub isolated: bool,
}

impl Configuration {
    /// The wishes as negotiation takes them.
    pub const fn request(&self, context: Option<usize>) -> PlanRequest {
        PlanRequest {
            precision: self.precision,
            quant: self.quant,
            context,
            sequences: self.batch,
            threads: self.threads,
            representation: self.representation,
        }
    }
}

impl fmt::Display for Configuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.precision {
            Some(precision) => precision.fmt(f)?,
            None => f.write_str("auto")?,
        }
        write!(f, " {}", quant_name(self.quant))?;
        if let Some(representation) = self.representation {
            write!(f, " {}", representation.as_str())?;
        }
        if let Some(threads) = self.threads {
            write!(
                f,
                ", {threads} thread{}",
                if threads == 1 { "" } else { "s" }
            )?;
        }
        if self.batch > 1 {
            write!(f, ", batch {}", self.batch)?;
        }
        if self.isolated {
            f.write_str(", isolated")?;
        }
        Ok(())
    }
}

/// A way with quantised weights, as it is written on the command line.
pub const fn quant_name(quant: QuantRequest) -> &'static str {
    match quant {
        QuantRequest::Auto => "auto",
        QuantRequest::Packed => "packed",
        QuantRequest::Dequant => "dequant",
    }
}

/// Alternatives of which every combination is a configuration.
#[derive(Clone, Debug)]
pub struct Matrix {
    /// Precisions; empty leaves it to the device.
    pub precisions: Vec<Precision>,
    /// Ways with quantised weights.
    pub quants: Vec<QuantRequest>,
    /// How contractions are written, nothing for the backend's own choice; empty is that alone.
    pub representations: Vec<Option<RepresentationName>>,
    /// Numbers of threads; empty leaves it to the backend.
    pub threads: Vec<usize>,
    /// Numbers of sequences decoded together.
    pub batches: Vec<usize>,
    /// Whether each is measured with the backend in a process of its own as well.
    pub isolate: bool,
}

impl Matrix {
    /// Every combination once, batches varying fastest; an isolated one right after its like.
    ///
    /// # Errors
    /// `InvalidInput` where there are more than a thousand.
    pub fn configurations(&self) -> SeamResult<Vec<Configuration>> {
        let precisions = or_none(&self.precisions);
        let threads = or_none(&self.threads);
        let representations = match self.representations.as_slice() {
            [] => &[None],
            some => some,
        };
        let count = [
            precisions.len(),
            self.quants.len(),
            representations.len(),
            threads.len(),
            self.batches.len(),
        ]
        .into_iter()
        .fold(1usize, usize::saturating_mul);
        if count > MOST {
            return Err(SeamError::invalid_input(format!(
                "{count} configurations; at most {MOST} are measured together"
            )));
        }
        let mut all = Vec::with_capacity(count);
        for &precision in &precisions {
            for &quant in &self.quants {
                for &representation in representations {
                    for &threads in &threads {
                        for &batch in &self.batches {
                            all.push(Configuration {
                                precision,
                                quant,
                                representation,
                                threads,
                                batch,
                                isolated: false,
                            });
                        }
                    }
                }
            }
        }
        Ok(self.once(all))
    }

    /// Each of `all` once, an isolated one after it where that is wanted.
    fn once(&self, all: Vec<Configuration>) -> Vec<Configuration> {
        let mut once: Vec<Configuration> = Vec::with_capacity(all.len());
        for one in all {
            if once.contains(&one) {
                continue;
            }
            once.push(one);
            if self.isolate {
                once.push(Configuration {
                    isolated: true,
                    ..one
                });
            }
        }
        once
    }
}

fn or_none<T: Copy>(values: &[T]) -> Vec<Option<T>> {
    if values.is_empty() {
        return vec![None];
    }
    values.iter().copied().map(Some).collect()
}

/// What each configuration is made to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Workload {
    /// Lengths of prompts, in tokens, each from an empty cache.
    pub prefill: Vec<usize>,
    /// Tokens to decode after a prompt of [`PROMPT`].
    pub decode: usize,
    /// Numbers of tokens that precede a decode step that is timed by itself.
    pub at: Vec<usize>,
    /// Times that everything is done before it is timed.
    pub warmup: usize,
}

impl Workload {
    /// Tokens that the longest sequence reaches.
    pub fn longest(&self) -> usize {
        let at = self.at.iter().map(|at| at.saturating_add(STEPS_AT));
        let all = self.prefill.iter().copied().chain(at);
        all.chain([self.decode.saturating_add(PROMPT)])
            .max()
            .unwrap_or(0)
    }

    /// Checks that it fits a plan's context.
    ///
    /// # Errors
    /// `InvalidInput`, with both numbers.
    pub fn check(&self, plan: &ExecutionPlan) -> SeamResult<()> {
        let longest = self.longest();
        if longest <= plan.context {
            return Ok(());
        }
        Err(SeamError::invalid_input(format!(
            "a sequence of {longest} tokens is to be measured, the context holds {}",
            plan.context
        ))
        .hint(format!(
            "shorten --prefill, --decode (a prompt of {PROMPT} comes before) or --at ({STEPS_AT} \
             steps come after)"
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_combination_is_there_once() {
        let matrix = Matrix {
            precisions: vec![Precision::F32, Precision::F16],
            quants: vec![QuantRequest::Packed, QuantRequest::Dequant],
            representations: vec![None, Some(RepresentationName::of("words"))],
            threads: vec![1, 2, 1],
            batches: vec![1, 4],
            isolate: false,
        };
        let all = matrix.configurations().unwrap();
        assert_eq!(all.len(), 32);
        assert_eq!(all[0].to_string(), "f32 packed, 1 thread");
        assert_eq!(all[31].to_string(), "f16 dequant words, 2 threads, batch 4");
        let wished = all[31].request(None).representation;
        assert_eq!(wished, Some(RepresentationName::of("words")));
    }

    #[test]
    fn what_is_not_said_is_left_to_the_device() {
        let matrix = Matrix {
            precisions: Vec::new(),
            quants: vec![QuantRequest::Auto],
            representations: Vec::new(),
            threads: Vec::new(),
            batches: vec![1],
            isolate: true,
        };
        let all = matrix.configurations().unwrap();
        assert_eq!(all.len(), 2);
        assert_eq!(all[0].to_string(), "auto auto");
        assert_eq!(all[1].to_string(), "auto auto, isolated");
        assert_eq!(all[0].request(None), PlanRequest::default());
    }

    #[test]
    fn more_than_anybody_waits_for_is_refused() {
        let matrix = Matrix {
            precisions: Vec::new(),
            quants: vec![QuantRequest::Auto],
            representations: Vec::new(),
            threads: (1..=100).collect(),
            batches: (1..=100).collect(),
            isolate: false,
        };
        assert!(matrix.configurations().is_err());
    }

    #[test]
    fn the_longest_sequence_counts_what_comes_around_it() {
        let workload = |prefill: &[usize], decode, at: &[usize]| Workload {
            prefill: prefill.into(),
            decode,
            at: at.into(),
            warmup: 1,
        };
        assert_eq!(workload(&[512], 128, &[]).longest(), 512);
        assert_eq!(workload(&[32], 128, &[]).longest(), PROMPT + 128);
        assert_eq!(workload(&[32], 8, &[1000]).longest(), 1000 + STEPS_AT);
        assert_eq!(workload(&[], usize::MAX, &[]).longest(), usize::MAX);
    }
}
