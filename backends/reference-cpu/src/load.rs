//! From the host's weights to a [`Model`], each in the form that the plan names.

use std::collections::HashMap;

use halfhitch_seam::model::{FeedForward, GatedMlp, LayerSpec, ModelSpec, NormSpec};
use halfhitch_seam::{
    Control, DType, ErrorCode, ExecutionPlan, LayerWeight as W, ResultExt, SeamError, SeamResult,
    Stage, Weight, WeightForm, WeightId, Weights,
};

use crate::math::activation;
use crate::math::rope::Rope;
use crate::model::{Block, Experts, Layer, Mlp, Model, Norm};
use crate::weights::{Linear, Matrix, Values};

impl Model {
    /// Brings all weights to their planned form, with progress in the plan's bytes and a look at the
    /// cancel token throughout.
    ///
    /// # Errors
    /// `Cancelled`, `OutOfMemory`; `Incompatible` where the plan names a form that this backend does
    /// not advertise; `Unsupported`, `NotFound`.
    pub fn load(
        spec: &ModelSpec,
        weights: &Weights,
        plan: &ExecutionPlan,
        control: Control<'_>,
    ) -> SeamResult<Self> {
        let mut loader = Loader {
            weights,
            planned: plan
                .weights
                .iter()
                .map(|w| (w.id, (w.resident, w.bytes)))
                .collect(),
            control,
            done: 0,
            total: plan.weights.iter().map(|w| w.bytes).sum(),
        };
        let embedding = loader.matrix(WeightId::Embedding)?;
        let mut layers = Vec::new();
        for (i, layer) in spec.layers.iter().enumerate() {
            layers.push(loader.layer(i as u32, layer)?);
        }
        let final_norm = loader.norm(
            &spec.final_norm,
            WeightId::FinalNorm,
            WeightId::FinalNormBias,
        )?;
        let head = if spec.head.tied {
            None
        } else {
            Some(loader.matrix(WeightId::Head)?)
        };
        let head_bias = loader.vector_if(spec.head.bias, WeightId::HeadBias)?;
        Ok(Self {
            spec: spec.clone(),
            embedding,
            layers,
            final_norm,
            head,
            head_bias,
        })
    }
}

/// Takes weights by name and keeps count.
struct Loader<'a> {
    weights: &'a Weights,
    planned: HashMap<WeightId, (WeightForm, u64)>,
    control: Control<'a>,
    done: u64,
    total: u64,
}

