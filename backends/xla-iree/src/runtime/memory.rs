//! How much memory the machine has, for drivers whose memory is the host's.

use halfhitch_seam::MemoryInfo;

/// Total and available memory, from `/proc/meminfo`; unknown where there is none.
pub fn host() -> MemoryInfo {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    parse(&text)
}

fn parse(text: &str) -> MemoryInfo {
    let bytes = |key: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(key))?;
        let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
        kib.checked_mul(1024)
    };
    MemoryInfo {
        total: bytes("MemTotal:"),
        free: bytes("MemAvailable:"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_available_counts_as_free() {
        let text = "MemTotal:  2048 kB\nMemFree: 1 kB\nMemAvailable:  1024 kB\n";
        let info = parse(text);
        assert_eq!((info.total, info.free), (Some(2 << 20), Some(1 << 20)));
        assert_eq!(parse("MemTotal: x kB"), MemoryInfo::default());
    }
}
