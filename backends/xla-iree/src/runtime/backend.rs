//! The backend: one HAL driver of the IREE runtime.

use std::collections::BTreeSet;

use halfhitch_seam::{
    BackendIdentity, CacheAction, CacheReport, ComputeBackend, Control, DeviceCapabilities,
    DeviceId, DeviceInfo, ErrorCode, GraphReport, GraphRequest, MemoryInfo, OpenRequest, ResultExt,
    SeamError, SeamResult, Session,
};
use halfhitch_xla_iree_sys::{Device, DeviceOptions, IREE_VERSION, LogLevel, Runtime};
use parking_lot::Mutex;

use super::capabilities::capabilities;
use super::error::seam_error;
use super::graph;
use super::memory;
use super::selftest;
use super::session::XlaIreeSession;
use super::steps::{Cut, Steps};
use super::upload::upload;
use crate::compiler::{Compiler, CompilerOptions, Target};
use crate::emitter::Source;

/// When steps are compiled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CompileAt {
    /// All that a session may need, when it is opened.
    #[default]
    Open,
    /// Each when it is first needed.
    FirstUse,
}

/// How a backend runs.
#[derive(Clone, Debug)]
pub struct BackendOptions {
    /// The HAL driver: `local-task`, `local-sync`.
    pub driver: String,
    /// Threads of `local-task`; 0 is one a physical core.
    pub workers: u32,
    /// Microseconds that an idle thread of `local-task` spins before it sleeps.
    pub worker_spin_us: u32,
    /// The compiler.
    pub compiler: CompilerOptions,
    /// When steps are compiled.
    pub compile_at: CompileAt,
}

impl BackendOptions {
    /// What suits a driver here: the environment's compiler and cache. `HALFHITCH_THREADS` sets the
    /// threads.
    pub fn for_driver(driver: &str) -> Self {
        let threads = std::env::var("HALFHITCH_THREADS").ok();
        Self {
            driver: driver.to_owned(),
            workers: threads.and_then(|t| t.parse().ok()).unwrap_or(0),
            worker_spin_us: 100,
            compiler: CompilerOptions::from_environment(IREE_VERSION),
            compile_at: CompileAt::default(),
        }
    }
}

/// A driver of the IREE runtime as a compute backend.
pub struct XlaIreeBackend {
    runtime: Runtime,
    options: BackendOptions,
    /// Devices that passed the self-test.
    tested: Mutex<BTreeSet<DeviceId>>,
}

impl XlaIreeBackend {
    /// Makes a runtime for the options' driver.
    ///
    /// # Errors
    /// `NotFound` for a driver that is not linked in or for which no code can be made; `Backend`.
    pub fn new(options: BackendOptions) -> SeamResult<Self> {
        let sink = |level, text: &str| match level {
            LogLevel::Warn => tracing::warn!("{text}"),
            LogLevel::Info => tracing::info!("{text}"),
            LogLevel::Debug => tracing::debug!("{text}"),
        };
        let runtime = Runtime::new(Some(Box::new(sink))).map_err(seam_error)?;
        let drivers = runtime.drivers();
        if !drivers.contains(&options.driver) || Target::for_driver(&options.driver).is_none() {
            return Err(SeamError::new(
                ErrorCode::NotFound,
                format!("no driver `{}` in this build", options.driver),
            )
            .hint(format!("there is {}", drivers.join(", "))));
        }
        Ok(Self {
            runtime,
            options,
            tested: Mutex::default(),
        })
    }

    fn device(&self, id: &DeviceId) -> SeamResult<DeviceInfo> {
        let devices = self.devices()?;
        let known: Vec<String> = devices.iter().map(|d| d.id.to_string()).collect();
        devices.into_iter().find(|d| d.id == *id).ok_or_else(|| {
            SeamError::new(
                ErrorCode::NotFound,
                format!("{} has no device `{id}`", self.options.driver),
            )
            .hint(format!("there is {}", known.join(", ")))
        })
    }

    fn target(&self) -> SeamResult<Target> {
        Target::for_driver(&self.options.driver)
            .ok_or_else(|| SeamError::unsupported(format!("no code for `{}`", self.options.driver)))
    }

