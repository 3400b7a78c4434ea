//! How much memory the machine has.

use halfhitch_seam::MemoryInfo;

/// Total and available memory, from `/proc/meminfo`; unknown where there is none.
pub fn info() -> MemoryInfo {
    std::fs::read_to_string("/proc/meminfo")
        .map_or_else(|_| MemoryInfo::default(), |text| parse(&text))
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
    fn reads_total_and_available() {
        let text = "MemTotal:       24576 kB\nMemFree:  1 kB\nMemAvailable:   1024 kB\n";
        assert_eq!(
            parse(text),
            MemoryInfo {
                total: Some(24 << 20),
                free: Some(1 << 20),
            }
        );
        assert_eq!(parse("MemTotal: many kB\n"), MemoryInfo::default());
    }
}
