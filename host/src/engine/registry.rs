//! Which backends there are, and how a user's selection string becomes a device.
//!
//! A [`Provider`] stands for one backend on one driver. The reference is built in; a plugin is a
//! provider like any other. Listing describes providers without starting them; only the one that is
//! selected is opened. A provider that cannot work is one row with its reason and hides no other.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use halfhitch_reference_cpu::ReferenceCpu;
use halfhitch_seam::{
    CacheAction, CacheReport, ComputeBackend, DeviceCapabilities, DeviceInfo, ErrorCode, ResultExt,
    SeamError, SeamResult,
};
use serde::Serialize;

use crate::isolate::Isolation;
use crate::plugins::deadline::within;
use crate::plugins::provider::providers;
use crate::plugins::search::PATH_VARIABLE;

/// How long a backend may take to say what devices it has.
const PATIENCE: Duration = Duration::from_secs(20);

/// What a user selects: `backend[:driver[:selector]]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selection {
    /// The backend's name.
    pub backend: String,
    /// The driver, where it was said.
    pub driver: Option<String>,
    /// A device's ordinal or stable id, where it was said. An id may hold colons.
    pub selector: Option<String>,
}

impl FromStr for Selection {
    type Err = SeamError;

    fn from_str(text: &str) -> SeamResult<Self> {
        let mut parts = text.splitn(3, ':').map(str::to_owned);
        let selection = Self {
            backend: parts.next().unwrap_or_default(),
            driver: parts.next(),
            selector: parts.next(),
        };
        let named = [
            Some(&selection.backend),
            selection.driver.as_ref(),
            selection.selector.as_ref(),
        ];
        if named.into_iter().flatten().any(String::is_empty) {
            return Err(
                SeamError::invalid_input(format!("`{text}` has an empty part"))
                    .hint("a backend is written backend[:driver[:selector]]"),
            );
        }
        Ok(selection)
    }
}

impl fmt::Display for Selection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.backend)?;
        for part in [&self.driver, &self.selector].into_iter().flatten() {
            write!(f, ":{part}")?;
        }
        Ok(())
    }
}

/// A backend on a driver that may be opened.
pub trait Provider: Send + Sync {
    /// The backend's name, the first part of a selection.
    fn backend(&self) -> &str;

    /// The driver's name, the second part of a selection.
    fn driver(&self) -> &str;

    /// Where it comes from: `built in`, or a plugin's file.
    fn origin(&self) -> String;

    /// Its version, where that is known before it is started.
    fn version(&self) -> Option<String> {
        None
    }

    /// Versions of what it stands on, where those are known before it is started.
    fn components(&self) -> Vec<(String, String)> {
        Vec::new()
    }

    /// Where another process of this program finds it.
    ///
    /// # Errors
    /// What keeps it from being used at all, where that is known before it is started.
    fn source(&self) -> SeamResult<BackendSource> {
        Ok(BackendSource::Process)
    }

    /// Starts the backend.
    ///
    /// # Errors
    /// Whatever keeps it from working, with what the user can do.
    fn open(&self) -> SeamResult<Arc<dyn ComputeBackend>>;
}

/// Where a backend comes from, as another process of the same program can use it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BackendSource {
    /// The program itself, under this name.
    BuiltIn(String),
    /// A plugin with this manifest.
    Plugin(PathBuf),
    /// This process alone.
    Process,
}

/// The reference backend, part of the program.
struct BuiltIn;

impl Provider for BuiltIn {
    fn backend(&self) -> &str {
        "reference-cpu"
    }

    fn driver(&self) -> &str {
        "cpu"
    }

    fn origin(&self) -> String {
        "built in".into()
    }

    fn source(&self) -> SeamResult<BackendSource> {
        Ok(BackendSource::BuiltIn(self.backend().into()))
    }

    fn open(&self) -> SeamResult<Arc<dyn ComputeBackend>> {
        Ok(Arc::new(ReferenceCpu::new()))
    }
}

/// Whether a backend can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// It has at least one device.
    Ready,
    /// It works, and there is no device for it.
    NoDevice,
    /// It works, and what the system must bring along for it is missing: the driver's library, say.
    Unavailable,
    /// It does not work; the reason says why.
    Failed,
}

