//! What no table knows of a target is tried: whether the compiler makes code for a contraction.
//!
//! A GPU's target is made of what its device tells, and there are more of those than were ever compiled
//! for: the compiler crashes over f16 on compute capability 7.5, and finds nothing wrong with it on 6.1. So
//! a number format is offered on a GPU once a contraction of it has compiled.

use halfhitch_seam::{Control, DType, ErrorCode, Precision, SeamError, SeamResult};

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
    let of: &Target = target;
    let results: Vec<SeamResult<bool>> = std::thread::scope(|scope| {
        let running: Vec<_> = trials
            .iter()
            .map(|trial| scope.spawn(move || compiles(compiler, *trial, of, control)))
            .collect();
        let joined = running.into_iter().map(std::thread::ScopedJoinHandle::join);
        joined
            .map(|result| result.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    });
    for (trial, result) in trials.into_iter().zip(results) {
        match (trial, result?) {
            (_, true) => {}
            (Trial::Computes(precision), false) => target.precisions.retain(|p| *p != precision),
            (Trial::Reads(dtype), false) => {
                target.resident.remove(&dtype);
            }
        }
    }
    Ok(())
}

/// Whether a trial compiles, as far as that can be found out.
fn compiles(
    compiler: &Compiler,
    trial: Trial,
    target: &Target,
    control: &Control<'_>,
) -> SeamResult<bool> {
    let graph = trial.graph();
    let note = format!("refused-{}", compiler.key(&graph, target));
    let kept = compiler.cache().and_then(|cache| cache.read_note(&note));
    let refused = |why: &str| {
        tracing::info!("{}: not offered: {trial:?}: {why}", target.description);
        Ok(false)
    };
    if let Some(why) = kept {
        return refused(&String::from_utf8_lossy(&why));
    }
    match compiler.compile(&[graph], target, control) {
        Ok(_) => Ok(true),
        Err(e) if e.code == ErrorCode::Cancelled => Err(e),
        Err(e) if is_verdict(&e) => {
            if let Some(cache) = compiler.cache() {
                // A cache that takes no notes costs time only.
                let _ = cache.write_note(&note, e.message.as_bytes());
            }
            refused(&e.message)
        }
        Err(e) => {
            tracing::debug!("{}: not tried: {trial:?}: {e}", target.description);
            Ok(true)
        }
    }
}

/// Whether a failure is about the graph: not one that was stopped, or killed for memory, or that another
/// try may not have.
fn is_verdict(error: &SeamError) -> bool {
    error.code == ErrorCode::Backend && error.message.to_lowercase().contains("error:")
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
    fn a_compiler_that_was_killed_says_nothing_of_a_format() {
        let folder = tempfile::tempdir().unwrap();
        let compiler = opened(folder.path(), "kill -KILL $$");
        let named = Target::named("cuda:sm_80").unwrap();
        assert_eq!(settled(&compiler, "cuda:sm_80"), named);
        assert_eq!(runs(folder.path()), 4);
        settled(&compiler, "cuda:sm_80");
        assert_eq!(runs(folder.path()), 6, "what did not end is tried again");
    }

    #[test]
    fn the_processor_is_not_tried() {
        let folder = tempfile::tempdir().unwrap();
        let compiler = opened(folder.path(), "exit 1");
        assert_eq!(settled(&compiler, "llvm-cpu"), Target::host_cpu());
        assert_eq!(runs(folder.path()), 0);
    }
}
