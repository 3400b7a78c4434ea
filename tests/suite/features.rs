//! The list of generated models: each feature by itself, then many at once.

use std::collections::BTreeSet;

use halfhitch_seam::model::{
    Activation, FeedForward, LayerSpec, MixtureOfExperts, ModelSpec, NormKind, NormSpec, QkNorm,
    QkNormScope, RopeLayout, RopeScaling,
};
use halfhitch_seam::{DType, ModelFeature, SeamResult};

use crate::models::{Generated, Storage, plain_spec};
use crate::random::Random;

/// A change to a spec.
type Edit = fn(&mut ModelSpec);

fn layers(spec: &mut ModelSpec, edit: impl Fn(&mut LayerSpec)) {
    spec.layers.iter_mut().for_each(edit);
}

fn mlps(spec: &mut ModelSpec, edit: impl Fn(&mut halfhitch_seam::model::GatedMlp)) {
    layers(spec, |layer| match &mut layer.feed_forward {
        FeedForward::Gated(mlp) => edit(mlp),
        FeedForward::MixtureOfExperts(moe) => edit(&mut moe.expert),
        _ => {}
    });
}

fn ropes(spec: &mut ModelSpec, edit: impl Fn(&mut halfhitch_seam::model::RopeSpec)) {
    layers(spec, |l| l.attention.rope.iter_mut().for_each(&edit));
}

fn experts(spec: &mut ModelSpec, normalise: bool) {
    layers(spec, |layer| {
        if let FeedForward::Gated(expert) = layer.feed_forward {
            layer.feed_forward = FeedForward::MixtureOfExperts(MixtureOfExperts {
                experts: 5,
                experts_per_token: 2,
                normalise,
                expert,
            });
        }
    });
}

/// Every norm of a model, the query-key norms too.
fn norms(spec: &mut ModelSpec, edit: impl Fn(&mut NormSpec)) {
    edit(&mut spec.final_norm);
    layers(spec, |l| {
        for norm in [
            &mut l.pre_attention,
            &mut l.post_attention,
            &mut l.pre_feed_forward,
            &mut l.post_feed_forward,
        ] {
            norm.iter_mut().for_each(&edit);
        }
        l.attention
            .qk_norm
            .iter_mut()
            .for_each(|n| edit(&mut n.norm));
    });
}

fn qk_norm(spec: &mut ModelSpec, scope: QkNormScope) {
    layers(spec, |l| {
        l.attention.qk_norm = Some(QkNorm {
            scope,
            norm: NormSpec::rms(1e-6),
        });
    });
}

