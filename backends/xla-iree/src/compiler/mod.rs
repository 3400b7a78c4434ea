//! From graph text to a module that the runtime loads: the compiler as a child process, behind a
//! cache.

pub mod cache;
mod child;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
pub mod probe;
mod report;
pub mod stats;
pub mod target;
pub mod tool;
mod work;

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use halfhitch_seam::{
    CancelToken, Control, ErrorCode, Event, SeamError, SeamResult, Stage, environment,
};
use parking_lot::Mutex;

pub use cache::{Cache, Entry};
pub use target::Target;
pub use tool::{Places, Tool};
use work::WorkFolder;

/// How often a waiting caller hears that work goes on.
const HEARTBEAT: Duration = Duration::from_millis(500);

/// Longest time limit of a module, in seconds: a day.
const LONGEST: u64 = 86_400;

/// Most compilers at once: each takes a core and some hundred megabytes.
const AT_ONCE: usize = 4;

/// How modules are compiled and kept.
#[derive(Clone, Debug)]
pub struct CompilerOptions {
    /// Where the compiler is looked for.
    pub places: Places,
    /// The version it must have: the runtime's.
    pub version: String,
    /// Folder of the cache; none is used where this is `None`.
    pub cache: Option<PathBuf>,
    /// Most bytes of the cache.
    pub cache_limit: u64,
    /// Longest time for one module.
    pub time_limit: Duration,
}

impl CompilerOptions {
    /// The default cache of at most 4 GiB, and 15 minutes a module, or what
    /// `HALFHITCH_COMPILE_TIMEOUT` says in seconds.
    ///
    /// # Errors
    /// `InvalidInput` where that is no number of seconds.
    pub fn from_environment(version: &str) -> SeamResult<Self> {
        let seconds = environment::number("HALFHITCH_COMPILE_TIMEOUT", 1..=LONGEST)?;
        Ok(Self {
            places: Places::from_environment(),
            version: version.to_owned(),
            cache: Cache::default_root(),
            cache_limit: 4 << 30,
            time_limit: Duration::from_secs(seconds.unwrap_or(900)),
        })
    }
}

/// A compiler that was found, with its cache.
///
/// Where none is there, what one has compiled before is: a cache remembers the compiler that filled it, and
/// gives out its code. Only what is not in the cache is an error then.
pub struct Compiler {
    tool: Tool,
    /// Why there is no compiler.
    absent: Option<SeamError>,
    cache: Option<Cache>,
    time_limit: Duration,
}

impl Compiler {
    /// Finds the compiler and opens the cache. A cache that cannot be made or written is done
    /// without, with a note; one that others can write is refused.
    ///
    /// # Errors
    /// `NotFound` or `Incompatible` for the compiler, where no cache remembers one; `InvalidInput` for a cache that cannot be trusted.
    pub fn open(options: &CompilerOptions, control: &Control<'_>) -> SeamResult<Self> {
        let found = options.places.find();
        let cache = match &options.cache {
            None => None,
            Some(root) => match Cache::open(root, options.cache_limit) {
                Ok(cache) => Some(cache),
                Err(e) if e.code == ErrorCode::InvalidInput => return Err(e),
                Err(e) => {
                    note(control, &format!("compiled code is not kept: {e}"));
                    None
                }
            },
        };
        let (tool, absent) = match found {
            Ok(path) => {
                let tool = tool::identify(&path, &options.version, cache.as_ref())?;
                (tool, None)
            }
            Err(e) => {
                // One that was named outright has to be there.
                let remembered = cache.as_ref().filter(|_| options.places.named.is_none());
                match remembered.and_then(|cache| tool::remembered(cache, &options.version)) {
                    Some(tool) => (tool, Some(e)),
                    None => return Err(e),
                }
            }
        };
        Ok(Self {
            tool,
            absent,
            cache,
            time_limit: options.time_limit,
        })
    }

    /// The compiler's identity.
    pub const fn tool(&self) -> &Tool {
        &self.tool
    }

    /// Where modules are kept.
    pub const fn cache(&self) -> Option<&Cache> {
        self.cache.as_ref()
    }

    /// Modules of several graphs, in their order, several at once. Progress counts modules and beats
    /// while it waits.
    ///
    /// # Errors
    /// `Cancelled`; `Backend` with the first diagnostic; `Io`. After the first error the rest is
    /// stopped.
    pub fn compile(
        &self,
        graphs: &[String],
        target: &Target,
        control: &Control<'_>,
    ) -> SeamResult<Vec<Vec<u8>>> {
        let results = self.each(graphs, target, control, true)?;
        let mut modules = Vec::with_capacity(graphs.len());
        let mut first_error = None;
        for result in results {
            match result {
                Some(Ok(module)) => modules.push(module),
                // Those that were stopped because another failed say less than that one.
                Some(Err(e)) if e.code != ErrorCode::Cancelled || first_error.is_none() => {
                    first_error = Some(e);
                }
                _ => {}
            }
        }
        match first_error {
            Some(e) => Err(e),
            None => Ok(modules),
        }
    }