/// A row of the list of backends.
#[derive(Clone, Debug, Serialize)]
pub struct BackendStatus {
    /// What to write after `--backend`.
    pub name: String,
    /// The driver.
    pub driver: String,
    /// Where it comes from.
    pub origin: String,
    /// Whether it can be used.
    pub state: State,
    /// Why it cannot.
    pub reason: Option<String>,
    /// Its version.
    pub version: Option<String>,
    /// Versions of what it stands on.
    pub components: Vec<(String, String)>,
    /// What each of its devices can do.
    pub devices: Vec<DeviceCapabilities>,
}

/// A device to run on.
#[derive(Clone)]
pub struct Target {
    /// The backend's name.
    pub name: String,
    /// The backend.
    pub backend: Arc<dyn ComputeBackend>,
    /// What the chosen device can do.
    pub capabilities: DeviceCapabilities,
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Target")
            .field("name", &self.name)
            .field("device", &self.capabilities.device)
            .finish_non_exhaustive()
    }
}

/// All backends, in the order in which they are listed.
pub struct Registry {
    providers: Vec<Arc<dyn Provider>>,
    /// Providers whose name was taken: listed, never selected.
    hidden: Vec<BackendStatus>,
}

impl Default for Registry {
    /// The built-in backends.
    fn default() -> Self {
        Self {
            providers: vec![Arc::new(BuiltIn)],
            hidden: Vec::new(),
        }
    }
}

impl Registry {
    /// The built-in backends, and every plugin that is found: in the folders named, then in the usual
    /// ones. Nothing is loaded yet.
    pub fn with_plugins(named: &[PathBuf]) -> Self {
        let mut registry = Self::default();
        for plugin in providers(named) {
            registry.register(Arc::new(plugin));
        }
        registry
    }

    /// The same backends, each in a process of its own once it is opened.
    #[must_use]
    pub fn isolated(mut self, isolation: &Isolation) -> Self {
        let all = self.providers.into_iter();
        self.providers = all.map(|p| isolation.provider(p)).collect();
        self
    }

    /// Adds a provider. A backend and driver that are there already stay, so that nothing can take
    /// the place of a built-in one; the newcomer is listed with that reason.
    pub fn register(&mut self, provider: Arc<dyn Provider>) {
        let (backend, driver) = (provider.backend(), provider.driver());
        let mut all = self.providers.iter();
        let Some(first) = all.find(|p| p.backend() == backend && p.driver() == driver) else {
            return self.providers.push(provider);
        };
        let mut row = empty_row(provider.as_ref());
        row.reason = Some(format!(
            "the name is that of {}, which comes first",
            first.origin()
        ));
        self.hidden.push(row);
    }

    /// Every backend with its state, devices and capabilities. One that does not answer in time is a
    /// row that says so.
    pub fn list(&self) -> Vec<BackendStatus> {
        let found = self.providers.iter().map(|p| status(p, PATIENCE));
        found.chain(self.hidden.iter().cloned()).collect()
    }

    /// Every backend that keeps something on disk does `action` on it. Backends that share a folder
    /// count once; one that does not work is left out.
    ///
    /// # Errors
    /// The first failure of a backend that does work.
    pub fn caches(&self, action: CacheAction) -> SeamResult<Vec<CacheReport>> {
        let mut reports: Vec<CacheReport> = Vec::new();
        for provider in &self.providers {
            let asked = Arc::clone(provider);
            let Ok(backend) = within(PATIENCE, move || asked.open()) else {
                continue;
            };
            if let Some(report) = backend.cache(action)? {
                match reports.iter_mut().find(|r| r.folder == report.folder) {
                    Some(first) => first.freed += report.freed,
                    None => reports.push(report),
                }
            }
        }
        Ok(reports)
    }

    /// Opens the backend that `selection` names and finds the device.
    ///
    /// # Errors
    /// `NotFound` for an unknown backend, driver or device, naming those there are; `InvalidInput`
    /// where a backend has several drivers and none was named; what the backend says where it does
    /// not work.
    pub fn select(&self, selection: &Selection) -> SeamResult<Target> {
        let provider = self.provider(selection)?;
        let within = || format!("backend {}", selection.backend);
        let backend = provider.open().in_context(within)?;
        let devices = backend.devices().in_context(within)?;
        let device = pick_device(&devices, selection.selector.as_deref()).in_context(within)?;
        let capabilities = backend.capabilities(&device.id).in_context(within)?;
        Ok(Target {
            name: backend.identity().name,
            backend,
            capabilities,
        })
    }

