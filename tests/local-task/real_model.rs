//! The real model against transformers: SmolLM2-135M, greedy, token for token.
//!
//! `make model` puts the model where this looks for it. Without it the test fails: a model that is
//! not there must not look like one that is right.

use halfhitch::checkpoint::Checkpoint;
use halfhitch::gate::{LimitName, Limits};
use halfhitch_seam::{
    CancelToken, ComputeBackend, Control, DType, DecodeStep, DeviceSampler, LogitsRequest,
    NoObserver, OpenRequest, OutputRequest, PlanRequest, Precision, QuantRequest, Session,
    StepOutput, TokenId, negotiate,
};
use halfhitch_test_support::oracle;

/// Greedy with logits to compare.
const OUTPUT: OutputRequest = OutputRequest {
    sample: Some(DeviceSampler::Greedy),
    logits: LogitsRequest::Last,
    top_logprobs: 0,
};

fn open(precision: Precision, quant: QuantRequest) -> Box<dyn Session> {
    let folder = oracle::model();
    let checkpoint = Checkpoint::open(&folder).unwrap_or_else(|e| panic!("{e}"));
    let backend = super::backend("local-task");
    let device = backend.devices().unwrap().remove(0).id;
    let capabilities = backend.capabilities(&device).unwrap();
    let request = PlanRequest {
        precision: Some(precision),
        quant,
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

/// Prefills a prompt, then feeds `forced` tokens; every step's output.
fn follow(session: &mut dyn Session, prompt: &[TokenId], forced: &[TokenId]) -> Vec<StepOutput> {
    let id = session.create_sequence().unwrap();
    let cancel = CancelToken::new();
    let first = session.prefill(id, prompt, OUTPUT, &control(&cancel));
    let mut outputs = vec![first.unwrap()];
    for &token in forced {
        let step = DecodeStep {
            sequence: id,
            token,
        };
        outputs.extend(session.decode(&[step], OUTPUT).unwrap());
    }
    session.release(id).unwrap();
    outputs
}

/// Every oracle case, teacher-forced: logits must be within the gate's limit for the precision, and each
/// step's token must be the oracle's. Only below f32 may it be another, where the oracle's two best are
/// closer than that limit.
fn compare(precision: Precision, quant: QuantRequest) {
    let share = Limits::of(precision, DType::F32).get(LimitName::Dlogit) as f32;
    let mut session = open(precision, quant);
    let (mut worst, mut steps) = (0.0f32, 0);
    for case in &oracle::smollm2().cases {
        let n = case.generated_ids.len();
        let outputs = follow(
            &mut *session,
            &case.prompt_ids,
            &case.generated_ids[..n - 1],
        );
        for (step, (out, top)) in outputs.iter().zip(&case.top5).enumerate() {
            let largest = out.logits.iter().fold(0.0f32, |m, v| m.max(v.abs()));
            let limit = share * largest;
            let close = precision != Precision::F32 && top.logits[0] - top.logits[1] < limit;
            assert!(
                out.token == Some(case.generated_ids[step]) || close,
                "{}: step {step}: token {:?}, not {}",
                case.text,
                out.token,
                case.generated_ids[step]
            );
            for (&id, &want) in top.ids.iter().zip(&top.logits) {
                let got = out.logits[id as usize];
                worst = worst.max((got - want).abs());
                assert!(
                    (got - want).abs() <= limit,
                    "{}: step {step}, token {id}: {got} is not {want}",
                    case.text
                );
            }
            steps += 1;
        }
    }
    assert!(steps > 100 && worst > 0.0, "nothing was compared");
}

#[test]
fn packed_f32_gives_the_tokens_and_logits_of_transformers() {
    compare(Precision::F32, QuantRequest::Packed);
}

#[test]
fn expanded_f32_gives_the_tokens_and_logits_of_transformers() {
    compare(Precision::F32, QuantRequest::Dequant);
}

#[test]
fn f16_stays_near_transformers() {
    compare(Precision::F16, QuantRequest::Dequant);
}
