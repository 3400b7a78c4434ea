//! Graphs of tiny models: determinism, signatures, goldens.

use halfhitch_seam::model::{
    Activation, FeedForward, GatedMlp, HeadSpec, LayerSpec, NormKind, NormSpec, PlainDecoder,
    QkNorm, QkNormScope, RopeLayout, RopeScaling,
};
use halfhitch_seam::{
    AffineScheme, Bits, DType, DeviceId, DeviceInfo, ExecutionPlan, GroupSize, MemoryInfo,
    ModelSpec, PlanRequest, Precision, QuantRequest, WeightForm, WeightInfo, WeightManifest,
    negotiate,
};

use super::graph::layer_weight;
use super::layout::Role;
use super::*;
use crate::runtime::capabilities::capabilities;

mod choice;

fn layer() -> LayerSpec {
    llama().layers.remove(0)
}

/// A llama of 64 x 2 layers with 300 tokens.
fn llama() -> ModelSpec {
    PlainDecoder {
        vocab_size: 300,
        hidden_size: 64,
        intermediate: 128,
        layers: 2,
        heads: 4,
        kv_heads: 2,
        head_dim: 16,
        max_context: 4096,
    }
    .spec()
}

/// Everything that is advertised, in one model.
fn everything() -> ModelSpec {
    let mut spec = llama();
    let general = NormSpec {
        kind: NormKind::Layer,
        eps: 1e-6,
        weight: true,
        weight_offset: 1.0,
        bias: true,
    };
    let a = &mut spec.layers[0];
    a.attention.qkv_bias = true;
    a.attention.output_bias = true;
    a.attention.qk_norm = Some(QkNorm {
        scope: QkNormScope::Head,
        norm: NormSpec::rms(1e-6),
    });
    a.attention.window = Some(24);
    a.attention.softcap = Some(50.0);
    a.post_attention = Some(general);
    a.post_feed_forward = Some(general);
    a.residual_scale = 0.5;
    let rope = a.attention.rope.as_mut().unwrap();
    rope.dims = 8;
    rope.layout = RopeLayout::Interleaved;
    rope.scaling = Some(RopeScaling::Linear { factor: 2.0 });
    let b = &mut spec.layers[1];
    b.attention.rope = None;
    b.attention.qk_norm = Some(QkNorm {
        scope: QkNormScope::All,
        norm: NormSpec::rms(1e-6),
    });
    b.pre_attention = None;
    b.feed_forward = FeedForward::Gated(GatedMlp {
        intermediate: 96,
        activation: Activation::GeluErf,
        bias: true,
    });
    let mut c = layer();
    c.feed_forward = FeedForward::Gated(GatedMlp {
        intermediate: 128,
        activation: Activation::GeluTanh,
        bias: false,
    });
    spec.layers.push(c);
    spec.embedding_scale = 2.0;
    spec.final_norm = general;
    spec.head = HeadSpec {
        tied: false,
        bias: true,
        softcap: Some(30.0),
        scale: 0.25,
    };
    spec
}

/// Every matrix stored as `matrix`, every vector as f32.
fn manifest(spec: &ModelSpec, matrix: WeightForm) -> WeightManifest {
    spec.expected_weights()
        .into_iter()
        .map(|w| {
            let form = if w.is_matrix() {
                matrix
            } else {
                WeightForm::Dense(DType::F32)
            };
            let info = WeightInfo {
                shape: w.shape,
                form,
            };
            (w.id, info)
        })
        .collect()
}

fn affine(bits: u32, scale_dtype: DType) -> WeightForm {
    WeightForm::Affine(AffineScheme {
        bits: Bits::new(bits).unwrap(),
        group_size: GroupSize::new(32).unwrap(),
        scale_dtype,
    })
}

fn plan(spec: &ModelSpec, matrix: WeightForm, precision: Precision) -> ExecutionPlan {
    let device = DeviceInfo {
        id: DeviceId("0".into()),
        ordinal: 0,
        name: "test".into(),
        driver: "local-task".into(),
    };
    let request = PlanRequest {
        precision: Some(precision),
        quant: QuantRequest::Auto,
        ..PlanRequest::default()
    };
    let device = capabilities(device, MemoryInfo::default(), None);
    negotiate(spec, &manifest(spec, matrix), &device, &request).unwrap()
}

fn source<'a>(spec: &'a ModelSpec, plan: &'a ExecutionPlan) -> Source<'a> {
    on(Profile::Portable, spec, plan)
}

fn on<'a>(profile: Profile, spec: &'a ModelSpec, plan: &'a ExecutionPlan) -> Source<'a> {
    Source {
        spec,
        plan,
        profile,
    }
}

