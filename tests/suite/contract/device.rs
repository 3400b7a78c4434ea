//! Devices and capabilities: what is advertised is there, what is not is refused.

use std::collections::BTreeSet;

use halfhitch_seam::{
    DType, DeviceId, DeviceSampler, ErrorCode, ModelFeature, OutputRequest, PlanRequest, Precision,
    QuantRequest, SeamResult, negotiate,
};

use super::{Bench, CaseFn, refused};
use crate::features;
use crate::models::{self, Generated};
use crate::report::{Outcome, fail};

pub(super) const CASES: &[(&str, CaseFn)] = &[
    ("identity-and-devices-are-well-formed", identity),
    ("capabilities-are-well-formed", well_formed),
    ("an-unknown-device-is-not-found", unknown_device),
    ("precisions-are-honest", precisions),
    ("features-are-honest", honest_features),
    ("packed-schemes-are-honest", honest_schemes),
    ("samplers-are-honest", honest_samplers),
    ("limits-are-refused-when-exceeded", exceeded),
];

const UNSUPPORTED: &[ErrorCode] = &[ErrorCode::Unsupported];

fn identity(b: &Bench<'_>) -> Outcome {
    let identity = b.subject.backend.identity();
    if identity.name.is_empty() || identity.version.is_empty() {
        return fail(format!("an identity without name or version: {identity:?}"));
    }
    let devices = b.subject.backend.devices()?;
    let ids: BTreeSet<_> = devices.iter().map(|d| &d.id).collect();
    if ids.len() != devices.len() {
        return fail("two devices with the same id");
    }
    for (i, device) in devices.iter().enumerate() {
        if device.ordinal != i || device.name.is_empty() || device.driver.is_empty() {
            return fail(format!("device {i} is listed as {device:?}"));
        }
        let own = b.subject.backend.capabilities(&device.id)?.device;
        if own != *device {
            return fail(format!(
                "device {i} is {device:?} and says of itself {own:?}"
            ));
        }
    }
    if b.subject.backend.devices()? != devices {
        return fail("devices change from call to call");
    }
    Ok(())
}

fn well_formed(b: &Bench<'_>) -> Outcome {
    let c = b.subject.capabilities()?;
    let distinct: BTreeSet<_> = c.precisions.iter().collect();
    if c.precisions.is_empty() || distinct.len() != c.precisions.len() {
        return fail(format!("precisions {:?}", c.precisions));
    }
    if let Some(p) = c
        .precisions
        .iter()
        .find(|p| !c.resident.contains(&p.dtype()))
    {
        return fail(format!(
            "{p} is computed in, but nothing can be resident in it"
        ));
    }
    if c.resident.contains(&DType::U32) {
        return fail("u32 is no type for dense weights");
    }
    if c.max_sequences == 0
        || c.prefill_chunk == 0
        || c.context_limit == Some(0)
        || c.max_threads == Some(0)
    {
        return fail("a limit of 0");
    }
    if let (Some(free), Some(total)) = (c.memory.free, c.memory.total)
        && free > total
    {
        return fail(format!("{free} bytes free of {total}"));
    }
    Ok(())
}

fn unknown_device(b: &Bench<'_>) -> Outcome {
    let nobody = DeviceId("no such device".into());
    let found = b.subject.backend.capabilities(&nobody);
    refused("an unknown device", found, &[ErrorCode::NotFound])?;
    let model = b.model;
    let mut plan = b.subject.plan(&model.spec, &model.weights, &b.request())?;
    plan.device.id = nobody;
    let opened = b.subject.open(&model.spec, &model.weights, &plan);
    refused(
        "a plan for an unknown device",
        opened,
        &[ErrorCode::NotFound],
    )
}

/// Opens and runs a model whose plan must be possible.
fn runs(b: &Bench<'_>, what: &str, model: &Generated, request: PlanRequest) -> Outcome {
    let plan = negotiate(
        &model.spec,
        &model.weights.manifest(),
        &b.subject.capabilities()?,
        &request,
    );
    let run = || -> SeamResult<()> {
        let mut session = b.subject.open(&model.spec, &model.weights, &plan?)?;
        let id = session.create_sequence()?;
        let cancel = halfhitch_seam::CancelToken::new();
        let control = crate::subject::control(&cancel);
        session.prefill(id, &[1, 2, 3], OutputRequest::LOGITS, &control)?;
        Ok(())
    };
    run().or_else(|e| fail(format!("{what} is advertised, but: {e}")))
}

