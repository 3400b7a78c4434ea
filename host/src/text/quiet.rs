//! Panics that are caught and reported as errors must not also be printed.

use std::cell::Cell;
use std::panic;
use std::sync::Once;

thread_local! {
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

static HOOK: Once = Once::new();

/// Restores the flag also when the closure panics.
struct Restore(bool);

impl Drop for Restore {
    fn drop(&mut self) {
        QUIET.set(self.0);
    }
}

/// Runs `f`, with panics on this thread not printed while it runs. Whatever hook was installed
/// before the first use keeps serving all other panics.
pub(super) fn quietly<T>(f: impl FnOnce() -> T) -> T {
    HOOK.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !QUIET.get() {
                before(info);
            }
        }));
    });
    let _restore = Restore(QUIET.replace(true));
    f()
}