const CPU: Profile = Profile::LlvmCpu {
    threads: 2,
    bf16_pairs: true,
};

const GPU: Profile = Profile::Gpu { subgroups: true };

const SHAPES: [Shape; 3] = [
    Shape::Chunk { rows: 1 },
    Shape::Chunk { rows: 16 },
    Shape::Batch { lanes: 2 },
];

fn models() -> Vec<(&'static str, ModelSpec)> {
    vec![("llama", llama()), ("everything", everything())]
}

fn forms() -> Vec<(&'static str, WeightForm, Precision)> {
    vec![
        ("f32", WeightForm::Dense(DType::F32), Precision::F32),
        (
            "f16-resident",
            WeightForm::Dense(DType::F16),
            Precision::F32,
        ),
        ("f16", WeightForm::Dense(DType::F16), Precision::F16),
        ("bf16", WeightForm::Dense(DType::BF16), Precision::BF16),
        ("q4", affine(4, DType::F16), Precision::F32),
        ("q8", affine(8, DType::BF16), Precision::F32),
        ("q2", affine(2, DType::F32), Precision::F16),
    ]
}

#[test]
fn text_and_signatures_are_the_same_every_time() {
    for (_, spec) in models() {
        for (_, matrix, precision) in forms() {
            let plan = plan(&spec, matrix, precision);
            for shape in SHAPES {
                let first = module(source(&spec, &plan), shape);
                assert_eq!(first, module(source(&spec, &plan.clone()), shape));
                assert_eq!(first.functions.len(), 1 + readings(shape).len());
            }
        }
    }
}

#[test]
fn a_step_and_its_readings_take_every_weight_once() {
    for (name, spec) in models() {
        for (form, matrix, precision) in forms() {
            for profile in [Profile::Portable, CPU, GPU] {
                let plan = plan(&spec, matrix, precision);
                let source = on(profile, &spec, &plan);
                let module = module(source, Shape::Chunk { rows: 16 });
                let mut taken = std::collections::BTreeSet::new();
                for function in module.functions.values() {
                    let mut own = std::collections::BTreeSet::new();
                    for slot in &function.arguments {
                        assert!(own.insert(slot.role), "{:?} twice", slot.role);
                        if let Role::Weight { id, part } = slot.role {
                            taken.insert((id, part));
                        }
                    }
                }
                let wanted: std::collections::BTreeSet<_> = resident::residents(source)
                    .iter()
                    .flat_map(|r| r.tensors().into_iter().map(|t| (r.id(), t.part)))
                    .collect();
                assert_eq!(taken, wanted, "{name} {form}");
            }
        }
    }
}

#[test]
fn every_weight_of_a_plan_is_resident_once() {
    for (name, spec) in models() {
        for (form, matrix, precision) in forms() {
            for profile in [Profile::Portable, CPU, GPU] {
                let plan = plan(&spec, matrix, precision);
                let mut ids: Vec<_> = resident::residents(on(profile, &spec, &plan))
                    .into_iter()
                    .flat_map(|r| r.ids)
                    .collect();
                ids.sort_unstable();
                let mut wanted: Vec<_> = plan.weights.iter().map(|w| w.id).collect();
                wanted.sort_unstable();
                assert_eq!(ids, wanted, "{name} {form}");
            }
        }
    }
}

#[test]
fn matrices_of_one_input_are_joined_where_blocks_hold_them() {
    use halfhitch_seam::{LayerWeight as W, WeightId};
    let spec = llama();
    let plan = plan(&spec, affine(4, DType::F16), Precision::F32);
    let of = |profile| -> BTreeMap<WeightId, (usize, layout::Layout)> {
        resident::residents(on(profile, &spec, &plan))
            .into_iter()
            .map(|r| (r.id(), (r.ids.len(), r.layout)))
            .collect()
    };
    let layer = |weight| WeightId::Layer(0, weight);
    let cpu = of(CPU);
    assert_eq!(cpu[&layer(W::Query)], (3, layout::Layout::Blocks));
    assert_eq!(cpu[&layer(W::Gate)], (2, layout::Layout::Blocks));
    assert_eq!(cpu[&layer(W::Down)], (1, layout::Layout::Blocks));
    // 300 tokens are no whole number of blocks.
    assert_eq!(cpu[&WeightId::Embedding], (1, layout::Layout::Stored));
    let portable = of(Profile::Portable);
    assert_eq!(portable[&layer(W::Key)], (1, layout::Layout::Stored));
}