fn precisions(b: &Bench<'_>) -> Outcome {
    let c = b.subject.capabilities()?;
    for precision in Precision::ALL {
        let request = PlanRequest {
            precision: Some(precision),
            ..b.request()
        };
        if c.precisions.contains(&precision) {
            runs(b, &format!("precision {precision}"), b.model, request)?;
        } else {
            let manifest = b.model.weights.manifest();
            let plan = negotiate(&b.model.spec, &manifest, &c, &request);
            refused(&format!("precision {precision}"), plan, UNSUPPORTED)?;
        }
    }
    Ok(())
}

fn honest_features(b: &Bench<'_>) -> Outcome {
    let c = b.subject.capabilities()?;
    for model in features::all()? {
        let needs = model.spec.features();
        if needs.is_subset(&c.features) {
            runs(b, &format!("model `{}`", model.name), &model, b.request())?;
        } else {
            let plan = negotiate(&model.spec, &model.weights.manifest(), &c, &b.request());
            refused(&format!("model `{}`", model.name), plan, UNSUPPORTED)?;
        }
    }
    match c.features.iter().find(|f| !ModelFeature::ALL.contains(f)) {
        Some(unknown) => fail(format!("{unknown} is no feature the suite knows")),
        None => Ok(()),
    }
}

fn honest_schemes(b: &Bench<'_>) -> Outcome {
    let c = b.subject.capabilities()?;
    for scheme in models::schemes() {
        let model = models::packed(scheme, false)?;
        let request = PlanRequest {
            quant: QuantRequest::Packed,
            ..b.request()
        };
        if c.quant_support(&scheme).is_some() {
            runs(b, &scheme.to_string(), &model, request)?;
        } else {
            let plan = negotiate(&model.spec, &model.weights.manifest(), &c, &request);
            refused(&scheme.to_string(), plan, UNSUPPORTED)?;
        }
    }
    Ok(())
}

fn honest_samplers(b: &Bench<'_>) -> Outcome {
    let advertised = b.subject.capabilities()?.samplers;
    let mut s = b.open()?;
    let id = s.create()?;
    let prefill = s.prefill(id, &[1, 2], OutputRequest::GREEDY);
    if advertised.contains(&DeviceSampler::Greedy) {
        return match prefill?.token {
            Some(_) => Ok(()),
            None => fail("greedy sampling is advertised and gives no token"),
        };
    }
    refused("a sampler that is not advertised", prefill, UNSUPPORTED)?;
    s.expect_len(id, 0, "after a refused sampler")?;
    s.prefill(id, &[1, 2], OutputRequest::NOTHING)?;
    let step = s.decode(&[(id, 1)], OutputRequest::GREEDY);
    refused("a sampler that is not advertised", step, UNSUPPORTED)?;
    s.expect_len(id, 2, "after a refused sampler")
}

fn exceeded(b: &Bench<'_>) -> Outcome {
    let c = b.subject.capabilities()?;
    let manifest = b.model.weights.manifest();
    let limit = c.context_limit.unwrap_or(usize::MAX);
    let limit = limit.min(b.model.spec.max_context);
    let invalid: &[ErrorCode] = &[ErrorCode::InvalidInput];
    for (what, context, sequences, codes) in [
        ("a context over the limit", Some(limit + 1), 1, UNSUPPORTED),
        ("a context of 0", Some(0), 1, invalid),
        ("too many sequences", None, c.max_sequences + 1, UNSUPPORTED),
        ("0 sequences", None, 0, invalid),
    ] {
        let request = PlanRequest {
            context,
            sequences,
            ..b.request()
        };
        let plan = negotiate(&b.model.spec, &manifest, &c, &request);
        refused(what, plan, codes)?;
    }
    Ok(())
}
