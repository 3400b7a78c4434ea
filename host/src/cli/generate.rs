//! `halfhitch generate`.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::num::NonZeroUsize;
use std::ops::ControlFlow;

use halfhitch_seam::{DeviceInfo, ExecutionPlan, Size, TokenId};
use serde::Serialize;

use super::args::{GenerateArgs, SamplingArgs, StopArgs};
use super::failure::Failure;
use super::prompt::Source;
use super::{Context, output, use_threads};
use crate::engine::{
    Completion, Engine, FinishReason, GenerateOptions, Model, Piece, Timings, TopLogit,
    check_prompt, peak_rss_bytes,
};
use crate::sampling::SamplingParams;

/// The object that `--json` prints.
#[derive(Serialize)]
struct Report<'a> {
    /// The text; null where the model has no tokenizer.
    text: Option<&'a str>,
    /// The prompt's token ids.
    prompt_tokens: &'a [TokenId],
    /// The generated token ids, a final stop token included.
    tokens: &'a [TokenId],
    /// `stop`, `length` or `cancelled`.
    finish_reason: FinishReason,
    /// For each generated token the largest logits it was chosen from.
    top_logits: &'a [Vec<TopLogit>],
    timings: Timings,
    peak_rss_bytes: Option<u64>,
    backend: &'a str,
    device: &'a DeviceInfo,
    /// The sampler's seed; null where nothing was random.
    seed: Option<u64>,
    /// How the model ran; `halfhitch plan --json` has every weight as well.
    plan: PlanSummary<'a>,
}

#[derive(Serialize)]
struct PlanSummary<'a> {
    precision: halfhitch_seam::Precision,
    kv_dtype: halfhitch_seam::DType,
    context: usize,
    max_sequences: usize,
    prefill_chunk: usize,
    memory: halfhitch_seam::MemoryEstimate,
    choices: &'a [halfhitch_seam::Choice],
}

impl<'a> From<&'a ExecutionPlan> for PlanSummary<'a> {
    fn from(plan: &'a ExecutionPlan) -> Self {
        Self {
            precision: plan.precision,
            kv_dtype: plan.kv_dtype,
            context: plan.context,
            max_sequences: plan.max_sequences,
            prefill_chunk: plan.prefill_chunk,
            memory: plan.memory,
            choices: &plan.choices,
        }
    }
}

/// Runs the command.
pub fn run(args: GenerateArgs, context: &Context) -> Result<(), Failure> {
    use_threads(args.device.threads)?;
    // Whoever is asked for a prompt can leave instead: reading does not look at a token.
    let source = context.interrupt.ending(|| Source::read(&args.prompt))?;
    let cancel = context.interrupt.token();
    let control = context.control(&cancel);
    let target = context.registry().select(&args.device.backend)?;
    let model = Model::open(&args.model.model, &control)?;
    let prompt = source.tokens(&model, &args.prompt)?;
    // All that can be wrong with the prompt is said before gigabytes are loaded.
    let request = args.device.plan_request();
    let plan = model.plan(&target, &request)?;
    check_prompt(&prompt, model.spec().vocab_size, plan.context)?;
    let mut engine = Engine::open(model, target, &request, &control)?;
    context.progress.clear();
    if !context.quiet && args.sampling.is_idle() {
        output::note(
            "note: without --temperature the likeliest token is taken: --top-k, --top-p, --min-p and \
             --seed change nothing",
        );
    }

    let options = options(&args.stop, &args.sampling, args.top_logits);
    let mut broken = None;
    let mut printer = Printer::default();
    let completion = engine.generate(&prompt, &options, &control, &mut |piece| {
        if args.json {
            return ControlFlow::Continue(());
        }
        context.progress.clear();
        match printer.print(piece) {
            Ok(()) => ControlFlow::Continue(()),
            Err(failure) => {
                broken = Some(failure);
                ControlFlow::Break(())
            }
        }
    })?;
    context.progress.clear();
    if let Some(failure) = broken {
        return Err(failure);
    }
    if args.json {
        output::json(&Report {
            text: completion.text.as_deref(),
            prompt_tokens: &prompt,
            tokens: &completion.tokens,
            finish_reason: completion.finish_reason,
            top_logits: &completion.top_logits,
            timings: completion.timings,
            peak_rss_bytes: peak_rss_bytes(),
            backend: &engine.target().name,
            device: &engine.plan().device,
            seed: (!options.sampling.is_greedy()).then_some(options.sampling.seed),
            plan: engine.plan().into(),
        })?;
    } else {
        printer.end()?;
    }
    if !context.quiet {
        output::note(&stats_line(&completion));
    }
    match completion.finish_reason {
        FinishReason::Cancelled => Err(Failure::Interrupted),
        _ => Ok(()),
    }
}

