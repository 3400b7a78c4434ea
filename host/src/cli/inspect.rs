//! `halfhitch inspect`.

use std::fmt::Write as _;
use std::path::Path;

use halfhitch_seam::{Size, TokenId};

use super::args::InspectArgs;
use super::failure::{Failure, one_line};
use super::plan::count;
use super::{Context, output};
use crate::checkpoint::{Checkpoint, CheckpointSummary};
use crate::import::resolve_model;
use crate::text::{ChatTemplate, Tokenizer};

/// What there is beside the weights. What is broken is a warning here: inspecting is how one finds out.
struct Text {
    tokenizer: Option<Tokenizer>,
    has_template: bool,
    warnings: Vec<String>,
}

impl Text {
    fn read(folder: &Path, vocab_size: usize) -> Self {
        let mut warnings = Vec::new();
        let mut usable = |found: Result<bool, halfhitch_seam::SeamError>| match found {
            Ok(there) => there,
            Err(error) => {
                warnings.push(error.to_string());
                false
            }
        };
        let mut tokenizer = None;
        usable(Tokenizer::from_dir(folder).map(|found| {
            tokenizer = found;
            tokenizer.is_some()
        }));
        let has_template = usable(ChatTemplate::from_dir(folder).map(|t| t.is_some()));
        if let Some(t) = &tokenizer
            && t.vocab_size() > vocab_size
        {
            warnings.push(format!(
                "the tokenizer has {} tokens, the model only {vocab_size}",
                t.vocab_size()
            ));
        }
        Self {
            tokenizer,
            has_template,
            warnings,
        }
    }
}

/// Runs the command.
pub fn run(args: &InspectArgs, context: &Context) -> Result<(), Failure> {
    let cancel = context.interrupt.token();
    let folder = resolve_model(&args.model.model, &context.control(&cancel))?;
    context.progress.clear();
    let checkpoint = Checkpoint::open(&folder)?;
    let mut summary = checkpoint.summary();
    let text = Text::read(&folder, summary.vocab_size);
    summary.warnings.extend(text.warnings.iter().cloned());
    let mut stops = checkpoint.stop_tokens().clone();
    stops.extend(text.tokenizer.iter().flat_map(|t| t.stop_tokens()));
    summary.stop_tokens = stops.into_iter().collect();
    if args.json {
        let mut value = serde_json::to_value(&summary).map_err(std::io::Error::from)?;
        value["tokenizer"] = text.tokenizer.as_ref().map_or(
            serde_json::Value::Null,
            |t| serde_json::json!({ "tokens": t.vocab_size() }),
        );
        value["chat_template"] = text.has_template.into();
        return output::json(&value);
    }
    output::bytes(describe(&summary, &text).as_bytes())
}

fn describe(s: &CheckpointSummary, text: &Text) -> String {
    let mut out = String::new();
    let mut row = |name: &str, value: String| {
        // Writing to a string cannot fail.
        let _ = writeln!(out, "{name:<13} {}", one_line(&value));
    };
    row("folder", s.path.clone());
    row("architecture", s.architecture.clone());
    row("parameters", count(s.parameters));
    let window = match (s.window, s.windowed_layers) {
        (Some(window), n) => format!(", {n} of them with a window of {window} tokens"),
        (None, _) => String::new(),
    };
    row("layers", format!("{}{window}", s.layers));
    row(
        "widths",
        format!(
            "{} hidden, {} feed-forward",
            s.hidden_size, s.intermediate_size
        ),
    );
    row(
        "attention",
        format!(
            "{} heads on {} key-value heads, {} wide",
            s.heads, s.kv_heads, s.head_dim
        ),
    );
    let head = if s.tied_head { "tied" } else { "of its own" };
    row(
        "vocabulary",
        format!("{} tokens, head {head}", s.vocab_size),
    );
    row("context", format!("{} tokens", s.context));
    if !s.features.is_empty() {
        let features: Vec<String> = s.features.iter().map(ToString::to_string).collect();
        row("features", features.join(", "));
    }
    row(
        "size",
        format!(
            "{} of weights ({:.2} bits each) in {} {} of {}",
            Size(s.weight_bytes),
            s.bits_per_weight,
            s.files.len(),
            if s.files.len() == 1 { "file" } else { "files" },
            Size(s.file_bytes)
        ),
    );
    for form in &s.forms {
        row(
            "stored as",
            format!(
                "{}: {} weights, {} parameters, {}",
                form.label,
                form.weights,
                count(form.parameters),
                Size(form.bytes)
            ),
        );
    }
    row(
        "tokenizer",
        match &text.tokenizer {
            Some(t) => format!("{} tokens", t.vocab_size()),
            None => "none".into(),
        },
    );
    row(
        "chat template",
        if text.has_template { "yes" } else { "none" }.into(),
    );
    row(
        "stop tokens",
        stop_tokens(&s.stop_tokens, text.tokenizer.as_ref()),
    );
    for warning in &s.warnings {
        row("warning", warning.clone());
    }
    out
}

fn stop_tokens(stops: &[TokenId], tokenizer: Option<&Tokenizer>) -> String {
    if stops.is_empty() {
        return "none".into();
    }
    let names: Vec<String> = stops
        .iter()
        .map(|&id| match tokenizer.and_then(|t| t.id_to_token(id)) {
            Some(name) => format!("{id} {name}"),
            None => id.to_string(),
        })
        .collect();
    names.join(", ")
}
