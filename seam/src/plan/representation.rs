//! Which representation each weight is contracted in.

use std::collections::{BTreeMap, BTreeSet};

use super::{Choice, PlanRequest, PlannedWeight, Rejected};
use crate::capability::DeviceCapabilities;
use crate::dtype::Precision;
use crate::error::{SeamError, SeamResult};
use crate::model::{ModelSpec, WeightId};
use crate::representation::{
    PlannedRepresentation, RepresentationName, RepresentationSupport, StepRows,
};
use crate::tune::TunedContraction;
use crate::weights::WeightForm;

/// What was chosen.
pub struct Representations {
    /// By form and kind of step.
    pub planned: Vec<PlannedRepresentation>,
    /// What was measured on the device and is used.
    pub tuned: Vec<TunedContraction>,
    /// The record.
    pub choices: Vec<Choice>,
}

/// Chooses for every form that the model's matrices have on the device.
///
/// # Errors
/// `Unsupported` where the wish can be met for no weight, with what can.
pub fn choose(
    model: &ModelSpec,
    planned: &[PlannedWeight],
    device: &DeviceCapabilities,
    precision: Precision,
    request: &PlanRequest,
) -> SeamResult<Representations> {
    let matrices: BTreeMap<WeightId, usize> = model
        .expected_weights()
        .into_iter()
        .filter_map(|w| match w.shape[..] {
            [_, columns] => Some((w.id, columns)),
            _ => None,
        })
        .collect();
    let mut columns: BTreeMap<WeightForm, BTreeSet<usize>> = BTreeMap::new();
    for w in planned {
        if let Some(&n) = matrices.get(&w.id) {
            columns.entry(w.resident).or_default().insert(n);
        }
    }
    let forms: Vec<WeightForm> = columns.keys().copied().collect();
    let offered = |form, rows| -> Vec<&RepresentationSupport> {
        let all = device.representations.iter();
        all.filter(|r| r.covers(form, rows, precision)).collect()
    };
    let mut met = false;
    let mut out = Vec::new();
    let mut choices = Vec::new();
    for rows in StepRows::ALL {
        if rows == StepRows::Batch && request.sequences == 1 {
            continue;
        }
        let mut groups: BTreeMap<Vec<RepresentationName>, Vec<WeightForm>> = BTreeMap::new();
        for &form in &forms {
            let mut order: Vec<RepresentationName> =
                offered(form, rows).iter().map(|r| r.name).collect();
            if let Some(wish) = request.representation
                && let Some(at) = order.iter().position(|&name| name == wish)
            {
                met = true;
                order[..=at].rotate_right(1);
            }
            if !order.is_empty() {
                groups.entry(order.clone()).or_default().push(form);
                out.push(PlannedRepresentation { form, rows, order });
            }
        }
        for (order, forms) in groups {
            choices.extend(choice(device, request, rows, &order, &forms));
        }
    }
    if let Some(wish) = request.representation
        && !met
    {
        return Err(impossible(device, wish, &forms, precision));
    }
    let tuned = tuned(device, request, &columns);
    choices.extend(tuned_choice(&tuned));
    Ok(Representations {
        planned: out,
        tuned,
        choices,
    })
}

/// One record for the forms that share an order.
fn choice(
    device: &DeviceCapabilities,
    request: &PlanRequest,
    rows: StepRows,
    order: &[RepresentationName],
    forms: &[WeightForm],
) -> Option<Choice> {
    let support = |name: &RepresentationName| {
        let mut all = device.representations.iter();
        all.find(|r| r.name == *name)
    };
    let first = support(order.first()?)?;
    let asked = request.representation == Some(first.name);
    let forms: Vec<String> = forms.iter().map(ToString::to_string).collect();
    let rejected = order[1..].iter().filter_map(support).map(|r| Rejected {
        option: r.name.to_string(),
        reason: if asked {
            format!("{} was asked for", first.name)
        } else {
            r.against.clone()
        },
    });
    Some(Choice {
        topic: rows.label().into(),
        chosen: format!("{} ({})", first.name, forms.join(", ")),
        reason: if asked {
            format!("as asked; {}", first.description)
        } else {
            first.reason.clone()
        },
        rejected: rejected.collect(),
    })
}

fn impossible(
    device: &DeviceCapabilities,
    wish: RepresentationName,
    forms: &[WeightForm],
    precision: Precision,
) -> SeamError {
    let name = &device.device.name;
    let possible: Vec<String> = forms
        .iter()
        .filter_map(|&form| {
            let all = device.representations.iter();
            let can = all.filter(|r| StepRows::ALL.iter().any(|&n| r.covers(form, n, precision)));
            let names: Vec<String> = can.map(|r| r.name.to_string()).collect();
            (!names.is_empty()).then(|| format!("{} for {form}", names.join(", ")))
        })
        .collect();
    let known = device.representations.iter().any(|r| r.name == wish);
    let what = if known {
        format!("no weight of this plan can be contracted as `{wish}` on {name}")
    } else {
        format!("{name} has no representation `{wish}`")
    };
    SeamError::unsupported(what).hint(if possible.is_empty() {
        "it leaves no choice: use --representation auto".to_owned()
    } else {
        format!("possible: {}", possible.join("; "))
    })
}

/// Measurements that hold for this plan: same threads, same forms, same widths, and nothing that goes
/// against the wish.
fn tuned(
    device: &DeviceCapabilities,
    request: &PlanRequest,
    columns: &BTreeMap<WeightForm, BTreeSet<usize>>,
) -> Vec<TunedContraction> {
    let wish = request.representation;
    let holds = |t: &&TunedContraction| {
        t.threads == request.threads
            && wish.is_none_or(|w| w == t.representation)
            && columns
                .get(&t.form)
                .is_some_and(|widths| widths.contains(&t.shape[1]))
    };
    device.tuned.iter().filter(holds).cloned().collect()
}

fn tuned_choice(tuned: &[TunedContraction]) -> Option<Choice> {
    if tuned.is_empty() {
        return None;
    }
    let list: Vec<String> = tuned
        .iter()
        .map(|t| {
            let tasks = t.tasks.map_or(String::new(), |n| format!(" in {n} tasks"));
            let [rows, columns] = t.shape;
            format!(
                "{rows}x{columns} {} {}{tasks} {:.0} us",
                t.rows.label(),
                t.representation,
                t.microseconds
            )
        })
        .collect();
    Some(Choice {
        topic: "tuned".into(),
        chosen: list.join(", "),
        reason: "measured on this device by `halfhitch tune`".into(),
        rejected: Vec::new(),
    })
}
