//! Random small models, compared with a trusted backend; one that is wrong is shrunk to the smallest that
//! still is.
//!
//! Every model has a form as a checkpoint of one of the families that the host reads, so that what is found
//! can be saved and looked at with every other command.

use std::cell::{Cell, RefCell};

use halfhitch_seam::model::{
    Activation, AttentionSpec, FeedForward, GatedMlp, HeadSpec, LayerSpec, ModelSpec, NormSpec,
    QkNorm, QkNormScope, RopeLayout, RopeScaling, RopeSpec,
};
use halfhitch_seam::{
    AffineScheme, Bits, CancelToken, DType, DecodeStep, ErrorCode, GroupSize, OutputRequest,
    PlanRequest, Precision, SeamError, SeamResult, TokenId,
};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};

use crate::limits::{close, difference, relative};
use crate::models::{Generated, Storage};
use crate::oracle;
use crate::report::{Miss, Outcome, fail};
use crate::subject::{Subject, control};

/// Most tokens of a sequence.
const TOKENS: usize = 40;

/// A model and a sequence, in numbers that shrink towards the simplest.
#[derive(Clone, Debug)]
pub struct Recipe {
    /// llama, mistral, qwen2 or qwen3.
    family: u8,
    layers: usize,
    kv_heads: usize,
    group: usize,
    head_dim: usize,
    hidden: usize,
    intermediate: usize,
    vocabulary: usize,
    flags: [bool; 3],
    activation: u8,
    scaling: u8,
    theta: u8,
    window: usize,
    storage: u8,
    scheme: [u8; 3],
    seed: u64,
    tokens: Vec<u16>,
    decode: usize,
}

fn recipes() -> impl Strategy<Value = Recipe> {
    let shape = (
        1..=3usize,
        1..=3usize,
        1..=3usize,
        0..=7usize,
        0..=7usize,
        0..=7usize,
    );
    let parts = (
        0..4u8,
        any::<[bool; 3]>(),
        0..3u8,
        0..3u8,
        0..3u8,
        0..=9usize,
    );
    let stored = (0..6u8, [0..6u8, 0..3u8, 0..3u8], any::<u64>().no_shrink());
    let input = (
        2..=97usize,
        prop::collection::vec(any::<u16>(), 2..=TOKENS),
        0..=20usize,
    );
    (shape, parts, stored, input).prop_map(|(shape, parts, stored, input)| {
        let (layers, kv_heads, group, head_dim, hidden, intermediate) = shape;
        let (family, flags, activation, scaling, theta, window) = parts;
        let (storage, scheme, seed) = stored;
        let (vocabulary, tokens, decode) = input;
        Recipe {
            family,
            layers,
            kv_heads,
            group,
            head_dim,
            hidden,
            intermediate,
            vocabulary,
            flags,
            activation,
            scaling,
            theta,
            window,
            storage,
            scheme,
            seed,
            tokens,
            decode,
        }
    })
}

impl Recipe {
    fn scheme(&self) -> SeamResult<Option<AffineScheme>> {
        // As many packed as dense ones.
        if self.storage < 3 {
            return Ok(None);
        }
        let [bits, group, scales] = self.scheme.map(usize::from);
        Ok(Some(AffineScheme {
            bits: Bits::new(Bits::ALL[bits % 6].into())?,
            group_size: GroupSize::new(GroupSize::ALL[group % 3].into())?,
            scale_dtype: [DType::F32, DType::F16, DType::BF16][scales % 3],
        }))
    }

