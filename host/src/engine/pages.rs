//! Giving the pages of weights' files back while a backend takes the weights.

use std::sync::atomic::{AtomicU64, Ordering};

use halfhitch_seam::{Event, Observer, Stage};

/// Bytes of weights between two times that pages are given back.
const RELEASE_EVERY: u64 = 8 << 20;

/// Passes events on, and gives pages back as weights are brought up: those that a backend copied need not
/// be in memory twice, and those that it uses in place come back by themselves.
pub(crate) struct PageRelease<'a> {
    inner: &'a dyn Observer,
    release: &'a (dyn Fn() + Send + Sync),
    next: AtomicU64,
}

impl<'a> PageRelease<'a> {
    /// `release` gives back all pages that were read.
    pub(crate) const fn new(
        inner: &'a dyn Observer,
        release: &'a (dyn Fn() + Send + Sync),
    ) -> Self {
        Self {
            inner,
            release,
            next: AtomicU64::new(RELEASE_EVERY),
        }
    }
}

impl Observer for PageRelease<'_> {
    fn on_event(&self, event: Event) {
        if let Event::Progress {
            stage: Stage::LoadWeights,
            done,
            ..
        } = event
            && done >= self.next.load(Ordering::Relaxed)
        {
            self.next.store(done + RELEASE_EVERY, Ordering::Relaxed);
            (self.release)();
        }
        self.inner.on_event(event);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use halfhitch_seam::NoObserver;

    use super::*;

    #[test]
    fn pages_go_back_as_weights_come_and_not_at_every_one() {
        let released = AtomicUsize::new(0);
        let release = || {
            released.fetch_add(1, Ordering::Relaxed);
        };
        let pages = PageRelease::new(&NoObserver, &release);
        let at = |stage, done| {
            pages.on_event(Event::Progress {
                stage,
                done,
                total: 1 << 30,
            });
            released.load(Ordering::Relaxed)
        };
        assert_eq!(at(Stage::LoadWeights, RELEASE_EVERY - 1), 0);
        assert_eq!(at(Stage::Compile, 2 * RELEASE_EVERY), 0);
        assert_eq!(at(Stage::LoadWeights, RELEASE_EVERY + 5), 1);
        assert_eq!(at(Stage::LoadWeights, 2 * RELEASE_EVERY), 1);
        assert_eq!(at(Stage::LoadWeights, 5 * RELEASE_EVERY), 2);
    }
}
