//! Which weights are resident together, and how each lies: one pure function of the model, its plan and
//! the target, for the graph's arguments and for the upload alike.
//!
//! Matrices of the same input whose rows can be put one below the other are one resident weight, so
//! that one contraction reads it: queries, keys and values; gate and up.

use halfhitch_seam::{LayerWeight, StepRows, WeightForm, WeightId};

use super::contraction::{choice, ranges};
use super::graph::{Source, shape_of};
use super::layout::{Layout, WeightTensor, weight_tensors};

/// A resident weight.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resident {
    /// The weights whose rows it has, in order. The first names it.
    pub ids: Vec<WeightId>,
    /// Rows of each of them.
    pub rows: Vec<usize>,
    /// Its form.
    pub form: WeightForm,
    /// Its shape: of a matrix `[sum of rows, columns]`.
    pub shape: Vec<usize>,
    /// How it lies.
    pub layout: Layout,
    /// Tasks that a contraction of one row with it is cut into, where that was measured.
    pub tasks: Option<usize>,
}

impl Resident {
    /// The weight that names it.
    pub fn id(&self) -> WeightId {
        self.ids[0]
    }

    /// Where the rows of each of its weights begin and end.
    pub fn ranges(&self) -> impl Iterator<Item = (usize, usize)> {
        ranges(&self.rows)
    }

    /// Its tensors, in the order of arguments.
    pub fn tensors(&self) -> Vec<WeightTensor> {
        weight_tensors(self.form, self.layout, &self.shape)
    }
}

/// Everything that is resident for a plan.
pub fn residents(source: Source<'_>) -> Vec<Resident> {
    use LayerWeight as W;
    let ids = source.plan.weights.iter().map(|w| w.id);
    ids.flat_map(|id| match id {
        WeightId::Layer(_, W::Key | W::Value | W::Up) => Vec::new(),
        WeightId::Layer(layer, W::Query) => {
            let of = |weight| WeightId::Layer(layer, weight);
            group(source, &[of(W::Query), of(W::Key), of(W::Value)])
        }
        WeightId::Layer(layer, W::Gate) => {
            let of = |weight| WeightId::Layer(layer, weight);
            group(source, &[of(W::Gate), of(W::Up)])
        }
        id => vec![single(source, id)],
    })
    .collect()
}

/// Matrices of one input: as one resident weight where they are laid out anew, else each by itself.
pub fn group(source: Source<'_>, ids: &[WeightId]) -> Vec<Resident> {
    let parts: Vec<Resident> = ids.iter().map(|&id| single(source, id)).collect();
    let form = parts[0].form;
    let columns = parts[0].shape[1];
    let alike = parts
        .iter()
        .all(|p| p.form == form && p.shape[1] == columns);
    let rows: Vec<usize> = parts.iter().map(|p| p.shape[0]).collect();
    let shape = vec![rows.iter().sum(), columns];
    let layout = choice::layout(source, form, &shape);
    if !alike || !matches!(layout, Layout::Blocks | Layout::Lanes) {
        return parts;
    }
    vec![Resident {
        ids: ids.to_vec(),
        tasks: tasks(source, form, &shape),
        rows,
        form,
        shape,
        layout,
    }]
}

/// A weight by itself.
///
/// # Panics
/// For a weight that the plan or the model does not have; they agree by contract.
pub fn single(source: Source<'_>, id: WeightId) -> Resident {
    let planned = source
        .plan
        .weight(id)
        .unwrap_or_else(|| panic!("the plan has no `{id}`"));
    let shape = shape_of(source.spec, id);
    Resident {
        ids: vec![id],
        rows: vec![shape[0]],
        form: planned.resident,
        layout: match id {
            // Only rows of it are picked, from where they lie.
            WeightId::Embedding
                if !source.spec.head.tied && matches!(planned.resident, WeightForm::Dense(_)) =>
            {
                Layout::Stored
            }
            _ => choice::layout(source, planned.resident, &shape),
        },
        tasks: tasks(source, planned.resident, &shape),
        shape,
    }
}

fn tasks(source: Source<'_>, form: WeightForm, shape: &[usize]) -> Option<usize> {
    choice::tuned(source, form, shape, StepRows::One)?.tasks
}
