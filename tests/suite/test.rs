//! A case before it has run: a name, and what is done with a subject.

use std::fmt;
use std::sync::Arc;

use crate::models::Generated;
use crate::report::{Case, Outcome};
use crate::subject::Subject;

/// When a case is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tier {
    /// Always. Chosen so that a backend that compiles every model is through in minutes.
    Quick,
    /// Where all is asked for.
    Full,
}

type RunFn = dyn Fn(&Subject) -> Outcome + Send + Sync;

/// A case that can be run on any subject.
#[derive(Clone)]
pub struct Test {
    /// Path of names, unique in a catalogue: `contract/plain/truncate-then-continue-equals-fresh`.
    pub name: String,
    /// When it is run.
    pub tier: Tier,
    /// The model that it is about, where it is about one.
    pub model: Option<Arc<Generated>>,
    run: Arc<RunFn>,
}

impl Test {
    /// A case.
    pub fn new(
        name: impl Into<String>,
        tier: Tier,
        run: impl Fn(&Subject) -> Outcome + Send + Sync + 'static,
    ) -> Self {
        Self {
            name: name.into(),
            tier,
            model: None,
            run: Arc::new(run),
        }
    }

    /// Says which model it is about.
    #[must_use]
    pub fn about(mut self, model: &Arc<Generated>) -> Self {
        self.model = Some(Arc::clone(model));
        self
    }

    /// Runs it, on this thread.
    pub fn run(&self, subject: &Subject) -> Case {
        Case::run(self.name.clone(), || (self.run)(subject))
    }
}

impl fmt::Debug for Test {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Test")
            .field("name", &self.name)
            .field("tier", &self.tier)
            .finish_non_exhaustive()
    }
}
