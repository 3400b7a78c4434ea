//! The backend: one HAL driver of the IREE runtime.

use std::collections::BTreeSet;

use halfhitch_seam::{
    BackendIdentity, CacheAction, CacheReport, CancelToken, ComputeBackend, Control,
    DeviceCapabilities, DeviceId, DeviceInfo, ErrorCode, GraphReport, GraphRequest, MemoryInfo,
    NoObserver, OpenRequest, ResultExt, SeamError, SeamResult, Session, TuneReport, TuneRequest,
    TunedContraction, environment, negotiate,
};
use halfhitch_xla_iree_sys::{Device, DeviceOptions, IREE_VERSION, LogLevel, Runtime};
use parking_lot::Mutex;

use super::capabilities::{MAX_WORKERS, has_workers, on_target};
use super::error::seam_error;
use super::graph;
use super::memory;
use super::selftest;
use super::session::XlaIreeSession;
use super::steps::{Cut, Steps};
use super::tune::{Identity, Store, Tuner};
use super::upload::upload;
use crate::compiler::target::VARIABLE;
use crate::compiler::{Cache, Compiler, CompilerOptions, Target, probe};
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
    /// The HAL driver: `local-task`, `local-sync`, `cuda`, `vulkan`, `metal`.
    pub driver: String,
    /// Threads of `local-task`; 0 is one a physical core.
    pub workers: u32,
    /// Microseconds that an idle thread of `local-task` spins before it sleeps.
    pub worker_spin_us: u32,
    /// Targets that code is made for instead of what devices tell, as
    /// [`Target::for_device`] takes them.
    pub target: Option<String>,
    /// The compiler.
    pub compiler: CompilerOptions,
    /// When steps are compiled.
    pub compile_at: CompileAt,
}

impl BackendOptions {
    /// What suits a driver here: the environment's compiler, cache and targets
    /// ([`VARIABLE`]). `HALFHITCH_THREADS` sets the threads.
    ///
    /// # Errors
    /// `InvalidInput` for a variable that is no number, or none of its range.
    pub fn for_driver(driver: &str) -> SeamResult<Self> {
        let threads = environment::number("HALFHITCH_THREADS", 0..=MAX_WORKERS as u64)?;
        Ok(Self {
            driver: driver.to_owned(),
            workers: threads.and_then(|t| u32::try_from(t).ok()).unwrap_or(0),
            worker_spin_us: 100,
            target: std::env::var(VARIABLE).ok().filter(|t| !t.is_empty()),
            compiler: CompilerOptions::from_environment(IREE_VERSION)?,
            compile_at: CompileAt::default(),
        })
    }
}

