//! `halfhitch import` and `halfhitch quantize`.

use halfhitch_seam::Size;

use super::args::{ImportArgs, QuantizeArgs};
use super::failure::{Failure, one_line};
use super::plan::count;
use super::{Context, output};
use crate::import::{ImportOptions, import_gguf};
use crate::quantize::{QuantizeOptions, quantize_folder};

/// Runs `halfhitch import`.
pub fn import(args: &ImportArgs, context: &Context) -> Result<(), Failure> {
    let cancel = context.interrupt.token();
    let options = ImportOptions { force: args.force };
    let control = context.control(&cancel);
    let report = import_gguf(&args.gguf, &args.output, options, &control)?;
    context.progress.clear();
    if args.json {
        return output::json(&report);
    }
    if !context.quiet {
        for note in &report.notes {
            output::note(&format!("note: {}", one_line(note)));
        }
    }
    let types: Vec<String> = report
        .tensors
        .iter()
        .map(|(t, n)| format!("{n} {t}"))
        .collect();
    let there = |yes: bool| if yes { "with" } else { "without" };
    output::line(&format!(
        "{}: {}, {} parameters, {} tensors, {} of weights, {} tokenizer, {} chat template",
        report.output.display(),
        report.architecture,
        count(report.parameters),
        types.join(" + "),
        Size(report.weights_bytes),
        there(report.tokenizer),
        there(report.chat_template),
    ))
}

/// Runs `halfhitch quantize`.
pub fn quantize(args: &QuantizeArgs, context: &Context) -> Result<(), Failure> {
    let cancel = context.interrupt.token();
    let options = QuantizeOptions {
        bits: args.bits,
        group_size: args.group_size,
        scale_dtype: args.scale_dtype,
        force: args.force,
    };
    let control = context.control(&cancel);
    let report = quantize_folder(&args.input, &args.output, options, &control)?;
    context.progress.clear();
    if args.json {
        return output::json(&report);
    }
    if !context.quiet && !report.skipped.is_empty() {
        output::note(&format!(
            "note: {} stay dense, their width is no multiple of the group size: {}",
            report.skipped.len(),
            one_line(&report.skipped.join(", "))
        ));
    }
    output::line(&format!(
        "{}: {} modules quantised to {} bits in groups of {}, {} -> {}",
        report.output.display(),
        report.quantized,
        args.bits.get(),
        args.group_size.get(),
        Size(report.source_bytes),
        Size(report.weights_bytes),
    ))
}
