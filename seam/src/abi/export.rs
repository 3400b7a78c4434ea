//! The plugin's side: any [`ComputeBackend`] behind the root module's functions.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};

use abi_stable::prefix_type::PrefixTypeTrait;
use abi_stable::std_types::{RSlice, RStr, RString, RVec};
use parking_lot::Mutex;

use super::log::LogSink;
use super::module::{Handle, PluginModule, PluginModuleRef};
use super::wire::{
    ForeignFlag, WireControl, WireDecode, WireLogprob, WireObserver, WireOpen, WireOutput,
    WireResult, WireStep, WireTap, WireTokens, from_json, to_json, to_wire, weights_from_wire,
};
use super::{STAGE_NOTE, STAGES};
use crate::backend::{ComputeBackend, OpenRequest};
use crate::capability::{DeviceId, DeviceSampler};
use crate::control::{CancelToken, Control, Event, Observer};
use crate::error::{ErrorCode, SeamError, SeamResult};
use crate::session::{DecodeStep, LogitsRequest, OutputRequest, SequenceId, Session, StepOutput};

/// Makes the plugin's backend.
pub type Constructor = fn() -> SeamResult<Box<dyn ComputeBackend>>;

/// A backend as the host holds it.
type Backend = Box<dyn ComputeBackend>;

/// A session as the host holds it. A panic leaves it in an unknown state: poisoned.
struct Open {
    session: Mutex<Box<dyn Session>>,
    poisoned: AtomicBool,
}

/// The root module of a plugin whose backend `C` makes.
pub fn root_module<C: Plugin>() -> PluginModuleRef {
    PluginModule {
        create: create::<C>,
        drop_backend,
        identity,
        devices,
        capabilities,
        open,
        drop_session,
        create_sequence,
        sequence_len,
        prefill,
        decode,
        truncate,
        cache,
        graph,
        release,
        tap,
    }
    .leak_into_prefix()
}

/// Implemented by [`export_plugin!`](crate::export_plugin).
pub trait Plugin {
    /// How the backend is made.
    const CONSTRUCTOR: Constructor;
}

/// What abi_stable's loader calls.
pub fn load<C: Plugin>() -> PluginModuleRef {
    root_module::<C>()
}

/// Runs an entry and turns a panic into an error.
fn guard<T>(f: impl FnOnce() -> SeamResult<T>) -> WireResult<T> {
    to_wire(match catch_unwind(AssertUnwindSafe(f)) {
        Ok(result) => result,
        Err(panic) => Err(panicked(&*panic)),
    })
}

fn panicked(panic: &(dyn Any + Send)) -> SeamError {
    let text = panic
        .downcast_ref::<&str>()
        .map(ToString::to_string)
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "no message".into());
    SeamError::new(ErrorCode::Backend, format!("the plugin panicked: {text}"))
        .hint("report this to the plugin's author")
}

/// Runs a drop; a panic in it can only be logged.
fn guard_drop(f: impl FnOnce()) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(f)) {
        tracing::error!("while closing: {}", panicked(&*panic));
    }
}

fn backend<'a>(handle: Handle) -> &'a Backend {
    // SAFETY: the host passes handles that `create` made and that it has not dropped yet.
    unsafe { &*handle.0.cast::<Backend>() }
}

/// Runs an entry on a session, and poisons the session where it panics.
fn on_session<T>(
    handle: Handle,
    f: impl FnOnce(&mut dyn Session) -> SeamResult<T>,
) -> WireResult<T> {
    // SAFETY: the host passes handles that `open` made and that it has not dropped yet.
    let open = unsafe { &*handle.0.cast::<Open>() };
    if open.poisoned.load(Ordering::Acquire) {
        return to_wire(Err(SeamError::new(
            ErrorCode::Poisoned,
            "an earlier panic left the session unusable",
        )
        .hint("open a new session")));
    }
    to_wire(
        match catch_unwind(AssertUnwindSafe(|| f(&mut **open.session.lock()))) {
            Ok(result) => result,
            Err(panic) => {
                open.poisoned.store(true, Ordering::Release);
                Err(panicked(&*panic))
            }
        },
    )
}

extern "C" fn create<C: Plugin>(sink: LogSink) -> WireResult<Handle> {
    guard(|| {
        sink.install();
        let backend = (C::CONSTRUCTOR)()?;
        Ok(Handle(Box::into_raw(Box::new(backend)).cast()))
    })
}

extern "C" fn drop_backend(handle: Handle) {
    // SAFETY: made by `create`, dropped once.
    guard_drop(|| drop(unsafe { Box::from_raw(handle.0.cast::<Backend>()) }));
}

extern "C" fn identity(handle: Handle) -> WireResult<RString> {
    guard(|| to_json(&backend(handle).identity()))
}

extern "C" fn devices(handle: Handle) -> WireResult<RString> {
    guard(|| to_json(&backend(handle).devices()?))
}

extern "C" fn capabilities(handle: Handle, device: RStr<'_>) -> WireResult<RString> {
    guard(|| to_json(&backend(handle).capabilities(&DeviceId(device.into()))?))
}

extern "C" fn cache(handle: Handle, action: RStr<'_>) -> WireResult<RString> {
    guard(|| to_json(&backend(handle).cache(from_json(&action)?)?))
}

