//! What a run prints and leaves, and which cases it takes.

use std::fs;
use std::process::Stdio;

use super::support::{Bench, fixture, json, stderr, stdout};

const WRONG: &str = "wrong:truncate-does-nothing";
const CASE: &str = "contract/plain/truncate-to-zero-equals-fresh";

#[test]
fn a_failure_is_told_with_its_case_details_and_command() {
    let bench = Bench::new();
    let (page, xml) = (bench.path("r.html"), bench.path("r.xml"));
    let args = ["--only", "truncate", "--html", "r.html", "--junit", "r.xml"];
    let out = bench.conformance(WRONG, &args);
    let text = stdout(&out);
    assert_eq!(out.status.code(), Some(1), "{text}");
    for part in [
        "backend     faulty 0.1.0",
        &format!("FAIL   {CASE}\n       after a cut to 0: logits are off by "),
        &format!("--only {CASE}"),
        "contract/plain",
    ] {
        assert!(text.contains(part), "{part}:\n{text}");
    }
    let page = fs::read_to_string(page).unwrap();
    assert!(page.contains(&format!("<h3>{CASE}</h3>")) && page.contains("vocab_size"));
    let xml = fs::read_to_string(xml).unwrap();
    assert!(
        xml.contains("<failure message=\"after a cut to 0: "),
        "{xml}"
    );
    // What is told to be run, fails again, alone.
    let again = bench.conformance(WRONG, &["--json", "--only", CASE]);
    assert_eq!(json(&again)["cases"].as_array().unwrap().len(), 1);
    assert_eq!(again.status.code(), Some(1));
}

#[test]
fn known_failures_pass_and_stale_ones_fail() {
    let bench = Bench::new();
    let list = bench.path("known");
    fs::write(&list, format!("# of ours\n{CASE}  # bug 12\n")).unwrap();
    let listed = ["--expect-failures", "known", "--only", CASE];
    let out = bench.conformance(WRONG, &listed);
    assert_eq!(out.status.code(), Some(0), "{}", stdout(&out));
    assert!(stdout(&out).contains("PASS  0 cases pass, 0 unsupported, 1 expected failures"));

    let out = bench.conformance("", &listed);
    assert_eq!(out.status.code(), Some(1), "{}", stdout(&out));
    let text = stdout(&out);
    assert!(
        text.contains("is listed as an expected failure: bug 12"),
        "{text}"
    );

    // A pattern that holds for some is stale for the others; one for other cases is not looked at.
    let args = ["--expect-failure", "shapes/*", "--only", CASE, "--json"];
    let out = bench.conformance("", &args);
    assert_eq!(out.status.code(), Some(0), "{}", stdout(&out));
    // One that no case has is, whatever else is chosen.
    let args = ["--expect-failure", "shapes/gone", "--only", CASE];
    let out = bench.conformance("", &args);
    assert_eq!(out.status.code(), Some(1), "{}", stdout(&out));
    assert!(stdout(&out).contains("shapes/gone"), "{}", stdout(&out));
    fs::write(&list, "two names # reason\n").unwrap();
    let out = bench.conformance("", &listed);
    assert_eq!(out.status.code(), Some(1));
    assert!(
        stderr(&out).contains("--expect-failures known: line 1: "),
        "{}",
        stderr(&out)
    );
}

#[test]
fn cases_are_listed_and_chosen() {
    let bench = Bench::new();
    let lines = |args: &[&str]| -> Vec<String> {
        let out = bench.conformance("", args);
        assert_eq!(out.status.code(), Some(0), "{}", stderr(&out));
        stdout(&out).lines().map(str::to_owned).collect()
    };
    let (quick, full) = (lines(&["--list"]), lines(&["--list", "--full"]));
    assert!(quick.len() > 100 && full.len() > 10 * quick.len());
    assert!(quick.iter().all(|name| full.contains(name)));
    let chosen = lines(&["--list", "--only", "shapes/*/f16/*"]);
    assert!(chosen.len() > 10 && chosen.iter().all(|n| n.contains("/f16/")));
    // A whole name is that case, and not those that begin so.
    let one = lines(&["--list", "--only", "shapes/odd-context/f32/prompt-of-3"]);
    assert_eq!(one.len(), 2, "{one:?}");
    let one = "shapes/one-head-odd-widths/f32/prompt-of-1";
    assert_eq!(lines(&["--list", "--only", one]), [one]);
    let out = bench.conformance("", &["--only", "no such case"]);
    assert_eq!(out.status.code(), Some(1));
    assert!(stderr(&out).contains("no case is called no such case"));
    for wrong in [
        &["--device", "0", "-b", "x"][..],
        &["--random", "0"],
        &["--seed", "1"],
        &["--random", "1", "--only", "x"],
        &["--time-limit", "0"],
    ] {
        assert_eq!(
            bench.conformance("", wrong).status.code(),
            Some(2),
            "{wrong:?}"
        );
    }
}

