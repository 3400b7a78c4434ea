//! Dense folders become MLX affine.
//!
//! [`quantize_folder`] writes what `mlx_lm.convert -q` would: every linear layer and the embedding
//! packed, all else as it was, `quantization` in config.json. The numbers are those of `mx.quantize`
//! on a CPU (see [`affine`]), whose scales have the type of the weights it is given: another type of
//! scales means that the weights are rounded to it first.

pub mod affine;
mod files;

use std::path::{Path, PathBuf};

use half::{bf16, f16};
use halfhitch_seam::{
    AffineScheme, Bits, Control, DType, ErrorCode, GroupSize, ResultExt, SeamError, SeamResult,
    Stage, Tensor, Weight, quant,
};
use rayon::prelude::*;
use serde::Serialize;

use crate::checkpoint::Checkpoint;
use crate::import::folder::{self, PlannedTensor, SafetensorsWriter, StagedFolder, TensorId};

/// Bytes of input that are quantised between two looks at the cancel token.
const CHUNK_BYTES: usize = 4 << 20;

/// How to quantise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuantizeOptions {
    /// Width of a value.
    pub bits: Bits,
    /// Values to a scale and a bias.
    pub group_size: GroupSize,
    /// Type of scales and biases: f32, f16 or bf16. Without it each weight's own type. Where it is
    /// another, weights are rounded to it first: `mx.quantize(w.astype(dtype))`.
    pub scale_dtype: Option<DType>,
    /// Replace a model folder that is there.
    pub force: bool,
}

/// What was written.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct QuantizeReport {
    /// The folder.
    pub output: PathBuf,
    /// How many modules are packed.
    pub quantized: usize,
    /// Modules that stay dense because their width is no multiple of the group size.
    pub skipped: Vec<String>,
    /// Bytes of the weights that were read.
    pub source_bytes: u64,
    /// Bytes of the weights file that was written.
    pub weights_bytes: u64,
}

/// A weight of the input and what becomes of it.
struct Job<'a> {
    name: &'a str,
    tensor: &'a Tensor,
    /// The scheme it gets, or nothing where it stays.
    scheme: Option<AffineScheme>,
    /// Its first place in the plan; scales and biases follow.
    to: TensorId,
}

/// Quantises the dense model folder `input` to a new folder at `output`, which appears only when it
/// is complete. Takes no more memory than a few rows. Progress is [`Stage::Convert`], in bytes of
/// the input. Tokenizer, chat template and whatever else describes the model are copied.
///
/// # Errors
/// As [`Checkpoint::open`] for the input; `InvalidInput` where it is quantised already, where
/// something is at `output`, or for a scale type that holds no real numbers; `NonFinite`, naming the
/// tensor, where a value is not finite or a scale does not fit its type; `Io`, `Cancelled`.
pub fn quantize_folder(
    input: &Path,
    output: &Path,
    options: QuantizeOptions,
    control: &Control<'_>,
) -> SeamResult<QuantizeReport> {
    if options.scale_dtype.is_some_and(|d| !d.is_float()) {
        return Err(SeamError::invalid_input(
            "scales can be f32, f16 or bf16, not packed words",
        ));
    }
    let checkpoint = Checkpoint::open(input)?;
    // Replacing the dense model by its quantised form could not be undone.
    folder::check_apart(input, output)?;
    let summary = checkpoint.summary();
    let mut jobs = Vec::new();
    let mut plan = Vec::new();
    let mut skipped = Vec::new();
    for entry in &summary.tensors {
        let Weight::Dense(tensor) = checkpoint.weights().get(entry.weight)? else {
            return Err(SeamError::invalid_input(format!(
                "`{}` is quantised already: {}",
                entry.name, entry.form
            ))
            .context(input.display().to_string())
            .hint("quantise the dense model it was made from"));
        };
        let scheme = scheme_of(tensor, &options);
        if scheme.is_none() && tensor.shape().len() == 2 {
            skipped.push(module(&entry.name).to_owned());
        }
        jobs.push(Job {
            name: &entry.name,
            tensor,
            scheme,
            to: TensorId(plan.len()),
        });
        plan_tensor(&mut plan, &entry.name, tensor, scheme);
    }
    let quantized = jobs.iter().filter(|j| j.scheme.is_some()).count();
    if quantized == 0 {
        return Err(SeamError::invalid_input(format!(
            "no layer's width is a multiple of the group size, {}",
            options.group_size.get()
        ))
        .context(input.display().to_string()));
    }

    let staged = StagedFolder::create(output, options.force)?;
    let source_bytes = jobs.iter().map(|j| j.tensor.bytes().len() as u64).sum();
    files::write_config(input, &staged, &options)?;
    files::copy_others(input, &staged)?;
    let mut weights = SafetensorsWriter::create(&staged.path(folder::WEIGHTS), &plan)?;
    let mut done = 0;
    control.progress(Stage::Convert, 0, source_bytes);
    for job in &jobs {
        job.write(&mut weights, control, |bytes| {
            done += bytes;
            control.progress(Stage::Convert, done, source_bytes);
        })
        .in_context(|| format!("`{}`", job.name))
        .in_context(|| input.display().to_string())?;
    }
    let weights_bytes = weights.finish()?;
    staged.verify()?;
    staged.commit()?;
    Ok(QuantizeReport {
        output: output.to_owned(),
        quantized,
        skipped,
        source_bytes,
        weights_bytes,
    })
}

