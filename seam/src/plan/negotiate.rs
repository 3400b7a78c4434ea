//! How a plan is made.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    Choice, ExecutionPlan, MemoryEstimate, PlanRequest, PlannedWeight, QuantRequest, Rejected,
    Size, representation,
};
use crate::capability::DeviceCapabilities;
use crate::dtype::{DType, Precision};
use crate::error::{ErrorCode, SeamError, SeamResult};
use crate::model::{LayerWeight, ModelSpec, WeightId};
use crate::quant::AffineScheme;
use crate::weights::{WeightForm, WeightManifest, check_weights};

/// Element type of every key-value cache: attention is exact in every precision until a recorded
/// accuracy gate allows a narrower cache.
const KV_DTYPE: DType = DType::F32;

/// Chooses how a model runs on a device.
///
/// # Errors
/// `InvalidModel` where the weights do not fit the model; `Unsupported` where the device lacks a
/// feature of the model or an explicit wish cannot be met, naming what is possible; `InvalidInput`
/// for a context or a number of sequences of 0; `OutOfMemory` where the weights alone exceed the
/// device's memory.
pub fn negotiate(
    model: &ModelSpec,
    weights: &WeightManifest,
    device: &DeviceCapabilities,
    request: &PlanRequest,
) -> SeamResult<ExecutionPlan> {
    model.validate()?;
    check_weights(model, weights)?;
    check_features(model, device)?;
    let mut choices = Vec::new();
    let precision = choose_precision(device, request, &mut choices)?;
    let context = choose_context(model, device, request, &mut choices)?;
    let sequences = choose_sequences(device, request)?;
    check_threads(device, request)?;
    let chunk = device.prefill_chunk.clamp(1, context);
    let estimate = |planned: &[PlannedWeight]| {
        let bytes = planned.iter().map(|w| w.bytes).sum();
        let mut memory = MemoryEstimate::new(model, bytes, KV_DTYPE, chunk, context, sequences);
        if chunk > 1 {
            memory.workspace = memory.workspace.saturating_add(rebuilt(model));
        }
        memory
    };
    let packing = Packing::choose(weights, device, precision, request, &|packed| {
        estimate(&place(model, weights, device, precision, packed)).at_start()
    })?;
    let planned = place(model, weights, device, precision, &packing.packed);
    let memory = estimate(&planned);
    check_memory(device, &memory)?;
    choices.extend(packing.choice);
    choices.push(dense_choice(&planned, device, precision));
    let representations = representation::choose(model, &planned, device, precision, request)?;
    choices.extend(representations.choices);
    Ok(ExecutionPlan {
        device: device.device.clone(),
        precision,
        kv_dtype: KV_DTYPE,
        context,
        max_sequences: sequences,
        prefill_chunk: chunk,
        threads: request.threads,
        weights: planned,
        representations: representations.planned,
        tuned: representations.tuned,
        memory,
        choices,
    })
}

/// Bytes of the largest matrices that a prompt's step may rebuild in f32 at a time, from packed weights or
/// for a matrix unit's layout: a layer's queries, keys and values, its gate with up, or another matrix
/// alone. The head is read for one row, which needs no such thing.
fn rebuilt(model: &ModelSpec) -> u64 {
    use LayerWeight as W;
    let mut sums: BTreeMap<(u32, LayerWeight), u64> = BTreeMap::new();
    for weight in model.expected_weights() {
        let (WeightId::Layer(layer, which), &[rows, columns]) = (weight.id, &weight.shape[..])
        else {
            continue;
        };
        let together = match which {
            W::Query | W::Key | W::Value => W::Query,
            W::Gate | W::Up => W::Gate,
            other => other,
        };
        let bytes = (rows as u64)
            .saturating_mul(columns as u64)
            .saturating_mul(4);
        let sum = sums.entry((layer, together)).or_default();
        *sum = sum.saturating_add(bytes);
    }
    sums.into_values().max().unwrap_or(0)
}

fn check_features(model: &ModelSpec, device: &DeviceCapabilities) -> SeamResult<()> {
    let missing: Vec<String> = model
        .features()
        .difference(&device.features)
        .map(ToString::to_string)
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    Err(SeamError::unsupported(format!(
        "{} cannot run this {} model: it needs {}",
        device.device.name,
        model.architecture,
        missing.join(", ")
    ))
    .hint("`halfhitch backends` lists what each device can do"))
}

