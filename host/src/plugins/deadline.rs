//! Questions that may never be answered.

use std::time::Duration;

use halfhitch_seam::{ErrorCode, SeamError, SeamResult};

/// Runs `question` on a thread of its own and gives it up after `limit`, so that a driver that hangs
/// costs its own row of a list and no other. The thread cannot be stopped; it is left behind.
///
/// # Errors
/// The question's own; `Backend` where there is no answer in time.
pub fn within<T: Send + 'static>(
    limit: Duration,
    question: impl FnOnce() -> SeamResult<T> + Send + 'static,
) -> SeamResult<T> {
    let (send, receive) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        // Nobody listens any more where the answer came too late.
        let _ = send.send(question());
    });
    receive.recv_timeout(limit).unwrap_or_else(|_| {
        Err(SeamError::new(
            ErrorCode::Backend,
            format!("no answer within {} s", limit.as_secs_f32()),
        )
        .hint("the plugin or its driver hangs"))
    })
}
