//! The host's side: a loaded library as a [`ComputeBackend`].

use std::ffi::c_void;
use std::path::Path;
use std::sync::Arc;

use abi_stable::library::{LibHeader, lib_header_from_path};
use abi_stable::std_types::{RSlice, RStr, RString};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::header::{HEADER_SYMBOL, PluginHeader};
use super::log::LogSink;
use super::module::{Handle, PluginModuleRef};
use super::whole::check_whole;
use super::wire::{
    WireControl, WireDecode, WireFlag, WireObserver, WireOpen, WireOutput, WireResult, WireStep,
    WireTap, from_json, from_wire, to_json, weights_to_wire,
};
use super::{STAGE_NOTE, STAGES};
use crate::artifact_cache::{CacheAction, CacheReport};
use crate::backend::{BackendIdentity, ComputeBackend, OpenRequest};
use crate::capability::{DeviceCapabilities, DeviceId, DeviceInfo};
use crate::control::{CancelToken, Control, Event, Observer};
use crate::error::{ErrorCode, SeamError, SeamResult};
use crate::graph::{GraphReport, GraphRequest};
use crate::plan::ExecutionPlan;
use crate::session::{
    DecodeStep, LogitsRequest, OutputRequest, SequenceId, Session, StepOutput, TokenId,
    TokenLogprob,
};
use crate::tap::Tap;
use crate::tune::{TuneReport, TuneRequest};

/// Loads a plugin and makes its backend. The library stays loaded for the life of the process.
///
/// Loading runs the library's code: call this only for a file that may be trusted (see the host's
/// discovery rules).
///
/// # Errors
/// `Incompatible` where the file is no library, is cut short, lacks the header or the root module, or was built
/// for another ABI, target or layout; whatever the plugin's own constructor returns.
pub fn load_plugin(path: &Path) -> SeamResult<Box<dyn ComputeBackend>> {
    check_whole(path)?;
    check_header(path)?;
    let module = root_module(path)?;
    let handle = from_wire(module.create()(LogSink::host()))?;
    Ok(Box::new(PluginBackend {
        inner: Arc::new(LoadedBackend { module, handle }),
    }))
}

fn check_header(path: &Path) -> SeamResult<()> {
    let incompatible = |message: String| SeamError::new(ErrorCode::Incompatible, message);
    // SAFETY: opening a library runs its initialisers; the caller vouches for the file.
    let library = unsafe { libloading::Library::new(path) }
        .map_err(|e| incompatible(format!("it cannot be loaded: {}", full_text(&e))))?;
    // SAFETY: the symbol is only read as a header, after its magic and size are checked.
    let symbol =
        unsafe { library.get::<*const PluginHeader>(HEADER_SYMBOL.as_bytes()) }.map_err(|_| {
            incompatible(format!("it has no symbol `{HEADER_SYMBOL}`"))
                .hint("it is not a Halfhitch plugin, or an incomplete one")
        })?;
    // SAFETY: the address stays valid, since the library is never unloaded.
    let address = unsafe { symbol.into_raw() }.as_raw_ptr();
    // Never unloaded: threads and thread-locals of a plugin may outlive any handle.
    std::mem::forget(library);
    // SAFETY: the symbol is a header, of this version's size or of another's.
    unsafe { PluginHeader::read(address.cast()) }?.check()
}

fn root_module(path: &Path) -> SeamResult<PluginModuleRef> {
    // By file, not `RootModule::load_from*`, which caches one library for each *type* and would
    // hand the first plugin out for the second.
    lib_header_from_path(path)
        .and_then(LibHeader::init_root_module::<PluginModuleRef>)
        .map_err(|e| {
            let text = e.to_string();
            let first = text.lines().find(|l| !l.trim().is_empty()).unwrap_or("");
            tracing::debug!("{text}");
            SeamError::new(
                ErrorCode::Incompatible,
                format!("its interface has another layout: {}", first.trim()),
            )
            .hint("rebuild the plugin with this version of halfhitch")
        })
}

fn full_text(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(e) = source {
        let inner = e.to_string();
        if !text.contains(&inner) {
            text = format!("{text}: {inner}");
        }
        source = e.source();
    }
    text
}

