//! Weights onto the device, in the forms that the plan names.
//!
//! Bytes that already have their form and layout go up as they lie, without a copy where the device
//! takes them; others are converted first. Several weights are brought up at once.

use std::collections::BTreeMap;

use bytes::Bytes;
use half::{bf16, f16};
use halfhitch_seam::{
    AffineTensor, Control, DType, ErrorCode, ResultExt, SeamError, SeamResult, Stage, Tensor,
    Weight, WeightForm, WeightId, Weights,
};
use halfhitch_xla_iree_sys::{Buffer, DType as IreeType, Device, Policy};
use parking_lot::Mutex;
use rayon::prelude::*;

use super::error::seam_error;
use super::lanes::lanes;
use crate::emitter::layout::{BLOCK, Layout, WeightPart};
use crate::emitter::resident::{Resident, residents};
use crate::emitter::{Elem, Source};

/// Resident weights by name and part.
pub type Uploaded = BTreeMap<(WeightId, WeightPart), Buffer>;

/// The runtime's type for a graph's element type.
///
/// # Panics
/// For truth values, which no argument has.
pub fn iree_type(elem: Elem) -> IreeType {
    match elem {
        Elem::F32 => IreeType::F32,
        Elem::F16 => IreeType::F16,
        Elem::BF16 => IreeType::Bf16,
        Elem::I32 => IreeType::I32,
        Elem::U32 => IreeType::U32,
        Elem::U8 => IreeType::U8,
        Elem::U4 => IreeType::U4,
        Elem::I1 => panic!("no argument is a truth value"),
    }
}

/// Brings every weight of the plan up, laid out as the graph takes it.
///
/// # Errors
/// `Cancelled`, `OutOfMemory`, `NotFound` for a weight that is not there, `Backend`.
pub fn upload(
    device: &Device,
    source: Source<'_>,
    weights: &Weights,
    control: &Control<'_>,
) -> SeamResult<Uploaded> {
    let plan = source.plan;
    let total: u64 = plan.weights.iter().map(|w| w.bytes).sum();
    control.progress(Stage::LoadWeights, 0, total);
    let done = Mutex::new(0);
    let parts: Vec<Vec<((WeightId, WeightPart), Buffer)>> = residents(source)
        .par_iter()
        .map(|resident| {
            control.cancel.check()?;
            let parts = one(device, resident, weights).in_context(|| resident.id().to_string())?;
            let planned = resident.ids.iter().filter_map(|&id| plan.weight(id));
            let mut done = done.lock();
            *done += planned.map(|w| w.bytes).sum::<u64>();
            control.progress(Stage::LoadWeights, *done, total);
            Ok(parts)
        })
        .collect::<SeamResult<_>>()?;
    Ok(parts.into_iter().flatten().collect())
}

fn one(
    device: &Device,
    resident: &Resident,
    weights: &Weights,
) -> SeamResult<Vec<((WeightId, WeightPart), Buffer)>> {
    let of: Vec<&Weight> = resident
        .ids
        .iter()
        .map(|&id| weights.get(id))
        .collect::<SeamResult<_>>()?;
    resident
        .tensors()
        .into_iter()
        .map(|tensor| {
            let (content, policy) = match resident.layout {
                Layout::Blocks => (blocks(&of, resident, tensor.part)?, Policy::Auto),
                Layout::Lanes => (lanes(&of, resident, tensor.part)?, Policy::Copy),
                Layout::Stored | Layout::Words => content(of[0], resident.form, tensor.part)?,
            };
            let dtype = iree_type(tensor.elem);
            let buffer = Buffer::upload(device, dtype, &tensor.shape, content, policy)
                .map_err(seam_error)?;
            Ok(((resident.id(), tensor.part), buffer))
        })
        .collect()
}

/// A part of each of the packed weights that are resident together.
///
/// # Errors
/// `Unsupported` where one has another form than was planned.
pub fn affine_parts<'a>(
    of: &[&'a Weight],
    resident: &Resident,
    part: WeightPart,
) -> SeamResult<Vec<&'a Tensor>> {
    of.iter()
        .map(|weight| match (weight, resident.form) {
            (Weight::Affine(a), WeightForm::Affine(scheme)) if a.scheme() == scheme => {
                Ok(affine_part(a, part))
            }
            (weight, form) => Err(changed(weight, form)),
        })
        .collect()
}

/// A part of packed weights, one below the other, in [`Layout::Blocks`].
fn blocks(of: &[&Weight], resident: &Resident, part: WeightPart) -> SeamResult<Bytes> {
    let parts = affine_parts(of, resident, part)?;
    let rows: Vec<&[u8]> = parts
        .iter()
        .flat_map(|t| t.bytes().chunks_exact(t.bytes().len() / t.shape()[0]))
        .collect();
    if parts[0].dtype().size() == 4 {
        interleave::<u32>(&rows)
    } else {
        interleave::<u16>(&rows)
    }
}