#[test]
fn wide_rows_are_written_between_the_lookup_and_the_first_norm() {
    let mut spec = llama();
    for (hidden, want) in [(64, false), (1024, true)] {
        spec.hidden_size = hidden;
        for dtype in [DType::F32, DType::F16] {
            let plan = plan(&spec, WeightForm::Dense(dtype), Precision::F32);
            let text = module(source(&spec, &plan), Shape::Chunk { rows: 16 }).text;
            let after = text.split_once("stablehlo.gather").unwrap().1;
            let between = after.split_once("stablehlo.multiply").unwrap().0;
            assert_eq!(
                between.contains("util.optimization_barrier"),
                want,
                "{hidden} {dtype}"
            );
        }
    }
}

#[test]
fn caches_go_in_and_out_in_one_type() {
    let spec = everything();
    let plan = plan(&spec, WeightForm::Dense(DType::F32), Precision::F32);
    let module = module(source(&spec, &plan), Shape::Batch { lanes: 2 });
    let step = &module.functions["batch_2"];
    let caches: Vec<_> = step
        .results
        .iter()
        .filter(|slot| matches!(slot.role, Role::Cache { .. }))
        .collect();
    assert_eq!(caches.len(), 2 * spec.layers.len());
    for slot in caches {
        assert!(step.arguments.contains(slot), "{slot:?}");
        assert_eq!(slot.shape.as_ref().unwrap()[0], None);
    }
}

#[test]
fn packed_decode_reduces_and_packed_prefill_multiplies_matrices() {
    let spec = llama();
    let plan = plan(&spec, affine(4, DType::F16), Precision::F32);
    let decode = module(source(&spec, &plan), Shape::Chunk { rows: 1 }).text;
    assert!(!decode.contains("dot_general"));
    let prefill = module(source(&spec, &plan), Shape::Chunk { rows: 16 }).text;
    assert!(prefill.contains("dot_general"));
}

#[test]
fn packed_decode_on_a_cpu_reads_each_joined_weight_in_one_tiled_contraction() {
    let spec = llama();
    let plan = plan(&spec, affine(4, DType::F16), Precision::F32);
    let source = on(CPU, &spec, &plan);
    let (step, _) = step::step(source, Shape::Chunk { rows: 1 });
    // Queries with keys and values, output, gate with up, down; and scores and weighted values.
    assert_eq!(step.matches("lowering_config =").count(), 6 * 2);
    assert!(!step.contains("dot_general"));
    let (chunk, _) = step::step(source, Shape::Chunk { rows: 16 });
    assert_eq!(chunk.matches("linalg.mmt4d").count(), 4 * 2);
    assert!(!chunk.contains("dot_general"));
}

#[test]
fn gpus_read_packed_weights_as_whole_words_and_join_those_of_one_input() {
    let spec = llama();
    for bits in [2, 4, 8] {
        let plan = plan(&spec, affine(bits, DType::F16), Precision::F32);
        let source = on(GPU, &spec, &plan);
        for shape in SHAPES {
            let text = module(source, shape).text;
            let narrow = text.contains("xui4>") || text.contains("xui8>");
            assert!(!narrow, "{bits} bits");
        }
        for shape in [Shape::Chunk { rows: 1 }, Shape::Batch { lanes: 8 }] {
            let (decode, signature) = step::step(source, shape);
            // No weight is rebuilt for a product of matrices.
            assert!(!decode.contains("dot_general"));
            // The embedding, and the matrices of two layers.
            let words = signature.arguments.iter().filter(|slot| {
                let part = layout::WeightPart::Words;
                matches!(slot.role, Role::Weight { part: p, .. } if p == part)
            });
            assert_eq!(words.count(), 1 + 2 * 4);
        }
    }
}

#[test]
fn layers_that_are_not_plain_decode_the_general_way() {
    let spec = everything();
    let plan = plan(&spec, affine(4, DType::F16), Precision::F32);
    let source = on(CPU, &spec, &plan);
    let suits: Vec<bool> = spec
        .layers
        .iter()
        .enumerate()
        .map(|(i, layer)| decode::suits(source, i, layer))
        .collect();
    assert_eq!(suits, [false, false, true]);
}

#[test]
fn no_argument_sized_by_context_has_a_static_extent() {
    let mut spec = llama();
    let of = |spec: &ModelSpec| {
        let plan = plan(spec, WeightForm::Dense(DType::F32), Precision::F32);
        module(source(spec, &plan), Shape::Chunk { rows: 16 })
    };
    let short = of(&spec);
    spec.max_context *= 8;
    assert_eq!(short, of(&spec));
}

