//! Plans that the reference did not make are refused, not run approximately.

use std::sync::Arc;

use halfhitch_reference_cpu::ReferenceCpu;
use halfhitch_seam::{
    CancelToken, ComputeBackend, Control, DType, DeviceCapabilities, ErrorCode, ExecutionPlan,
    ModelFeature, NoObserver, OpenRequest, PlanRequest, Precision, WeightForm, negotiate,
};
use halfhitch_suite::features;

/// A change to a plan that makes it another backend's.
type Edit = fn(&mut ExecutionPlan);

fn capabilities() -> DeviceCapabilities {
    let backend = ReferenceCpu::new();
    let device = backend.devices().unwrap().remove(0);
    backend.capabilities(&device.id).unwrap()
}

#[test]
fn a_plan_for_other_forms_is_incompatible() {
    let model = features::single("plain").unwrap();
    let manifest = model.weights.manifest();
    let plan = negotiate(
        &model.spec,
        &manifest,
        &capabilities(),
        &PlanRequest::default(),
    )
    .unwrap();
    let edits: [(&str, Edit); 4] = [
        ("precision", |p| p.precision = Precision::F16),
        ("cache", |p| p.kv_dtype = DType::F16),
        ("residency", |p| {
            p.weights[0].resident = WeightForm::Dense(DType::F16);
        }),
        ("a weight that is not planned", |p| p.weights.truncate(3)),
    ];
    for (what, edit) in edits {
        let mut plan = plan.clone();
        edit(&mut plan);
        let cancel = CancelToken::new();
        let result = Arc::new(ReferenceCpu::new()).open(OpenRequest {
            plan: &plan,
            model: &model.spec,
            weights: &model.weights,
            control: Control {
                cancel: &cancel,
                observer: &NoObserver,
            },
        });
        let error = result
            .err()
            .unwrap_or_else(|| panic!("{what} was accepted"));
        assert_eq!(error.code, ErrorCode::Incompatible, "{what}: {error}");
    }
}

#[test]
fn every_feature_and_scheme_is_computed() {
    let capabilities = capabilities();
    assert_eq!(capabilities.features, ModelFeature::ALL.into());
    for scheme in halfhitch_suite::models::schemes() {
        assert!(capabilities.quant_support(&scheme).is_some(), "{scheme}");
    }
}
