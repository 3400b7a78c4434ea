//! One side of a comparison: a model, and where and how it runs.

use std::sync::Arc;

use bytes::Bytes;
use halfhitch_seam::{
    AffineTensor, ComputeBackend, Control, DeviceCapabilities, ExecutionPlan, LayerWeight,
    ModelSpec, OpenRequest, PlanRequest, SeamResult, Session, Tensor, Weight, WeightId, Weights,
    negotiate,
};

/// A model on a device, not open yet.
#[derive(Clone)]
pub struct Side<'a> {
    /// The backend.
    pub backend: Arc<dyn ComputeBackend>,
    /// Its device's capabilities.
    pub capabilities: &'a DeviceCapabilities,
    /// The model.
    pub spec: &'a ModelSpec,
    /// Its weights.
    pub weights: &'a Weights,
    /// How it shall run.
    pub request: PlanRequest,
}

impl Side<'_> {
    /// How it will run.
    ///
    /// # Errors
    /// What [`negotiate`] says.
    pub fn plan(&self) -> SeamResult<ExecutionPlan> {
        let manifest = self.weights.manifest();
        negotiate(self.spec, &manifest, self.capabilities, &self.request)
    }

    /// Opens it.
    ///
    /// # Errors
    /// What negotiation and the backend say.
    pub fn open(&self, control: &Control<'_>) -> SeamResult<Box<dyn Session>> {
        let plan = self.plan()?;
        self.backend.open(OpenRequest {
            plan: &plan,
            model: self.spec,
            weights: self.weights,
            control: *control,
        })
    }

    /// Opens a model of the first `layers` layers, with norm and head after them. With 0 it has one layer
    /// that adds nothing to the residual stream, since a model has at least one.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_prefix(
        &self,
        layers: usize,
        control: &Control<'_>,
    ) -> SeamResult<Box<dyn Session>> {
        let mut spec = self.spec.clone();
        spec.layers.truncate(layers.max(1));
        let kept = self.weights.iter().filter(|(id, _)| match id {
            WeightId::Layer(layer, _) => (*layer as usize) < layers.max(1),
            _ => true,
        });
        let weights: Weights = kept
            .map(|(id, weight)| {
                let weight = match layers == 0 && is_last_of_block(id) {
                    true => zeros(weight)?,
                    false => weight.clone(),
                };
                Ok((id, weight))
            })
            .collect::<SeamResult<_>>()?;
        let prefix = Side {
            spec: &spec,
            weights: &weights,
            ..self.clone()
        };
        prefix.open(control)
    }

    /// Whether a prefix of no layers computes what it stands for: a norm of nothing is nothing, but only
    /// where its root is not of 0.
    pub fn can_have_no_layers(&self) -> bool {
        self.spec.layers.first().is_some_and(|l| {
            let post = [l.post_attention, l.post_feed_forward];
            post.iter().flatten().all(|n| n.eps > 0.0)
        })
    }
}

/// Whether a weight makes what a block adds to the residual stream.
fn is_last_of_block(id: WeightId) -> bool {
    use LayerWeight as W;
    matches!(
        id,
        WeightId::Layer(
            _,
            W::Output
                | W::OutputBias
                | W::Down
                | W::DownBias
                | W::ExpertDown(_)
                | W::ExpertDownBias(_)
                | W::PostAttentionNormBias
                | W::PostFeedForwardNormBias
        )
    )
}

/// A weight of the same form and shape whose every value is 0.
fn zeros(weight: &Weight) -> SeamResult<Weight> {
    let zero = |t: &Tensor| {
        let bytes = Bytes::from(vec![0; t.bytes().len()]);
        Tensor::new(t.dtype(), t.shape().to_vec(), bytes)
    };
    Ok(match weight {
        Weight::Affine(a) => Weight::Affine(AffineTensor::new(
            a.scheme(),
            a.words().clone(),
            zero(a.scales())?,
            zero(a.biases())?,
        )?),
        Weight::Dense(t) => Weight::Dense(zero(t)?),
        other => {
            return Err(halfhitch_seam::SeamError::unsupported(format!(
                "a model without layers from weights stored as {}",
                other.form()
            )));
        }
    })
}