/// The plugin's backend and the functions to reach it; shared with its sessions, so that it is
/// dropped last.
struct LoadedBackend {
    module: PluginModuleRef,
    handle: Handle,
}

impl Drop for LoadedBackend {
    fn drop(&mut self) {
        self.module.drop_backend()(self.handle);
    }
}

struct PluginBackend {
    inner: Arc<LoadedBackend>,
}

/// A function that is asked and answers in JSON, and reports meanwhile.
type Ask = extern "C" fn(Handle, RStr<'_>, WireControl<'_>) -> WireResult<RString>;

impl PluginBackend {
    fn ask<Q: Serialize, A: DeserializeOwned>(
        &self,
        function: Ask,
        question: &Q,
        control: &Control<'_>,
    ) -> SeamResult<A> {
        let question = to_json(question)?;
        let observer = observer(control);
        let control = WireControl {
            cancel: flag(control.cancel),
            observer: &observer,
        };
        let answer = function(self.inner.handle, question.as_rstr(), control);
        from_json(&from_wire(answer)?)
    }
}

impl ComputeBackend for PluginBackend {
    fn identity(&self) -> BackendIdentity {
        let json = from_wire(self.inner.module.identity()(self.inner.handle));
        json.and_then(|text| from_json(&text))
            .unwrap_or_else(|e| BackendIdentity {
                name: "unknown".into(),
                version: String::new(),
                components: vec![("error".into(), e.to_string())],
            })
    }

    fn devices(&self) -> SeamResult<Vec<DeviceInfo>> {
        from_json(&from_wire(self.inner.module.devices()(self.inner.handle))?)
    }

    fn capabilities(&self, device: &DeviceId) -> SeamResult<DeviceCapabilities> {
        let json = self.inner.module.capabilities()(self.inner.handle, device.0.as_str().into());
        from_json(&from_wire(json)?)
    }

    fn cache(&self, action: CacheAction) -> SeamResult<Option<CacheReport>> {
        let action = to_json(&action)?;
        let report = self.inner.module.cache()(self.inner.handle, action.as_rstr());
        from_json(&from_wire(report)?)
    }

    fn graph(
        &self,
        request: &GraphRequest,
        control: &Control<'_>,
    ) -> SeamResult<Option<GraphReport>> {
        // A plugin of before has none.
        let Some(graph) = self.inner.module.graph() else {
            return Ok(None);
        };
        self.ask(graph, request, control)
    }

    fn tune(&self, request: &TuneRequest, control: &Control<'_>) -> SeamResult<Option<TuneReport>> {
        let Some(tune) = self.inner.module.tune() else {
            return Ok(None);
        };
        self.ask(tune, request, control)
    }

    fn open(&self, request: OpenRequest<'_>) -> SeamResult<Box<dyn Session>> {
        let plan: RString = to_json(request.plan)?;
        let model: RString = to_json(request.model)?;
        let weights = weights_to_wire(request.weights)?;
        let observer = observer(&request.control);
        let handle = from_wire(self.inner.module.open()(
            self.inner.handle,
            WireOpen {
                plan: plan.as_rstr(),
                model: model.as_rstr(),
                weights,
                control: WireControl {
                    cancel: flag(request.control.cancel),
                    observer: &observer,
                },
            },
        ))?;
        Ok(Box::new(PluginSession {
            backend: Arc::clone(&self.inner),
            handle,
            plan: request.plan.clone(),
        }))
    }
}

struct PluginSession {
    backend: Arc<LoadedBackend>,
    handle: Handle,
    plan: ExecutionPlan,
}

impl Drop for PluginSession {
    fn drop(&mut self) {
        self.backend.module.drop_session()(self.handle);
    }
}

impl Session for PluginSession {
    fn plan(&self) -> &ExecutionPlan {
        &self.plan
    }

    fn create_sequence(&mut self) -> SeamResult<SequenceId> {
        from_wire(self.backend.module.create_sequence()(self.handle)).map(SequenceId)
    }

    fn sequence_len(&self, sequence: SequenceId) -> SeamResult<usize> {
        from_wire(self.backend.module.sequence_len()(self.handle, sequence.0))
    }

