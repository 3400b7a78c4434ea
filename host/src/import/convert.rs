//! Tensors of a GGUF file into a safetensors file, row by row.

use std::collections::BTreeMap;

use halfhitch_seam::{Bits, Control, DType, ResultExt, SeamError, SeamResult, Stage};
use rayon::prelude::*;
use serde_json::{Map, Value as Json, json};

use super::blocks::{BlockFormat, GROUP};
use super::folder::{PlannedTensor, SafetensorsWriter, TensorId};
use super::gguf::{GgmlType, Gguf};
use super::names::MappedTensor;

/// Bytes of the source that are converted between two looks at the cancel token.
const CHUNK_BYTES: usize = 4 << 20;

/// What a tensor becomes.
#[derive(Clone, Copy, Debug)]
enum Form {
    /// The same bytes.
    Dense { to: TensorId },
    /// Words, scales and biases, at three successive places of the plan from `to` on.
    Affine {
        format: BlockFormat,
        scale_dtype: DType,
        to: TensorId,
    },
}

/// All that will be written, decided before anything is.
pub struct Conversion<'a> {
    gguf: &'a Gguf,
    tensors: Vec<(MappedTensor<'a>, Form)>,
    plan: Vec<PlannedTensor>,
}

impl<'a> Conversion<'a> {
    /// Decides each tensor's form. Reads the factors of quantised tensors, to see whether f16
    /// holds what follows from them.
    ///
    /// # Errors
    /// `NonFinite`, naming the tensor; `Cancelled`.
    pub fn plan(
        gguf: &'a Gguf,
        mapped: Vec<MappedTensor<'a>>,
        control: &Control<'_>,
    ) -> SeamResult<Self> {
        let mut plan = Vec::new();
        let mut tensors = Vec::with_capacity(mapped.len());
        for tensor in mapped {
            control.cancel.check()?;
            let source = tensor.source;
            let to = TensorId(plan.len());
            let mut add = |name: String, dtype, shape| {
                plan.push(PlannedTensor { name, dtype, shape });
            };
            let form = match BlockFormat::of(source.kind)? {
                None => {
                    let dtype = dense_dtype(source.kind)?;
                    add(tensor.name.clone(), dtype, source.shape.clone());
                    Form::Dense { to }
                }
                Some(format) => {
                    let scale_dtype = format
                        .scale_dtype(gguf.data(source))
                        .in_context(|| format!("tensor `{}`", source.name))?;
                    let &[rows, columns] = source.shape.as_slice() else {
                        return Err(SeamError::unsupported(format!(
                            "tensor `{}` is {} and not a matrix",
                            source.name, source.kind
                        )));
                    };
                    let groups = columns / GROUP;
                    let module = module(&tensor.name);
                    let part = |suffix: &str| format!("{module}.{suffix}");
                    let words = vec![rows, groups * format.words()];
                    add(tensor.name.clone(), DType::U32, words);
                    add(part("scales"), scale_dtype, vec![rows, groups]);
                    add(part("biases"), scale_dtype, vec![rows, groups]);
                    Form::Affine {
                        format,
                        scale_dtype,
                        to,
                    }
                }
            };
            tensors.push((tensor, form));
        }
        Ok(Self {
            gguf,
            tensors,
            plan,
        })
    }

    /// What the weights file will hold.
    pub fn planned(&self) -> &[PlannedTensor] {
        &self.plan
    }

    /// Bytes of all sources.
    pub fn source_bytes(&self) -> u64 {
        let sizes = self.tensors.iter().map(|(t, _)| t.source.range.len());
        sizes.map(|n| n as u64).sum()
    }

    /// How many tensors have each of ggml's types.
    pub fn types(&self) -> BTreeMap<String, usize> {
        let mut types = BTreeMap::new();
        for (tensor, _) in &self.tensors {
            *types.entry(tensor.source.kind.to_string()).or_default() += 1;
        }
        types
    }

    /// The element type that most of the matrices' numbers have: their own, or their scales'.
    pub fn main_dtype(&self) -> DType {
        let mut elements: BTreeMap<DType, usize> = BTreeMap::new();
        for (tensor, form) in &self.tensors {
            if let &[rows, columns] = tensor.source.shape.as_slice() {
                let dtype = match *form {
                    Form::Dense { to } => self.plan[to.0].dtype,
                    Form::Affine { scale_dtype, .. } => scale_dtype,
                };
                *elements.entry(dtype).or_default() += rows * columns;
            }
        }
        let most = elements.into_iter().max_by_key(|&(_, n)| n);
        most.map_or(DType::F32, |(dtype, _)| dtype)
    }

