//! Folders appear whole or not at all; files are imported once; models are found by name.

mod import_support;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::thread;

use halfhitch::import::folder::{PlannedTensor, SafetensorsWriter, StagedFolder, TensorId};
use halfhitch::import::{ImportOptions, ModelLocator, import_gguf};
use halfhitch_seam::{
    CancelToken, Control, DType, ErrorCode, Event, NoObserver, Observer, SeamResult, Stage,
};
use import_support::*;
use safetensors::SafeTensors;

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(dir)
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

fn import(gguf: &Path, out: &Path, force: bool) -> SeamResult<()> {
    quietly(|c| import_gguf(gguf, out, ImportOptions { force }, c)).map(drop)
}

#[test]
#[cfg(unix)]
fn a_link_is_followed_to_the_folder_it_names() {
    use std::os::unix::fs::symlink;

    let dir = tempfile::tempdir().unwrap();
    let large = dir.path().join("large-disk");
    fs::create_dir(&large).unwrap();
    let link = dir.path().join("model");
    symlink("large-disk/model", &link).unwrap();
    // To nothing yet, and then to a model that is replaced.
    for force in [false, true] {
        import(&fixtures().join("gguf/llama-q4_1.gguf"), &link, force).unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert!(large.join("model/config.json").is_file());
        assert_eq!(names(&large), ["model"]);
    }
    assert_eq!(names(dir.path()), ["large-disk", "model"]);
}

#[test]
fn tensors_are_aligned_and_written_in_any_order() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("w.safetensors");
    let planned = |name: &str, dtype, shape: &[usize]| PlannedTensor {
        name: name.into(),
        dtype,
        shape: shape.to_vec(),
    };
    let plan = [
        planned("odd", DType::F16, &[3]),
        planned("words", DType::U32, &[4, 8]),
        planned("vector", DType::F32, &[9]),
        planned("scales", DType::BF16, &[32, 2]),
    ];
    let data: Vec<Vec<u8>> = [6, 128, 36, 128].map(|n| (0..n).collect()).into();
    let mut writer = SafetensorsWriter::create(&path, &plan).unwrap();
    // Interleaved, in pieces, backwards.
    for (i, bytes) in data.iter().enumerate().rev() {
        writer.append(TensorId(i), &bytes[..2]).unwrap();
    }
    for (i, bytes) in data.iter().enumerate() {
        writer.append(TensorId(i), &bytes[2..]).unwrap();
    }
    let size = writer.finish().unwrap();
    let bytes = fs::read(&path).unwrap();
    assert_eq!(bytes.len() as u64, size);
    let read = SafeTensors::deserialize(&bytes).unwrap();
    for (tensor, bytes) in plan.iter().zip(&data) {
        let view = read.tensor(&tensor.name).unwrap();
        assert_eq!(
            (view.shape(), view.data()),
            (tensor.shape.as_slice(), bytes.as_slice())
        );
    }
    let base = bytes.as_ptr() as usize;
    for name in ["words", "scales"] {
        let offset = read.tensor(name).unwrap().data().as_ptr() as usize - base;
        assert_eq!(offset % 64, 0, "{name} lies at {offset}");
    }
}

#[test]
fn a_weights_file_takes_exactly_its_data() {
    let dir = tempfile::tempdir().unwrap();
    let plan = [PlannedTensor {
        name: "t".into(),
        dtype: DType::F32,
        shape: vec![2],
    }];
    let mut writer = SafetensorsWriter::create(&dir.path().join("a"), &plan).unwrap();
    assert!(writer.append(TensorId(0), &[0; 12]).is_err());
    writer.append(TensorId(0), &[0; 4]).unwrap();
    let e = writer.finish().unwrap_err();
    assert!(e.to_string().contains("`t` has 4 of 8 bytes"), "{e}");
    let twice = [plan[0].clone(), plan[0].clone()];
    assert!(SafetensorsWriter::create(&dir.path().join("b"), &twice).is_err());
}

