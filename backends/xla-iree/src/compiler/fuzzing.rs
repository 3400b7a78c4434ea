//! The cache's reader as a function of bytes, for the programs in `fuzz/` (see `docs/hardening.md`).

use std::fs;
use std::sync::LazyLock;

use super::cache::Cache;

/// A cache of this process alone.
static CACHE: LazyLock<(tempfile::TempDir, Cache)> = LazyLock::new(|| {
    let folder = tempfile::tempdir().expect("a folder for temporary files");
    let cache = Cache::open(&folder.path().join("cache"), u64::MAX).expect("a cache in it");
    (folder, cache)
});

/// A planted entry: whatever bytes, and a whole entry with some of them changed. Neither is taken where it
/// is not a module with its own hash.
///
/// The first byte says how many changes there are; each is a place (two bytes, low first) and what is
/// exclusive-ored there. The rest is the module.
pub fn cache_entry(bytes: &[u8]) {
    let (_, cache) = &*CACHE;
    let path = cache.entry("a");
    fs::write(&path, bytes).expect("a file in the cache");
    match cache.get("a") {
        // Nothing is an entry but a module with its own footer.
        Some(module) => {
            cache.put("b", &module).expect("room in the cache");
            let made = fs::read(cache.entry("b")).expect("what was put");
            assert_eq!(made, bytes);
        }
        None => assert!(!path.exists(), "a damaged entry is removed"),
    }

    let Some((&changes, rest)) = bytes.split_first() else {
        return;
    };
    let Some((changes, module)) = rest.split_at_checked(3 * usize::from(changes % 8)) else {
        return;
    };
    cache.put("a", module).expect("room in the cache");
    let whole = fs::read(&path).expect("what was put");
    let mut file = whole.clone();
    for change in changes.chunks_exact(3) {
        let at = usize::from(u16::from_le_bytes([change[0], change[1]]));
        // Beyond the end, the file is cut there or made longer.
        match file.get_mut(at) {
            Some(byte) => *byte ^= change[2],
            None if change[2] % 2 == 0 => file.push(change[2]),
            None => file.truncate(at % (file.len() + 1)),
        }
    }
    fs::write(&path, &file).expect("a file in the cache");
    assert_eq!(cache.verify().expect("a list").is_empty(), file == whole);
    assert_eq!(cache.get("a").as_deref(), (file == whole).then_some(module));
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn seeds_and_cases_pass() {
        let fuzz = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz");
        let mut ran = 0;
        for folder in ["seeds", "cases"] {
            let files = fs::read_dir(fuzz.join(folder).join("cache_entry"));
            for file in files.into_iter().flatten() {
                cache_entry(&fs::read(file.unwrap().path()).unwrap());
                ran += 1;
            }
        }
        assert!(ran > 0, "there are no seeds");
    }
}
