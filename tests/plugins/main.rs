//! Plugins in real libraries: what works, and every way in which one can be broken.

#![allow(clippy::print_stdout)] // children report on stdout

mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use halfhitch::plugins::search::SearchPath;
use halfhitch::plugins::{Plugin, discover, manifest};
use halfhitch_seam::{ErrorCode, SeamError};
use support::{Folder, run_in_child, survey};

fn refusal(plugin: &Plugin) -> SeamError {
    match plugin.refusal() {
        Some(e) => e.clone(),
        None => plugin.backend().map(|_| ()).unwrap_err(),
    }
}

/// A way to break a folder that holds the working faulty plugin.
type Break = fn(&Folder);

/// What is broken, how, the code of the error and what it says.
const BROKEN: &[(&str, Break, ErrorCode, &str)] = &[
    (
        "garbage manifest",
        |f| f.write("faulty.plugin.json", b"\x00\xff not json"),
        ErrorCode::InvalidInput,
        "not a plugin manifest",
    ),
    (
        "manifest of another shape",
        |f| f.write("faulty.plugin.json", b"{\"name\": 3}"),
        ErrorCode::InvalidInput,
        "not a plugin manifest",
    ),
    (
        "huge manifest",
        |f| f.write("faulty.plugin.json", &vec![b' '; 1 << 20]),
        ErrorCode::InvalidInput,
        "over 65536 bytes",
    ),
    (
        "library elsewhere",
        |f| f.edit(|m| m.library = "../libfaulty.so".into()),
        ErrorCode::InvalidInput,
        "not a plain file name",
    ),
    (
        "a name that is none",
        |f| f.edit(|m| m.name = "a:b:c\n".into()),
        ErrorCode::InvalidInput,
        "not a backend's name",
    ),
    (
        "no library",
        |f| fs::remove_file(f.library()).unwrap(),
        ErrorCode::NotFound,
        "library is not there",
    ),
    (
        "altered library",
        |f| f.append_to_library(b"x"),
        ErrorCode::Incompatible,
        "SHA-256 differs",
    ),
    (
        "another target",
        |f| f.edit(|m| m.target = "riscv64-unknown-linux".into()),
        ErrorCode::Incompatible,
        "built for riscv64",
    ),
    (
        "another ABI in the manifest",
        |f| f.edit(|m| m.abi = (9, 0)),
        ErrorCode::Incompatible,
        "plugin ABI 9.0, this host has 1.1",
    ),
    (
        "world-writable library",
        |f| f.mode("libfaulty.so", 0o777),
        ErrorCode::Incompatible,
        "others can write the file (mode 777)",
    ),
    (
        "group-writable manifest",
        |f| f.mode("faulty.plugin.json", 0o664),
        ErrorCode::Incompatible,
        "others can write the file (mode 664)",
    ),
    (
        "world-writable folder",
        |f| f.mode(".", 0o777),
        ErrorCode::Incompatible,
        "others can write the folder",
    ),
    (
        "a link for a library",
        |f| {
            let real = f.path().join("elsewhere.so");
            fs::rename(f.library(), &real).unwrap();
            std::os::unix::fs::symlink(real, f.library()).unwrap();
        },
        ErrorCode::Incompatible,
        "not a regular file",
    ),
    (
        "not a library",
        |f| f.replace_library(b"#!/bin/sh\necho gotcha\n"),
        ErrorCode::Incompatible,
        "cannot be loaded",
    ),
    (
        "no header symbol",
        |f| f.replace_library_with_c("int halfhitch_something_else = 1;"),
        ErrorCode::Incompatible,
        "no symbol `halfhitch_plugin_header`",
    ),
    (
        "a header that is none",
        |f| f.replace_library_with_c("char halfhitch_plugin_header[88] = \"GARBAGE\";"),
        ErrorCode::Incompatible,
        "not a Halfhitch plugin's",
    ),
    (
        "another ABI in the library",
        |f| f.replace_library_with_c(&support::header_in_c(7, support::TARGET, 0)),
        ErrorCode::Incompatible,
        "plugin ABI 7.0, this host has 1.1",
    ),
    (
        "another target in the library",
        |f| f.replace_library_with_c(&support::header_in_c(1, "m68k-unknown-none", 0)),
        ErrorCode::Incompatible,
        "built for m68k",
    ),
    (
        "a library that aborts on panic",
        |f| f.replace_library_with_c(&support::header_in_c(1, support::TARGET, 1)),
        ErrorCode::Incompatible,
        "panic=abort",
    ),
    (
        "no root module",
        |f| f.replace_library_with_c(&support::header_in_c(1, support::TARGET, 0)),
        ErrorCode::Incompatible,
        "another layout",
    ),
    (
        "a root module of another layout",
        |f| f.replace_library(&fs::read(support::built("halfhitch-other-layout-plugin")).unwrap()),
        ErrorCode::Incompatible,
        "another layout",
    ),
    (
        "another backend than its manifest says",
        |f| f.edit(|m| m.name = "innocent".into()),
        ErrorCode::Incompatible,
        "calls itself `faulty`, its manifest `innocent`",
    ),
];