    fn spec(&self) -> SeamResult<ModelSpec> {
        let scheme = self.scheme()?;
        // A packed row is whole groups. Dense widths are any, but not so small that a norm magnifies
        // rounding.
        let width = |n: usize| match scheme {
            Some(s) => s.group_size.get() * (1 + n % 2),
            None => 8 + 3 * n,
        };
        let head_dim = match scheme {
            Some(s) => s.group_size.get(),
            None => 4 + 2 * self.head_dim,
        };
        let heads = self.kv_heads * self.group;
        let [tied, attention_bias, mlp_bias] = self.flags;
        let (qkv_bias, output_bias, mlp_bias) = match self.family {
            0 => (attention_bias, attention_bias, mlp_bias),
            1 => (false, false, false),
            2 => (true, false, false),
            _ => (attention_bias, attention_bias, false),
        };
        let norm = NormSpec::rms(1e-5);
        let layer = |i: usize| LayerSpec {
            pre_attention: Some(norm),
            attention: AttentionSpec {
                heads,
                kv_heads: self.kv_heads,
                head_dim,
                scale: (head_dim as f64).powf(-0.5) as f32,
                rope: Some(RopeSpec {
                    dims: head_dim,
                    theta: [10_000.0, 100.0, 1e6][usize::from(self.theta % 3)],
                    scaling: self.rope_scaling(),
                    layout: RopeLayout::HalfSplit,
                }),
                // Of every layer, or with a family that has it of every other.
                window: match (self.family, self.window) {
                    (_, 0) | (0, _) => None,
                    (1, window) => Some(window),
                    (_, window) => (i % 2 == 0).then_some(window),
                },
                softcap: None,
                qk_norm: (self.family == 3).then_some(QkNorm {
                    scope: QkNormScope::Head,
                    norm,
                }),
                qkv_bias,
                output_bias,
            },
            post_attention: None,
            pre_feed_forward: Some(norm),
            feed_forward: FeedForward::Gated(GatedMlp {
                intermediate: width(self.intermediate),
                activation: [Activation::Silu, Activation::GeluTanh, Activation::GeluErf]
                    [usize::from(self.activation % 3)],
                bias: mlp_bias,
            }),
            post_feed_forward: None,
            residual_scale: 1.0,
        };
        Ok(ModelSpec {
            architecture: ["llama", "mistral", "qwen2", "qwen3"][usize::from(self.family % 4)]
                .into(),
            vocab_size: self.vocabulary,
            hidden_size: width(self.hidden),
            max_context: 64,
            embedding_scale: 1.0,
            layers: (0..self.layers).map(layer).collect(),
            final_norm: norm,
            head: HeadSpec {
                tied,
                bias: false,
                softcap: None,
                scale: 1.0,
            },
        })
    }

    fn rope_scaling(&self) -> Option<RopeScaling> {
        match self.scaling {
            0 => None,
            1 => Some(RopeScaling::Linear { factor: 2.5 }),
            _ => Some(RopeScaling::Llama3 {
                factor: 8.0,
                low_freq_factor: 1.0,
                high_freq_factor: 4.0,
                original_context: 32.0,
            }),
        }
    }

    /// The model.
    ///
    /// # Errors
    /// Never, unless the seam's own checks refuse it.
    pub fn build(&self) -> SeamResult<Generated> {
        let storage = match (self.scheme()?, self.storage) {
            (Some(scheme), _) => Storage::Affine(scheme),
            (None, 1) => Storage::Dense(DType::F16),
            (None, 2) => Storage::Dense(DType::BF16),
            (None, _) => Storage::Dense(DType::F32),
        };
        Generated::new(&format!("random {:016x}", self.seed), self.spec()?, storage)
    }

    /// The sequence.
    pub fn tokens(&self) -> Vec<TokenId> {
        let token = |&t: &u16| TokenId::from(t) % self.vocabulary as TokenId;
        self.tokens.iter().map(token).collect()
    }

    /// How many of its tokens, at the end, run as decode steps; at most half, as the gate has it.
    pub fn decode(&self) -> usize {
        self.decode.min(self.tokens.len() / 2)
    }
}

/// Some recipes, for tests of what is made of them.
pub fn sample(seed: u64, count: usize) -> Vec<Recipe> {
    let mut runner = runner(seed, 1, 0);
    let strategy = recipes();
    (0..count)
        .filter_map(|_| strategy.new_tree(&mut runner).ok())
        .map(|tree| tree.current())
        .collect()
}