    /// Lets a device prove itself the first time it is opened.
    fn test_once(
        &self,
        device: &Device,
        id: &DeviceId,
        compiler: &Compiler,
        target: &Target,
        control: &Control<'_>,
    ) -> SeamResult<()> {
        if self.tested.lock().contains(id) {
            return Ok(());
        }
        selftest::check(device, compiler, target, control)
            .in_context(|| format!("testing the device `{id}`"))?;
        self.tested.lock().insert(id.clone());
        Ok(())
    }

    fn open_device(&self, id: &DeviceId, threads: Option<usize>) -> SeamResult<Device> {
        let options = DeviceOptions {
            driver: self.options.driver.clone(),
            selector: id.0.clone(),
            workers: threads
                .and_then(|t| u32::try_from(t).ok())
                .unwrap_or(self.options.workers),
            worker_spin_us: self.options.worker_spin_us,
        };
        self.runtime.open(&options).map_err(seam_error)
    }
}

impl ComputeBackend for XlaIreeBackend {
    fn identity(&self) -> BackendIdentity {
        // Whoever lists backends learns here that a model could not be compiled.
        let compiler = match self.options.compiler.places.find() {
            Ok(path) => path.display().to_string(),
            Err(e) => format!("missing: {e}"),
        };
        BackendIdentity {
            name: format!("xla-iree:{}", self.options.driver),
            version: env!("CARGO_PKG_VERSION").into(),
            components: vec![
                ("iree-runtime".into(), IREE_VERSION.into()),
                ("iree-compile".into(), compiler),
            ],
        }
    }

    fn devices(&self) -> SeamResult<Vec<DeviceInfo>> {
        let found = self
            .runtime
            .devices(&self.options.driver)
            .map_err(seam_error)?;
        Ok(found
            .into_iter()
            .enumerate()
            .map(|(ordinal, d)| DeviceInfo {
                id: DeviceId(d.id),
                ordinal,
                name: if d.name.is_empty() {
                    d.driver.clone()
                } else {
                    d.name
                },
                driver: d.driver,
            })
            .collect())
    }

    fn capabilities(&self, device: &DeviceId) -> SeamResult<DeviceCapabilities> {
        let info = self.device(device)?;
        let memory = if is_local(&self.options.driver) {
            memory::host()
        } else {
            let stats = self
                .open_device(device, None)?
                .memory()
                .map_err(seam_error)?;
            MemoryInfo {
                total: stats.total,
                free: stats.free,
            }
        };
        let target = Target::for_driver(&self.options.driver).map(|t| t.description);
        Ok(capabilities(info, memory, target))
    }

    fn cache(&self, action: CacheAction) -> SeamResult<Option<CacheReport>> {
        self.options.compiler.cache_report(action)
    }

    fn graph(
        &self,
        request: &GraphRequest,
        control: &Control<'_>,
    ) -> SeamResult<Option<GraphReport>> {
        let (target, capabilities) = match &request.target {
            Some(name) => {
                let target = Target::named(name)?;
                let capabilities = graph::imagined(&target, name);
                (target, capabilities)
            }
            None => (self.target()?, self.capabilities(&request.device)?),
        };
        let compiler = &self.options.compiler;
        graph::graph(request, &target, &capabilities, compiler, control).map(Some)
    }

    fn open(&self, request: OpenRequest<'_>) -> SeamResult<Box<dyn Session>> {
        let OpenRequest {
            plan,
            model,
            weights,
            control,
        } = request;
        control.cancel.check()?;
        let info = self.device(&plan.device.id)?;
        let target = self.target()?;
        let compiler = Compiler::open(&self.options.compiler, &control)?;
        let device = self.open_device(&info.id, plan.threads)?;
        self.test_once(&device, &info.id, &compiler, &target, &control)?;
        let source = Source {
            spec: model,
            plan,
            profile: target.profile,
        };
        let mut steps = Steps::new(compiler, target);
        if self.options.compile_at == CompileAt::Open {
            let shapes = Cut::new(source).all_shapes(plan.max_sequences);
            steps
                .load(&device, model, plan, &shapes, &control)
                .in_context(|| "compiling the model")?;
        }
        let resident =
            upload(&device, source, weights, &control).in_context(|| "loading weights")?;
        control.cancel.check()?;
        Ok(Box::new(XlaIreeSession::new(
            plan.clone(),
            model.clone(),
            device,
            resident,
            steps,
        )))
    }
}

fn is_local(driver: &str) -> bool {
    matches!(driver, "local-task" | "local-sync")
}
