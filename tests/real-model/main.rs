//! The real model against transformers: SmolLM2-135M on the reference backend, greedy, token for token.
//!
//! `make model` puts the model where this looks for it. Without it the test fails: a model that is
//! not there must not look like one that is right.

use halfhitch::checkpoint::Checkpoint;
use halfhitch_reference_cpu::ReferenceCpu;
use halfhitch_seam::{
    CancelToken, ComputeBackend, Control, DecodeStep, DeviceSampler, LogitsRequest, NoObserver,
    OpenRequest, OutputRequest, PlanRequest, QuantRequest, Session, StepOutput, TokenId, negotiate,
};
use halfhitch_test_support::oracle;

/// Greedy with logits to compare.
const OUTPUT: OutputRequest = OutputRequest {
    sample: Some(DeviceSampler::Greedy),
    logits: LogitsRequest::Last,
    top_logprobs: 0,
};

/// Furthest a logit may be from transformers'.
const LIMIT: f32 = 1e-3;

fn open(quant: QuantRequest) -> Box<dyn Session> {
    let folder = oracle::model();
    let checkpoint = Checkpoint::open(&folder).unwrap_or_else(|e| panic!("{e}"));
    let backend = ReferenceCpu::new();
    let device = backend.devices().unwrap().remove(0).id;
    let capabilities = backend.capabilities(&device).unwrap();
    let request = PlanRequest {
        quant,
        context: Some(512),
        ..PlanRequest::default()
    };
    let manifest = checkpoint.weights().manifest();
    let plan = negotiate(checkpoint.spec(), &manifest, &capabilities, &request).unwrap();
    let cancel = CancelToken::new();
    backend
        .open(OpenRequest {
            plan: &plan,
            model: checkpoint.spec(),
            weights: checkpoint.weights(),
            control: control(&cancel),
        })
        .unwrap_or_else(|e| panic!("{e}"))
}

fn control(cancel: &CancelToken) -> Control<'_> {
    Control {
        cancel,
        observer: &NoObserver,
    }
}

/// Prefills a prompt, then decodes what the session itself chooses; every step's output.
fn generate(session: &mut dyn Session, prompt: &[TokenId], n: usize) -> Vec<StepOutput> {
    let id = session.create_sequence().unwrap();
    let cancel = CancelToken::new();
    let first = session.prefill(id, prompt, OUTPUT, &control(&cancel));
    let mut outputs = vec![first.unwrap()];
    while outputs.len() < n {
        let token = outputs[outputs.len() - 1]
            .token
            .expect("a token was asked for");
        let step = DecodeStep {
            sequence: id,
            token,
        };
        outputs.extend(session.decode(&[step], OUTPUT).unwrap());
    }
    session.release(id).unwrap();
    outputs
}

#[test]
fn gives_the_tokens_and_logits_of_transformers() {
    let oracle = oracle::smollm2();
    assert!(!oracle.cases.is_empty());
    let mut session = open(QuantRequest::Auto);
    let mut worst = 0.0f32;
    for case in &oracle.cases {
        let n = case.generated_ids.len();
        assert_eq!(case.top5.len(), n, "{}", case.text);
        let outputs = generate(&mut *session, &case.prompt_ids, n);
        let tokens: Vec<TokenId> = outputs.iter().filter_map(|o| o.token).collect();
        assert_eq!(tokens, case.generated_ids, "{}", case.text);
        for (step, (out, top)) in outputs.iter().zip(&case.top5).enumerate() {
            for (&id, &want) in top.ids.iter().zip(&top.logits) {
                let off = (out.logits[id as usize] - want).abs();
                worst = worst.max(off);
                assert!(
                    off <= LIMIT,
                    "{}: step {step}, token {id}: {} is not {want}",
                    case.text,
                    out.logits[id as usize]
                );
            }
            let sum: f64 = out.logits.iter().map(|&v| f64::from(v).exp()).sum();
            assert!(
                (sum.ln() - top.logsumexp).abs() <= f64::from(LIMIT),
                "{}: step {step}: log-sum-exp {} is not {}",
                case.text,
                sum.ln(),
                top.logsumexp
            );
        }
    }
    assert!(worst > 0.0, "nothing was compared");
}

#[test]
fn packed_weights_give_the_bits_of_expanded_ones() {
    let case = &oracle::smollm2().cases[0];
    let packed = generate(&mut *open(QuantRequest::Packed), &case.prompt_ids, 4);
    let expanded = generate(&mut *open(QuantRequest::Dequant), &case.prompt_ids, 4);
    assert!(packed == expanded, "other bits than with expanded weights");
}
