//! Wishes to stop, which come over another socket than the calls that they are for.

use std::collections::HashMap;

use halfhitch_seam::CancelToken;
use parking_lot::Mutex;

/// The tokens of the calls that are under way.
#[derive(Default)]
pub struct Cancels(Mutex<HashMap<u64, Channel>>);

#[derive(Default)]
struct Channel {
    /// The call that is under way.
    call: u64,
    token: CancelToken,
    /// The last call that was to be stopped.
    stopped: u64,
}

impl Cancels {
    /// A channel is there from now on.
    pub fn open(&self, channel: u64) {
        self.0.lock().entry(channel).or_default();
    }

    /// A channel is gone.
    pub fn close(&self, channel: u64) {
        self.0.lock().remove(&channel);
    }

    /// The token of a call that begins. It is set where the wish to stop came first.
    pub fn begin(&self, channel: u64, call: u64) -> CancelToken {
        let mut all = self.0.lock();
        let state = all.entry(channel).or_default();
        state.call = call;
        state.token = CancelToken::new();
        if state.stopped == call {
            state.token.cancel();
        }
        state.token.clone()
    }

    /// Stops a call, also one that has yet to begin; one that is over is left alone, as is a channel that
    /// is not there.
    pub fn cancel(&self, channel: u64, call: u64) {
        if let Some(state) = self.0.lock().get_mut(&channel) {
            state.stopped = call;
            if state.call == call {
                state.token.cancel();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wish_stops_its_call_and_no_other() {
        let cancels = Cancels::default();
        cancels.open(1);
        cancels.open(2);
        let (one, two) = (cancels.begin(1, 5), cancels.begin(2, 5));
        cancels.cancel(1, 5);
        assert!(one.is_cancelled() && !two.is_cancelled());
        assert!(!cancels.begin(1, 6).is_cancelled());
        // Before the call is there, and after it is over.
        cancels.cancel(2, 6);
        assert!(cancels.begin(2, 6).is_cancelled());
        let seven = cancels.begin(2, 7);
        cancels.cancel(2, 6);
        assert!(!seven.is_cancelled());
        cancels.cancel(9, 1);
        assert!(!cancels.0.lock().contains_key(&9));
    }
}
