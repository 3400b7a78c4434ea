//! Any provider, opened in a child process.

use std::ffi::OsString;
use std::sync::Arc;

use halfhitch_seam::{ComputeBackend, SeamError, SeamResult};

use super::Isolation;
use crate::engine::{BackendSource, Provider};

/// A provider whose backend runs in a process of its own.
pub struct IsolatedProvider {
    isolation: Isolation,
    inner: Arc<dyn Provider>,
}

impl IsolatedProvider {
    /// Puts `inner` into a process of its own.
    pub fn new(isolation: Isolation, inner: Arc<dyn Provider>) -> Self {
        Self { isolation, inner }
    }
}

impl Provider for IsolatedProvider {
    fn backend(&self) -> &str {
        self.inner.backend()
    }

    fn driver(&self) -> &str {
        self.inner.driver()
    }

    fn origin(&self) -> String {
        self.inner.origin()
    }

    fn version(&self) -> Option<String> {
        self.inner.version()
    }

    fn components(&self) -> Vec<(String, String)> {
        self.inner.components()
    }

    fn open(&self) -> SeamResult<Arc<dyn ComputeBackend>> {
        let source = match self.inner.source()? {
            BackendSource::BuiltIn(name) => vec![OsString::from("--built-in"), name.into()],
            BackendSource::Plugin(manifest) => vec![OsString::from("--plugin"), manifest.into()],
            BackendSource::Process => {
                return Err(SeamError::unsupported(
                    "this backend is of this process alone and cannot run in another",
                ));
            }
        };
        start(&self.isolation, source)
    }
}

#[cfg(target_os = "linux")]
fn start(isolation: &Isolation, source: Vec<OsString>) -> SeamResult<Arc<dyn ComputeBackend>> {
    let backend = super::backend::IsolatedBackend::start(isolation.clone(), source)?;
    Ok(Arc::new(backend))
}

#[cfg(not(target_os = "linux"))]
fn start(_: &Isolation, _: Vec<OsString>) -> SeamResult<Arc<dyn ComputeBackend>> {
    Err(
        SeamError::unsupported("backends run in processes of their own on Linux only")
            .hint("leave --isolate away"),
    )
}
