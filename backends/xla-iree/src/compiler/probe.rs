//! What no table knows of a target is tried: whether the compiler makes code for a contraction.
//!
//! A GPU's target is made of what its device tells, and there are more of those than were ever compiled
//! for: the compiler crashes over f16 on compute capability 7.5, and finds nothing wrong with it on 6.1. So
//! a number format is offered on a GPU once a contraction of it has compiled.

use halfhitch_seam::{Control, DType, ErrorCode, Precision, SeamError, SeamResult};

use super::child::CRASHED;
use super::{Compiler, Target};
use crate::emitter::Profile;

const GRAPH: &str = include_str!("probe.mlir");

/// What is tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trial {
    /// Contractions in a precision.
    Computes(Precision),
    /// Contractions in f32 of weights that are kept in a type.
    Reads(DType),
}

impl Trial {
    fn graph(self) -> String {
        let (elem, stored) = match self {
            Self::Computes(precision) => (precision.dtype().name(), precision.dtype().name()),
            Self::Reads(dtype) => ("f32", dtype.name()),
        };
        GRAPH.replace("ELEM", elem).replace("STORED", stored)
    }
}

/// Takes out of a target's precisions and types those that the compiler makes no code for. f32 stays: a
/// device that lacks it says so when it is opened. What was found out is kept in the cache. Where the
/// compiler cannot be asked, a format stays.
///
/// # Errors
/// `Cancelled`.
pub fn settle(compiler: &Compiler, target: &mut Target, control: &Control<'_>) -> SeamResult<()> {
    // Every test of every form compiles for the processor.
    if !matches!(target.profile, Profile::Gpu { .. }) {
        return Ok(());
    }
    let precisions = target.precisions.iter().copied();
    let computes = precisions.filter(|p| *p != Precision::F32);
    let resident = target.resident.iter().copied();
    let reads = resident.filter(|d| *d != DType::F32);
    let trials: Vec<Trial> = computes
        .map(Trial::Computes)
        .chain(reads.map(Trial::Reads))
        .collect();
    let graphs: Vec<String> = trials.iter().map(|trial| trial.graph()).collect();
    let notes: Vec<String> = graphs
        .iter()
        .map(|graph| format!("refused-{}", compiler.key(graph, target)))
        .collect();
    let kept = |note: &String| compiler.cache()?.read_note(note);
    let mut refused: Vec<Option<String>> = notes
        .iter()
        .map(|note| kept(note).map(|why| String::from_utf8_lossy(&why).into_owned()))
        .collect();
    let open: Vec<usize> = (0..trials.len())
        .filter(|&i| refused[i].is_none())
        .collect();
    let graphs: Vec<String> = open.iter().map(|&i| graphs[i].clone()).collect();
    let results = compiler.try_each(&graphs, target, control)?;
    for (i, result) in open.into_iter().zip(results) {
        match result {
            Ok(_) => {}
            Err(e) if is_verdict(&e) => {
                if let Some(cache) = compiler.cache() {
                    // A cache that takes no notes costs time only.
                    let _ = cache.write_note(&notes[i], e.message.as_bytes());
                }
                refused[i] = Some(e.message);
            }
            Err(e) => tracing::debug!("{}: not tried: {:?}: {e}", target.description, trials[i]),
        }
    }
    for (trial, why) in trials.into_iter().zip(refused) {
        let Some(why) = why else { continue };
        tracing::info!("{}: not offered: {trial:?}: {why}", target.description);
        match trial {
            Trial::Computes(precision) => target.precisions.retain(|p| *p != precision),
            Trial::Reads(dtype) => {
                target.resident.remove(&dtype);
            }
        }
    }
    // What is computed in has to be resident, too.
    let resident = &target.resident;
    target.precisions.retain(|p| resident.contains(&p.dtype()));
    Ok(())
}

/// What the compiler says where the machine is at fault: no room for its files or in memory.
const MACHINE: [&str; 6] = [
    "out of memory",
    "bad_alloc",
    "cannot allocate",
    "no space left",
    "io failure",
    "too many open files",
];