#[test]
fn each_broken_plugin_is_refused_with_its_reason() {
    for (what, break_it, code, says) in BROKEN {
        let folder = Folder::faulty();
        break_it(&folder);
        let plugins = discover(&folder.search_path());
        assert_eq!(plugins.len(), 1, "{what}");
        let e = refusal(&plugins[0]);
        assert_eq!(e.code, *code, "{what}: {e}");
        let text = e.to_string();
        assert!(text.contains(says), "{what}: {text}");
        assert!(!text.contains('\n'), "{what}: more than one line: {text}");
    }
}

#[test]
fn the_working_ones_work_beside_broken_ones() {
    let mut folders = vec![Folder::faulty()];
    for (_, break_it, _, _) in BROKEN {
        let folder = Folder::faulty();
        break_it(&folder);
        folders.push(folder);
    }
    folders.push(Folder::reference());
    let named: Vec<_> = folders.iter().map(|f| f.path().to_path_buf()).collect();
    let plugins: Vec<_> = discover(&SearchPath::new(&named))
        .into_iter()
        .filter(|p| named.iter().any(|n| p.manifest_path().starts_with(n)))
        .map(Arc::new)
        .collect();
    let usable: Vec<_> = plugins
        .iter()
        .filter(|p| survey(p, Duration::from_secs(60)).is_ok())
        .map(|p| p.name())
        .collect();
    assert_eq!(usable, ["faulty", "reference-cpu-plugin"]);
}

#[test]
fn of_two_with_one_name_the_first_counts() {
    let (a, b) = (Folder::faulty(), Folder::faulty());
    let plugins = discover(&SearchPath::new(&[a.path().into(), b.path().into()]));
    assert!(plugins[0].refusal().is_none());
    assert!(refusal(&plugins[1]).message.contains("hidden by"));
}

#[test]
fn a_plugin_gives_the_same_bits_as_the_backend_inside_it() {
    let folder = Folder::reference();
    let plugin = discover(&folder.search_path()).remove(0);
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/tiny/llama");
    let through = support::logits(&*plugin.backend().unwrap(), &model).unwrap();
    let direct = support::logits(&halfhitch_reference_cpu::backend(), &model).unwrap();
    assert_eq!(through, direct);
    let through = support::taps(&*plugin.backend().unwrap(), &model).unwrap();
    let direct = support::taps(&halfhitch_reference_cpu::backend(), &model).unwrap();
    assert!(!direct.is_empty());
    assert_eq!(through, direct);
}

/// The compiler and the runtime are the real ones; what is compiled goes to a cache of the test's.
#[test]
fn the_iree_plugin_works_beside_the_others_in_one_process() {
    let folders = [Folder::local_task(), Folder::reference(), Folder::faulty()];
    let named: Vec<_> = folders.iter().map(|f| f.path().to_path_buf()).collect();
    let plugins = discover(&SearchPath::new(&named));
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/tiny/llama");
    let all: Vec<Vec<f32>> = std::thread::scope(|scope| {
        let running: Vec<_> = plugins[..3]
            .iter()
            .map(|p| scope.spawn(|| support::logits(&*p.backend().unwrap(), &model).unwrap()))
            .collect();
        running.into_iter().map(|r| r.join().unwrap()).collect()
    });
    let reference = &all[1];
    let largest = reference.iter().fold(0f32, |m, v| m.max(v.abs()));
    for (logits, plugin) in all.iter().zip(&plugins) {
        let worst = logits
            .iter()
            .zip(reference)
            .fold(0f32, |m, (a, b)| m.max((a - b).abs()));
        assert!(worst <= 1e-4 * largest, "{}: {worst}", plugin.name());
    }
}

#[test]
fn a_quantised_model_crosses_without_a_change() {
    let folder = Folder::reference();
    let plugin = discover(&folder.search_path()).remove(0);
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/mlx");
    for entry in fs::read_dir(model).unwrap().map(|e| e.unwrap().path()) {
        if entry.join("config.json").exists() {
            let through = support::logits(&*plugin.backend().unwrap(), &entry).unwrap();
            let direct = support::logits(&halfhitch_reference_cpu::backend(), &entry).unwrap();
            assert_eq!(through, direct, "{}", entry.display());
        }
    }
}

