//! Weights onto the device, in the forms that the plan names.
//!
//! Bytes that already have their form and layout go up as they lie, without a copy where the device
//! takes them; others are first converted, or laid out anew, into the memory that the device then takes:
//! beside the checkpoint's own pages there is never more than one copy. Several weights are brought up
//! at once.

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

/// The tensors of one resident weight.
///
/// # Errors
/// As [`upload`].
pub fn one(
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
                Layout::Blocks => match resident.form {
                    WeightForm::Dense(dtype) => (numbers(&of, resident, dtype)?, Policy::Auto),
                    _ => (blocks(&of, resident, tensor.part)?, Policy::Auto),
                },
                Layout::Lanes => match resident.form {
                    WeightForm::Dense(_) => (joined(&of, resident.form)?, Policy::Auto),
                    _ => (lanes(&of, resident, tensor.part)?, Policy::Copy),
                },
                Layout::Stored => (content(of[0], resident.form, tensor.part)?, Policy::Auto),
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

/// Numbers of weights, one below the other, in [`Layout::Blocks`].
fn numbers(of: &[&Weight], resident: &Resident, dtype: DType) -> SeamResult<Bytes> {
    match dtype {
        DType::F32 => interleaved::<f32>(of, resident, |v| v),
        DType::F16 => interleaved(of, resident, f16::from_f32),
        DType::BF16 => interleaved(of, resident, bf16::from_f32),
        other => Err(SeamError::unsupported(format!("weights as {other}"))),
    }
}

/// A block is converted at a time, straight to where it stays.
fn interleaved<T: bytemuck::Pod + Send>(
    of: &[&Weight],
    resident: &Resident,
    to: impl Fn(f32) -> T + Sync,
) -> SeamResult<Bytes> {
    let [rows, columns] = resident.shape[..] else {
        return Err(changed(of[0], resident.form));
    };
    let mut out = AlignedBytes::zeroed(rows * columns * size_of::<T>())?;
    bytemuck::cast_slice_mut::<u8, T>(out.as_mut())
        .par_chunks_exact_mut(columns * BLOCK)
        .enumerate()
        .for_each(|(block, out)| {
            let (first, end) = (block * BLOCK, (block + 1) * BLOCK);
            // The parts of the block that come from each weight.
            for (weight, (start, stop)) in of.iter().zip(resident.ranges()) {
                let (low, high) = (first.max(start), end.min(stop));
                if low >= high {
                    continue;
                }
                let values = weight.rows(low - start..high - start).to_f32();
                for (row, values) in values.chunks_exact(columns).enumerate() {
                    let lane = low - first + row;
                    for (at, &value) in out[lane..].iter_mut().step_by(BLOCK).zip(values) {
                        *at = to(value);
                    }
                }
            }
        });
    Ok(Bytes::from_owner(out))
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

/// The bytes of a part: the checkpoint's own, or converted ones.
fn content(weight: &Weight, form: WeightForm, part: WeightPart) -> SeamResult<Bytes> {
    match (weight, form) {
        (Weight::Affine(a), WeightForm::Affine(scheme)) if a.scheme() == scheme => {
            Ok(affine_part(a, part).bytes().clone())
        }
        (Weight::Dense(t), WeightForm::Dense(dtype)) if t.dtype() == dtype => Ok(t.bytes().clone()),
        (weight, WeightForm::Dense(DType::F32)) => converted::<f32>(weight, |v| v),
        (weight, WeightForm::Dense(DType::F16)) => converted(weight, f16::from_f32),
        (weight, WeightForm::Dense(DType::BF16)) => converted(weight, bf16::from_f32),
        (weight, form) => Err(changed(weight, form)),
    }
}

/// Numbers of weights, one below the other.
fn joined(of: &[&Weight], form: WeightForm) -> SeamResult<Bytes> {
    if let [one] = of {
        return content(one, form, WeightPart::Dense);
    }
    let parts: Vec<Bytes> = of
        .iter()
        .map(|weight| content(weight, form, WeightPart::Dense))
        .collect::<SeamResult<_>>()?;
    let mut out = AlignedBytes::zeroed(parts.iter().map(Bytes::len).sum())?;
    let mut rest = out.as_mut();
    for part in parts {
        let (here, after) = rest.split_at_mut(part.len());
        here.copy_from_slice(&part);
        rest = after;
    }
    Ok(Bytes::from_owner(out))
}

/// Elements that are converted at once: a part's f32 values fit a processor's cache, and a weight never
/// exists as f32 as a whole unless that is what is asked for.
const PART: usize = 1 << 16;

/// A weight's numbers, rounded to nearest even, at an address that the device takes as it is: what this
/// writes is all that is ever allocated of the size of the weight.
fn converted<T>(weight: &Weight, to: impl Fn(f32) -> T + Sync) -> SeamResult<Bytes>
where
    T: bytemuck::Pod + Send,
{
    let shape = weight.shape();
    let width = shape[1..].iter().product::<usize>().max(1);
    let rows = (PART / width).max(1);
    let mut out = AlignedBytes::zeroed(shape.iter().product::<usize>() * size_of::<T>())?;
    bytemuck::cast_slice_mut::<u8, T>(out.as_mut())
        .par_chunks_mut(rows * width)
        .enumerate()
        .for_each(|(i, out)| {
            let first = i * rows;
            let values = weight.rows(first..first + out.len() / width).to_f32();
            for (at, value) in out.iter_mut().zip(values) {
                *at = to(value);
            }
        });
    Ok(Bytes::from_owner(out))
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
        for (row, column) in [
            (0, 0),
            (0, 2),
            (BLOCK - 1, 1),
            (BLOCK, 0),
            (2 * BLOCK - 1, 2),
        ] {
            let at = (row / BLOCK * width + column) * BLOCK + row % BLOCK;
            assert_eq!(out[at] as usize, row * width + column, "{row} {column}");
        }
    }

    #[test]
    fn numbers_of_one_input_come_to_lie_one_below_the_other() {
        let dense = |rows: usize, first: f32| {
            let values: Vec<f32> = (0..2 * rows).map(|i| first + i as f32).collect();
            Weight::Dense(Tensor::from_f32(vec![rows, 2], &values).unwrap())
        };
        let (first, second) = (dense(2, 0.0), dense(1, 10.0));
        let out = joined(&[&first, &second], WeightForm::Dense(DType::F16)).unwrap();
        let out: Vec<f32> = out
            .chunks_exact(2)
            .map(|b| f16::from_le_bytes([b[0], b[1]]).to_f32())
            .collect();
        assert_eq!(out, [0.0, 1.0, 2.0, 3.0, 10.0, 11.0]);
    }

    #[test]
    fn values_are_rounded_to_nearest_even() {
        let values = [1.0, 65_519.0, 1.0 + 3.0 * 2f32.powi(-9)];
        let weight = Weight::Dense(Tensor::from_f32(vec![3], &values).unwrap());
        let as_dtype = |dtype| content(&weight, WeightForm::Dense(dtype), WeightPart::Dense);
        let halves = as_dtype(DType::F16).unwrap();
        assert_eq!(halves[2..4], f16::MAX.to_le_bytes());
        let brains = as_dtype(DType::BF16).unwrap();
        assert_eq!(
            brains[4..6],
            bf16::from_f32(1.0 + 2f32.powi(-7)).to_le_bytes()
        );
        assert!(as_dtype(DType::U32).is_err());
    }

    #[test]
    fn every_part_of_a_weight_is_converted_in_its_place() {
        // Rows that do not fill the last part, and one row that is larger than a part.
        for (rows, columns) in [(PART / 48 * 2 + 5, 48), (3, PART + 7)] {
            let value = |i: usize| (i % 2039) as f32 - 1000.0;
            let values: Vec<f32> = (0..rows * columns).map(value).collect();
            let stored = Tensor::from_f32(vec![rows, columns], &values).unwrap();
            let halves = converted(&Weight::Dense(stored), f16::from_f32).unwrap();
            assert_eq!(halves.as_ptr() as usize % 64, 0);
            let halves: &[f16] = bytemuck::cast_slice(&halves);
            assert_eq!(halves.len(), values.len());
            let back = halves.iter().zip(&values);
            assert!(back.into_iter().all(|(h, v)| h.to_f32() == *v));
        }
    }
}