#[test]
fn goldens() {
    let mut spec = llama();
    spec.layers.truncate(1);
    let portable = Profile::Portable;
    let dense = |dtype| WeightForm::Dense(dtype);
    for (name, profile, matrix, shape) in [
        ("llama-f32-chunk", portable, dense(DType::F32), SHAPES[1]),
        (
            "llama-q4-decode",
            portable,
            affine(4, DType::F16),
            SHAPES[0],
        ),
        ("llama-q4-decode-cpu", CPU, affine(4, DType::F16), SHAPES[0]),
        ("llama-q4-decode-gpu", GPU, affine(4, DType::F16), SHAPES[0]),
        ("llama-q8-chunk-cpu", CPU, affine(8, DType::BF16), SHAPES[1]),
        ("llama-bf16-batch", portable, dense(DType::BF16), SHAPES[2]),
    ] {
        let plan = plan(&spec, matrix, Precision::F32);
        let source = on(profile, &spec, &plan);
        insta::assert_snapshot!(name, module(source, shape).text);
    }
}

/// A tapped chunk shows every point of every layer that its model has, and a plain one none.
#[test]
fn intermediate_results_are_results_where_they_are_asked_for() {
    use halfhitch_seam::{TapPoint, TapSite};
    let spec = everything();
    let plan = plan(&spec, affine(4, DType::F16), Precision::F32);
    let source = source(&spec, &plan);
    let sites = |signature: &Signature| -> Vec<TapSite> {
        let roles = signature.results.iter().map(|slot| slot.role);
        roles
            .filter_map(|role| match role {
                Role::Tap(site) => Some(site),
                _ => None,
            })
            .collect()
    };
    let tapped = tapped_module(source, 3);
    let shown = sites(&tapped.functions[&tapped_name(3)]);
    let layers = spec.layers.len();
    for point in TapPoint::ALL {
        let times = shown.iter().filter(|s| s.point == point).count();
        let outside = [TapPoint::Embedding, TapPoint::FinalNorm, TapPoint::Logits];
        let post = [TapPoint::PostAttentionNorm, TapPoint::PostFeedForwardNorm];
        let want = match point {
            _ if outside.contains(&point) => 1..=1,
            _ if post.contains(&point) => 1..=layers,
            _ => layers..=layers,
        };
        assert!(want.contains(&times), "{point}: {times} times");
    }
    let unique: std::collections::BTreeSet<_> = shown.iter().collect();
    assert_eq!(unique.len(), shown.len());
    let plain = module(source, Shape::Chunk { rows: 3 });
    assert!(plain.functions.values().all(|f| sites(f).is_empty()));
}

/// A llama whose heads are wide enough for tiles.
fn wide() -> ModelSpec {
    let mut spec = llama();
    spec.vocab_size = 320;
    for layer in &mut spec.layers {
        let a = &mut layer.attention;
        a.head_dim = 32;
        a.rope.iter_mut().for_each(|r| r.dims = 32);
    }
    spec
}

#[test]
fn only_plain_models_of_whole_tiles_go_in_tiles_and_only_on_cpus() {
    let q4 = affine(4, DType::F16);
    let suits = |spec: &ModelSpec, profile| {
        let plan = plan(spec, q4, Precision::F32);
        in_tiles(on(profile, spec, &plan))
    };
    assert!(suits(&wide(), CPU));
    assert!(!suits(&wide(), Profile::Portable));
    assert!(!suits(&llama(), CPU), "halves of heads of half a tile");
    assert!(!suits(&everything(), CPU));
    let mut odd = wide();
    odd.layers[1].attention.window = Some(24);
    assert!(!suits(&odd, CPU));
}

#[test]
fn a_step_in_tiles_is_products_of_tiles_alone_in_every_form() {
    let spec = wide();
    for (form, matrix, precision) in forms() {
        let plan = plan(&spec, matrix, precision);
        let source = on(CPU, &spec, &plan);
        let (step, signature) = step::step(source, Shape::Tiles);
        // Keys with values and queries, output, gate with up, down; scores and weighted values.
        assert_eq!(step.matches("linalg.mmt4d").count(), 4 * 2, "{form}");
        assert_eq!(step.matches("linalg.batch_mmt4d").count(), 2 * 2, "{form}");
        assert!(!step.contains("dot_general"), "{form}");
        let pairs = step.contains("x16x2xbf16>");
        assert_eq!(pairs, precision == Precision::BF16, "{form}");
        for slot in signature.arguments.iter().chain(&signature.results) {
            if matches!(slot.role, Role::Tokens | Role::Hidden) {
                assert_eq!(slot.shape.as_ref().unwrap()[0], None, "{:?}", slot.role);
            }
        }
    }
}

#[test]
fn slow_pairs_are_not_used() {
    let spec = wide();
    let plan = plan(&spec, affine(4, DType::F16), Precision::BF16);
    let slow = Profile::LlvmCpu {
        threads: 2,
        bf16_pairs: false,
    };
    let (step, _) = step::step(on(slow, &spec, &plan), Shape::Tiles);
    assert!(!step.contains("bf16"));
}
