//! Models of edge shapes, and sequences of edge lengths: what is off by one shows here.

use halfhitch_seam::model::{FeedForward, LayerSpec, ModelSpec, RopeScaling, RopeSpec};
use halfhitch_seam::{AffineScheme, Bits, DType, GroupSize, Precision, SeamResult};

use crate::follow::Followed;
use crate::models::{Generated, Storage, plain_spec};
use crate::test::{Test, Tier};

/// A shape: its name, what makes it of the plain model, how weights are stored, tokens of the sequence,
/// and how many of them go in as a prompt, case by case.
struct Shape {
    name: &'static str,
    edit: fn(&mut ModelSpec),
    storage: Stored,
    tokens: usize,
    prompts: &'static [usize],
    tier: Tier,
}

/// How matrices are stored: as f32, or packed with so many bits in groups of so many.
#[derive(Clone, Copy)]
enum Stored {
    Dense,
    Packed(u32, u32),
}

/// The head's width, and with it what depends on it.
fn heads(spec: &mut ModelSpec, heads: usize, kv_heads: usize, head_dim: usize) {
    for layer in &mut spec.layers {
        let a = &mut layer.attention;
        (a.heads, a.kv_heads, a.head_dim) = (heads, kv_heads, head_dim);
        a.scale = (head_dim as f32).sqrt().recip();
        a.rope.iter_mut().for_each(|r| r.dims = head_dim);
    }
}

fn wide(layer: &mut LayerSpec, intermediate: usize) {
    if let FeedForward::Gated(mlp) = &mut layer.feed_forward {
        mlp.intermediate = intermediate;
    }
}

fn ropes(spec: &mut ModelSpec, edit: impl Fn(&mut RopeSpec)) {
    for layer in &mut spec.layers {
        layer.attention.rope.iter_mut().for_each(&edit);
    }
}

/// A packed model in which a row is one group everywhere.
fn one_group(spec: &mut ModelSpec, group: usize) {
    spec.layers.truncate(1);
    spec.hidden_size = group;
    heads(spec, 2, 1, group / 2);
    spec.layers.iter_mut().for_each(|l| wide(l, group));
}

