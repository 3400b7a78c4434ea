//! What holds of every target: an input costs less than a second.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Most time that one input may cost.
const MOST: Duration = Duration::from_secs(1);

/// Runs `target`.
///
/// # Panics
/// Where the target does, and where it took [`MOST`] of the processors' time. Other than a time on the wall
/// that is the input's alone, also where the machine has other work or stands still.
pub fn bounded(target: fn(&[u8]), bytes: &[u8]) {
    let before = spent();
    target(bytes);
    let took = spent().saturating_sub(before);
    assert!(took < MOST, "{took:?} for {} bytes", bytes.len());
}

/// Processor time of all threads of this process.
fn spent() -> Duration {
    let spent = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(
        spent.tv_sec.unsigned_abs(),
        spent.tv_nsec.unsigned_abs() as u32,
    )
}
