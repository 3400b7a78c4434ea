//! Random models against the reference, and the smallest wrong one as a checkpoint folder.

use std::path::{Path, PathBuf};

use halfhitch_reference_cpu::ReferenceCpu;
use halfhitch_seam::{
    CancelToken, ComputeBackend, Control, ErrorCode, NoObserver, OpenRequest, OutputRequest,
    PlanRequest, ResultExt, SeamError, SeamResult, TokenId, negotiate,
};
use halfhitch_suite::Subject;
use halfhitch_suite::models::Generated;
use halfhitch_suite::search::{Search, Wrong};

use super::folder::{TOKENS, save};

pub use halfhitch_suite::search::Searched;

/// Most models that a wrong one is shrunk through.
const SHRINKS: u32 = 200;

/// A wrong model that was kept.
pub struct Found {
    /// Its folder.
    pub folder: PathBuf,
    /// The file with its tokens.
    pub tokens: PathBuf,
}

/// Compares `models` random models with the reference.
///
/// # Errors
/// What the search says.
pub fn search(
    subject: &Subject,
    models: u32,
    seed: u64,
    told: &dyn Fn(u32),
) -> SeamResult<Searched> {
    let search = Search {
        subject,
        trusted: &reference,
        models,
        seed,
        shrinks: SHRINKS,
    };
    search.run(told)
}

impl Found {
    /// Keeps a wrong model in a folder of its own inside `folder`.
    ///
    /// # Errors
    /// What saving says.
    pub fn keep(wrong: &Wrong, folder: &Path, seed: u64) -> SeamResult<Self> {
        let folder = folder.join(format!("wrong-{seed}"));
        let Wrong { model, tokens, .. } = wrong;
        save(&folder, &model.spec, &model.weights, tokens)
            .in_context(|| format!("--save {}", folder.display()))?;
        Ok(Self {
            tokens: folder.join(TOKENS),
            folder,
        })
    }
}

/// What the reference says of every position.
fn reference(model: &Generated, tokens: &[TokenId]) -> SeamResult<Vec<Vec<f32>>> {
    let backend = ReferenceCpu::new();
    let devices = backend.devices()?;
    let device = devices
        .first()
        .ok_or_else(|| SeamError::new(ErrorCode::NotFound, "the reference has no device"))?;
    let capabilities = backend.capabilities(&device.id)?;
    let manifest = model.weights.manifest();
    let plan = negotiate(
        &model.spec,
        &manifest,
        &capabilities,
        &PlanRequest::default(),
    )?;
    let cancel = CancelToken::new();
    let control = Control {
        cancel: &cancel,
        observer: &NoObserver,
    };
    let mut session = backend.open(OpenRequest {
        plan: &plan,
        model: &model.spec,
        weights: &model.weights,
        control,
    })?;
    let id = session.create_sequence()?;
    let out = session.prefill(id, tokens, OutputRequest::ALL_LOGITS, &control)?;
    let rows = out.logits.chunks(model.spec.vocab_size);
    Ok(rows.map(<[f32]>::to_vec).collect())
}
