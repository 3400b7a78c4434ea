//! Progress of long stages, and notes, on stderr.
//!
//! A stage gets a bar only where stderr is a terminal and it has taken half a second: what is quick
//! leaves no trace.

use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

use halfhitch_seam::{Event, Observer, Stage};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use parking_lot::Mutex;

use super::failure::one_line;
use super::output;

/// How long a stage runs before it gets a bar.
const PATIENCE: Duration = Duration::from_millis(500);

/// How often a bar moves by itself.
const TICK: Duration = Duration::from_millis(125);

/// Shows events to a person.
pub struct Progress {
    quiet: bool,
    bars: bool,
    active: Mutex<Option<Active>>,
}

struct Active {
    stage: Stage,
    since: Instant,
    bar: Option<ProgressBar>,
}

impl Progress {
    /// Shows nothing at all where `quiet`.
    pub fn new(quiet: bool) -> Self {
        Self {
            quiet,
            bars: !quiet && io::stderr().is_terminal(),
            active: Mutex::new(None),
        }
    }

    /// Takes the bar away, before something else is printed.
    pub fn clear(&self) {
        if let Some(Active { bar: Some(bar), .. }) = self.active.lock().take() {
            bar.finish_and_clear();
        }
    }

    fn advance(&self, stage: Stage, done: u64, total: u64) {
        if !self.bars {
            return;
        }
        if done >= total {
            return self.clear();
        }
        let mut slot = self.active.lock();
        if let Some(old) = slot.take_if(|a| a.stage != stage) {
            old.bar.inspect(ProgressBar::finish_and_clear);
        }
        let active = slot.get_or_insert_with(|| Active {
            stage,
            since: Instant::now(),
            bar: None,
        });
        if active.bar.is_none() && active.since.elapsed() >= PATIENCE {
            active.bar = Some(bar(stage, total));
        }
        if let Some(bar) = &active.bar {
            bar.set_length(total);
            bar.set_position(done);
        }
    }
}

fn bar(stage: Stage, total: u64) -> ProgressBar {
    let counts = match stage {
        Stage::LoadWeights | Stage::Convert => "{binary_bytes} of {binary_total_bytes}",
        _ => "{pos} of {len}",
    };
    // Stages are too uneven for an estimate of what is left; the time so far shows that it lives.
    let template = format!("{{spinner}} {{msg}} [{{bar:24}}] {counts}, {{elapsed}}");
    let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr());
    if let Ok(style) = ProgressStyle::with_template(&template) {
        bar.set_style(style.progress_chars("=> "));
    }
    bar.enable_steady_tick(TICK);
    bar.with_message(stage.label())
}

impl Observer for Progress {
    fn on_event(&self, event: Event) {
        match event {
            Event::Progress { stage, done, total } => self.advance(stage, done, total),
            Event::Note(note) if !self.quiet => {
                let print = || output::note(&format!("note: {}", one_line(&note)));
                match &*self.active.lock() {
                    Some(Active { bar: Some(bar), .. }) => bar.suspend(print),
                    _ => print(),
                }
            }
            _ => {}
        }
    }
}