fn choose_precision(
    device: &DeviceCapabilities,
    request: &PlanRequest,
    choices: &mut Vec<Choice>,
) -> SeamResult<Precision> {
    let offered: Vec<String> = device.precisions.iter().map(ToString::to_string).collect();
    let (chosen, reason) = match request.precision {
        Some(p) if device.precisions.contains(&p) => (p, "as asked"),
        Some(p) => {
            return Err(SeamError::unsupported(format!(
                "{} does not compute in {p}",
                device.device.name
            ))
            .hint(format!("it offers {}", offered.join(", "))));
        }
        None => {
            let first = device.precisions.first().ok_or_else(|| {
                SeamError::new(
                    ErrorCode::Backend,
                    format!("{} advertises no precision", device.device.name),
                )
            })?;
            (*first, "the device's default")
        }
    };
    let rejected = Precision::ALL
        .into_iter()
        .filter(|&p| p != chosen)
        .map(|p| Rejected {
            option: p.to_string(),
            reason: match (device.precisions.contains(&p), request.precision) {
                (false, _) => "the device does not offer it",
                (true, Some(_)) => "another was asked for",
                (true, None) => "the device prefers another",
            }
            .into(),
        })
        .collect();
    choices.push(Choice {
        topic: "precision".into(),
        chosen: chosen.to_string(),
        reason: reason.into(),
        rejected,
    });
    Ok(chosen)
}

fn choose_context(
    model: &ModelSpec,
    device: &DeviceCapabilities,
    request: &PlanRequest,
    choices: &mut Vec<Choice>,
) -> SeamResult<usize> {
    let limit = device
        .context_limit
        .map_or(model.max_context, |l| l.min(model.max_context));
    let whose = if limit == model.max_context {
        "the model's limit"
    } else {
        "the device's limit"
    };
    let (context, reason) = match request.context {
        None => (limit, whose),
        Some(0) => return Err(SeamError::invalid_input("a context of 0 tokens")),
        Some(c) if c <= limit => (c, "as asked"),
        Some(c) => {
            return Err(
                SeamError::unsupported(format!("a context of {c} tokens is over {whose}"))
                    .hint(format!("at most {limit}")),
            );
        }
    };
    choices.push(Choice {
        topic: "context".into(),
        chosen: format!("{context} tokens"),
        reason: reason.into(),
        rejected: Vec::new(),
    });
    Ok(context)
}

fn choose_sequences(device: &DeviceCapabilities, request: &PlanRequest) -> SeamResult<usize> {
    match request.sequences {
        0 => Err(SeamError::invalid_input("a session for 0 sequences")),
        n if n <= device.max_sequences => Ok(n),
        n => Err(SeamError::unsupported(format!(
            "{n} sequences at once on {}",
            device.device.name
        ))
        .hint(format!("at most {}", device.max_sequences))),
    }
}

fn check_threads(device: &DeviceCapabilities, request: &PlanRequest) -> SeamResult<()> {
    match (request.threads, device.max_threads) {
        (Some(0), _) => Err(SeamError::invalid_input("a session on 0 threads")),
        (Some(n), Some(most)) if n > most => Err(SeamError::unsupported(format!(
            "{n} threads on {}",
            device.device.name
        ))
        .hint(format!("at most {most}"))),
        _ => Ok(()),
    }
}

/// Which schemes stay packed, and the record of the decision.
struct Packing {
    packed: BTreeSet<AffineScheme>,
    choice: Option<Choice>,
}

impl Packing {
    fn choose(
        weights: &WeightManifest,
        device: &DeviceCapabilities,
        precision: Precision,
        request: &PlanRequest,
        bytes: &dyn Fn(&BTreeSet<AffineScheme>) -> u64,
    ) -> SeamResult<Self> {
        let schemes: BTreeSet<AffineScheme> = weights
            .values()
            .filter_map(|w| match w.form {
                WeightForm::Affine(scheme) => Some(scheme),
                WeightForm::Dense(_) => None,
            })
            .collect();
        let packable = |s: &&AffineScheme| device.quant_support(s).is_some();
        let all: BTreeSet<_> = schemes.iter().filter(packable).copied().collect();
        let unpackable: Vec<_> = schemes.difference(&all).map(ToString::to_string).collect();
        let none = BTreeSet::new();
        if schemes.is_empty() {
            return match request.quant {
                QuantRequest::Packed => Err(SeamError::unsupported(
                    "packed weights were asked for, but the checkpoint is not quantised",
                )
                .hint("make a quantised one with `halfhitch quantize`")),
                _ => Ok(Self {
                    packed: none,
                    choice: None,
                }),
            };
        }
        let fused: BTreeSet<_> = all
            .iter()
            .filter(|s| device.quant_support(s).is_some_and(|q| q.fused))
            .copied()
            .collect();
        let [size_packed, size_dense] = [&all, &none].map(|packed| Size(bytes(packed)));
        let nothing_packable = all.is_empty();
        let (packed, reason, against_packed, against_dense) = match request.quant {
            QuantRequest::Packed if unpackable.is_empty() => {
                (all, "as asked", "", "packed was asked for")
            }
            QuantRequest::Packed => {
                return Err(SeamError::unsupported(format!(
                    "{} cannot keep {} packed",
                    device.device.name,
                    unpackable.join(", ")
                ))
                .hint("use --quant dequant or auto"));
            }
            QuantRequest::Dequant => (none, "as asked", "dequantised was asked for", ""),
            QuantRequest::Auto if !fused.is_empty() => (
                fused,
                "the device fuses dequantisation into the contraction",
                "",
                "reads more bytes a token",
            ),
            QuantRequest::Auto => {
                let free = device.memory.free.unwrap_or(u64::MAX);
                if !all.is_empty() && bytes(&none) > free && bytes(&all) < bytes(&none) {
                    (
                        all,
                        "expanded weights would not fit the free memory",
                        "",
                        "too large",
                    )
                } else {
                    (
                        none,
                        if all.is_empty() {
                            "the device cannot keep these schemes packed"
                        } else {
                            "the device does not fuse dequantisation, so packed weights are slower"
                        },
                        if all.is_empty() {
                            "the device does not offer these schemes"
                        } else {
                            "slower here; --quant packed saves memory"
                        },
                        "",
                    )
                }
            }
        };
        let dense = format!("dequantised to {precision}");
        let describe = |packed: &BTreeSet<AffineScheme>| {
            let list: Vec<_> = packed.iter().map(ToString::to_string).collect();
            format!("packed ({})", list.join(", "))
        };
        let (chosen, option, why_not) = if packed.is_empty() {
            let option = if nothing_packable {
                "packed".to_string()
            } else {
                format!("packed ({size_packed})")
            };
            (dense, option, against_packed)
        } else {
            let mut chosen = describe(&packed);
            let rest: Vec<_> = schemes
                .difference(&packed)
                .map(ToString::to_string)
                .collect();
            if !rest.is_empty() {
                chosen = format!("{chosen}; {} {dense}", rest.join(", "));
            }
            (chosen, format!("{dense} ({size_dense})"), against_dense)
        };
        Ok(Self {
            packed,
            choice: Some(Choice {
                topic: "quantised".into(),
                chosen,
                reason: reason.into(),
                rejected: vec![Rejected {
                    option,
                    reason: why_not.into(),
                }],
            }),
        })
    }
}