#[test]
fn what_is_there_is_not_overwritten() {
    let dir = tempfile::tempdir().unwrap();
    let gguf = tiny("llama", ggml::Q4_0).write(dir.path());
    let out = dir.path().join("out");

    fs::create_dir(&out).unwrap();
    import(&gguf, &out, false).expect("an empty folder is no obstacle");
    let first = fs::read(out.join("config.json")).unwrap();

    let e = import(&gguf, &out, false).unwrap_err();
    assert!(e.to_string().contains("--force"), "{e}");
    fs::write(out.join("config.json"), "{}").unwrap();
    import(&gguf, &out, true).unwrap();
    assert_eq!(fs::read(out.join("config.json")).unwrap(), first);

    let other = dir.path().join("other");
    fs::create_dir(&other).unwrap();
    fs::write(other.join("diary.txt"), "mine").unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "mine").unwrap();
    for (target, said) in [(&other, "not a model folder"), (&file, "not a folder")] {
        let e = import(&gguf, target, true).unwrap_err();
        assert_eq!(e.code, ErrorCode::InvalidInput);
        assert!(e.to_string().contains(said), "{e}");
    }
    assert_eq!(fs::read_to_string(other.join("diary.txt")).unwrap(), "mine");
    assert_eq!(names(dir.path()), ["file", "model.gguf", "other", "out"]);
}

#[test]
fn a_folder_that_is_dropped_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let folder = StagedFolder::create(&dir.path().join("a/b"), false).unwrap();
    folder.write("x", b"1").unwrap();
    assert!(folder.path("x").exists());
    drop(folder);
    assert_eq!(names(&dir.path().join("a")), [] as [&str; 0]);
}

/// Cancels once `limit` progress events have come.
struct CancelAfter<'a> {
    token: &'a CancelToken,
    seen: Mutex<usize>,
    limit: usize,
}

impl Observer for CancelAfter<'_> {
    fn on_event(&self, _: Event) {
        let mut seen = self.seen.lock().unwrap();
        *seen += 1;
        if *seen == self.limit {
            self.token.cancel();
        }
    }
}

#[test]
fn cancelling_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let gguf = tiny("llama", ggml::Q4_0).write(dir.path());
    for limit in [1, 3] {
        let token = CancelToken::new();
        let observer = CancelAfter {
            token: &token,
            seen: Mutex::new(0),
            limit,
        };
        let control = Control {
            cancel: &token,
            observer: &observer,
        };
        let out = dir.path().join("out");
        let e = import_gguf(&gguf, &out, ImportOptions::default(), &control).unwrap_err();
        assert_eq!(e.code, ErrorCode::Cancelled);
        assert_eq!(names(dir.path()), ["model.gguf"]);
    }
}

/// Counts how often a conversion begins, and keeps the last progress.
#[derive(Default)]
struct Conversions {
    begun: Mutex<usize>,
    last: Mutex<(u64, u64)>,
}

impl Observer for Conversions {
    fn on_event(&self, event: Event) {
        if let Event::Progress { stage, done, total } = event {
            assert_eq!(stage, Stage::Convert);
            *self.begun.lock().unwrap() += usize::from(done == 0);
            *self.last.lock().unwrap() = (done, total);
        }
    }
}

fn resolve(locator: &ModelLocator, model: &Path, seen: &Conversions) -> SeamResult<PathBuf> {
    let cancel = CancelToken::new();
    let control = Control {
        cancel: &cancel,
        observer: seen,
    };
    locator.resolve(model, &control)
}

#[test]
fn a_file_is_imported_once_by_its_content() {
    let dir = tempfile::tempdir().unwrap();
    let gguf = tiny("llama", ggml::Q4_0).write(dir.path());
    let locator = ModelLocator {
        collections: Vec::new(),
        cache: Some(dir.path().join("cache")),
    };
    let seen = Conversions::default();
    let begun = |n| assert_eq!(*seen.begun.lock().unwrap(), n);

    // Several at once, and afterwards again.
    let folders: Vec<PathBuf> = thread::scope(|s| {
        let all: Vec<_> = (0..4)
            .map(|_| s.spawn(|| resolve(&locator, &gguf, &seen).unwrap()))
            .collect();
        all.into_iter().map(|t| t.join().unwrap()).collect()
    });
    assert!(folders.iter().all(|f| *f == folders[0]));
    begun(1);
    let (done, total) = *seen.last.lock().unwrap();
    assert_eq!(done, total);
    halfhitch::checkpoint::Checkpoint::open(&folders[0]).unwrap();
    resolve(&locator, &gguf, &seen).unwrap();
    begun(1);

    // The same content elsewhere is the same model; other content in the same place is another.
    let copy = dir.path().join("copy.GGUF");
    fs::copy(&gguf, &copy).unwrap();
    assert_eq!(resolve(&locator, &copy, &seen).unwrap(), folders[0]);
    begun(1);
    fs::write(&gguf, tiny("llama", ggml::Q8_0).bytes()).unwrap();
    assert_ne!(resolve(&locator, &gguf, &seen).unwrap(), folders[0]);
    begun(2);

    // A folder that lost its weights, and what an import that was killed left, are no obstacle.
    fs::remove_file(folders[0].join("model.safetensors")).unwrap();
    let name = folders[0].file_name().unwrap().to_str().unwrap();
    let left = folders[0].with_file_name(format!(".{name}.partial-x"));
    fs::create_dir(&left).unwrap();
    resolve(&locator, &copy, &seen).unwrap();
    begun(3);
    assert!(!left.exists());
}