fn runner(seed: u64, cases: u32, shrinks: u32) -> TestRunner {
    let config = Config {
        cases,
        max_shrink_iters: shrinks,
        max_global_rejects: cases.saturating_mul(20).max(1000),
        failure_persistence: None,
        ..Config::default()
    };
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &bytes))
}

/// What the trusted side says: logits of every position of some tokens.
pub type Trusted<'a> = dyn Fn(&Generated, &[TokenId]) -> SeamResult<Vec<Vec<f32>>> + 'a;

/// What is searched.
pub struct Search<'a> {
    /// Who is tested.
    pub subject: &'a Subject,
    /// Who is trusted.
    pub trusted: &'a Trusted<'a>,
    /// How many models.
    pub models: u32,
    /// Where the random numbers start: the same seed gives the same models.
    pub seed: u64,
    /// Most models that a wrong one is shrunk through.
    pub shrinks: u32,
}

/// What was found.
pub struct Searched {
    /// Models that were compared until one was wrong.
    pub compared: u32,
    /// Models that the device does not support.
    pub unsupported: u32,
    /// Models left out since they magnify rounding: two exact sides differ on them.
    pub unsteady: u32,
    /// The smallest model that is wrong.
    pub wrong: Option<Wrong>,
}

/// A model that the backend gets wrong.
pub struct Wrong {
    /// The model.
    pub model: Generated,
    /// The sequence.
    pub tokens: Vec<TokenId>,
    /// How many of its tokens ran as decode steps.
    pub decode: usize,
    /// What is wrong.
    pub detail: String,
    /// Models tried for a smaller one.
    pub shrinks: u32,
}