/// Single features, by name.
const FEATURES: &[(&str, Edit)] = &[
    ("plain", |_| {}),
    ("tied", |s| s.head.tied = true),
    ("one-kv-head", |s| layers(s, |l| l.attention.kv_heads = 1)),
    ("as-many-kv-heads", |s| {
        layers(s, |l| l.attention.kv_heads = 4)
    }),
    ("head-dim", |s| {
        layers(s, |l| l.attention.head_dim = 12);
        ropes(s, |r| r.dims = 12);
    }),
    ("rope-theta", |s| ropes(s, |r| r.theta = 50.0)),
    ("qkv-bias", |s| layers(s, |l| l.attention.qkv_bias = true)),
    ("output-bias", |s| {
        layers(s, |l| l.attention.output_bias = true)
    }),
    ("mlp-bias", |s| mlps(s, |m| m.bias = true)),
    ("qk-norm-head", |s| qk_norm(s, QkNormScope::Head)),
    ("qk-norm-all", |s| qk_norm(s, QkNormScope::All)),
    ("window", |s| layers(s, |l| l.attention.window = Some(5))),
    ("window-of-one", |s| {
        layers(s, |l| l.attention.window = Some(1))
    }),
    ("rope-linear", |s| {
        ropes(s, |r| r.scaling = Some(RopeScaling::Linear { factor: 4.0 }));
    }),
    ("rope-llama3", |s| {
        ropes(s, |r| {
            r.scaling = Some(RopeScaling::Llama3 {
                factor: 8.0,
                low_freq_factor: 1.0,
                high_freq_factor: 4.0,
                original_context: 64.0,
            });
        });
    }),
    ("rope-partial", |s| ropes(s, |r| r.dims = 4)),
    ("rope-interleaved", |s| {
        ropes(s, |r| r.layout = RopeLayout::Interleaved)
    }),
    ("rope-partial-interleaved", |s| {
        ropes(s, |r| (r.dims, r.layout) = (6, RopeLayout::Interleaved));
    }),
    ("no-rope", |s| layers(s, |l| l.attention.rope = None)),
    ("no-rope-in-one-layer", |s| {
        s.layers[1].attention.rope = None
    }),
    ("attention-scale", |s| {
        layers(s, |l| l.attention.scale = 0.11)
    }),
    ("score-softcap", |s| {
        layers(s, |l| l.attention.softcap = Some(1.5))
    }),
    ("logit-softcap", |s| s.head.softcap = Some(4.0)),
    ("post-norms", |s| {
        layers(s, |l| {
            l.post_attention = Some(NormSpec::rms(1e-5));
            l.post_feed_forward = Some(NormSpec::rms(1e-5));
        });
    }),
    ("post-norms-alone", |s| {
        layers(s, |l| {
            (l.post_attention, l.pre_attention) = (l.pre_attention, None);
            (l.post_feed_forward, l.pre_feed_forward) = (l.pre_feed_forward, None);
        });
    }),
    ("layer-norm", |s| norms(s, |n| n.kind = NormKind::Layer)),
    ("layer-norm-bias", |s| {
        norms(s, |n| (n.kind, n.bias) = (NormKind::Layer, true));
    }),
    ("weightless-norms", |s| norms(s, |n| n.weight = false)),
    ("norm-offset", |s| norms(s, |n| n.weight_offset = 1.0)),
    ("norm-eps", |s| norms(s, |n| n.eps = 0.5)),
    ("qk-layer-norm-bias", |s| {
        qk_norm(s, QkNormScope::Head);
        layers(s, |l| {
            l.attention
                .qk_norm
                .iter_mut()
                .for_each(|n| (n.norm.kind, n.norm.bias) = (NormKind::Layer, true));
        });
    }),
    ("embedding-scale", |s| s.embedding_scale = 3.5),
    ("residual-scale", |s| layers(s, |l| l.residual_scale = 0.3)),
    ("logit-scale", |s| s.head.scale = 0.2),
    ("softcap-then-scale", |s| {
        (s.head.softcap, s.head.scale) = (Some(3.0), 2.0)
    }),
    ("head-bias", |s| s.head.bias = true),
    ("head-bias-softcap", |s| {
        (s.head.bias, s.head.softcap) = (true, Some(4.0))
    }),
    ("gelu-tanh", |s| {
        mlps(s, |m| m.activation = Activation::GeluTanh)
    }),
    ("gelu-erf", |s| {
        mlps(s, |m| m.activation = Activation::GeluErf)
    }),
    ("mixed-layers", |s| {
        s.layers[1].attention.window = Some(3);
        s.layers[1].attention.kv_heads = 4;
        s.layers[1]
            .attention
            .rope
            .iter_mut()
            .for_each(|r| r.theta = 100.0);
    }),
    ("experts", |s| experts(s, false)),
    ("experts-normalised", |s| experts(s, true)),
    ("experts-bias", |s| {
        experts(s, true);
        mlps(s, |m| m.bias = true);
    }),
    ("experts-in-one-layer", |s| {
        let plain = s.layers[0].clone();
        experts(s, true);
        s.layers[0] = plain;
    }),
];

/// Seeds of the models with many features at once.
const COMBINATIONS: usize = 24;

/// Features that can be put on top of each other, chosen by a seeded coin each.
fn combination(seed: usize) -> ModelSpec {
    let mut random = Random::from_name(&format!("combination {seed}"));
    let mut spec = plain_spec();
    for (name, edit) in FEATURES {
        // Those that take a rope or norms away would undo others half of the time.
        let odds = match *name {
            "no-rope" | "weightless-norms" | "window-of-one" | "post-norms-alone" => 12,
            _ => 3,
        };
        if random.below(odds) == 0 {
            edit(&mut spec);
        }
    }
    // A rope may not be wider than its head, whatever came on top of what.
    layers(&mut spec, |l| {
        let width = l.attention.head_dim;
        l.attention
            .rope
            .iter_mut()
            .for_each(|r| r.dims = r.dims.min(width));
    });
    spec
}