impl Loader<'_> {
    fn planned(&self, id: WeightId) -> SeamResult<(WeightForm, u64)> {
        self.planned.get(&id).copied().ok_or_else(|| {
            SeamError::new(
                ErrorCode::Incompatible,
                format!("the plan does not say how `{id}` is kept"),
            )
        })
    }

    fn finished(&mut self, bytes: u64) {
        self.done += bytes;
        self.control
            .progress(Stage::LoadWeights, self.done, self.total);
    }

    fn matrix(&mut self, id: WeightId) -> SeamResult<Matrix> {
        self.control.cancel.check()?;
        let (form, bytes) = self.planned(id)?;
        let weight = self.weights.get(id)?;
        let packed = match form {
            WeightForm::Dense(DType::F32) => false,
            WeightForm::Affine(_) if form == weight.form() => true,
            other => {
                return Err(SeamError::new(
                    ErrorCode::Incompatible,
                    format!(
                        "the plan keeps `{id}`, stored as {}, as {other}",
                        weight.form()
                    ),
                )
                .hint("plan with this backend's own capabilities"));
            }
        };
        let matrix =
            Matrix::new(weight, packed, self.control.cancel).in_context(|| id.to_string())?;
        self.finished(bytes);
        Ok(matrix)
    }

    fn vector(&mut self, id: WeightId) -> SeamResult<Vec<f32>> {
        let (_, bytes) = self.planned(id)?;
        let vector = match self.weights.get(id)? {
            Weight::Dense(tensor) => Values::from_tensor(tensor, self.control.cancel)?
                .as_slice()
                .to_vec(),
            _ => {
                return Err(SeamError::invalid_model(format!(
                    "`{id}` is quantised, but it is a vector"
                )));
            }
        };
        self.finished(bytes);
        Ok(vector)
    }

    fn vector_if(&mut self, there: bool, id: WeightId) -> SeamResult<Option<Vec<f32>>> {
        there.then(|| self.vector(id)).transpose()
    }

    fn norm(&mut self, spec: &NormSpec, weight: WeightId, bias: WeightId) -> SeamResult<Norm> {
        Ok(Norm {
            spec: *spec,
            weight: self.vector_if(spec.weight, weight)?,
            bias: self.vector_if(spec.bias, bias)?,
        })
    }

    fn linear(&mut self, layer: u32, weight: W, bias: Option<W>) -> SeamResult<Linear> {
        let id = |w| WeightId::Layer(layer, w);
        Ok(Linear {
            weight: self.matrix(id(weight))?,
            bias: bias.map(|b| self.vector(id(b))).transpose()?,
        })
    }

    fn mlp(&mut self, layer: u32, spec: &GatedMlp, names: [(W, W); 3]) -> SeamResult<Mlp> {
        let [gate, up, down] = names;
        let mut linear =
            |(weight, bias): (W, W)| self.linear(layer, weight, spec.bias.then_some(bias));
        Ok(Mlp {
            activation: activation::function(spec.activation)?,
            gate: linear(gate)?,
            up: linear(up)?,
            down: linear(down)?,
        })
    }

    fn block(&mut self, layer: u32, spec: &FeedForward) -> SeamResult<Block> {
        match spec {
            FeedForward::Gated(mlp) => {
                let names = [
                    (W::Gate, W::GateBias),
                    (W::Up, W::UpBias),
                    (W::Down, W::DownBias),
                ];
                Ok(Block::Gated(Box::new(self.mlp(layer, mlp, names)?)))
            }
            FeedForward::MixtureOfExperts(moe) => {
                let router = self.matrix(WeightId::Layer(layer, W::Router))?;
                let experts = (0..moe.experts as u32)
                    .map(|e| {
                        let names = [
                            (W::ExpertGate(e), W::ExpertGateBias(e)),
                            (W::ExpertUp(e), W::ExpertUpBias(e)),
                            (W::ExpertDown(e), W::ExpertDownBias(e)),
                        ];
                        self.mlp(layer, &moe.expert, names)
                    })
                    .collect::<SeamResult<_>>()?;
                Ok(Block::Experts(Box::new(Experts {
                    spec: *moe,
                    router,
                    experts,
                })))
            }
            other => Err(SeamError::unsupported(format!(
                "feed-forward block {other:?}"
            ))),
        }
    }

    fn layer(&mut self, i: u32, spec: &LayerSpec) -> SeamResult<Layer> {
        let a = &spec.attention;
        let mut norm = |norm: &Option<NormSpec>, weight, bias| {
            norm.as_ref()
                .map(|n| self.norm(n, WeightId::Layer(i, weight), WeightId::Layer(i, bias)))
                .transpose()
        };
        let qk = a.qk_norm.map(|n| n.norm);
        let pre_attention = norm(
            &spec.pre_attention,
            W::PreAttentionNorm,
            W::PreAttentionNormBias,
        )?;
        let query_norm = norm(&qk, W::QueryNorm, W::QueryNormBias)?;
        let key_norm = norm(&qk, W::KeyNorm, W::KeyNormBias)?;
        let post_attention = norm(
            &spec.post_attention,
            W::PostAttentionNorm,
            W::PostAttentionNormBias,
        )?;
        let pre_feed_forward = norm(
            &spec.pre_feed_forward,
            W::PreFeedForwardNorm,
            W::PreFeedForwardNormBias,
        )?;
        let post_feed_forward = norm(
            &spec.post_feed_forward,
            W::PostFeedForwardNorm,
            W::PostFeedForwardNormBias,
        )?;
        let bias = |there: bool, name: W| there.then_some(name);
        Ok(Layer {
            pre_attention,
            query: self.linear(i, W::Query, bias(a.qkv_bias, W::QueryBias))?,
            key: self.linear(i, W::Key, bias(a.qkv_bias, W::KeyBias))?,
            value: self.linear(i, W::Value, bias(a.qkv_bias, W::ValueBias))?,
            query_norm,
            key_norm,
            rope: a.rope.as_ref().map(Rope::new),
            output: self.linear(i, W::Output, bias(a.output_bias, W::OutputBias))?,
            post_attention,
            pre_feed_forward,
            block: self.block(i, &spec.feed_forward)?,
            post_feed_forward,
            spec: spec.clone(),
        })
    }
}