    /// What comes of each of several graphs, in their order. Progress as for [`Self::compile`]. Logs of
    /// failures are kept in the cache alone.
    ///
    /// # Errors
    /// `Cancelled`.
    pub fn try_each(
        &self,
        graphs: &[String],
        target: &Target,
        control: &Control<'_>,
    ) -> SeamResult<Vec<SeamResult<Vec<u8>>>> {
        let results = self.each(graphs, target, control, false)?;
        // None is left out where nothing stops at the first error.
        Ok(results.into_iter().flatten().collect())
    }

    /// Several graphs at once; with `all`, nothing is begun after the first error, and its log is kept
    /// where there is no cache, too.
    fn each(
        &self,
        graphs: &[String],
        target: &Target,
        control: &Control<'_>,
        all: bool,
    ) -> SeamResult<Vec<Option<SeamResult<Vec<u8>>>>> {
        control.cancel.check()?;
        let total = graphs.len() as u64;
        control.progress(Stage::Compile, 0, total);
        let results: Vec<Mutex<Option<SeamResult<Vec<u8>>>>> =
            graphs.iter().map(|_| Mutex::new(None)).collect();
        let (next, done) = (AtomicUsize::new(0), Mutex::new(0u64));
        let failed = CancelToken::new();
        let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
        let work = || {
            loop {
                let i = next.fetch_add(1, Ordering::Relaxed);
                let Some(graph) = graphs.get(i) else { return };
                let mut beat = Instant::now();
                let mut tick = || {
                    control.cancel.check()?;
                    failed.check()?;
                    if beat.elapsed() > HEARTBEAT {
                        beat = Instant::now();
                        let done = done.lock();
                        control.progress(Stage::Compile, *done, total);
                    }
                    Ok(())
                };
                let result = tick().and_then(|()| self.one(graph, target, control, all, &mut tick));
                if result.is_err() && all {
                    failed.cancel();
                } else {
                    let mut done = done.lock();
                    *done += 1;
                    control.progress(Stage::Compile, *done, total);
                }
                *results[i].lock() = Some(result);
            }
        };
        std::thread::scope(|scope| {
            for _ in 1..graphs.len().min(cores).min(AT_ONCE) {
                scope.spawn(work);
            }
            work();
        });
        control.cancel.check()?;
        Ok(results.into_iter().map(Mutex::into_inner).collect())
    }

    /// What a graph's code depends on, as one hash.
    fn key(&self, graph: &str, target: &Target) -> String {
        cache::key(&[
            graph.as_bytes(),
            target.flags.join("\n").as_bytes(),
            target.machine.as_bytes(),
            self.tool.content.as_bytes(),
            self.tool.version.as_bytes(),
        ])
    }

    fn one(
        &self,
        graph: &str,
        target: &Target,
        control: &Control<'_>,
        keep_log: bool,
        tick: &mut dyn FnMut() -> SeamResult<()>,
    ) -> SeamResult<Vec<u8>> {
        let key = self.key(graph, target);
        let Some(cache) = &self.cache else {
            return self.run(graph, target, &key, keep_log, tick);
        };
        if let Some(module) = cache.get(&key) {
            return Ok(module);
        }
        let _lock = cache.lock(&key, tick)?;
        if let Some(module) = cache.get(&key) {
            return Ok(module);
        }
        let module = self.run(graph, target, &key, keep_log, tick)?;
        if let Err(e) = cache.put(&key, &module) {
            note(control, &format!("compiled code is not kept: {e}"));
        }
        Ok(module)
    }

