//! How fast threads read memory: the limit of decoding, which reads every weight once a step.
//!
//! Each thread sums a part of its own, of a buffer that no cache holds, in passes that all threads
//! start together; the median pass counts. The buffer is on huge pages where the system gives them.

use std::fs;
use std::hint::black_box;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use halfhitch_seam::{ErrorCode, SeamError, SeamResult};
use memmap2::MmapMut;

/// Fewest and most passes over the buffer; the first only warms up.
const PASSES: [usize; 2] = [4, 9];

/// After how long the fewest do.
const ENOUGH: Duration = Duration::from_millis(500);

/// Bytes of one step of the sum: wide enough for any vector unit.
const WIDTH: usize = 128;

/// Places of its part that a thread reads side by side. A prefetcher follows each for itself and starts
/// anew at every page: one place alone falls short of what memory gives by a fifth.
const STREAMS: usize = 8;

/// Least and most bytes to read. A debug build measures nothing worth having, so it need not take long.
const SIZES: [u64; 2] = if cfg!(debug_assertions) {
    [16 << 20, 32 << 20]
} else {
    [256 << 20, 1 << 30]
};

/// Bytes of the largest cache that processor 0 uses, where the system tells.
pub fn cache_bytes() -> Option<u64> {
    let folder = fs::read_dir("/sys/devices/system/cpu/cpu0/cache").ok()?;
    folder
        .flatten()
        .filter_map(|index| parse_size(&fs::read_to_string(index.path().join("size")).ok()?))
        .max()
}

fn parse_size(text: &str) -> Option<u64> {
    let text = text.trim();
    let unit = match text.chars().last()? {
        'K' => 1 << 10,
        'M' => 1 << 20,
        'G' => 1 << 30,
        _ => 1,
    };
    let number = text.trim_end_matches(['K', 'M', 'G']);
    number.parse::<u64>().ok()?.checked_mul(unit)
}

/// Bytes to read: four times the largest cache, within reason, and at most a quarter of the memory
/// that is available.
fn buffer_bytes() -> u64 {
    let [least, most] = SIZES;
    let wanted = cache_bytes().map_or(most, |c| c.saturating_mul(4).clamp(least, most));
    available_bytes().map_or(wanted, |free| wanted.min(free / 4))
}

fn available_bytes() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|l| l.strip_prefix("MemAvailable:"))?;
    let kib = line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?;
    kib.checked_mul(1024)
}

/// Bytes a second that `threads` threads read together.
///
/// # Errors
/// `OutOfMemory` where the buffer cannot be had; `InvalidInput` for 0 threads.
pub fn read_bandwidth(threads: usize) -> SeamResult<f64> {
    measure(threads, buffer_bytes())
}

fn measure(threads: usize, bytes: u64) -> SeamResult<f64> {
    if threads == 0 {
        return Err(SeamError::invalid_input("a bandwidth of 0 threads"));
    }
    const STEP: usize = WIDTH * STREAMS;
    let part = usize::try_from(bytes).unwrap_or(usize::MAX) / threads / STEP * STEP;
    let part = part.max(STEP);
    // Reserved here, so that no thread can fail between two barriers.
    let mut parts: Vec<MmapMut> = (0..threads)
        .map(|_| reserve(part))
        .collect::<SeamResult<_>>()?;
    let pace = Pace {
        barrier: Barrier::new(threads),
        over: AtomicBool::new(false),
    };
    let (own, others) = parts.split_at_mut(1);
    let mut passes = std::thread::scope(|scope| {
        for part in others {
            scope.spawn(|| pace.read(part, false));
        }
        pace.read(&mut own[0], true)
    });
    passes.remove(0);
    passes.sort_unstable();
    let median = passes[passes.len() / 2].as_secs_f64().max(1e-9);
    Ok((part * threads) as f64 / median)
}

fn reserve(bytes: usize) -> SeamResult<MmapMut> {
    let map = MmapMut::map_anon(bytes).map_err(|e| {
        SeamError::new(
            ErrorCode::OutOfMemory,
            format!("{bytes} bytes to read: {e}"),
        )
    })?;
    // Where huge pages are not to be had, small ones do.
    #[cfg(target_os = "linux")]
    let _ = map.advise(memmap2::Advice::HugePage);
    Ok(map)
}

/// Keeps threads together.
struct Pace {
    barrier: Barrier,
    over: AtomicBool,
}

impl Pace {
    /// Fills a part, so that it is this thread's memory, and reads it with the others; what each pass
    /// of all of them took. One thread leads: it says when it is enough.
    fn read(&self, part: &mut [u8], leads: bool) -> Vec<Duration> {
        part.fill(1);
        let [fewest, most] = PASSES;
        let mut passes = Vec::with_capacity(most);
        let begin = Instant::now();
        loop {
            if leads {
                let enough = passes.len() >= fewest && begin.elapsed() > ENOUGH;
                self.over
                    .store(enough || passes.len() >= most, Ordering::Relaxed);
            }
            // Orders the flag as well.
            self.barrier.wait();
            if self.over.load(Ordering::Relaxed) {
                return passes;
            }
            let start = Instant::now();
            black_box(sum(black_box(part)));
            self.barrier.wait();
            passes.push(start.elapsed());
        }
    }
}

/// The sum of a buffer's words, in as many lanes and streams as it takes to keep memory busy. What does
/// not fill a step of every stream is left out.
fn sum(bytes: &[u8]) -> u64 {
    let mut lanes = [0u64; WIDTH / 8];
    let (steps, _) = bytes.as_chunks::<WIDTH>();
    let span = steps.len() / STREAMS;
    for at in 0..span {
        for stream in 0..STREAMS {
            let (words, _) = steps[stream * span + at].as_chunks::<8>();
            for (lane, word) in lanes.iter_mut().zip(words) {
                *lane = lane.wrapping_add(u64::from_ne_bytes(*word));
            }
        }
    }
    lanes.iter().fold(0, |a, &b| a.wrapping_add(b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_read() {
        let mut bytes = vec![0u8; 4 * STREAMS * WIDTH];
        assert_eq!(sum(&bytes), 0);
        for at in (0..bytes.len()).step_by(8) {
            bytes.fill(0);
            bytes[at] = 1;
            assert_ne!(sum(&bytes), 0, "byte {at}");
        }
    }

    #[test]
    fn any_number_of_threads_measures() {
        for threads in [1, 2, 3] {
            let rate = measure(threads, 1 << 20).unwrap();
            assert!(rate.is_finite() && rate > 0.0);
        }
        assert!(measure(0, 1 << 20).is_err());
    }

    #[test]
    fn sizes_are_read_as_the_system_writes_them() {
        let cases = [
            ("266240K\n", Some(266_240 << 10)),
            ("32M", Some(32 << 20)),
            ("512", Some(512)),
            ("", None),
            ("K", None),
            ("99999999999999999999G", None),
        ];
        for (text, bytes) in cases {
            assert_eq!(parse_size(text), bytes, "{text}");
        }
    }
}
