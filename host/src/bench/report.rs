//! From the runs of all rounds to medians, spreads and shares of the bandwidth limit.

use std::collections::BTreeMap;

use halfhitch_seam::{DeviceInfo, ExecutionPlan, Precision, WeightId};
use serde::{Deserialize, Serialize};

use super::config::{Configuration, Workload};
use super::run::Run;
use super::spread::Spread;

/// A configuration that is measured, and its runs so far.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// The wishes.
    pub configuration: Configuration,
    /// What became of them.
    pub plan: ExecutionPlan,
    /// Bytes of weights that a decode step reads.
    pub step_bytes: u64,
    /// The runs, each with the bandwidth that was measured in its round.
    pub runs: Vec<(Run, f64)>,
}

impl Candidate {
    /// A configuration without runs; `tied` where the embedding is the head as well.
    pub fn new(configuration: Configuration, plan: ExecutionPlan, tied: bool) -> Self {
        Self {
            step_bytes: step_bytes(&plan, tied),
            configuration,
            plan,
            runs: Vec::new(),
        }
    }
}

/// Bytes of weights that a decode step reads: all of them, but of an embedding that is not the head
/// as well only the rows of a few tokens, which are nothing.
fn step_bytes(plan: &ExecutionPlan, tied: bool) -> u64 {
    plan.weights
        .iter()
        .filter(|w| w.id != WeightId::Embedding || tied)
        .map(|w| w.bytes)
        .sum()
}

/// Everything that was measured.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    /// The model, as it was named.
    pub model: String,
    /// The backend.
    pub backend: String,
    /// The device.
    pub device: DeviceInfo,
    /// What each configuration was made to do.
    pub workload: Workload,
    /// Rounds that were asked for.
    pub repeats: usize,
    /// The largest cache of a processor: weights that fit it are not bound by memory.
    pub cache_bytes: Option<u64>,
    /// Bandwidth of reading memory.
    pub bandwidth: Vec<Bandwidth>,
    /// The configurations with at least one run.
    pub configurations: Vec<Measured>,
    /// Configurations that the device refuses.
    pub impossible: Vec<Impossible>,
    /// What a process of its own costs, for each configuration that was measured both ways.
    #[serde(default)]
    pub isolation: Vec<Overhead>,
}

/// The cost of a process of its own, of each round's two runs alike but for that.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Overhead {
    /// The configuration in this process.
    pub configuration: Configuration,
    /// Time of a decoded token, isolated over not.
    pub decode: Spread,
    /// Time of the prompts, isolated over not, all lengths together.
    pub prefill: Option<Spread>,
}

impl Overhead {
    /// One for each pair of candidates that differ in nothing else.
    pub fn of(candidates: &[Candidate]) -> Vec<Self> {
        let pairs = candidates.iter().filter_map(|here| {
            let like = Configuration {
                isolated: true,
                ..here.configuration
            };
            let there = candidates.iter().find(|c| c.configuration == like)?;
            (!here.configuration.isolated).then_some((here, there))
        });
        pairs
            .filter_map(|(here, there)| {
                let over = |value: &dyn Fn(&Run) -> f64| {
                    let rounds = here.runs.iter().zip(&there.runs);
                    Spread::of(rounds.map(|((a, _), (b, _))| value(b) / value(a)))
                };
                let prompts = |run: &Run| {
                    let each = run.prefill.iter();
                    each.map(|p| p.tokens as f64 / p.tokens_per_s).sum::<f64>()
                };
                Some(Self {
                    configuration: here.configuration,
                    decode: over(&|run| 1.0 / run.decode_tokens_per_s)?,
                    prefill: over(&prompts),
                })
            })
            .collect()
    }
}

/// Bandwidth of some threads.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Bandwidth {
    /// Threads.
    pub threads: usize,
    /// Bytes a second.
    pub bytes_per_s: Spread,
}

/// A configuration that was not measured.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Impossible {
    /// The wishes.
    pub configuration: Configuration,
    /// Why it is not possible.
    pub reason: String,
}

/// A configuration's figures. Rates count all sequences of a batch together.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Measured {
    /// The wishes.
    pub configuration: Configuration,
    /// Precision of contractions.
    pub precision: Precision,
    /// What became of quantised weights, in words; nothing for a model without.
    pub quantised: Option<String>,
    /// Bytes of weights that a decode step reads, by the plan.
    pub step_bytes: u64,
    /// Seconds from the first file to an open session, without compiling.
    pub load_s: Spread,
    /// Seconds of compiling in the run that compiled; 0 where the cache had it.
    pub compile_s: f64,
    /// Seconds of the session's very first prompt, of 32 tokens.
    pub first_token_s: Spread,
    /// Prompts.
    pub prefill: Vec<Prefill>,
    /// Tokens a second of decoding.
    pub decode_tokens_per_s: Spread,
    /// Bytes of weights a second of decoding, over the bandwidth of the same threads in the same
    /// round.
    pub bandwidth_share: Spread,
    /// Single steps.
    pub at: Vec<Step>,
    /// Bytes that the process had resident at most.
    pub peak_rss_bytes: Option<Spread>,
}

/// Prompts of one length.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Prefill {
    /// Tokens.
    pub tokens: usize,
    /// Tokens a second.
    pub tokens_per_s: Spread,
}

/// Decode steps at one position.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Step {
    /// Tokens before the step.
    pub position: usize,
    /// Seconds of a step.
    pub step_s: Spread,
}