    /// What the compiler makes of a graph on the way to code: its `flow` and `stream` phases.
    ///
    /// # Errors
    /// As [`Self::compile`].
    pub fn phases(
        &self,
        graph: &str,
        target: &Target,
        control: &Control<'_>,
    ) -> SeamResult<stats::Phases> {
        control.progress(Stage::Compile, 0, 1);
        let mut beat = Instant::now();
        let mut tick = || {
            control.cancel.check()?;
            if beat.elapsed() > HEARTBEAT {
                beat = Instant::now();
                control.progress(Stage::Compile, 0, 1);
            }
            Ok(())
        };
        let folder = WorkFolder::new()?;
        let dumps = folder.path().join("phases");
        let mut target = target.clone();
        target.flags.extend([
            "--compile-to=stream".to_owned(),
            "--mlir-print-debuginfo".to_owned(),
            format!("--dump-compilation-phases-to={}", dumps.display()),
        ]);
        let key = cache::key(&[graph.as_bytes()]);
        let stream = self.run(graph, &target, &key, true, &mut tick)?;
        let flow = fs::read_dir(&dumps)
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.path())
            .find(|path| path.to_string_lossy().ends_with(".flow.mlir"))
            .ok_or_else(|| {
                SeamError::new(
                    ErrorCode::Backend,
                    "the compiler wrote no `flow` phase, which the counts are read from",
                )
            })?;
        control.progress(Stage::Compile, 1, 1);
        Ok(stats::Phases {
            flow: String::from_utf8_lossy(&child::read(&flow)?).into_owned(),
            stream: String::from_utf8_lossy(&stream).into_owned(),
        })
    }

    fn run(
        &self,
        graph: &str,
        target: &Target,
        key: &str,
        keep_log: bool,
        tick: &mut dyn FnMut() -> SeamResult<()>,
    ) -> SeamResult<Vec<u8>> {
        if let Some(absent) = &self.absent {
            return Err(SeamError::new(
                absent.code,
                format!(
                    "the code is not in the cache, and cannot be made: {}",
                    absent.message
                ),
            )
            .hint(tool::FIX));
        }
        let folder = WorkFolder::new()?;
        let input = folder.path().join("graph.mlir");
        let output = folder.path().join("module.vmfb");
        let log = folder.path().join("compile.log");
        fs::write(&input, graph).map_err(|e| {
            SeamError::new(ErrorCode::Io, format!("{}: {e}", input.display()))
                .hint("free some space, or set TMPDIR to another folder")
        })?;
        let run = child::Run {
            tool: &self.tool.path,
            flags: &target.flags,
            input: &input,
            output: &output,
            log: &log,
            limit: self.time_limit,
        };
        match run.run(tick) {
            Ok(()) => child::read(&output),
            Err(e) if e.code == ErrorCode::Backend && log.is_file() => {
                Err(self.keep_log(e, folder, key, keep_log))
            }
            Err(e) => Err(e),
        }
    }

    /// Keeps the log of a failure where the error says: in the cache, else, if it `must` be kept, where it is.
    fn keep_log(&self, error: SeamError, folder: WorkFolder, key: &str, must: bool) -> SeamError {
        let log = folder.path().join("compile.log");
        let advice = match &error.hint {
            Some(hint) if !hint.contains("log") => format!("{hint}; "),
            _ => String::new(),
        };
        let hint = |path: &std::path::Path| format!("{advice}the full log is {}", path.display());
        let kept = self.cache.as_ref().map(|c| c.log_path(key));
        match kept.filter(|kept| fs::copy(&log, kept).is_ok()) {
            Some(kept) => error.hint(hint(&kept)),
            None if !must => SeamError::new(error.code, error.message),
            None => {
                let log = folder.keep().join("compile.log");
                error.hint(hint(&log))
            }
        }
    }
}

fn note(control: &Control<'_>, text: &str) {
    control.observer.on_event(Event::Note(text.to_owned()));
}

/// Lower-case hexadecimal.
fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use halfhitch_seam::NoObserver;
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;

    const TOOL: &str = "#!/bin/sh\n[ \"$1\" = --version ] && echo 'IREE compiler version 3.13.0' && exit\n\
        for a; do case $a in *.mlir) in=$a;; *.vmfb) out=$a;; esac; done\ncp \"$in\" \"$out\"\n";

    fn opened(folder: &Path, tool: &Path) -> SeamResult<Compiler> {
        let options = CompilerOptions {
            places: Places {
                path: vec![tool.to_owned()],
                ..Places::default()
            },
            version: "3.13.0".into(),
            cache: Some(folder.join("cache")),
            cache_limit: 1 << 20,
            time_limit: Duration::from_secs(60),
        };
        with_control(|control| Compiler::open(&options, control))
    }

    fn with_control<T>(f: impl FnOnce(&Control<'_>) -> T) -> T {
        let cancel = CancelToken::new();
        f(&Control {
            cancel: &cancel,
            observer: &NoObserver,
        })
    }

    #[test]
    fn code_that_is_kept_needs_no_compiler_and_other_code_says_that_it_does() {
        let folder = tempfile::tempdir().unwrap();
        let tools = folder.path().join("bin");
        fs::create_dir(&tools).unwrap();
        let tool = tools.join("iree-compile");
        fs::write(&tool, TOOL).unwrap();
        fs::set_permissions(&tool, fs::Permissions::from_mode(0o755)).unwrap();
        let target = Target::named("cuda:sm_80").unwrap();
        let compile = |compiler: &Compiler, graph: &str| {
            with_control(|control| compiler.compile(&[graph.to_owned()], &target, control))
        };
        let none = folder.path().join("none");
        let missing = opened(folder.path(), &none).map(|_| ()).unwrap_err();
        assert_eq!(missing.code, ErrorCode::NotFound);
        let made = compile(&opened(folder.path(), &tools).unwrap(), "graph").unwrap();
        assert_eq!(made, [b"graph".to_vec()]);
        let without = opened(folder.path(), &none).unwrap();
        assert_eq!(compile(&without, "graph").unwrap(), made);
        let e = compile(&without, "another").unwrap_err();
        assert_eq!(e.code, ErrorCode::NotFound);
        assert!(e.to_string().contains("not in the cache"), "{e}");
    }
}