/// Every weight's form on the device, given which schemes stay packed.
fn place(
    model: &ModelSpec,
    weights: &WeightManifest,
    device: &DeviceCapabilities,
    precision: Precision,
    packed: &BTreeSet<AffineScheme>,
) -> Vec<PlannedWeight> {
    model
        .expected_weights()
        .into_iter()
        .map(|want| {
            let info = &weights[&want.id];
            let resident = match info.form {
                // Norms and biases are never contraction operands: f32.
                _ if !want.is_matrix() => WeightForm::Dense(DType::F32),
                WeightForm::Affine(scheme) if packed.contains(&scheme) => info.form,
                WeightForm::Affine(_) => WeightForm::Dense(precision.dtype()),
                WeightForm::Dense(stored) => {
                    WeightForm::Dense(dense_residency(stored, device, precision))
                }
            };
            PlannedWeight {
                id: want.id,
                stored: info.form,
                resident,
                bytes: info.bytes_as(resident),
            }
        })
        .collect()
}

/// In f32, a narrower stored type stays as it is where the device can hold it: widening it in the
/// contraction is exact and reads fewer bytes. Otherwise the precision decides.
fn dense_residency(stored: DType, device: &DeviceCapabilities, precision: Precision) -> DType {
    if precision == Precision::F32 && device.resident.contains(&stored) {
        stored
    } else {
        precision.dtype()
    }
}

fn dense_choice(
    planned: &[PlannedWeight],
    device: &DeviceCapabilities,
    precision: Precision,
) -> Choice {
    let mut bytes: BTreeMap<WeightForm, u64> = BTreeMap::new();
    let mut rounded = false;
    for w in planned {
        *bytes.entry(w.resident).or_default() += w.bytes;
        rounded |= match (w.stored, w.resident) {
            (WeightForm::Affine(_), WeightForm::Dense(d)) => d != DType::F32,
            (WeightForm::Dense(s), WeightForm::Dense(d)) => d != DType::F32 && s != d,
            _ => false,
        };
    }
    let list: Vec<_> = bytes
        .iter()
        .map(|(form, &bytes)| format!("{} as {form}", Size(bytes)))
        .collect();
    let resident: Vec<_> = device.resident.iter().map(ToString::to_string).collect();
    Choice {
        topic: "weights".into(),
        chosen: list.join(", "),
        reason: if rounded {
            format!("rounded to {precision}")
        } else {
            format!("exact; the device holds {}", resident.join(", "))
        },
        rejected: Vec::new(),
    }
}

fn check_memory(device: &DeviceCapabilities, memory: &MemoryEstimate) -> SeamResult<()> {
    match device.memory.total {
        Some(total) if memory.at_start() > total => Err(SeamError::new(
            ErrorCode::OutOfMemory,
            format!(
                "the model takes {} and {} has {}",
                Size(memory.at_start()),
                device.device.name,
                Size(total)
            ),
        )
        .hint("try --quant packed, a smaller model or another device")),
        _ => Ok(()),
    }
}