#[test]
fn what_a_killed_import_left_is_deleted_and_what_a_living_one_writes_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let gguf = tiny("llama", ggml::Q4_0).write(dir.path());
    let out = dir.path().join("out");
    let left = dir.path().join(".out.partial-dead");
    fs::create_dir(&left).unwrap();
    fs::write(left.join("model.safetensors"), "half of it").unwrap();
    let elsewhere = dir.path().join(".out2.partial-dead");
    fs::create_dir(&elsewhere).unwrap();
    let living = StagedFolder::create(&out, false).unwrap();
    living.write("config.json", b"{}").unwrap();
    assert!(!left.exists());
    import(&gguf, &out, false).unwrap();
    assert!(living.path("config.json").exists());
    assert!(elsewhere.exists(), "it is of another target");
    drop(living);
    fs::remove_dir(elsewhere).unwrap();
    assert_eq!(
        names(dir.path()),
        [gguf.file_name().unwrap().to_str().unwrap(), "out"]
    );
}

/// Where folders can be swapped; a memory file system can.
#[cfg(target_os = "linux")]
#[test]
fn a_folder_that_is_replaced_stands_until_the_new_one_does() {
    let shm = Path::new("/dev/shm");
    let dir = match shm.is_dir() {
        true => tempfile::tempdir_in(shm).unwrap(),
        false => tempfile::tempdir().unwrap(),
    };
    let out = dir.path().join("out");
    let write = |text: &[u8]| {
        let staged = StagedFolder::create(&out, true).unwrap();
        staged.write("config.json", text).unwrap();
        staged.commit().unwrap();
    };
    write(b"0");
    let done = std::sync::atomic::AtomicBool::new(false);
    let missed = thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            let mut missed = 0;
            while !done.load(std::sync::atomic::Ordering::Relaxed) {
                missed += usize::from(!out.is_dir());
            }
            missed
        });
        for i in 0..3000 {
            write(i.to_string().as_bytes());
        }
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        watcher.join().unwrap()
    });
    assert_eq!(missed, 0);
    assert_eq!(fs::read(out.join("config.json")).unwrap(), b"2999");
    assert_eq!(names(dir.path()), ["out"]);
}

#[test]
fn a_memo_that_makes_no_sense_is_not_believed() {
    let dir = tempfile::tempdir().unwrap();
    let gguf = tiny("llama", ggml::Q4_0).write(dir.path());
    let cache = dir.path().join("cache");
    let locator = ModelLocator {
        collections: Vec::new(),
        cache: Some(cache.clone()),
    };
    let seen = Conversions::default();
    let folder = resolve(&locator, &gguf, &seen).unwrap();
    let memo = fs::read_dir(cache.join("gguf/memo"))
        .unwrap()
        .next()
        .unwrap()
        .unwrap()
        .path();
    let text = fs::read_to_string(&memo).unwrap();
    let value: serde_json::Value = serde_json::from_str(&text).unwrap();
    let evil = text.replace(value["sha256"].as_str().unwrap(), "../../../elsewhere");
    assert_ne!(evil, text);
    for bad in [evil.as_str(), "{", ""] {
        fs::write(&memo, bad).unwrap();
        assert_eq!(resolve(&locator, &gguf, &seen).unwrap(), folder);
        assert_eq!(
            fs::read_to_string(&memo).unwrap(),
            text,
            "it is written again"
        );
    }
}