    /// `quantization` for config.json: the width that most weights have, and the modules that
    /// have another. Nothing where all are dense.
    pub fn quantization(&self) -> Option<Json> {
        let widths: Vec<(&str, Bits, usize)> = self
            .tensors
            .iter()
            .filter_map(|(tensor, form)| match form {
                Form::Affine { format, .. } => Some((
                    module(&tensor.name),
                    format.bits(),
                    tensor.source.shape.iter().product(),
                )),
                Form::Dense { .. } => None,
            })
            .collect();
        let mut elements: BTreeMap<Bits, usize> = BTreeMap::new();
        for &(_, bits, n) in &widths {
            *elements.entry(bits).or_default() += n;
        }
        let (main, _) = elements.into_iter().max_by_key(|&(_, n)| n)?;
        let entry = |bits: Bits| {
            let mut map = Map::new();
            map.insert("group_size".into(), json!(GROUP));
            map.insert("bits".into(), json!(bits.get()));
            map
        };
        let mut quantization = entry(main);
        quantization.insert("mode".into(), json!("affine"));
        for (module, bits, _) in widths.into_iter().filter(|w| w.1 != main) {
            quantization.insert(module.into(), Json::Object(entry(bits)));
        }
        Some(Json::Object(quantization))
    }

    /// Writes every tensor; progress is in bytes of the source.
    ///
    /// # Errors
    /// `Io`, `Cancelled`.
    pub fn write(&self, out: &mut SafetensorsWriter, control: &Control<'_>) -> SeamResult<()> {
        let total = self.source_bytes();
        let mut done = 0;
        control.progress(Stage::Convert, 0, total);
        for (tensor, form) in &self.tensors {
            let data = self.gguf.data(tensor.source);
            let rows = Rows::of(tensor, data);
            let step = (CHUNK_BYTES / rows.bytes.max(1)).max(1);
            for first in (0..rows.count).step_by(step) {
                control.cancel.check()?;
                let chunk = first..rows.count.min(first + step);
                match *form {
                    Form::Dense { to } => {
                        let mut bytes = vec![0; chunk.len() * rows.bytes];
                        for (row, to) in chunk.clone().zip(bytes.chunks_exact_mut(rows.bytes)) {
                            to.copy_from_slice(rows.get(row));
                        }
                        out.append(to, &bytes)?;
                    }
                    Form::Affine {
                        format,
                        scale_dtype,
                        to,
                    } => {
                        let parts = affine_rows(&rows, chunk.clone(), format, scale_dtype);
                        for (i, part) in parts.iter().enumerate() {
                            out.append(TensorId(to.0 + i), part)?;
                        }
                    }
                }
                done += (chunk.len() * rows.bytes) as u64;
                control.progress(Stage::Convert, done, total);
            }
        }
        Ok(())
    }
}

/// A tensor's rows in the order in which they are written. A vector's rows are its elements.
struct Rows<'a> {
    data: &'a [u8],
    count: usize,
    bytes: usize,
    unpermute: Option<usize>,
}

impl<'a> Rows<'a> {
    fn of(tensor: &MappedTensor<'_>, data: &'a [u8]) -> Self {
        let count = tensor.source.shape[0];
        Self {
            data,
            count,
            bytes: data.len() / count,
            unpermute: tensor.unpermute,
        }
    }

    /// Row `row` of the result. llama.cpp puts the two halves of a head's rows alternately:
    /// its row `2i + j` is row `i + j * n/2` of a head of n.
    fn get(&self, row: usize) -> &'a [u8] {
        let from = match self.unpermute {
            None => row,
            Some(heads) => {
                let (head, half) = (self.count / heads, self.count / heads / 2);
                let (start, r) = (row / head * head, row % head);
                start + r % half * 2 + r / half
            }
        };
        &self.data[from * self.bytes..][..self.bytes]
    }
}

fn affine_rows(
    rows: &Rows<'_>,
    chunk: std::ops::Range<usize>,
    format: BlockFormat,
    dtype: DType,
) -> [Vec<u8>; 3] {
    let groups = rows.bytes / format.block_bytes();
    let (word_bytes, scale_bytes) = (groups * format.words() * 4, groups * dtype.size());
    let mut words = vec![0; chunk.len() * word_bytes];
    let mut scales = vec![0; chunk.len() * scale_bytes];
    let mut biases = vec![0; chunk.len() * scale_bytes];
    words
        .par_chunks_exact_mut(word_bytes)
        .zip(scales.par_chunks_exact_mut(scale_bytes))
        .zip(biases.par_chunks_exact_mut(scale_bytes))
        .enumerate()
        .for_each(|(i, ((words, scales), biases))| {
            format.convert_row(rows.get(chunk.start + i), dtype, words, scales, biases);
        });
    [words, scales, biases]
}

fn module(name: &str) -> &str {
    name.strip_suffix(".weight").unwrap_or(name)
}

fn dense_dtype(kind: GgmlType) -> SeamResult<DType> {
    match kind {
        GgmlType::F32 => Ok(DType::F32),
        GgmlType::F16 => Ok(DType::F16),
        GgmlType::BF16 => Ok(DType::BF16),
        other => Err(SeamError::unsupported(format!("{other} is not dense"))),
    }
}