#[test]
fn checkpoints_bring_cases_with_others_logits() {
    let bench = Bench::new();
    let tiny = fixture("tiny");
    let args = ["--json", "--checkpoints", &tiny, "--only", "checkpoints/"];
    let out = bench.conformance("", &args);
    let report = json(&out);
    assert_eq!(out.status.code(), Some(0), "{report}");
    assert!(report["counts"]["pass"].as_u64().unwrap() >= 15 * 5);
    let out = bench.conformance("wrong:wrong-eps", &args);
    assert_eq!(out.status.code(), Some(1));
    let nowhere = bench.conformance("", &["--checkpoints", "."]);
    assert_eq!(nowhere.status.code(), Some(1));
    assert!(
        stderr(&nowhere).contains("expected.json"),
        "{}",
        stderr(&nowhere)
    );
}

#[test]
fn what_cannot_be_loaded_or_written_is_said_on_one_line() {
    let bench = Bench::new();
    fs::write(bench.path("text.so"), "no library").unwrap();
    // What the loader would map past the end of, and die.
    let whole = fs::read(bench.library()).unwrap();
    fs::write(bench.path("cut.so"), &whole[..5000]).unwrap();
    let library = bench.library();
    let library = library.to_str().unwrap();
    for (args, says) in [
        (&["--plugin", "gone.so"][..], "--plugin gone.so: "),
        (&["--plugin", "text.so"], "cannot be loaded"),
        (&["-b", "nothing"], "there is no backend `nothing`"),
        (
            &["--html", "nowhere/x.html"],
            "--html: nowhere/x.html: cannot write a file in that folder: entity not found (",
        ),
        (&["--junit", "."], "--junit: .: this is a folder"),
        (&["--plugin", "cut.so"], "the library was cut short"),
        (
            &["--html", "same", "--junit", "./same"],
            "--junit and --html are both ./same",
        ),
        (
            &["--plugin", library, "--html", library],
            "--plugin and --html are both ",
        ),
        (&["--expect-failures", "gone"], "--expect-failures gone: "),
    ] {
        let mut command = bench.halfhitch();
        let out = command
            .args(["conformance", "-q"])
            .args(args)
            .output()
            .unwrap();
        let err = stderr(&out);
        assert_eq!(out.status.code(), Some(1), "{args:?}: {err}");
        assert!(
            err.contains(says) && err.lines().count() == 1,
            "{args:?}: {err}"
        );
    }
}

#[test]
fn an_interrupt_prints_what_was_run() {
    let bench = Bench::new();
    let mut command = bench.halfhitch();
    command.env("HALFHITCH_FAULT", "prefill-hang");
    command
        .args(["conformance", "--json", "-v", "--plugin"])
        .arg(bench.library());
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // The first case hangs; its name is logged when it starts.
    let mut log = String::new();
    let mut stderr = std::io::BufReader::new(child.stderr.take().unwrap());
    while !log.contains("contract/plain/length-follows-calls") {
        log.clear();
        let read = std::io::BufRead::read_line(&mut stderr, &mut log).unwrap();
        assert_ne!(read, 0, "it ended by itself");
    }
    let interrupt = std::process::Command::new("kill")
        .args(["-INT", &child.id().to_string()])
        .status()
        .unwrap();
    assert!(interrupt.success());
    let out = child.wait_with_output().unwrap();
    // Kept until now, so that what is logged has a reader.
    drop(stderr);
    assert_eq!(out.status.code(), Some(130));
    let report = json(&out);
    assert_eq!(report["outcome"], "interrupted");
    assert_eq!(report["cases"].as_array().unwrap().len(), 0);
}