/// Every matrix of a model is a linear layer's or an embedding's; MLX packs both where the width is
/// a multiple of the group size.
fn scheme_of(tensor: &Tensor, options: &QuantizeOptions) -> Option<AffineScheme> {
    let &[_, columns] = tensor.shape() else {
        return None;
    };
    (columns % options.group_size.get() == 0).then(|| AffineScheme {
        bits: options.bits,
        group_size: options.group_size,
        scale_dtype: options.scale_dtype.unwrap_or(tensor.dtype()),
    })
}

fn module(name: &str) -> &str {
    name.strip_suffix(".weight").unwrap_or(name)
}

fn plan_tensor(
    plan: &mut Vec<PlannedTensor>,
    name: &str,
    tensor: &Tensor,
    scheme: Option<AffineScheme>,
) {
    let mut add = |name: String, dtype, shape: &[usize]| {
        plan.push(PlannedTensor {
            name,
            dtype,
            shape: shape.to_vec(),
        });
    };
    match (scheme, tensor.shape()) {
        (Some(scheme), &[rows, columns]) => {
            let groups = [rows, scheme.groups_per_row(columns)];
            add(
                name.into(),
                DType::U32,
                &[rows, scheme.words_per_row(columns)],
            );
            for part in ["scales", "biases"] {
                let name = format!("{}.{part}", module(name));
                add(name, scheme.scale_dtype, &groups);
            }
        }
        (_, shape) => add(name.into(), tensor.dtype(), shape),
    }
}

impl Job<'_> {
    fn write(
        &self,
        out: &mut SafetensorsWriter,
        control: &Control<'_>,
        mut report: impl FnMut(u64),
    ) -> SeamResult<()> {
        let bytes = self.tensor.bytes();
        let Some(scheme) = self.scheme else {
            for chunk in bytes.chunks(CHUNK_BYTES) {
                control.cancel.check()?;
                out.append(self.to, chunk)?;
                report(chunk.len() as u64);
            }
            return Ok(());
        };
        let columns = self.tensor.shape()[1];
        let row_bytes = columns * self.tensor.dtype().size();
        if row_bytes == 0 {
            return Ok(());
        }
        let rows = (CHUNK_BYTES / row_bytes).max(1);
        for chunk in bytes.chunks(rows * row_bytes) {
            control.cancel.check()?;
            let parts = quantize_rows(chunk, self.tensor.dtype(), columns, scheme)?;
            for (i, part) in parts.iter().enumerate() {
                out.append(TensorId(self.to.0 + i), part)?;
            }
            report(chunk.len() as u64);
        }
        Ok(())
    }
}

