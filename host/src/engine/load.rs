//! Opening a model, and a session for it.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

use halfhitch_seam::{
    Control, Event, ExecutionPlan, GraphRequest, ModelSpec, Observer, OpenRequest, PlanRequest,
    ResultExt, SeamResult, Session, Stage, StepShape, TokenId, TuneRequest, negotiate,
};
use parking_lot::Mutex;

use super::cached::CachedSequence;
use super::generate::{Completion, GenerateOptions, Generator, Sink};
use super::pages::PageRelease;
use super::registry::Target;
use super::stats::LoadTimings;
use crate::checkpoint::Checkpoint;
use crate::import::resolve_model;
use crate::text::{ChatTemplate, Tokenizer};

/// A checkpoint and its tokenizer: all that is known before a device is involved. No tensor data has
/// been read.
pub struct Model {
    checkpoint: Checkpoint,
    tokenizer: Option<Tokenizer>,
    stop_tokens: BTreeSet<TokenId>,
    took: Duration,
}

impl Model {
    /// Opens the model that `model` names; see [`resolve_model`].
    ///
    /// # Errors
    /// What locating and importing, the checkpoint, and a tokenizer that is there but broken say.
    pub fn open(model: &Path, control: &Control<'_>) -> SeamResult<Self> {
        let start = Instant::now();
        let folder = resolve_model(model, control)?;
        let checkpoint = Checkpoint::open(&folder)?;
        let tokenizer = Tokenizer::from_dir(&folder)?;
        let mut stop_tokens = checkpoint.stop_tokens().clone();
        if let Some(tokenizer) = &tokenizer {
            stop_tokens.extend(tokenizer.stop_tokens());
        }
        Ok(Self {
            checkpoint,
            tokenizer,
            stop_tokens,
            took: start.elapsed(),
        })
    }

    /// The checkpoint.
    pub const fn checkpoint(&self) -> &Checkpoint {
        &self.checkpoint
    }

    /// What the model is.
    pub fn spec(&self) -> &ModelSpec {
        self.checkpoint.spec()
    }

    /// The tokenizer, where the folder has one.
    pub const fn tokenizer(&self) -> Option<&Tokenizer> {
        self.tokenizer.as_ref()
    }

    /// Tokens that end an answer: those of the configuration and of the tokenizer.
    pub const fn stop_tokens(&self) -> &BTreeSet<TokenId> {
        &self.stop_tokens
    }

    /// The chat template, where the folder has one. It is read only when asked for, so that a broken
    /// one is in nobody's way who does not use it.
    ///
    /// # Errors
    /// What the template's reader says.
    pub fn chat_template(&self) -> SeamResult<Option<ChatTemplate>> {
        ChatTemplate::from_dir(self.checkpoint.dir())
    }

    /// How the model would run on `target`.
    ///
    /// # Errors
    /// What [`negotiate`] says.
    pub fn plan(&self, target: &Target, request: &PlanRequest) -> SeamResult<ExecutionPlan> {
        let manifest = self.checkpoint.weights().manifest();
        negotiate(self.spec(), &manifest, &target.capabilities, request)
    }
}

impl Model {
    /// What a backend is asked for to show a step's graph.
    pub fn graph_request(
        &self,
        target: &Target,
        wishes: &PlanRequest,
        shape: StepShape,
    ) -> GraphRequest {
        GraphRequest {
            device: target.capabilities.device.id.clone(),
            target: None,
            model: self.spec().clone(),
            weights: self.checkpoint.weights().manifest(),
            wishes: *wishes,
            shape,
            stats_at: None,
        }
    }

    /// What a backend is asked for to measure the model's contractions.
    pub fn tune_request(
        &self,
        target: &Target,
        wishes: &PlanRequest,
        repeats: usize,
    ) -> TuneRequest {
        TuneRequest {
            device: target.capabilities.device.id.clone(),
            model: self.spec().clone(),
            weights: self.checkpoint.weights().manifest(),
            wishes: *wishes,
            repeats,
        }
    }
}

/// A model open on a device, with one sequence.
pub struct Engine {
    model: Model,
    target: Target,
    session: Box<dyn Session>,
    sequence: CachedSequence,
    load: LoadTimings,
}

impl Engine {
    /// Opens `model` on `target`: negotiates, looks for weights that are not finite, opens a session.
    ///
    /// # Errors
    /// What negotiation, the checkpoint's check and the backend say; `Cancelled`.
    pub fn open(
        model: Model,
        target: Target,
        request: &PlanRequest,
        control: &Control<'_>,
    ) -> SeamResult<Self> {
        let start = Instant::now();
        let plan = model.plan(&target, request)?;
        model.checkpoint.check_finite(control)?;
        model.checkpoint.release_pages();
        control.cancel.check()?;
        let (session, sequence, compile) = open_session(&model, &target, &plan, control)?;
        let load = (model.took + start.elapsed()).saturating_sub(compile);
        tracing::info!(backend = target.name, device = %plan.device.id, ?load, ?compile, "opened");
        Ok(Self {
            model,
            target,
            session,
            sequence,
            load: LoadTimings { load, compile },
        })
    }