const SHAPES: &[Shape] = &[
    Shape {
        name: "one-head-odd-widths",
        edit: |s| {
            (s.hidden_size, s.vocab_size) = (21, 263);
            heads(s, 1, 1, 10);
            s.layers.iter_mut().for_each(|l| wide(l, 13));
        },
        storage: Stored::Dense,
        tokens: 9,
        prompts: &[0, 1, 8, 9],
        tier: Tier::Quick,
    },
    Shape {
        name: "group-is-width-32",
        edit: |s| one_group(s, 32),
        storage: Stored::Packed(4, 32),
        tokens: 6,
        prompts: &[1, 5],
        tier: Tier::Quick,
    },
    Shape {
        name: "group-is-width-64",
        edit: |s| one_group(s, 64),
        storage: Stored::Packed(8, 64),
        tokens: 6,
        prompts: &[1, 5],
        tier: Tier::Full,
    },
    Shape {
        name: "group-is-width-128",
        edit: |s| one_group(s, 128),
        storage: Stored::Packed(2, 128),
        tokens: 6,
        prompts: &[1, 5],
        tier: Tier::Full,
    },
    Shape {
        // Rows that are no multiple of anything a kernel is tiled by.
        name: "packed-odd-rows",
        edit: |s| {
            s.layers.truncate(1);
            (s.hidden_size, s.vocab_size) = (32, 61);
            heads(s, 3, 1, 32);
            s.layers.iter_mut().for_each(|l| wide(l, 96));
        },
        storage: Stored::Packed(4, 32),
        tokens: 6,
        prompts: &[1, 5],
        tier: Tier::Full,
    },
    Shape {
        name: "vocabulary-of-two",
        edit: |s| s.vocab_size = 2,
        storage: Stored::Dense,
        tokens: 7,
        prompts: &[0, 4],
        tier: Tier::Full,
    },
    Shape {
        name: "odd-vocabulary",
        edit: |s| s.vocab_size = 4099,
        storage: Stored::Dense,
        tokens: 7,
        prompts: &[4],
        tier: Tier::Full,
    },
    Shape {
        name: "heads-of-two",
        edit: |s| heads(s, 4, 4, 2),
        storage: Stored::Dense,
        tokens: 9,
        prompts: &[1, 6],
        tier: Tier::Full,
    },
    Shape {
        name: "heads-wider-than-the-model",
        edit: |s| heads(s, 2, 1, 256),
        storage: Stored::Dense,
        tokens: 9,
        prompts: &[1, 6],
        tier: Tier::Full,
    },
    Shape {
        name: "many-heads-on-one",
        edit: |s| heads(s, 15, 1, 4),
        storage: Stored::Dense,
        tokens: 9,
        prompts: &[1, 6],
        tier: Tier::Full,
    },
    Shape {
        name: "one-layer",
        edit: |s| s.layers.truncate(1),
        storage: Stored::Dense,
        tokens: 9,
        prompts: &[1, 6],
        tier: Tier::Full,
    },
    Shape {
        name: "nine-layers",
        edit: |s| s.layers = vec![s.layers[0].clone(); 9],
        storage: Stored::Dense,
        tokens: 9,
        prompts: &[1, 6],
        tier: Tier::Full,
    },
    Shape {
        name: "feed-forward-of-one",
        edit: |s| s.layers.iter_mut().for_each(|l| wide(l, 1)),
        storage: Stored::Dense,
        tokens: 9,
        prompts: &[6],
        tier: Tier::Full,
    },
    Shape {
        // Caches grow and prompts take many chunks; the last token fills the last place.
        name: "longest-context",
        edit: |s| s.max_context = 1200,
        storage: Stored::Dense,
        tokens: 1200,
        prompts: &[1190, 1200],
        tier: Tier::Quick,
    },
    Shape {
        name: "context-of-one",
        edit: |s| s.max_context = 1,
        storage: Stored::Dense,
        tokens: 1,
        prompts: &[0, 1],
        tier: Tier::Full,
    },
    Shape {
        name: "odd-context",
        edit: |s| s.max_context = 37,
        storage: Stored::Dense,
        tokens: 37,
        prompts: &[1, 36, 37],
        tier: Tier::Full,
    },
    Shape {
        // Wavelengths from far below a position to far above the context.
        name: "rope-fast-and-slow",
        edit: |s| {
            heads(s, 4, 2, 16);
            ropes(s, |r| r.theta = 1e12);
        },
        storage: Stored::Dense,
        tokens: 700,
        prompts: &[690],
        tier: Tier::Full,
    },
    Shape {
        // Positions from within the context of the training to well beyond it, on all of the ramp.
        name: "rope-beyond-its-context",
        edit: |s| {
            s.max_context = 1024;
            heads(s, 4, 2, 32);
            ropes(s, |r| {
                r.theta = 500.0;
                r.scaling = Some(RopeScaling::Llama3 {
                    factor: 8.0,
                    low_freq_factor: 1.0,
                    high_freq_factor: 4.0,
                    original_context: 128.0,
                });
            });
        },
        storage: Stored::Dense,
        tokens: 600,
        prompts: &[127, 590],
        tier: Tier::Full,
    },
    Shape {
        name: "rope-linear-beyond-its-context",
        edit: |s| {
            s.max_context = 1024;
            ropes(s, |r| r.scaling = Some(RopeScaling::Linear { factor: 7.5 }));
        },
        storage: Stored::Dense,
        tokens: 600,
        prompts: &[590],
        tier: Tier::Full,
    },
    Shape {
        // The window's end passes the ends of chunks and of whatever a cache grows by.
        name: "window-of-a-chunk-and-one",
        edit: |s| {
            s.layers
                .iter_mut()
                .for_each(|l| l.attention.window = Some(257))
        },
        storage: Stored::Dense,
        tokens: 530,
        prompts: &[255, 520],
        tier: Tier::Full,
    },
];

/// Every shape in these precisions: `shapes/NAME/PRECISION[-packed]/prompt-of-N`.
///
/// # Errors
/// Never, unless the seam's own checks refuse a model.
pub fn tests(precisions: &[Precision]) -> SeamResult<Vec<Test>> {
    let mut tests = Vec::new();
    for shape in SHAPES {
        let mut spec = plain_spec();
        spec.max_context = spec.max_context.max(shape.tokens);
        (shape.edit)(&mut spec);
        let storage = match shape.storage {
            Stored::Dense => Storage::Dense(DType::F32),
            Stored::Packed(bits, group) => Storage::Affine(AffineScheme {
                bits: Bits::new(bits)?,
                group_size: GroupSize::new(group)?,
                scale_dtype: DType::F16,
            }),
        };
        let model = Generated::new(shape.name, spec, storage)?;
        let followed = Followed::new(model, shape.tokens);
        for &precision in precisions {
            let tier = match precision {
                Precision::F32 => shape.tier,
                _ => Tier::Full,
            };
            let name = format!("shapes/{}", shape.name);
            tests.extend(followed.tests(&name, precision, shape.prompts, tier));
        }
    }
    Ok(tests)
}
