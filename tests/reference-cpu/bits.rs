//! What the reference promises beyond the contract: results are the same to the bit, however tokens
//! come in, however many threads there are, and whether weights are packed or expanded.

use std::sync::Arc;

use halfhitch_reference_cpu::ReferenceCpu;
use halfhitch_seam::{
    CancelToken, ComputeBackend, Control, DecodeStep, NoObserver, OpenRequest, OutputRequest,
    PlanRequest, QuantRequest, Session, TokenId, negotiate,
};
use halfhitch_suite::features;
use halfhitch_suite::models::{self, Generated};

fn open(model: &Generated, quant: QuantRequest) -> Box<dyn Session> {
    let backend = Arc::new(ReferenceCpu::new());
    let device = backend.devices().unwrap()[0].id.clone();
    let capabilities = backend.capabilities(&device).unwrap();
    let request = PlanRequest {
        quant,
        sequences: 3,
        ..PlanRequest::default()
    };
    let manifest = model.weights.manifest();
    let plan = negotiate(&model.spec, &manifest, &capabilities, &request).unwrap();
    let cancel = CancelToken::new();
    let control = Control {
        cancel: &cancel,
        observer: &NoObserver,
    };
    let request = OpenRequest {
        plan: &plan,
        model: &model.spec,
        weights: &model.weights,
        control,
    };
    backend.open(request).unwrap()
}

fn prefill(session: &mut dyn Session, tokens: &[TokenId]) -> Vec<f32> {
    let cancel = CancelToken::new();
    let control = Control {
        cancel: &cancel,
        observer: &NoObserver,
    };
    let id = session.create_sequence().unwrap();
    let out = session.prefill(id, tokens, OutputRequest::ALL_LOGITS, &control);
    session.release(id).unwrap();
    out.unwrap().logits
}

fn decode_batched_with_another(session: &mut dyn Session, tokens: &[TokenId]) -> Vec<f32> {
    let (id, other) = (
        session.create_sequence().unwrap(),
        session.create_sequence().unwrap(),
    );
    let mut logits = Vec::new();
    for &token in tokens {
        let step = |sequence, token| DecodeStep { sequence, token };
        let steps = [step(other, 0), step(id, token)];
        let outputs = session.decode(&steps, OutputRequest::LOGITS).unwrap();
        logits.extend_from_slice(&outputs[1].logits);
    }
    logits
}

#[test]
fn a_prompt_at_once_gives_the_bits_of_a_batch_step_by_step() {
    for model in features::all().unwrap() {
        // Over the end of a chunk of 64.
        let tokens = model.tokens("bits", 70);
        let mut session = open(&model, QuantRequest::Auto);
        let at_once = prefill(&mut *session, &tokens);
        let one_by_one = decode_batched_with_another(&mut *session, &tokens);
        assert!(at_once == one_by_one, "{}", model.name);
    }
}

#[test]
fn packed_weights_give_the_bits_of_expanded_ones() {
    for scheme in models::schemes() {
        let model = models::packed(scheme, true).unwrap();
        let tokens = model.tokens("bits", 9);
        let packed = prefill(&mut *open(&model, QuantRequest::Packed), &tokens);
        let expanded = prefill(&mut *open(&model, QuantRequest::Dequant), &tokens);
        assert!(packed == expanded, "{scheme}");
    }
}

#[test]
fn one_thread_gives_the_bits_of_several() {
    let model = features::single("experts-normalised").unwrap();
    let tokens = model.tokens("bits", 70);
    let with = |threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
        pool.unwrap()
            .install(|| prefill(&mut *open(&model, QuantRequest::Auto), &tokens))
    };
    assert!(with(1) == with(5));
}
