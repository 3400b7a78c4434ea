//! The real model on the device against transformers, from packed and from expanded weights.

use halfhitch_seam::{PlanRequest, Precision, QuantRequest};
use halfhitch_test_support::oracle;

use super::support::{follow, open};

/// Tokens of the first case that are followed: software runs a few a second.
const STEPS: usize = 12;

/// Furthest a logit may be from transformers'.
const LIMIT: f32 = 1e-3;

fn follows_transformers(quant: QuantRequest) {
    let (model, oracle) = (oracle::model(), oracle::smollm2());
    let request = PlanRequest {
        precision: Some(Precision::F32),
        quant,
        context: Some(128),
        ..PlanRequest::default()
    };
    let mut session = open(super::VULKAN, &model, &request);
    let case = &oracle.cases[0];
    let got = follow(&mut *session, &case.prompt_ids, STEPS, &case.generated_ids);
    assert_eq!(got.tokens, case.generated_ids[..STEPS]);
    for (step, (logits, top)) in got.logits.iter().zip(&case.top5).enumerate() {
        for (&id, &want) in top.ids.iter().zip(&top.logits) {
            let near = (logits[id as usize] - want).abs() <= LIMIT;
            assert!(
                near,
                "step {step}, token {id}: {} is not {want}",
                logits[id as usize]
            );
        }
    }
}

#[test]
fn packed_weights_give_the_tokens_of_transformers() {
    follows_transformers(QuantRequest::Packed);
}

#[test]
fn expanded_weights_give_the_tokens_of_transformers() {
    follows_transformers(QuantRequest::Dequant);
}