#[cfg(unix)]
#[test]
fn a_cache_that_others_can_write_is_refused() {
    use std::os::unix::fs::PermissionsExt as _;
    let dir = tempfile::tempdir().unwrap();
    let gguf = tiny("llama", ggml::Q4_0).write(dir.path());
    let cache = dir.path().join("cache");
    fs::create_dir_all(cache.join("gguf")).unwrap();
    fs::set_permissions(cache.join("gguf"), fs::Permissions::from_mode(0o777)).unwrap();
    let locator = ModelLocator {
        collections: Vec::new(),
        cache: Some(cache),
    };
    let e = resolve(&locator, &gguf, &Conversions::default()).unwrap_err();
    assert!(e.to_string().contains("other users"), "{e}");
}

#[cfg(unix)]
#[test]
fn a_cache_of_another_user_is_refused() {
    use std::os::unix::fs::PermissionsExt as _;
    let dir = tempfile::tempdir().unwrap();
    let gguf = tiny("llama", ggml::Q4_0).write(dir.path());
    let cache = dir.path().join("cache");
    let locator = ModelLocator {
        collections: Vec::new(),
        cache: Some(cache.clone()),
    };
    fs::create_dir_all(cache.join("gguf/memo")).unwrap();
    fs::set_permissions(cache.join("gguf/memo"), fs::Permissions::from_mode(0o777)).unwrap();
    let e = resolve(&locator, &gguf, &Conversions::default()).unwrap_err();
    assert!(e.to_string().contains("memo"), "{e}");
    fs::set_permissions(cache.join("gguf/memo"), fs::Permissions::from_mode(0o700)).unwrap();
    // Only root can give a folder away.
    if std::os::unix::fs::chown(cache.join("gguf"), Some(12345), None).is_ok() {
        let e = resolve(&locator, &gguf, &Conversions::default()).unwrap_err();
        assert!(e.to_string().contains("another user (12345)"), "{e}");
    }
}

#[cfg(unix)]
#[test]
fn what_is_no_file_is_not_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let pipe = dir.path().join("pipe.gguf");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status();
    assert!(made.unwrap().success());
    let endless = dir.path().join("endless.gguf");
    std::os::unix::fs::symlink("/dev/zero", &endless).unwrap();
    let locator = ModelLocator {
        collections: Vec::new(),
        cache: Some(dir.path().join("cache")),
    };
    for file in [pipe, endless] {
        let e = import(&file, &dir.path().join("out"), false).unwrap_err();
        assert!(e.to_string().contains("not a file"), "{e}");
        let e = resolve(&locator, &file, &Conversions::default()).unwrap_err();
        assert!(e.to_string().contains("not a file"), "{e}");
    }
}

#[test]
fn a_file_is_not_replaced_by_its_own_import() {
    let dir = tempfile::tempdir().unwrap();
    let model = dir.path().join("model");
    fs::create_dir(&model).unwrap();
    fs::write(model.join("config.json"), "{}").unwrap();
    let gguf = tiny("llama", ggml::Q4_0).write(&model);
    let e = import(&gguf, &model, true).unwrap_err();
    assert!(e.to_string().contains("the input, lies in"), "{e}");
    assert!(gguf.is_file());
}

#[test]
fn models_are_found_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let (first, second) = (dir.path().join("first"), dir.path().join("second"));
    for folder in [first.join("a"), second.join("a"), second.join("b")] {
        fs::create_dir_all(folder).unwrap();
    }
    let locator = ModelLocator {
        collections: vec![first.clone(), second.clone()],
        cache: None,
    };
    let find = |model: &Path| {
        let cancel = CancelToken::new();
        locator.resolve(
            model,
            &Control {
                cancel: &cancel,
                observer: &NoObserver,
            },
        )
    };
    assert_eq!(find(&first).unwrap(), first, "a folder is itself");
    assert_eq!(find(Path::new("a")).unwrap(), first.join("a"));
    assert_eq!(find(Path::new("b")).unwrap(), second.join("b"));

    let e = find(Path::new("no-such-model")).unwrap_err();
    assert_eq!(e.code, ErrorCode::NotFound);
    for place in ["no-such-model", "first", "second"] {
        assert!(e.to_string().contains(place), "{e}");
    }
    // A path is only looked for where it points.
    let e = find(Path::new("x/../a")).unwrap_err();
    assert!(!e.to_string().contains("second"), "{e}");

    let text = dir.path().join("notes.txt");
    fs::write(&text, "x").unwrap();
    assert!(find(&text).unwrap_err().to_string().contains(".gguf"));
    let gguf = tiny("llama", ggml::Q4_0).write(dir.path());
    let e = find(&gguf).unwrap_err();
    assert!(e.to_string().contains("HALFHITCH_CACHE_DIR"), "{e}");
}