    fn provider(&self, selection: &Selection) -> SeamResult<&dyn Provider> {
        let mut matching = self
            .providers
            .iter()
            .filter(|p| p.backend() == selection.backend)
            .peekable();
        if matching.peek().is_none() {
            let names = self
                .providers
                .iter()
                .map(|p| format!("{}:{}", p.backend(), p.driver()));
            return Err(SeamError::new(
                ErrorCode::NotFound,
                format!("there is no backend `{}`", selection.backend),
            )
            .hint(format!(
                "available: {}; others are plugins, looked for in --plugin-dir, {PATH_VARIABLE} and \
                 `plugins` beside the program; in a checkout `make plugins` builds them",
                join(names)
            )));
        }
        let candidates: Vec<&dyn Provider> = matching.map(AsRef::as_ref).collect();
        let drivers = || {
            candidates
                .iter()
                .map(|p| format!("{}:{}", p.backend(), p.driver()))
        };
        match (&selection.driver, candidates.as_slice()) {
            (Some(driver), all) => all
                .iter()
                .find(|p| p.driver() == driver)
                .copied()
                .ok_or_else(|| {
                    not_found(
                        format!("backend `{}` has no driver `{driver}`", selection.backend),
                        drivers(),
                    )
                }),
            (None, [only]) => Ok(*only),
            (None, _) => Err(SeamError::invalid_input(format!(
                "backend `{}` has several drivers",
                selection.backend
            ))
            .hint(format!("name one: {}", join(drivers())))),
        }
    }
}

fn join(names: impl Iterator<Item = String>) -> String {
    names.collect::<Vec<_>>().join(", ")
}

fn not_found(message: String, available: impl Iterator<Item = String>) -> SeamError {
    SeamError::new(ErrorCode::NotFound, message).hint(format!("available: {}", join(available)))
}

/// The device that `selector` names: a stable id, else an ordinal; the first where nothing is said.
///
/// # Errors
/// `NotFound`, naming those there are.
pub fn pick_device<'a>(
    devices: &'a [DeviceInfo],
    selector: Option<&str>,
) -> SeamResult<&'a DeviceInfo> {
    let Some(selector) = selector else {
        return devices.first().ok_or_else(|| {
            SeamError::new(ErrorCode::NotFound, "no device is there")
                .hint("`halfhitch backends` says what each backend found")
        });
    };
    let ordinal = selector.parse::<usize>().ok();
    devices
        .iter()
        .find(|d| d.id.0 == selector)
        .or_else(|| devices.iter().find(|d| Some(d.ordinal) == ordinal))
        .ok_or_else(|| {
            let names = devices.iter().map(|d| format!("{} ({})", d.ordinal, d.id));
            not_found(format!("there is no device `{selector}`"), names)
        })
}

fn empty_row(provider: &dyn Provider) -> BackendStatus {
    BackendStatus {
        name: format!("{}:{}", provider.backend(), provider.driver()),
        driver: provider.driver().into(),
        origin: provider.origin(),
        state: State::Failed,
        reason: None,
        version: provider.version(),
        components: provider.components(),
        devices: Vec::new(),
    }
}

/// A provider's row, with its devices where it answers within `limit`.
fn status(provider: &Arc<dyn Provider>, limit: Duration) -> BackendStatus {
    let mut row = empty_row(provider.as_ref());
    let asked = Arc::clone(provider);
    let found = within(limit, move || {
        let backend = asked.open()?;
        let devices = backend.devices().and_then(|devices| {
            let all = devices.iter().map(|d| backend.capabilities(&d.id));
            all.collect::<SeamResult<Vec<_>>>()
        });
        Ok((backend.identity(), devices))
    })
    .and_then(|(identity, devices)| {
        row.version = Some(identity.version);
        row.components = identity.components;
        // It answers, so what it does not find is not a part of itself.
        if devices
            .as_ref()
            .is_err_and(|e| e.code == ErrorCode::NotFound)
        {
            row.state = State::Unavailable;
        }
        devices
    });
    match found {
        Ok(devices) if devices.is_empty() => {
            row.state = State::NoDevice;
            row.reason = Some("no device was found".into());
        }
        Ok(devices) => {
            row.state = State::Ready;
            row.devices = devices;
        }
        Err(error) => row.reason = Some(error.to_string()),
    }
    row
}

#[cfg(test)]
mod tests;