extern "C" fn graph(
    handle: Handle,
    request: RStr<'_>,
    control: WireControl<'_>,
) -> WireResult<RString> {
    guard(|| {
        let request = from_json(&request)?;
        to_json(&with_control(control, |control| {
            backend(handle).graph(&request, control)
        })?)
    })
}

extern "C" fn open(handle: Handle, request: WireOpen<'_>) -> WireResult<Handle> {
    guard(|| {
        let plan = from_json(&request.plan)?;
        let model = from_json(&request.model)?;
        let weights = weights_from_wire(request.weights)?;
        let session = with_control(request.control, |control| {
            backend(handle).open(OpenRequest {
                plan: &plan,
                model: &model,
                weights: &weights,
                control: *control,
            })
        })?;
        let open = Open {
            session: Mutex::new(session),
            poisoned: AtomicBool::new(false),
        };
        Ok(Handle(Box::into_raw(Box::new(open)).cast()))
    })
}

extern "C" fn drop_session(handle: Handle) {
    // SAFETY: made by `open`, dropped once.
    guard_drop(|| drop(unsafe { Box::from_raw(handle.0.cast::<Open>()) }));
}

extern "C" fn create_sequence(handle: Handle) -> WireResult<u64> {
    on_session(handle, |s| s.create_sequence().map(|id| id.0))
}

extern "C" fn sequence_len(handle: Handle, sequence: u64) -> WireResult<usize> {
    on_session(handle, |s| s.sequence_len(SequenceId(sequence)))
}

extern "C" fn prefill(
    handle: Handle,
    sequence: u64,
    tokens: WireTokens<'_>,
    output: WireOutput,
    control: WireControl<'_>,
) -> WireResult<WireStep> {
    on_session(handle, |s| {
        with_control(control, |control| {
            s.prefill(
                SequenceId(sequence),
                tokens.as_slice(),
                request(output)?,
                control,
            )
        })
        .map(step)
    })
}

extern "C" fn decode(
    handle: Handle,
    steps: RSlice<'_, WireDecode>,
    output: WireOutput,
) -> WireResult<RVec<WireStep>> {
    on_session(handle, |s| {
        let steps: Vec<_> = steps
            .iter()
            .map(|d| DecodeStep {
                sequence: SequenceId(d.sequence),
                token: d.token,
            })
            .collect();
        let outputs = s.decode(&steps, request(output)?)?;
        Ok(outputs.into_iter().map(step).collect())
    })
}

extern "C" fn truncate(handle: Handle, sequence: u64, len: usize) -> WireResult<()> {
    on_session(handle, |s| s.truncate(SequenceId(sequence), len))
}

extern "C" fn release(handle: Handle, sequence: u64) -> WireResult<()> {
    on_session(handle, |s| s.release(SequenceId(sequence)))
}

extern "C" fn tap(
    handle: Handle,
    tokens: WireTokens<'_>,
    control: WireControl<'_>,
) -> WireResult<RVec<WireTap>> {
    on_session(handle, |s| {
        let taps = with_control(control, |control| s.tap(tokens.as_slice(), control))?;
        taps.into_iter().map(WireTap::new).collect()
    })
}

fn request(output: WireOutput) -> SeamResult<OutputRequest> {
    let unknown = |what| Err(SeamError::unsupported(format!("an unknown {what}")));
    Ok(OutputRequest {
        sample: match output.sample {
            0 => None,
            1 => Some(DeviceSampler::Greedy),
            _ => return unknown("sampler"),
        },
        logits: match output.logits {
            0 => LogitsRequest::None,
            1 => LogitsRequest::Last,
            2 => LogitsRequest::All,
            _ => return unknown("request for logits"),
        },
        top_logprobs: output.top_logprobs,
    })
}

fn step(output: StepOutput) -> WireStep {
    WireStep {
        has_token: output.token.is_some(),
        token: output.token.unwrap_or(0),
        logits: output.logits.into(),
        top_logprobs: output
            .top_logprobs
            .into_iter()
            .map(|t| WireLogprob {
                id: t.id,
                logprob: t.logprob,
            })
            .collect(),
    }
}

fn with_control<T>(
    control: WireControl<'_>,
    f: impl FnOnce(&Control<'_>) -> SeamResult<T>,
) -> SeamResult<T> {
    let cancel = CancelToken::foreign(ForeignFlag::new(control.cancel));
    let observer = HostObserver(control.observer);
    f(&Control {
        cancel: &cancel,
        observer: &observer,
    })
}

/// Reports to the host.
struct HostObserver<'a>(&'a WireObserver);

// SAFETY: the host's `on_event` calls an `Observer`, which is Send and Sync.
unsafe impl Send for HostObserver<'_> {}
// SAFETY: as above.
unsafe impl Sync for HostObserver<'_> {}

impl Observer for HostObserver<'_> {
    fn on_event(&self, event: Event) {
        let send = |stage, done, total, note: &str| {
            // SAFETY: the context is the one the host sent along, alive for the call.
            unsafe { (self.0.on_event)(self.0.context, stage, done, total, note.into()) }
        };
        match event {
            Event::Progress { stage, done, total } => {
                if let Some(number) = STAGES.iter().position(|&s| s == stage) {
                    send(number as u8, done, total, "");
                }
            }
            Event::Note(note) => send(STAGE_NOTE, 0, 0, &note),
        }
    }
}