/// The flags of sampling and stopping as generation takes them. Without `--seed` a new one is taken.
pub fn options(
    stop: &StopArgs,
    sampling: &SamplingArgs,
    top_logits: Option<NonZeroUsize>,
) -> GenerateOptions {
    GenerateOptions {
        max_tokens: stop.max_tokens.get(),
        sampling: SamplingParams {
            temperature: sampling.temperature,
            top_k: sampling.top_k,
            top_p: sampling.top_p,
            min_p: sampling.min_p,
            repetition_penalty: sampling.repetition_penalty,
            seed: sampling.seed.unwrap_or_else(fresh_seed),
        },
        stop: stop.stop.clone(),
        ignore_eos: stop.ignore_eos,
        top_logits: top_logits.map_or(0, NonZeroUsize::get),
    }
}

/// A seed from the randomness that the standard library keys its hash maps with.
fn fresh_seed() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// Streams an answer to stdout.
#[derive(Default)]
pub struct Printer {
    started: bool,
    at_line_start: bool,
}

impl Printer {
    /// Prints a part at once: text as it is, tokens apart by commas, as `--prompt-tokens` takes them.
    pub fn print(&mut self, piece: Piece<'_>) -> Result<(), Failure> {
        let text = match piece {
            Piece::Text(text) => text.to_owned(),
            Piece::Token(id) if self.started => format!(",{id}"),
            Piece::Token(id) => id.to_string(),
        };
        self.started = true;
        self.at_line_start = text.ends_with('\n');
        output::bytes(text.as_bytes())
    }

    /// Ends the answer's last line.
    pub fn end(&self) -> Result<(), Failure> {
        if self.at_line_start {
            return Ok(());
        }
        output::line("")
    }
}

/// What it took, on one line.
pub fn stats_line(completion: &Completion) -> String {
    let t = &completion.timings;
    let mut parts = vec![format!("load {}", seconds(t.load_s))];
    if t.compile_s > 0.0 {
        parts.push(format!("compile {}", seconds(t.compile_s)));
    }
    parts.extend(t.ttft_s.map(|s| format!("first token {}", seconds(s))));
    parts.extend(
        t.prefill_tokens_per_s
            .map(|r| format!("prefill {r:.1} tok/s")),
    );
    parts.extend(
        t.decode_tokens_per_s
            .map(|r| format!("decode {r:.1} tok/s")),
    );
    parts.extend(peak_rss_bytes().map(|bytes| format!("peak {}", Size(bytes))));
    if completion.finish_reason == FinishReason::Length {
        parts.push("cut at the limit of tokens".into());
    }
    parts.join(" · ")
}

fn seconds(s: f64) -> String {
    if s < 9.995 {
        format!("{s:.2} s")
    } else {
        format!("{s:.0} s")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::LoadTimings;
    use std::time::Duration;

    #[test]
    fn the_stats_line_says_what_happened() {
        let load = LoadTimings {
            load: Duration::from_millis(200),
            compile: Duration::from_secs(3),
        };
        let first = Some(Duration::from_millis(500));
        let completion = Completion {
            text: None,
            tokens: vec![1, 2],
            finish_reason: FinishReason::Length,
            top_logits: Vec::new(),
            timings: Timings::new(load, 10, 2, first, Duration::from_millis(1500)),
        };
        let line = stats_line(&completion);
        let start = "load 0.20 s · compile 3.00 s · first token 0.50 s · prefill 20.0 tok/s · \
                     decode 1.0 tok/s";
        assert!(line.starts_with(start), "{line}");
    }
}