    fn prefill(
        &mut self,
        sequence: SequenceId,
        tokens: &[TokenId],
        output: OutputRequest,
        control: &Control<'_>,
    ) -> SeamResult<StepOutput> {
        let observer = observer(control);
        from_wire(self.backend.module.prefill()(
            self.handle,
            sequence.0,
            RSlice::from_slice(tokens),
            wire_output(output),
            WireControl {
                cancel: flag(control.cancel),
                observer: &observer,
            },
        ))
        .map(step)
    }

    fn decode(
        &mut self,
        steps: &[DecodeStep],
        output: OutputRequest,
    ) -> SeamResult<Vec<StepOutput>> {
        let steps: Vec<_> = steps
            .iter()
            .map(|s| WireDecode {
                sequence: s.sequence.0,
                token: s.token,
            })
            .collect();
        from_wire(self.backend.module.decode()(
            self.handle,
            RSlice::from_slice(&steps),
            wire_output(output),
        ))
        .map(|outputs| outputs.into_iter().map(step).collect())
    }

    fn truncate(&mut self, sequence: SequenceId, len: usize) -> SeamResult<()> {
        from_wire(self.backend.module.truncate()(self.handle, sequence.0, len))
    }

    fn release(&mut self, sequence: SequenceId) -> SeamResult<()> {
        from_wire(self.backend.module.release()(self.handle, sequence.0))
    }

    fn tap(&mut self, tokens: &[TokenId], control: &Control<'_>) -> SeamResult<Vec<Tap>> {
        let Some(tap) = self.backend.module.tap() else {
            return Err(SeamError::unsupported(
                "this plugin was built before backends could show intermediate results",
            )
            .hint("rebuild it with this version of halfhitch"));
        };
        let observer = observer(control);
        let control = WireControl {
            cancel: flag(control.cancel),
            observer: &observer,
        };
        let taps = from_wire(tap(self.handle, RSlice::from_slice(tokens), control))?;
        taps.into_iter().map(WireTap::into_tap).collect()
    }
}

fn wire_output(output: OutputRequest) -> WireOutput {
    WireOutput {
        sample: u8::from(output.sample.is_some()),
        logits: match output.logits {
            LogitsRequest::None => 0,
            LogitsRequest::Last => 1,
            LogitsRequest::All => 2,
        },
        top_logprobs: output.top_logprobs,
    }
}

fn step(step: WireStep) -> StepOutput {
    StepOutput {
        token: step.has_token.then_some(step.token),
        logits: step.logits.into_vec(),
        top_logprobs: step
            .top_logprobs
            .into_iter()
            .map(|t| TokenLogprob {
                id: t.id,
                logprob: t.logprob,
            })
            .collect(),
    }
}

fn flag(cancel: &CancelToken) -> WireFlag {
    let owner = Box::new(cancel.clone());
    WireFlag {
        flag: std::ptr::from_ref(owner.as_flag()).cast(),
        owner: Box::into_raw(owner).cast(),
        release: release_flag,
    }
}

unsafe extern "C" fn release_flag(owner: *const c_void) {
    // SAFETY: `owner` came from `flag` above and is released once.
    drop(unsafe { Box::from_raw(owner.cast_mut().cast::<CancelToken>()) });
}

fn observer<'a>(control: &'a Control<'a>) -> WireObserver {
    WireObserver {
        context: std::ptr::from_ref::<&'a dyn Observer>(&control.observer).cast(),
        on_event,
    }
}

unsafe extern "C" fn on_event(
    context: *const c_void,
    stage: u8,
    done: u64,
    total: u64,
    note: RStr<'_>,
) {
    // SAFETY: `context` points at the `&dyn Observer` of the call that is under way.
    let observer = unsafe { *context.cast::<&dyn Observer>() };
    let event = if stage == STAGE_NOTE {
        Event::Note(note.into())
    } else {
        match STAGES.get(usize::from(stage)) {
            Some(&stage) => Event::Progress { stage, done, total },
            None => return,
        }
    };
    // A panic of the host's own observer must not unwind into the plugin.
    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| observer.on_event(event)));
}