    /// Opens a new session in place of one that is of no use any more, with the same plan. Nothing is in
    /// its cache.
    ///
    /// # Errors
    /// What the backend says; `Cancelled`. The old session then stays.
    pub fn reopen(&mut self, control: &Control<'_>) -> SeamResult<()> {
        let start = Instant::now();
        let plan = self.session.plan().clone();
        let opened = open_session(&self.model, &self.target, &plan, control)?;
        let compile;
        (self.session, self.sequence, compile) = opened;
        let load = start.elapsed().saturating_sub(compile);
        self.load = LoadTimings { load, compile };
        tracing::info!(backend = self.target.name, ?load, ?compile, "opened again");
        Ok(())
    }

    /// The model.
    pub const fn model(&self) -> &Model {
        &self.model
    }

    /// The device it runs on.
    pub const fn target(&self) -> &Target {
        &self.target
    }

    /// How it runs.
    pub fn plan(&self) -> &ExecutionPlan {
        self.session.plan()
    }

    /// The open session by itself, without a sequence, and what opening it took.
    ///
    /// # Errors
    /// What [`Session::release`] says.
    pub fn into_session(mut self) -> SeamResult<(Box<dyn Session>, LoadTimings)> {
        self.session.release(self.sequence.id())?;
        Ok((self.session, self.load))
    }

    /// Generates what follows `prompt`. What the prompt has in common with the last one and its answer
    /// is not run again.
    ///
    /// # Errors
    /// Those of [`Generator::run`].
    pub fn generate(
        &mut self,
        prompt: &[TokenId],
        options: &GenerateOptions,
        control: &Control<'_>,
        sink: &mut Sink<'_>,
    ) -> SeamResult<Completion> {
        let generator = Generator {
            session: self.session.as_mut(),
            sequence: &mut self.sequence,
            vocab_size: self.model.checkpoint.spec().vocab_size,
            samplers: &self.target.capabilities.samplers,
            tokenizer: self.model.tokenizer.as_ref(),
            stop_tokens: &self.model.stop_tokens,
            load: self.load,
        };
        generator.run(prompt, options, control, sink)
    }
}

/// A session with one sequence, and what compiling took.
fn open_session(
    model: &Model,
    target: &Target,
    plan: &ExecutionPlan,
    control: &Control<'_>,
) -> SeamResult<(Box<dyn Session>, CachedSequence, Duration)> {
    let clock = CompileClock::new(control.observer);
    let release = || model.checkpoint.release_pages();
    let pages = PageRelease::new(&clock, &release);
    let mut session = target
        .backend
        .open(OpenRequest {
            plan,
            model: model.spec(),
            weights: model.checkpoint.weights(),
            control: Control {
                cancel: control.cancel,
                observer: &pages,
            },
        })
        .in_context(|| format!("opening on {}", target.name))?;
    model.checkpoint.release_pages();
    let sequence = CachedSequence::create(session.as_mut())?;
    Ok((session, sequence, clock.total()))
}

/// Passes events on and measures how long compiling took.
struct CompileClock<'a> {
    inner: &'a dyn Observer,
    state: Mutex<(Option<Instant>, Duration)>,
}

impl<'a> CompileClock<'a> {
    fn new(inner: &'a dyn Observer) -> Self {
        Self {
            inner,
            state: Mutex::default(),
        }
    }

    fn total(&self) -> Duration {
        self.state.lock().1
    }
}

impl Observer for CompileClock<'_> {
    fn on_event(&self, event: Event) {
        if let Event::Progress {
            stage: Stage::Compile,
            done,
            total,
        } = event
        {
            let mut state = self.state.lock();
            let started = *state.0.get_or_insert_with(Instant::now);
            if done >= total {
                state.1 += started.elapsed();
                state.0 = None;
            }
        }
        self.inner.on_event(event);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use halfhitch_seam::NoObserver;

    #[test]
    fn only_compiling_counts_as_compiling() {
        let clock = CompileClock::new(&NoObserver);
        let wait = Duration::from_millis(5);
        let progress = |stage, done, total| clock.on_event(Event::Progress { stage, done, total });
        progress(Stage::LoadWeights, 0, 1);
        std::thread::sleep(wait);
        progress(Stage::LoadWeights, 1, 1);
        assert_eq!(clock.total(), Duration::ZERO);
        progress(Stage::Compile, 0, 2);
        progress(Stage::Compile, 1, 2);
        std::thread::sleep(wait);
        progress(Stage::Compile, 2, 2);
        let total = clock.total();
        assert!(total >= wait);
        std::thread::sleep(wait);
        assert_eq!(clock.total(), total);
    }
}
