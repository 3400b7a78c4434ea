//! A backend in a child process, as a [`ComputeBackend`].

use std::ffi::OsString;
use std::sync::Arc;

use halfhitch_seam::{
    BackendIdentity, CacheAction, CacheReport, ComputeBackend, Control, DeviceCapabilities,
    DeviceId, DeviceInfo, GraphReport, GraphRequest, OpenRequest, SeamResult, Session, TuneReport,
    TuneRequest,
};
use parking_lot::Mutex;
use serde::de::DeserializeOwned;

use super::Isolation;
use super::call::With;
use super::frame::FILES_LIMIT;
use super::message::{Open, Request};
use super::process::Process;
use super::session::IsolatedSession;
use super::weights::Shared;

/// A backend in a process of its own. Where that process is gone, the next call starts another.
pub struct IsolatedBackend {
    isolation: Isolation,
    source: Vec<OsString>,
    identity: BackendIdentity,
    process: Mutex<Arc<Process>>,
}

impl IsolatedBackend {
    /// Starts the process. `source` is what the hidden command takes to find the backend.
    ///
    /// # Errors
    /// What [`Process::start`] says.
    pub fn start(isolation: Isolation, source: Vec<OsString>) -> SeamResult<Self> {
        let (process, identity) = Process::start(&isolation, &source)?;
        Ok(Self {
            isolation,
            source,
            identity,
            process: Mutex::new(process),
        })
    }

    fn process(&self) -> SeamResult<Arc<Process>> {
        let mut process = self.process.lock();
        if process.ended().is_some() {
            (*process, _) = Process::start(&self.isolation, &self.source)?;
        }
        Ok(Arc::clone(&process))
    }

    fn ask<T: DeserializeOwned>(
        &self,
        request: Request,
        control: Option<&Control<'_>>,
    ) -> SeamResult<T> {
        let with = With {
            control,
            ..With::default()
        };
        let mut channel = self.process()?.channel()?;
        channel.call(request, &with).map(|(answer, _)| answer)
    }
}

impl ComputeBackend for IsolatedBackend {
    fn identity(&self) -> BackendIdentity {
        self.identity.clone()
    }

    fn devices(&self) -> SeamResult<Vec<DeviceInfo>> {
        self.ask(Request::Devices, None)
    }

    fn capabilities(&self, device: &DeviceId) -> SeamResult<DeviceCapabilities> {
        self.ask(Request::Capabilities(device.clone()), None)
    }

    fn open(&self, request: OpenRequest<'_>) -> SeamResult<Box<dyn Session>> {
        let shared = Shared::new(request.weights, request.control.cancel)?;
        let mut channel = self.process()?.channel()?;
        for files in shared.files().chunks(FILES_LIMIT) {
            let with = With {
                files,
                ..With::default()
            };
            channel.call::<()>(Request::Files, &with)?;
        }
        let open = Open {
            plan: request.plan.clone(),
            model: request.model.clone(),
            weights: shared.weights.clone(),
        };
        let with = With {
            control: Some(&request.control),
            ..With::default()
        };
        channel.call::<()>(Request::Open(Box::new(open)), &with)?;
        Ok(Box::new(IsolatedSession::new(
            channel,
            request.plan.clone(),
            request.model,
        )))
    }

    fn cache(&self, action: CacheAction) -> SeamResult<Option<CacheReport>> {
        self.ask(Request::Cache(action), None)
    }

    fn graph(
        &self,
        request: &GraphRequest,
        control: &Control<'_>,
    ) -> SeamResult<Option<GraphReport>> {
        self.ask(Request::Graph(Box::new(request.clone())), Some(control))
    }

    fn tune(&self, request: &TuneRequest, control: &Control<'_>) -> SeamResult<Option<TuneReport>> {
        self.ask(Request::Tune(Box::new(request.clone())), Some(control))
    }
}
