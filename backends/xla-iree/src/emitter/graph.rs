//! A function of a model under construction: the builder, the model, and the arguments so far.

use halfhitch_seam::{
    ExecutionPlan, LayerWeight, ModelSpec, TapPoint, TapSite, WeightForm, WeightId,
};

use super::builder::{Builder, Scalar, Value};
use super::layout::{Layout, Role, Signature, Slot};
use super::resident::{Resident, single};
use super::tiling::Profile;
use super::types::{Dim, Elem, TensorType};

/// What a graph is built from.
#[derive(Clone, Copy)]
pub struct Source<'a> {
    /// The model, validated.
    pub spec: &'a ModelSpec,
    /// Its plan: precision, weight forms, cache type.
    pub plan: &'a ExecutionPlan,
    /// What code is made for.
    pub profile: Profile,
}

/// A weight as a function sees it.
#[derive(Clone, Debug)]
pub struct WeightValue {
    /// Its form.
    pub form: WeightForm,
    /// Its logical shape.
    pub shape: Vec<usize>,
    /// How its tensors lie.
    pub layout: Layout,
    /// Its tensors, in the order of [`weight_tensors`].
    pub tensors: Vec<Value>,
}

/// One function.
pub struct Function<'a> {
    /// Model and plan.
    pub source: Source<'a>,
    /// The body.
    pub b: Builder,
    name: String,
    arguments: Vec<Slot>,
    results: Vec<(Slot, Value)>,
    weights: Vec<(WeightId, WeightValue)>,
    tapped: bool,
}

impl<'a> Function<'a> {
    /// Starts a function.
    pub fn new(source: Source<'a>, name: impl Into<String>) -> Self {
        let name = name.into();
        Self {
            source,
            b: Builder::new(name.clone()),
            name,
            arguments: Vec::new(),
            results: Vec::new(),
            weights: Vec::new(),
            tapped: false,
        }
    }

    /// Starts a function that shows its intermediate results.
    pub fn tapped(source: Source<'a>, name: impl Into<String>) -> Self {
        Self {
            tapped: true,
            ..Self::new(source, name)
        }
    }

    /// Whether intermediate results are shown.
    pub const fn is_tapped(&self) -> bool {
        self.tapped
    }

    /// Shows an intermediate result as a result of the function, its dimensions after the first as one;
    /// does nothing where nobody asked.
    pub fn tap(&mut self, layer: Option<usize>, point: TapPoint, value: &Value) {
        if !self.tapped {
            return;
        }
        let dims = value.sizes();
        let flat = [dims[0], dims[1..].iter().product()];
        let value = self.b.convert(value, Elem::F32);
        let value = self.b.reshape(&value, &flat);
        self.result(Role::Tap(TapSite { layer, point }), value);
    }

    /// Adds a tensor argument.
    pub fn argument(&mut self, role: Role, elem: Elem, dims: &[Dim]) -> Value {
        self.arguments.push(Slot {
            role,
            elem,
            shape: Some(open_shape(dims)),
        });
        self.b.argument(TensorType::new(elem, dims))
    }

    /// Adds an i32 passed by value.
    pub fn scalar(&mut self, role: Role) -> Scalar {
        self.arguments.push(Slot {
            role,
            elem: Elem::I32,
            shape: None,
        });
        self.b.scalar_argument()
    }

    /// Adds a result.
    pub fn result(&mut self, role: Role, value: Value) {
        let slot = Slot {
            role,
            elem: value.elem(),
            shape: Some(open_shape(value.dims())),
        };
        self.results.push((slot, value));
    }

    /// A weight that is resident by itself.
    ///
    /// # Panics
    /// For a weight that the plan does not have; specs and plans agree by contract.
    pub fn weight(&mut self, id: WeightId) -> WeightValue {
        self.resident(&single(self.source, id))
    }

    /// A resident weight, as arguments that are added where it is first used.
    pub fn resident(&mut self, resident: &Resident) -> WeightValue {
        let id = resident.id();
        if let Some((_, value)) = self.weights.iter().find(|(known, _)| *known == id) {
            return value.clone();
        }
        let tensors = resident
            .tensors()
            .into_iter()
            .map(|t| {
                let dims: Vec<Dim> = t.shape.iter().map(|&n| n.into()).collect();
                self.argument(Role::Weight { id, part: t.part }, t.elem, &dims)
            })
            .collect();
        let value = WeightValue {
            form: resident.form,
            shape: resident.shape.clone(),
            layout: resident.layout,
            tensors,
        };
        self.weights.push((id, value.clone()));
        value
    }

    /// A vector weight, in f32.
    pub fn vector(&mut self, id: WeightId) -> Value {
        let weight = self.weight(id);
        self.b.convert(&weight.tensors[0], Elem::F32)
    }

    /// Ends the function: its text and its signature.
    pub fn finish(self) -> (String, Signature) {
        let (slots, values): (Vec<_>, Vec<_>) = self.results.into_iter().unzip();
        let signature = Signature {
            name: self.name,
            arguments: self.arguments,
            results: slots,
        };
        (self.b.finish(&values), signature)
    }
}

/// A layer's weight.
pub fn layer_weight(layer: usize, weight: LayerWeight) -> WeightId {
    WeightId::Layer(layer as u32, weight)
}

/// The logical shape the model asks of a weight.
///
/// # Panics
/// For a weight the model does not have.
pub fn shape_of(spec: &ModelSpec, id: WeightId) -> Vec<usize> {
    spec.expected_weights()
        .into_iter()
        .find(|w| w.id == id)
        .unwrap_or_else(|| panic!("the model has no `{id}`"))
        .shape
}

fn open_shape(dims: &[Dim]) -> Vec<Option<usize>> {
    dims.iter()
        .map(|d| match d {
            Dim::Static(n) => Some(*n),
            Dim::Dynamic(_) => None,
        })
        .collect()
}