/// A driver of the IREE runtime as a compute backend.
pub struct XlaIreeBackend {
    runtime: Runtime,
    options: BackendOptions,
    /// Devices that passed the self-test.
    tested: Mutex<BTreeSet<DeviceId>>,
    /// Targets whose formats were tried: as devices tell them, and without what does not compile.
    settled: Mutex<Vec<(Target, Target)>>,
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
        if !drivers.contains(&options.driver) {
            return Err(SeamError::new(
                ErrorCode::NotFound,
                format!("no driver `{}` in this build", options.driver),
            )
            .hint(format!("there is {}", drivers.join(", "))));
        }
        if Target::for_driver(&options.driver).is_none() {
            return Err(SeamError::new(
                ErrorCode::NotFound,
                format!("no code can be made for the driver `{}`", options.driver),
            )
            .hint(
                "`backend_of` in compiler/target.rs maps it to no backend of the compiler: \
                 docs/new-driver.md, step 4",
            ));
        }
        Ok(Self {
            runtime,
            options,
            tested: Mutex::default(),
            settled: Mutex::default(),
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

    /// What was measured on a device before. Nothing, where that cannot be told.
    fn tuned(&self, device: &DeviceId, target: &Target) -> Vec<TunedContraction> {
        let options = &self.options.compiler;
        if !options.cache.as_deref().is_some_and(Cache::has_answers) {
            return Vec::new();
        }
        let compiler = match unseen(|control| Compiler::open(options, control)) {
            Ok(compiler) => compiler,
            Err(e) => {
                tracing::debug!("without what was tuned: {e}");
                return Vec::new();
            }
        };
        let identity = Identity::new(device, target, compiler.tool());
        let cache = compiler.cache();
        cache.map_or_else(Vec::new, |cache| Store::new(cache, identity).read())
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

    /// What code is made for on a device; `None` for the processor, which is not asked.
    fn target(&self, device: Option<&Device>, control: &Control<'_>) -> SeamResult<Target> {
        let told = |category: &str, key: &str| {
            let answer = device.map(|d| d.query(category, key));
            answer.transpose().unwrap_or_else(|e| {
                tracing::debug!(category, key, error = %e, "the device does not answer");
                None
            })?
        };
        let target =
            Target::for_device(&self.options.driver, &told, self.options.target.as_deref())?;
        match device {
            Some(_) if !is_local(&self.options.driver) => self.settle(target, control),
            _ => Ok(target),
        }
    }

    /// The target without the formats that do not compile for it, which is tried once.
    fn settle(&self, target: Target, control: &Control<'_>) -> SeamResult<Target> {
        let known = |(told, known): &(Target, Target)| (*told == target).then(|| known.clone());
        if let Some(known) = self.settled.lock().iter().find_map(known) {
            return Ok(known);
        }
        let mut known = target.clone();
        match Compiler::open(&self.options.compiler, control) {
            Ok(compiler) => probe::settle(&compiler, &mut known, control)?,
            Err(e) => tracing::debug!("formats are not tried: {e}"),
        }
        self.settled.lock().push((target, known.clone()));
        Ok(known)
    }

    fn open_device(&self, id: &DeviceId, threads: Option<usize>) -> SeamResult<Device> {
        // The only driver with threads of its own.
        let threads = threads.filter(|_| has_workers(&self.options.driver));
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
            .map_err(seam_error)
            .in_context(|| format!("the driver `{}`", self.options.driver))?;
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

    fn capabilities(&self, id: &DeviceId) -> SeamResult<DeviceCapabilities> {
        let info = self.device(id)?;
        if is_local(&self.options.driver) {
            let target = unseen(|control| self.target(None, control))?;
            return Ok(DeviceCapabilities {
                tuned: self.tuned(id, &target),
                ..on_target(info, memory::host(), &target)
            });
        }
        let device = self.open_device(id, None)?;
        let stats = device.memory().map_err(seam_error)?;
        let memory = MemoryInfo {
            total: stats.total,
            free: stats.free,
        };
        let target = unseen(|control| self.target(Some(&device), control))?;
        Ok(DeviceCapabilities {
            tuned: self.tuned(id, &target),
            ..on_target(info, memory, &target)
        })
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
                // A session asks which formats compile before it is planned, so this is made ahead, too.
                let target = match request.ahead {
                    true => self.settle(Target::named(name)?, control)?,
                    false => Target::named(name)?,
                };
                let capabilities = graph::imagined(&target, name);
                (target, capabilities)
            }
            None => {
                let device = match is_local(&self.options.driver) {
                    true => None,
                    false => Some(self.open_device(&request.device, None)?),
                };
                (
                    self.target(device.as_ref(), control)?,
                    self.capabilities(&request.device)?,
                )
            }
        };
        let compiler = &self.options.compiler;
        graph::graph(request, &target, &capabilities, compiler, control).map(Some)
    }

    fn tune(&self, request: &TuneRequest, control: &Control<'_>) -> SeamResult<Option<TuneReport>> {
        control.cancel.check()?;
        let info = self.device(&request.device)?;
        let capabilities = self.capabilities(&info.id)?;
        let model = &request.model;
        let plan = negotiate(model, &request.weights, &capabilities, &request.wishes)?;
        let compiler = Compiler::open(&self.options.compiler, control)?;
        let device = self.open_device(&info.id, plan.threads)?;
        let target = self.target(Some(&device), control)?;
        self.test_once(&device, &info.id, &compiler, &target, control)?;
        let identity = Identity::new(&info.id, &target, compiler.tool());
        let tuner = Tuner {
            store: compiler.cache().map(|cache| Store::new(cache, identity)),
            compiler: &compiler,
            target: &target,
            device: &device,
        };
        let wish = request.wishes.representation;
        let report = tuner.run(model, &plan, wish, request.repeats, control)?;
        Ok(Some(report))
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
        let compiler = Compiler::open(&self.options.compiler, &control)?;
        let device = self.open_device(&info.id, plan.threads)?;
        let target = self.target(Some(&device), &control)?;
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

/// Work that nobody waits for by name: it is not cancelled and shows no progress.
fn unseen<T>(work: impl FnOnce(&Control<'_>) -> T) -> T {
    work(&Control {
        cancel: &CancelToken::new(),
        observer: &NoObserver,
    })
}

fn is_local(driver: &str) -> bool {
    matches!(driver, "local-task" | "local-sync")
}
