//! What a run took: time and memory.

use std::fs;
use std::time::Duration;

use serde::Serialize;

/// What opening a model took.
#[derive(Clone, Copy, Debug, Default)]
pub struct LoadTimings {
    /// Everything from opening the first file to a session that is ready, without compiling.
    pub load: Duration,
    /// Turning the model into code, where the backend does that.
    pub compile: Duration,
}

/// Timings of a run, in seconds and tokens a second. A rate is absent where too little happened to
/// have one.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Timings {
    /// Opening the model, without compiling.
    pub load_s: f64,
    /// Compiling.
    pub compile_s: f64,
    /// From the start of the prompt, the model being open, to the first token.
    pub ttft_s: Option<f64>,
    /// Prompt tokens that were run, over the time it took; a prefix that was kept is not counted.
    pub prefill_tokens_per_s: Option<f64>,
    /// Tokens after the first, over the time they took.
    pub decode_tokens_per_s: Option<f64>,
}

impl Timings {
    /// Puts the figures together.
    ///
    /// `prefilled` tokens were run until the first token came after `first`; `generated` tokens were
    /// there after `whole`, both counted from the start of the prompt.
    pub fn new(
        load: LoadTimings,
        prefilled: usize,
        generated: usize,
        first: Option<Duration>,
        whole: Duration,
    ) -> Self {
        let rate = |tokens: usize, time: Duration| {
            (tokens > 0 && !time.is_zero()).then(|| tokens as f64 / time.as_secs_f64())
        };
        Self {
            load_s: load.load.as_secs_f64(),
            compile_s: load.compile.as_secs_f64(),
            ttft_s: first.map(|t| t.as_secs_f64()),
            prefill_tokens_per_s: first.and_then(|t| rate(prefilled, t)),
            decode_tokens_per_s: first
                .and_then(|t| rate(generated.saturating_sub(1), whole.saturating_sub(t))),
        }
    }
}

/// The most memory this process has had resident, in bytes, where the system tells; with isolated
/// backends, that of their processes in addition. A page of a file that two of them map counts in both.
pub fn peak_rss_bytes() -> Option<u64> {
    let own = parse_peak(&fs::read_to_string("/proc/self/status").ok()?)?;
    let others = crate::isolate::running()
        .into_iter()
        .filter_map(|pid| parse_peak(&fs::read_to_string(format!("/proc/{pid}/status")).ok()?));
    Some(others.fold(own, u64::saturating_add))
}

/// The memory this process has resident now, in bytes, where the system tells.
pub fn rss_bytes() -> Option<u64> {
    parse(&fs::read_to_string("/proc/self/status").ok()?, "VmRSS:")
}

/// The address space this process has taken, in bytes, where the system tells.
pub fn virtual_bytes() -> Option<u64> {
    parse(&fs::read_to_string("/proc/self/status").ok()?, "VmSize:")
}

fn parse_peak(status: &str) -> Option<u64> {
    parse(status, "VmHWM:")
}

fn parse(status: &str, key: &str) -> Option<u64> {
    let line = status.lines().find_map(|l| l.strip_prefix(key))?;
    let kib = line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_count_what_they_say() {
        let load = LoadTimings {
            load: Duration::from_millis(500),
            compile: Duration::ZERO,
        };
        let s = Duration::from_secs;
        let timings = Timings::new(load, 10, 5, Some(s(2)), s(4));
        assert_eq!(timings.load_s, 0.5);
        assert_eq!(timings.ttft_s, Some(2.0));
        assert_eq!(timings.prefill_tokens_per_s, Some(5.0));
        assert_eq!(timings.decode_tokens_per_s, Some(2.0));
        // One token says nothing about decoding, none nothing about anything.
        assert_eq!(
            Timings::new(load, 10, 1, Some(s(2)), s(2)).decode_tokens_per_s,
            None
        );
        assert_eq!(
            Timings::new(load, 10, 0, None, s(2)).prefill_tokens_per_s,
            None
        );
    }

    #[test]
    fn the_peak_is_read_where_it_is_told() {
        assert_eq!(
            parse_peak("VmPeak:\t9 kB\nVmHWM:\t    2048 kB\n"),
            Some(2 << 20)
        );
        assert_eq!(parse_peak("VmHWM:\tmany kB\n"), None);
        assert_eq!(parse_peak(""), None);
        #[cfg(target_os = "linux")]
        assert!(peak_rss_bytes().unwrap() > 1 << 20);
    }
}
