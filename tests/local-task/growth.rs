//! Sequences that outgrow their caches, against the suite's oracle in f64.
//!
//! A cache starts small and doubles: what it held has to be in the larger one, wherever the step that
//! needs it begins, and other sequences keep theirs.

use halfhitch_seam::{
    CancelToken, ComputeBackend, Control, DecodeStep, NoObserver, OpenRequest, OutputRequest,
    PlanRequest, SequenceId, Session, TokenId, negotiate,
};
use halfhitch_suite::models::Generated;
use halfhitch_suite::{features, limits, oracle};

/// The first capacity, where a cache grows for the first time; it grows again at twice that.
const FIRST: usize = 256;

/// Tokens of one call: so few that they go through the small chunk's step, whose rows do not divide
/// the capacity where a prompt begins in the middle of one.
const PART: usize = 50;

struct Grown {
    session: Box<dyn Session>,
    limit: f64,
}

impl Grown {
    fn open(model: &Generated) -> Self {
        let backend = super::backend("local-task");
        let device = backend.devices().unwrap().remove(0).id;
        let capabilities = backend.capabilities(&device).unwrap();
        let request = PlanRequest {
            sequences: 2,
            ..PlanRequest::default()
        };
        let manifest = model.weights.manifest();
        let plan = negotiate(&model.spec, &manifest, &capabilities, &request).unwrap();
        let cancel = CancelToken::new();
        let open = OpenRequest {
            plan: &plan,
            model: &model.spec,
            weights: &model.weights,
            control: control(&cancel),
        };
        Self {
            session: backend.open(open).unwrap_or_else(|e| panic!("{e}")),
            limit: limits::relative(plan.precision),
        }
    }

    /// Appends tokens in parts; logits after the last.
    fn prompt(&mut self, id: SequenceId, tokens: &[TokenId]) -> Vec<f32> {
        let cancel = CancelToken::new();
        let mut last = Vec::new();
        for part in tokens.chunks(PART) {
            let out = self
                .session
                .prefill(id, part, OutputRequest::LOGITS, &control(&cancel));
            last = out.unwrap_or_else(|e| panic!("{e}")).logits;
        }
        last
    }

    fn steps(&mut self, steps: &[(SequenceId, TokenId)]) -> Vec<Vec<f32>> {
        let steps: Vec<DecodeStep> = steps
            .iter()
            .map(|&(sequence, token)| DecodeStep { sequence, token })
            .collect();
        let outs = self.session.decode(&steps, OutputRequest::LOGITS);
        let outs = outs.unwrap_or_else(|e| panic!("{e}"));
        outs.into_iter().map(|out| out.logits).collect()
    }

    fn check(&self, what: &str, position: usize, got: &[f32], want: &[Vec<f64>]) {
        let want: Vec<f32> = want[position].iter().map(|&v| v as f32).collect();
        assert_eq!(got.len(), want.len());
        let off = limits::difference(got, &want);
        assert!(
            off <= self.limit,
            "{what}, position {position}: off by {off:.2e}"
        );
    }
}

fn control(cancel: &CancelToken) -> Control<'_> {
    Control {
        cancel,
        observer: &NoObserver,
    }
}

fn grows(model: &str) {
    let mut model = features::single(model).unwrap();
    model.spec.max_context = 4 * FIRST;
    let long = model.tokens("long", 2 * FIRST + 30);
    let short = model.tokens("short", 40);
    let want_long = oracle::logits(&model.spec, &model.weights, &long).unwrap();
    let want_short = oracle::logits(&model.spec, &model.weights, &short).unwrap();
    let mut grown = Grown::open(&model);
    let a = grown.session.create_sequence().unwrap();
    let b = grown.session.create_sequence().unwrap();

    // Step by step over the first capacity, beside a short sequence in the same steps.
    let start = FIRST - 6;
    let got = grown.prompt(a, &long[..start]);
    grown.check("the long prompt", start - 1, &got, &want_long);
    let mut short_len = 21;
    grown.prompt(b, &short[..short_len]);
    for at in start..FIRST + 6 {
        let got = grown.steps(&[(a, long[at]), (b, short[short_len])]);
        grown.check("a step of the long one", at, &got[0], &want_long);
        grown.check("a step beside it", short_len, &got[1], &want_short);
        short_len += 1;
    }

    // Within a prompt over the second.
    let got = grown.prompt(a, &long[FIRST + 6..]);
    grown.check("over the second", long.len() - 1, &got, &want_long);

    // Back below the first, then other tokens, which must see nothing of what was there.
    let keep = FIRST - 20;
    grown.session.truncate(a, keep).unwrap();
    let other = [&long[..keep], &short[..31]].concat();
    let want = oracle::logits(&model.spec, &model.weights, &other).unwrap();
    let got = grown.prompt(a, &other[keep..keep + 30]);
    grown.check("after a cut", keep + 29, &got, &want);
    let got = grown.steps(&[(a, other[keep + 30])]);
    grown.check("a step after a cut", keep + 30, &got[0], &want);
    let got = grown.steps(&[(b, short[short_len])]);
    grown.check("the short one at last", short_len, &got[0], &want_short);
}

#[test]
fn a_cache_that_grows_keeps_what_it_holds() {
    grows("plain");
}

#[test]
fn a_window_moves_over_a_cache_that_grows() {
    grows("window");
}
