//! A compute backend: identity, devices, and how sessions are opened.

use serde::{Deserialize, Serialize};

use crate::artifact_cache::{CacheAction, CacheReport};
use crate::capability::{DeviceCapabilities, DeviceId, DeviceInfo};
use crate::control::Control;
use crate::error::SeamResult;
use crate::graph::{GraphReport, GraphRequest};
use crate::model::ModelSpec;
use crate::plan::ExecutionPlan;
use crate::session::Session;
use crate::tune::{TuneReport, TuneRequest};
use crate::weights::Weights;

/// Who a backend is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackendIdentity {
    /// What users select (`reference-cpu`, `xla-iree:cuda`).
    pub name: String,
    /// The backend's version.
    pub version: String,
    /// Versions of what it stands on, by name (`iree-runtime` -> `3.13.0`).
    pub components: Vec<(String, String)>,
}

/// What is needed to open a session.
pub struct OpenRequest<'a> {
    /// A plan that [`negotiate`](crate::negotiate) made for this model and device.
    pub plan: &'a ExecutionPlan,
    /// The model, validated.
    pub model: &'a ModelSpec,
    /// Its weights, checked against the model. The session may keep them (a clone shares the
    /// bytes) as long as it lives, and must never write to them.
    pub weights: &'a Weights,
    /// Cancellation and progress.
    pub control: Control<'a>,
}

/// An engine that runs models: devices and sessions on them. Methods may be called from several
/// threads at once.
pub trait ComputeBackend: Send + Sync {
    /// Name and versions.
    fn identity(&self) -> BackendIdentity;

    /// Devices that are usable now, in a stable order. May be empty.
    ///
    /// # Errors
    /// `Backend` or `NotFound` where the driver itself is not there, with what is missing.
    fn devices(&self) -> SeamResult<Vec<DeviceInfo>>;

    /// What a device can do.
    ///
    /// # Errors
    /// `NotFound` for an unknown device.
    fn capabilities(&self, device: &DeviceId) -> SeamResult<DeviceCapabilities>;

    /// Opens a session for the plan's device: compiles, loads weights. May take long, reports
    /// progress and looks at the cancel token.
    ///
    /// # Errors
    /// `NotFound`, `OutOfMemory`, `Cancelled`, `Incompatible`, `Backend`; `NonFinite` where a weight
    /// holds a NaN or an infinity and the backend looks.
    fn open(&self, request: OpenRequest<'_>) -> SeamResult<Box<dyn Session>>;

    /// Lists, verifies or clears what the backend keeps on disk. `None` where it keeps nothing.
    ///
    /// # Errors
    /// `Io`; `InvalidInput` where the folder cannot be trusted.
    fn cache(&self, action: CacheAction) -> SeamResult<Option<CacheReport>> {
        let _ = action;
        Ok(None)
    }

    /// The graph of a step, and what it costs where that is asked for. `None` where the backend
    /// compiles no graphs.
    ///
    /// # Errors
    /// Those of [`negotiate`](crate::negotiate); `InvalidInput` for a target that it does not know; what
    /// compiling says; `Cancelled`.
    fn graph(
        &self,
        request: &GraphRequest,
        control: &Control<'_>,
    ) -> SeamResult<Option<GraphReport>> {
        let _ = (request, control);
        Ok(None)
    }

    /// Measures the ways in which the model's contractions can be written on a device, and keeps the
    /// answers for the plans after it. `None` where the backend leaves no choice.
    ///
    /// # Errors
    /// Those of [`negotiate`](crate::negotiate); `NotFound` for an unknown device; what compiling and
    /// running say; `Cancelled`, between measurements: what was found until then is kept.
    fn tune(&self, request: &TuneRequest, control: &Control<'_>) -> SeamResult<Option<TuneReport>> {
        let _ = (request, control);
        Ok(None)
    }
}
