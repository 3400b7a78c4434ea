//! Weights onto the device, in the forms that the plan names.
//!
//! Bytes that already have their form go up as they lie, without a copy where the device takes them;
//! others are converted first. Several weights are brought up at once.

use std::collections::BTreeMap;

use bytes::Bytes;
use half::{bf16, f16};
use halfhitch_seam::{
    Control, DType, ExecutionPlan, ModelSpec, PlannedWeight, ResultExt, SeamError, SeamResult,
    Stage, Weight, WeightForm, WeightId, Weights,
};
use halfhitch_xla_iree_sys::{Buffer, DType as IreeType, Device, Policy};
use parking_lot::Mutex;
use rayon::prelude::*;

use super::error::seam_error;
use crate::emitter::Elem;
use crate::emitter::layout::{WeightPart, weight_tensors};

/// Resident weights by name and part.
pub type Resident = BTreeMap<(WeightId, WeightPart), Buffer>;

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

/// Brings every weight of the plan up.
///
/// # Errors
/// `Cancelled`, `OutOfMemory`, `NotFound` for a weight that is not there, `Backend`.
pub fn upload(
    device: &Device,
    model: &ModelSpec,
    plan: &ExecutionPlan,
    weights: &Weights,
    control: &Control<'_>,
) -> SeamResult<Resident> {
    let total: u64 = plan.weights.iter().map(|w| w.bytes).sum();
    let shapes: BTreeMap<WeightId, Vec<usize>> = model
        .expected_weights()
        .into_iter()
        .map(|w| (w.id, w.shape))
        .collect();
    control.progress(Stage::LoadWeights, 0, total);
    let done = Mutex::new(0);
    let parts: Vec<Vec<((WeightId, WeightPart), Buffer)>> = plan
        .weights
        .par_iter()
        .map(|planned| {
            control.cancel.check()?;
            let weight = weights.get(planned.id)?;
            let shape = shapes.get(&planned.id).ok_or_else(|| {
                SeamError::invalid_model(format!("the model has no weight `{}`", planned.id))
            })?;
            let parts =
                one(device, planned, shape, weight).in_context(|| planned.id.to_string())?;
            let mut done = done.lock();
            *done += planned.bytes;
            control.progress(Stage::LoadWeights, *done, total);
            Ok(parts)
        })
        .collect::<SeamResult<_>>()?;
    Ok(parts.into_iter().flatten().collect())
}

fn one(
    device: &Device,
    planned: &PlannedWeight,
    shape: &[usize],
    weight: &Weight,
) -> SeamResult<Vec<((WeightId, WeightPart), Buffer)>> {
    weight_tensors(planned.resident, shape)
        .into_iter()
        .map(|tensor| {
            let (content, policy) = content(weight, planned.resident, tensor.part)?;
            let dtype = iree_type(tensor.elem);
            let buffer = Buffer::upload(device, dtype, &tensor.shape, content, policy)
                .map_err(seam_error)?;
            Ok(((planned.id, tensor.part), buffer))
        })
        .collect()
}

/// The bytes of a part: the checkpoint's own, or converted ones, which the device copies so that
/// they need not be kept.
fn content(weight: &Weight, form: WeightForm, part: WeightPart) -> SeamResult<(Bytes, Policy)> {
    match (weight, form) {
        (Weight::Affine(a), WeightForm::Affine(scheme)) if a.scheme() == scheme => {
            let tensor = match part {
                WeightPart::Scales => a.scales(),
                WeightPart::Biases => a.biases(),
                _ => a.words(),
            };
            Ok((tensor.bytes().clone(), Policy::Auto))
        }
        (Weight::Dense(t), WeightForm::Dense(dtype)) if t.dtype() == dtype => {
            Ok((t.bytes().clone(), Policy::Auto))
        }
        (weight, WeightForm::Dense(dtype)) => Ok((rounded(&weight.to_f32(), dtype)?, Policy::Copy)),
        (weight, form) => Err(SeamError::unsupported(format!(
            "the plan turns {} into {form}",
            weight.form()
        ))),
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