/// Whether a failure is about the graph: not one that was stopped, or killed, or that another try may not have.
fn is_verdict(error: &SeamError) -> bool {
    let text = error.message.to_lowercase();
    error.code == ErrorCode::Backend
        && (text.contains("error:") || text.contains(CRASHED))
        && !MACHINE.iter().any(|fault| text.contains(fault))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compiler::{CompilerOptions, Places};
    use halfhitch_seam::{CancelToken, NoObserver};
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;
    use std::time::Duration;

    /// A compiler that does with bf16 what a script says, and notes each run in `runs`.
    fn opened(folder: &Path, on_bf16: &str) -> Compiler {
        let tool = folder.join("iree-compile");
        let script = format!(
            "#!/bin/sh\n[ \"$1\" = --version ] && echo 'IREE compiler version 3.13.0' && exit\n\
             for a; do case $a in *.mlir) in=$a;; *.vmfb) out=$a;; esac; done\n\
             echo run >> {}/runs\nif grep -q xbf16 \"$in\"; then {on_bf16}; fi\ncp \"$in\" \"$out\"\n",
            folder.display()
        );
        fs::write(&tool, script).unwrap();
        fs::set_permissions(&tool, fs::Permissions::from_mode(0o755)).unwrap();
        let options = CompilerOptions {
            places: Places {
                path: vec![folder.to_owned()],
                ..Places::default()
            },
            version: "3.13.0".into(),
            cache: Some(folder.join("cache")),
            cache_limit: 1 << 20,
            time_limit: Duration::from_secs(60),
        };
        with_control(|control| Compiler::open(&options, control)).unwrap()
    }

    fn with_control<T>(f: impl FnOnce(&Control<'_>) -> T) -> T {
        f(&Control {
            cancel: &CancelToken::new(),
            observer: &NoObserver,
        })
    }

    fn settled(compiler: &Compiler, name: &str) -> Target {
        let mut target = Target::named(name).unwrap();
        with_control(|control| settle(compiler, &mut target, control)).unwrap();
        target
    }

    fn runs(folder: &Path) -> usize {
        fs::read_to_string(folder.join("runs")).map_or(0, |text| text.lines().count())
    }

    #[test]
    fn what_does_not_compile_is_not_offered_and_not_tried_again() {
        let folder = tempfile::tempdir().unwrap();
        let compiler = opened(
            folder.path(),
            "echo 'LLVM ERROR: Cannot select'; kill -ABRT $$",
        );
        for _ in 0..2 {
            let target = settled(&compiler, "cuda:sm_80");
            assert_eq!(target.precisions, [Precision::F32, Precision::F16]);
            assert_eq!(target.resident, [DType::F32, DType::F16].into());
            // f16 and bf16, computed and read.
            assert_eq!(runs(folder.path()), 4);
        }
        // Another target may have it.
        settled(&compiler, "cuda:sm_89");
        assert_eq!(runs(folder.path()), 8);
    }

    #[test]
    fn a_machine_without_room_says_nothing_of_a_format() {
        for script in [
            "kill -KILL $$",
            "echo 'LLVM ERROR: out of memory'; kill -ABRT $$",
            "echo 'LLVM ERROR: IO failure on output stream: No space left on device'; exit 1",
        ] {
            let folder = tempfile::tempdir().unwrap();
            let compiler = opened(folder.path(), script);
            let named = Target::named("cuda:sm_80").unwrap();
            assert_eq!(settled(&compiler, "cuda:sm_80"), named, "{script}");
            assert_eq!(runs(folder.path()), 4);
            settled(&compiler, "cuda:sm_80");
            assert_eq!(runs(folder.path()), 6, "it is tried again: {script}");
        }
    }

    #[test]
    fn a_crash_without_a_word_is_an_answer() {
        let folder = tempfile::tempdir().unwrap();
        let compiler = opened(folder.path(), "kill -SEGV $$");
        let target = settled(&compiler, "cuda:sm_80");
        assert_eq!(target.precisions, [Precision::F32, Precision::F16]);
    }

    #[test]
    fn what_cannot_be_resident_is_not_computed_in() {
        let folder = tempfile::tempdir().unwrap();
        let reads = "grep -q 64xf32 \"$in\" && { echo error: no such load; exit 1; }";
        let target = settled(&opened(folder.path(), reads), "cuda:sm_80");
        assert_eq!(target.resident, [DType::F32, DType::F16].into());
        assert_eq!(target.precisions, [Precision::F32, Precision::F16]);
    }

    #[test]
    fn trials_are_cancelled_like_any_work() {
        let folder = tempfile::tempdir().unwrap();
        let compiler = opened(folder.path(), "sleep 600");
        let cancel = CancelToken::new();
        let control = Control {
            cancel: &cancel,
            observer: &NoObserver,
        };
        let mut target = Target::named("cuda:sm_80").unwrap();
        let result = std::thread::scope(|scope| {
            scope.spawn(|| {
                while runs(folder.path()) < 2 {
                    std::thread::yield_now();
                }
                cancel.cancel();
            });
            settle(&compiler, &mut target, &control)
        });
        assert_eq!(result.unwrap_err().code, ErrorCode::Cancelled);
    }

    #[test]
    fn the_processor_is_not_tried() {
        let folder = tempfile::tempdir().unwrap();
        let compiler = opened(folder.path(), "exit 1");
        assert_eq!(settled(&compiler, "llvm-cpu"), Target::host_cpu());
        assert_eq!(runs(folder.path()), 0);
    }
}