/// Words, scales and biases of whole rows, as bytes.
fn quantize_rows(
    rows: &[u8],
    dtype: DType,
    columns: usize,
    scheme: AffineScheme,
) -> SeamResult<[Vec<u8>; 3]> {
    let row_bytes = columns * dtype.size();
    let count = rows.len() / row_bytes;
    let word_bytes = scheme.words_per_row(columns) * 4;
    let scale_bytes = scheme.groups_per_row(columns) * scheme.scale_dtype.size();
    let mut words = vec![0; count * word_bytes];
    let mut scales = vec![0; count * scale_bytes];
    let mut biases = vec![0; count * scale_bytes];
    rows.par_chunks_exact(row_bytes)
        .zip(words.par_chunks_exact_mut(word_bytes))
        .zip(scales.par_chunks_exact_mut(scale_bytes))
        .zip(biases.par_chunks_exact_mut(scale_bytes))
        .try_for_each(|(((row, words), scales), biases)| {
            quantize_row(row, dtype, scheme, words, scales, biases)
        })?;
    Ok([words, scales, biases])
}

fn quantize_row(
    row: &[u8],
    dtype: DType,
    scheme: AffineScheme,
    words: &mut [u8],
    scales: &mut [u8],
    biases: &mut [u8],
) -> SeamResult<()> {
    let (group, size) = (scheme.group_size.get(), scheme.scale_dtype.size());
    let mut values = vec![0.0; group];
    let mut q = vec![0; group];
    let mut packed = vec![0u32; scheme.words_per_row(group)];
    for (((source, words), scale), bias) in row
        .chunks_exact(group * dtype.size())
        .zip(words.chunks_exact_mut(packed.len() * 4))
        .zip(scales.chunks_exact_mut(size))
        .zip(biases.chunks_exact_mut(size))
    {
        widen(source, dtype, &mut values);
        if values.iter().any(|v| !v.is_finite()) {
            return Err(not_finite("holds a value that is not finite"));
        }
        if dtype != scheme.scale_dtype {
            // Scales have the type of what they are computed from in MLX.
            for value in &mut values {
                let mut bytes = [0; 4];
                narrow(*value, scheme.scale_dtype, &mut bytes[..size])?;
                widen(
                    &bytes[..size],
                    scheme.scale_dtype,
                    std::slice::from_mut(value),
                );
            }
        }
        let (s, b) = affine::quantize_group(&values, scheme.bits, &mut q);
        for (out, value) in [(scale, s), (bias, b)] {
            narrow(value, scheme.scale_dtype, out)?;
        }
        quant::pack_row(&q, scheme.bits, &mut packed);
        for (out, word) in words.chunks_exact_mut(4).zip(&packed) {
            out.copy_from_slice(&word.to_le_bytes());
        }
    }
    Ok(())
}

fn not_finite(message: &str) -> SeamError {
    SeamError::new(ErrorCode::NonFinite, message)
}

fn widen(bytes: &[u8], dtype: DType, values: &mut [f32]) {
    let halves = || bytes.chunks_exact(2).map(|b| [b[0], b[1]]);
    match dtype {
        DType::F16 => values
            .iter_mut()
            .zip(halves())
            .for_each(|(v, b)| *v = f16::from_le_bytes(b).to_f32()),
        DType::BF16 => values
            .iter_mut()
            .zip(halves())
            .for_each(|(v, b)| *v = bf16::from_le_bytes(b).to_f32()),
        _ => values
            .iter_mut()
            .zip(bytes.chunks_exact(4))
            .for_each(|(v, b)| *v = f32::from_le_bytes([b[0], b[1], b[2], b[3]])),
    }
}

/// Rounds to the storage type, to nearest and even.
fn narrow(value: f32, dtype: DType, out: &mut [u8]) -> SeamResult<()> {
    let finite = match dtype {
        DType::F16 => {
            let half = f16::from_f32(value);
            out.copy_from_slice(&half.to_le_bytes());
            half.is_finite()
        }
        DType::BF16 => {
            let half = bf16::from_f32(value);
            out.copy_from_slice(&half.to_le_bytes());
            half.is_finite()
        }
        _ => {
            out.copy_from_slice(&value.to_le_bytes());
            value.is_finite()
        }
    };
    if finite {
        return Ok(());
    }
    Err(not_finite(&format!(
        "needs a value, a scale or a bias that {dtype} cannot hold"
    ))
    .hint("choose a wider scale type"))
}