/// All dense models of the suite.
///
/// # Errors
/// Never, unless the seam's own checks refuse one.
pub fn all() -> SeamResult<Vec<Generated>> {
    let single = FEATURES.iter().map(|(name, edit)| {
        let mut spec = plain_spec();
        edit(&mut spec);
        Generated::new(name, spec, Storage::Dense(DType::F32))
    });
    let many = (0..COMBINATIONS).map(|seed| {
        let name = format!("combination-{seed}");
        Generated::new(&name, combination(seed), Storage::Dense(DType::F32))
    });
    let halves = [DType::F16, DType::BF16].into_iter().map(|dtype| {
        let name = format!("stored-{dtype}");
        Generated::new(&name, plain_spec(), Storage::Dense(dtype))
    });
    single.chain(many).chain(halves).collect()
}

/// Names of as few models as have every one of `features`, the richest first.
///
/// # Errors
/// Never, unless the seam's own checks refuse a model.
pub fn covering(features: &BTreeSet<ModelFeature>) -> SeamResult<BTreeSet<String>> {
    let mut left = features.clone();
    let mut able = all()?;
    able.retain(|m| m.spec.features().is_subset(features));
    let mut chosen = BTreeSet::new();
    while !left.is_empty() {
        let gain = |m: &Generated| m.spec.features().intersection(&left).count();
        // The first of the best, so that the choice is the same each time.
        let Some(best) = able.iter().rev().max_by_key(|m| gain(m)) else {
            break;
        };
        if gain(best) == 0 {
            break;
        }
        let own = best.spec.features();
        left.retain(|f| !own.contains(f));
        chosen.insert(best.name.clone());
    }
    Ok(chosen)
}

/// The model that varies the plain one by a single feature of that name.
///
/// # Errors
/// `NotFound` for a name that is not on the list.
pub fn single(name: &str) -> SeamResult<Generated> {
    let (name, edit) = FEATURES.iter().find(|(n, _)| *n == name).ok_or_else(|| {
        halfhitch_seam::SeamError::new(
            halfhitch_seam::ErrorCode::NotFound,
            format!("the suite has no model `{name}`"),
        )
    })?;
    let mut spec = plain_spec();
    edit(&mut spec);
    Generated::new(name, spec, Storage::Dense(DType::F32))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn every_feature_is_there_alone_and_in_combination() {
        let models = all().unwrap();
        let mut alone: BTreeSet<ModelFeature> = BTreeSet::new();
        let mut together: BTreeMap<ModelFeature, usize> = BTreeMap::new();
        for model in &models {
            let features = model.spec.features();
            if model.name.starts_with("combination") {
                features
                    .iter()
                    .for_each(|f| *together.entry(*f).or_default() += 1);
            } else {
                alone.extend(features);
            }
        }
        for feature in ModelFeature::ALL {
            assert!(alone.contains(&feature), "no model has only {feature}");
            let n = together.get(&feature).copied().unwrap_or(0);
            assert!(n >= 2, "only {n} combinations have {feature}");
        }
    }

    #[test]
    fn few_models_cover_all_features() {
        let everything: BTreeSet<ModelFeature> = ModelFeature::ALL.into();
        for without in [None, Some(ModelFeature::MixtureOfExperts)] {
            let mut wanted = everything.clone();
            without.map(|f| wanted.remove(&f));
            let names = covering(&wanted).unwrap();
            assert!(names.len() <= 5, "{names:?}");
            let models = all().unwrap();
            let chosen = models.iter().filter(|m| names.contains(&m.name));
            let covered: BTreeSet<_> = chosen.flat_map(|m| m.spec.features()).collect();
            assert_eq!(covered, wanted);
        }
        assert!(covering(&BTreeSet::new()).unwrap().is_empty());
    }

    #[test]
    fn models_are_the_same_each_time_and_names_are_unique() {
        let (a, b) = (all().unwrap(), all().unwrap());
        let names: BTreeSet<_> = a.iter().map(|m| &m.name).collect();
        assert_eq!(names.len(), a.len());
        for (a, b) in a.iter().zip(&b) {
            let bits = |m: &Generated| -> Vec<Vec<f32>> {
                m.weights.iter().map(|(_, w)| w.to_f32()).collect()
            };
            assert_eq!(bits(a), bits(b), "{}", a.name);
        }
    }
}