/// Faults and how the host sees them. Each runs in a process of its own, since the fault is chosen by
/// the environment.
const FAULTS: &[(&str, &str)] = &[
    (
        "create-panic",
        "Backend: the plugin panicked: told to panic in create",
    ),
    ("create-error", "Backend: told to fail in create"),
    ("identity-panic", "Incompatible: it calls itself `unknown`"),
    (
        "identity-error",
        "Incompatible: it calls itself `somebody-else`",
    ),
    (
        "devices-panic",
        "Backend: the plugin panicked: told to panic in devices",
    ),
    ("devices-error", "Backend: told to fail in devices"),
    ("devices-hang", "Backend: no answer within 2 s"),
    ("create-hang", "Backend: no answer within 2 s"),
    (
        "capabilities-panic",
        "Backend: the plugin panicked: told to panic in capabilities",
    ),
    (
        "open-panic",
        "Backend: the plugin panicked: told to panic in open",
    ),
    ("open-error", "Backend: told to fail in open"),
    (
        "prefill-panic",
        "Backend: the plugin panicked: told to panic in prefill",
    ),
    (
        "decode-panic",
        "Backend: the plugin panicked: told to panic in decode",
    ),
    ("decode-error", "Backend: told to fail in decode"),
    (
        "truncate-panic",
        "Backend: the plugin panicked: told to panic in truncate",
    ),
    ("drop-panic", "ok"),
    ("none", "ok"),
];

#[test]
fn each_fault_is_an_error_and_the_host_lives() {
    for (fault, says) in FAULTS {
        let out = run_in_child("child_with_a_fault", fault);
        let line = out
            .lines()
            .find(|l| l.starts_with("RESULT "))
            .unwrap_or(&out);
        let (code, message) = says.split_once(": ").unwrap_or((says, ""));
        assert!(
            line.starts_with(&format!("RESULT {code}")) && line.contains(message),
            "{fault}: {line}\n{out}"
        );
        assert!(out.contains("SURVIVED"), "{fault}: {out}");
    }
}

/// Not a test by itself: what `each_fault_is_an_error_and_the_host_lives` runs in a child.
#[test]
fn child_with_a_fault() {
    if !support::is_child() {
        return;
    }
    let folder = Folder::faulty();
    let plugin = Arc::new(discover(&folder.search_path()).remove(0));
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/tiny/llama");
    let result = survey(&plugin, Duration::from_secs(2))
        .and_then(|_| support::exercise(&*plugin.backend()?, &model));
    match result {
        Ok(()) => println!("RESULT ok"),
        Err(e) => println!("RESULT {:?}: {e}", e.code),
    }
    println!("SURVIVED");
    // A thread may hang in the plugin.
    std::process::exit(0);
}

#[test]
fn a_session_that_panicked_is_poisoned() {
    let out = run_in_child("child_after_a_panic", "decode-panic");
    assert!(out.contains("RESULT Poisoned"), "{out}");
}

/// Not a test by itself: what `a_session_that_panicked_is_poisoned` runs in a child.
#[test]
fn child_after_a_panic() {
    if !support::is_child() {
        return;
    }
    let folder = Folder::faulty();
    let plugin = discover(&folder.search_path()).remove(0);
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/tiny/llama");
    let code = support::after_a_failed_decode(&*plugin.backend().unwrap(), &model);
    println!("RESULT {code:?}");
}

#[test]
fn a_plugins_log_reaches_the_host() {
    let out = run_in_child("child_with_a_log", "none");
    assert!(out.contains("the faulty plugin was made weight=7"), "{out}");
    assert!(out.contains("WARN"), "{out}");
    assert!(out.contains("halfhitch_faulty_plugin"), "{out}");
}

/// Not a test by itself: what `a_plugins_log_reaches_the_host` runs in a child.
#[test]
fn child_with_a_log() {
    if !support::is_child() {
        return;
    }
    tracing_subscriber::fmt()
        .with_ansi(false)
        .with_writer(std::io::stdout)
        .init();
    let folder = Folder::faulty();
    discover(&folder.search_path()).remove(0).backend().unwrap();
}

#[test]
fn a_manifest_describes_its_library() {
    let folder = Folder::reference();
    let read = manifest::Manifest::read(&folder.manifest()).unwrap();
    assert_eq!(read.sha256, manifest::sha256(&folder.library()).unwrap());
    assert_eq!(read.target, support::TARGET);
    let mode = fs::metadata(folder.manifest())
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o022, 0);
    manifest::check_format(&folder.library()).unwrap();
    for text in ["", "#!/bin/sh\n", "\u{7f}EL"] {
        let text_file = folder.path().join("libtext.so");
        fs::write(&text_file, text).unwrap();
        assert!(manifest::check_format(&text_file).is_err(), "{text:?}");
    }
}
