//! Backends as the program finds them, and models run on them.

use std::path::{Path, PathBuf};

use halfhitch::checkpoint::Checkpoint;
use halfhitch::engine::{Registry, Target};
use halfhitch_seam::{
    CancelToken, Control, DecodeStep, DeviceSampler, LogitsRequest, NoObserver, OpenRequest,
    OutputRequest, PlanRequest, SeamResult, Session, TokenId, negotiate,
};

/// Greedy with logits to compare.
const OUTPUT: OutputRequest = OutputRequest {
    sample: Some(DeviceSampler::Greedy),
    logits: LogitsRequest::Last,
    top_logprobs: 0,
};

/// Rows of the largest prefill step: few, because every step is compiled.
const CHUNK: usize = 16;

/// What was built, by its name in the build's folder.
pub fn library(name: &str) -> PathBuf {
    let folder = std::env::var_os("HALFHITCH_TEST_LIBRARIES").expect(
        "HALFHITCH_TEST_LIBRARIES names the build's folder: run tests/tools/test-vulkan.sh",
    );
    Path::new(&folder).join(name)
}

/// A model of the fixtures.
pub use halfhitch_test_support::fixture as tiny;

/// The device that a selection names.
pub fn target(selection: &str) -> SeamResult<Target> {
    let registry = Registry::with_plugins(&[library("plugins")]);
    registry.select(&selection.parse()?)
}

/// A session of a checkpoint.
pub fn open(backend: &str, model: &Path, request: &PlanRequest) -> Box<dyn Session> {
    let checkpoint = Checkpoint::open(model).unwrap_or_else(|e| panic!("{e}"));
    let target = target(backend).unwrap_or_else(|e| panic!("{e}"));
    let manifest = checkpoint.weights().manifest();
    let mut plan = negotiate(checkpoint.spec(), &manifest, &target.capabilities, request)
        .unwrap_or_else(|e| panic!("{e}"));
    plan.prefill_chunk = plan.prefill_chunk.min(CHUNK);
    let cancel = CancelToken::new();
    let request = OpenRequest {
        plan: &plan,
        model: checkpoint.spec(),
        weights: checkpoint.weights(),
        control: control(&cancel),
    };
    let session = target.backend.open(request);
    session.unwrap_or_else(|e| panic!("{backend}: {e}"))
}

fn control(cancel: &CancelToken) -> Control<'_> {
    Control {
        cancel,
        observer: &NoObserver,
    }
}

/// What a model said.
pub struct Run {
    /// Its greedy tokens.
    pub tokens: Vec<TokenId>,
    /// The logits behind each.
    pub logits: Vec<Vec<f32>>,
}

/// Feeds a prompt, then `forced` tokens, or its own choices where there are none.
pub fn follow(
    session: &mut dyn Session,
    prompt: &[TokenId],
    steps: usize,
    forced: &[TokenId],
) -> Run {
    let id = session.create_sequence().unwrap();
    let cancel = CancelToken::new();
    let mut outs = vec![
        session
            .prefill(id, prompt, OUTPUT, &control(&cancel))
            .unwrap(),
    ];
    while outs.len() < steps {
        let at = outs.len() - 1;
        let own = outs[at].token.expect("a token was asked for");
        let token = forced.get(at).copied().unwrap_or(own);
        let step = DecodeStep {
            sequence: id,
            token,
        };
        outs.extend(session.decode(&[step], OUTPUT).unwrap());
    }
    session.release(id).unwrap();
    Run {
        tokens: outs.iter().filter_map(|o| o.token).collect(),
        logits: outs.into_iter().map(|o| o.logits).collect(),
    }
}

/// A fixture's answers to prompts of these lengths, `steps` tokens each, in one session.
pub fn run(
    backend: &str,
    model: &str,
    request: &PlanRequest,
    prompts: &[usize],
    steps: usize,
) -> Vec<Run> {
    let mut session = open(backend, &tiny(model), request);
    let answer = |(i, &length): (usize, &usize)| {
        let token = |at: usize| ((at * 31 + i * 17 + 3) % 90) as TokenId;
        let prompt: Vec<TokenId> = (0..length).map(token).collect();
        follow(&mut *session, &prompt, steps, &[])
    };
    prompts.iter().enumerate().map(answer).collect()
}
