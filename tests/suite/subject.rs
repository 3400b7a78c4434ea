//! What is tested: a device of a backend.

use std::sync::Arc;

use halfhitch_seam::{
    CancelToken, ComputeBackend, Control, DeviceCapabilities, DeviceId, ErrorCode, ExecutionPlan,
    ModelSpec, NoObserver, OpenRequest, PlanRequest, SeamError, SeamResult, Session, Weights,
    negotiate,
};

use crate::report::{Miss, Outcome};

/// A device of a backend.
#[derive(Clone)]
pub struct Subject {
    /// The backend.
    pub backend: Arc<dyn ComputeBackend>,
    /// Its device.
    pub device: DeviceId,
    /// Stops what takes long: opening a session, and with it compiling.
    pub cancel: CancelToken,
}

impl Subject {
    /// The backend's first device.
    ///
    /// # Errors
    /// `NotFound` where it has none; what [`ComputeBackend::devices`] says.
    pub fn first(backend: Arc<dyn ComputeBackend>) -> SeamResult<Self> {
        let devices = backend.devices()?;
        let device = devices.first().ok_or_else(|| {
            SeamError::new(
                ErrorCode::NotFound,
                format!("{} has no device", backend.identity().name),
            )
        })?;
        let device = device.id.clone();
        Ok(Self::new(backend, device))
    }

    /// A device of the backend.
    pub fn new(backend: Arc<dyn ComputeBackend>, device: DeviceId) -> Self {
        Self {
            backend,
            device,
            cancel: CancelToken::new(),
        }
    }

    /// What the device advertises.
    pub(crate) fn capabilities(&self) -> Outcome<DeviceCapabilities> {
        Ok(self.backend.capabilities(&self.device)?)
    }

    /// A plan; what the device does not advertise makes the case unsupported.
    pub(crate) fn plan(
        &self,
        spec: &ModelSpec,
        weights: &Weights,
        request: &PlanRequest,
    ) -> Outcome<ExecutionPlan> {
        let capabilities = self.capabilities()?;
        negotiate(spec, &weights.manifest(), &capabilities, request).map_err(|e| match e.code {
            ErrorCode::Unsupported => Miss::Unsupported(e.to_string()),
            _ => e.into(),
        })
    }

    /// A session.
    pub(crate) fn open(
        &self,
        spec: &ModelSpec,
        weights: &Weights,
        plan: &ExecutionPlan,
    ) -> SeamResult<Box<dyn Session>> {
        self.backend.open(OpenRequest {
            plan,
            model: spec,
            weights,
            control: control(&self.cancel),
        })
    }
}

/// A control that nobody listens to.
pub(crate) fn control(cancel: &CancelToken) -> Control<'_> {
    Control {
        cancel,
        observer: &NoObserver,
    }
}