/// Rows of elements, [`BLOCK`] of them interleaved.
fn interleave<T: bytemuck::Pod + Send>(rows: &[&[u8]]) -> SeamResult<Bytes> {
    let width = rows[0].len() / size_of::<T>();
    let mut out = AlignedBytes::zeroed(rows.len() * rows[0].len())?;
    bytemuck::cast_slice_mut::<u8, T>(out.as_mut())
        .par_chunks_exact_mut(width * BLOCK)
        .zip(rows.par_chunks_exact(BLOCK))
        .for_each(|(out, rows)| {
            for (t, row) in rows.iter().enumerate() {
                let elements = row.chunks_exact(size_of::<T>());
                for (at, element) in out[t..].iter_mut().step_by(BLOCK).zip(elements) {
                    *at = bytemuck::pod_read_unaligned(element);
                }
            }
        });
    Ok(Bytes::from_owner(out))
}

/// Bytes at an address that the device takes as it is.
struct AlignedBytes {
    lines: Vec<Line>,
    len: usize,
}

#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u8; 64]);

// SAFETY: 64 bytes at an alignment of 64 have no padding, and zero is a valid byte.
unsafe impl bytemuck::Zeroable for Line {}
// SAFETY: as above; every bit pattern is valid, and the type is plain and `repr(C)`.
unsafe impl bytemuck::Pod for Line {}

impl AlignedBytes {
    fn zeroed(len: usize) -> SeamResult<Self> {
        let mut lines = Vec::new();
        lines.try_reserve_exact(len.div_ceil(64)).map_err(|_| {
            SeamError::new(
                ErrorCode::OutOfMemory,
                format!("no memory for {len} bytes of a weight"),
            )
        })?;
        lines.resize(len.div_ceil(64), Line([0; 64]));
        Ok(Self { lines, len })
    }

    fn as_mut(&mut self) -> &mut [u8] {
        let len = self.len;
        &mut bytemuck::cast_slice_mut(&mut self.lines)[..len]
    }
}

impl AsRef<[u8]> for AlignedBytes {
    fn as_ref(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.lines)[..self.len]
    }
}

fn affine_part(weight: &AffineTensor, part: WeightPart) -> &Tensor {
    match part {
        WeightPart::Scales => weight.scales(),
        WeightPart::Biases => weight.biases(),
        _ => weight.words(),
    }
}

fn changed(weight: &Weight, form: WeightForm) -> SeamError {
    SeamError::unsupported(format!("the plan turns {} into {form}", weight.form()))
}

/// The bytes of a part: the checkpoint's own, or converted ones, which the device copies so that
/// they need not be kept.
fn content(weight: &Weight, form: WeightForm, part: WeightPart) -> SeamResult<(Bytes, Policy)> {
    match (weight, form) {
        (Weight::Affine(a), WeightForm::Affine(scheme)) if a.scheme() == scheme => {
            Ok((affine_part(a, part).bytes().clone(), Policy::Auto))
        }
        (Weight::Dense(t), WeightForm::Dense(dtype)) if t.dtype() == dtype => {
            Ok((t.bytes().clone(), Policy::Auto))
        }
        (weight, WeightForm::Dense(dtype)) => Ok((rounded(&weight.to_f32(), dtype)?, Policy::Copy)),
        (weight, form) => Err(changed(weight, form)),
    }
}

/// Little-endian bytes of f32 values rounded to `dtype`.
fn rounded(values: &[f32], dtype: DType) -> SeamResult<Bytes> {
    fn bytes<T: bytemuck::NoUninit>(values: &[T]) -> Bytes {
        Bytes::copy_from_slice(bytemuck::cast_slice(values))
    }
    match dtype {
        DType::F32 => Ok(bytes(values)),
        DType::F16 => Ok(bytes(&convert(values, f16::from_f32))),
        DType::BF16 => Ok(bytes(&convert(values, bf16::from_f32))),
        other => Err(SeamError::unsupported(format!(
            "weights resident as {other}"
        ))),
    }
}

fn convert<T: Send>(values: &[f32], to: impl Fn(f32) -> T + Sync + Send) -> Vec<T> {
    values.par_iter().map(|&v| to(v)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_interleave_the_rows_of_every_weight() {
        let (rows, width) = (2 * BLOCK, 3);
        let content: Vec<u32> = (0..(rows * width) as u32).collect();
        // One byte in, so that nothing is aligned.
        let bytes: Vec<u8> = [7u8]
            .into_iter()
            .chain(content.iter().flat_map(|v| v.to_le_bytes()))
            .collect();
        let rows: Vec<&[u8]> = bytes[1..].chunks_exact(4 * width).collect();
        let out = interleave::<u32>(&rows).unwrap();
        assert_eq!(out.as_ptr() as usize % 64, 0);
        let out: &[u32] = bytemuck::cast_slice(&out);
        for (row, column) in [(0, 0), (0, 2), (63, 1), (64, 0), (127, 2)] {
            let at = (row / BLOCK * width + column) * BLOCK + row % BLOCK;
            assert_eq!(out[at] as usize, row * width + column, "{row} {column}");
        }
    }

    #[test]
    fn values_are_rounded_to_nearest_even() {
        let values = [1.0, 65_519.0, 1.0 + 3.0 * 2f32.powi(-9)];
        let halves = rounded(&values, DType::F16).unwrap();
        assert_eq!(halves[2..4], f16::MAX.to_le_bytes());
        let brains = rounded(&values, DType::BF16).unwrap();
        assert_eq!(
            brains[4..6],
            bf16::from_f32(1.0 + 2f32.powi(-7)).to_le_bytes()
        );
        assert!(rounded(&values, DType::U32).is_err());
    }
}