impl Measured {
    /// The figures of a candidate; nothing where it has no runs.
    pub fn new(candidate: &Candidate) -> Option<Self> {
        let runs = &candidate.runs;
        let over = |value: &dyn Fn(&Run) -> f64| Spread::of(runs.iter().map(|(run, _)| value(run)));
        let (first, _) = runs.first()?;
        let prefill = first.prefill.iter().enumerate().map(|(i, one)| {
            Some(Prefill {
                tokens: one.tokens,
                tokens_per_s: over(&|run| run.prefill.get(i).map_or(f64::NAN, |p| p.tokens_per_s))?,
            })
        });
        let at = first.at.iter().enumerate().map(|(i, one)| {
            Some(Step {
                position: one.position,
                step_s: over(&|run| run.at.get(i).map_or(f64::NAN, |s| s.step_s))?,
            })
        });
        let batch = candidate.configuration.batch.max(1) as f64;
        let bytes_per_token = candidate.step_bytes as f64 / batch;
        let peaks: Option<Vec<u64>> = runs.iter().map(|(run, _)| run.peak_rss_bytes).collect();
        Some(Self {
            configuration: candidate.configuration,
            precision: candidate.plan.precision,
            quantised: quantised(&candidate.plan),
            step_bytes: candidate.step_bytes,
            load_s: over(&|run| run.load_s)?,
            compile_s: runs
                .iter()
                .map(|(run, _)| run.compile_s)
                .fold(0.0, f64::max),
            first_token_s: over(&|run| run.first_token_s)?,
            prefill: prefill.collect::<Option<_>>()?,
            decode_tokens_per_s: over(&|run| run.decode_tokens_per_s)?,
            bandwidth_share: Spread::of(
                runs.iter()
                    .map(|(run, limit)| run.decode_tokens_per_s * bytes_per_token / limit),
            )?,
            at: at.collect::<Option<_>>()?,
            peak_rss_bytes: peaks.and_then(|p| Spread::of(p.into_iter().map(|b| b as f64))),
        })
    }
}

fn quantised(plan: &ExecutionPlan) -> Option<String> {
    let choice = plan.choices.iter().find(|c| c.topic == "quantised")?;
    Some(choice.chosen.clone())
}

/// The bandwidths of all rounds, by number of threads.
pub fn bandwidths(measured: &BTreeMap<usize, Vec<f64>>) -> Vec<Bandwidth> {
    measured
        .iter()
        .filter_map(|(&threads, values)| {
            let bytes_per_s = Spread::of(values.iter().copied())?;
            Some(Bandwidth {
                threads,
                bytes_per_s,
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use halfhitch_seam::{
        DType, DeviceId, MemoryEstimate, PlannedWeight, QuantRequest, WeightForm,
    };

    fn run(decode: f64) -> Run {
        Run {
            load_s: 1.0,
            compile_s: 0.0,
            first_token_s: 0.1,
            prefill: Vec::new(),
            decode_tokens_per_s: decode,
            at: Vec::new(),
            peak_rss_bytes: Some(1 << 20),
        }
    }

    fn candidate(batch: usize, runs: Vec<(Run, f64)>) -> Candidate {
        let configuration = Configuration {
            precision: None,
            quant: QuantRequest::Auto,
            representation: None,
            threads: Some(1),
            batch,
            isolated: false,
        };
        let plan = ExecutionPlan {
            device: DeviceInfo {
                id: DeviceId("0".into()),
                ordinal: 0,
                name: "test".into(),
                driver: "test".into(),
            },
            precision: Precision::F32,
            kv_dtype: DType::F32,
            context: 64,
            max_sequences: batch,
            prefill_chunk: 16,
            threads: Some(1),
            weights: Vec::new(),
            representations: Vec::new(),
            tuned: Vec::new(),
            memory: MemoryEstimate::default(),
            choices: Vec::new(),
        };
        Candidate {
            configuration,
            plan,
            step_bytes: 1000,
            runs,
        }
    }

    #[test]
    fn the_share_is_taken_within_each_round() {
        // The machine halves its speed for a round: rate and bandwidth fall, the share stays.
        let runs = vec![(run(10.0), 20_000.0), (run(5.0), 10_000.0)];
        let share = Measured::new(&candidate(1, runs)).unwrap().bandwidth_share;
        assert_eq!(share.values, [0.5, 0.5]);
    }

    #[test]
    fn a_batch_reads_its_weights_once() {
        let share = |batch| {
            let measured = Measured::new(&candidate(batch, vec![(run(8.0), 10_000.0)])).unwrap();
            measured.bandwidth_share.median
        };
        assert_eq!(share(1), 0.8);
        assert_eq!(share(4), 0.2);
    }

    #[test]
    fn the_cost_of_a_process_is_taken_within_each_round() {
        // The second round is twice as slow for both.
        let here = candidate(1, vec![(run(100.0), 1.0), (run(50.0), 1.0)]);
        let mut there = candidate(1, vec![(run(80.0), 1.0), (run(40.0), 1.0)]);
        there.configuration.isolated = true;
        let alone = candidate(2, vec![(run(1.0), 1.0)]);
        let found = Overhead::of(&[here, there, alone]);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].decode.values, [1.25, 1.25]);
        assert!(found[0].prefill.is_none());
    }

    #[test]
    fn what_never_ran_has_no_figures() {
        assert!(Measured::new(&candidate(1, Vec::new())).is_none());
    }

    #[test]
    fn an_embedding_counts_where_it_is_the_head() {
        let mut plan = candidate(1, Vec::new()).plan;
        let weight = |id, bytes| PlannedWeight {
            id,
            stored: WeightForm::Dense(DType::F32),
            resident: WeightForm::Dense(DType::F32),
            bytes,
        };
        plan.weights = vec![
            weight(WeightId::Embedding, 100),
            weight(WeightId::FinalNorm, 7),
        ];
        assert_eq!(
            (step_bytes(&plan, true), step_bytes(&plan, false)),
            (107, 7)
        );
    }
}