impl Search<'_> {
    /// Runs it. `told` hears how many models were compared; smaller ones of a wrong one do not count.
    ///
    /// # Errors
    /// `Cancelled`; what the trusted side says; `Backend` where no model at all could be compared.
    pub fn run(&self, told: &dyn Fn(u32)) -> SeamResult<Searched> {
        let (compared, unsupported, unsteady) = (Cell::new(0), Cell::new(0), Cell::new(0));
        let shrinks = Cell::new(0u32);
        let broken: RefCell<Option<SeamError>> = RefCell::default();
        let found = Cell::new(false);
        let mut runner = runner(self.seed, self.models, self.shrinks);
        let result = runner.run(&recipes(), |recipe| {
            if self.subject.cancel.is_cancelled() || broken.borrow().is_some() {
                return Ok(());
            }
            let count = |cell: &Cell<u32>| cell.set(cell.get() + 1);
            if found.get() {
                count(&shrinks);
            }
            match self.compare(&recipe) {
                Ok(Judged::Right) => {
                    if !found.get() {
                        count(&compared);
                        told(compared.get());
                    }
                    Ok(())
                }
                Ok(Judged::Unsteady) => {
                    count(&unsteady);
                    Err(TestCaseError::reject("magnifies rounding"))
                }
                Ok(Judged::Unsupported) => {
                    count(&unsupported);
                    Err(TestCaseError::reject("unsupported"))
                }
                Ok(Judged::Wrong(detail)) => {
                    found.set(true);
                    Err(TestCaseError::fail(detail))
                }
                Err(e) => {
                    *broken.borrow_mut() = Some(e);
                    Ok(())
                }
            }
        });
        self.subject.cancel.check()?;
        if let Some(e) = broken.into_inner() {
            return Err(e);
        }
        let wrong = match result {
            Ok(()) => None,
            Err(TestError::Fail(reason, recipe)) => Some(Wrong {
                model: recipe.build()?,
                tokens: recipe.tokens(),
                decode: recipe.decode(),
                detail: reason.message().to_string(),
                shrinks: shrinks.get(),
            }),
            Err(TestError::Abort(reason)) if compared.get() == 0 => {
                return Err(SeamError::new(
                    ErrorCode::Backend,
                    format!("no random model could be compared: {}", reason.message()),
                ));
            }
            // Fewer models than were asked for, since too many are not supported.
            Err(TestError::Abort(_)) => None,
        };
        Ok(Searched {
            compared: compared.get() + u32::from(wrong.is_some()),
            unsupported: unsupported.get(),
            unsteady: unsteady.get(),
            wrong,
        })
    }

    fn compare(&self, recipe: &Recipe) -> SeamResult<Judged> {
        let model = recipe.build()?;
        let tokens = recipe.tokens();
        let plan = self
            .subject
            .plan(&model.spec, &model.weights, &PlanRequest::default());
        let plan = match plan {
            Ok(plan) => plan,
            Err(Miss::Unsupported(_)) => return Ok(Judged::Unsupported),
            Err(Miss::Fail(detail)) => return Ok(Judged::Wrong(detail)),
        };
        let limit = relative(plan.precision);
        let want = (self.trusted)(&model, &tokens)?;
        let exact = oracle::logits(&model.spec, &model.weights, &tokens)?;
        let apart = |(want, exact): (&Vec<f32>, &Vec<f64>)| {
            let exact: Vec<f32> = exact.iter().map(|&v| v as f32).collect();
            difference(want, &exact)
        };
        let f32 = relative(Precision::F32);
        if want
            .iter()
            .zip(&exact)
            .map(apart)
            .any(|off| off > f32 / 4.0)
        {
            return Ok(Judged::Unsteady);
        }
        let follow = || -> Outcome {
            let mut session = self.subject.open(&model.spec, &model.weights, &plan)?;
            let id = session.create_sequence()?;
            let (prompt, steps) = tokens.split_at(tokens.len() - recipe.decode());
            let cancel = CancelToken::new();
            let output = OutputRequest::ALL_LOGITS;
            let out = session.prefill(id, prompt, output, &control(&cancel))?;
            let mut rows: Vec<Vec<f32>> = Vec::new();
            rows.extend(
                out.logits
                    .chunks(model.spec.vocab_size)
                    .map(<[f32]>::to_vec),
            );
            for &token in steps {
                let step = DecodeStep {
                    sequence: id,
                    token,
                };
                let out = session.decode(&[step], OutputRequest::LOGITS)?.pop();
                rows.push(out.map(|out| out.logits).unwrap_or_default());
            }
            if rows.len() != want.len() {
                return fail(format!(
                    "{} rows of logits for {} tokens",
                    rows.len(),
                    want.len()
                ));
            }
            for (position, (got, want)) in rows.iter().zip(&want).enumerate() {
                let how = if position < prompt.len() {
                    "prompt"
                } else {
                    "step"
                };
                close(&format!("{how}, position {position}"), got, want, limit)?;
            }
            Ok(())
        };
        match follow() {
            Ok(()) => Ok(Judged::Right),
            Err(_) if self.subject.cancel.is_cancelled() => Ok(Judged::Right),
            Err(Miss::Fail(detail) | Miss::Unsupported(detail)) => Ok(Judged::Wrong(detail)),
        }
    }
}

enum Judged {
    Right,
    Wrong(String),
    Unsupported,
    Unsteady,
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn recipes_are_models_of_every_family_and_kind_of_storage() {
        let recipes = sample(1, 200);
        let mut kinds = BTreeSet::new();
        for recipe in &recipes {
            let model = recipe.build().unwrap_or_else(|e| panic!("{e}: {recipe:?}"));
            assert!(
                recipe
                    .tokens()
                    .iter()
                    .all(|&t| (t as usize) < model.spec.vocab_size)
            );
            assert!(recipe.decode() * 2 <= recipe.tokens().len());
            kinds.insert((model.spec.architecture.clone(), recipe.storage));
        }
        assert_eq!(kinds.len(), 4 * 6);
        let again = sample(1, 200);
        assert_eq!(format!("{recipes:?}"), format!("{again:?}"));
        assert_ne!(format!("{recipes:?}"), format!("{:?}", sample(2, 200)));
    }
}
