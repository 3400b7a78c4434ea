//! Flags of `conformance`.

use std::path::PathBuf;

use clap::Args;

use crate::cli::values;
use crate::engine::Selection;

const EXAMPLES: &str = "\
Each case ends as one of: pass; fail; unsupported, where the device does not advertise what the case
needs, and says so; expected failure, where --expect-failures lists it. A case that is listed and
passes fails the run: the list must stay true. docs/conformance.md explains the cases.

Without --full the cases are chosen so that a backend that compiles every model is through in
minutes. Exit code 0: nothing failed; 1: something did; 130: stopped by Ctrl-C, after printing what
had been run.

Examples:
  # A plugin that was just built; no manifest is needed:
  halfhitch conformance --plugin target/release/libmy_backend.so --html report.html

  # What failed, alone; what there is:
  halfhitch conformance -b xla-iree:local-task --only contract/plain/batch-equals-single
  halfhitch conformance -b xla-iree:local-task --list --only 'shapes/*/f16/*'

  # In a build server, with known failures (a line each: NAME # REASON):
  halfhitch conformance --plugin libmy_backend.so --full --expect-failures known.txt --junit out.xml

  # 500 random models against the reference; the smallest wrong one is kept for `verify`:
  halfhitch conformance --plugin libmy_backend.so --random 500 --seed 1 --save wrong";

/// `halfhitch conformance`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct ConformanceArgs {
    /// Compute backend and device: `backend[:driver[:selector]]`.
    #[arg(
        short,
        long,
        value_name = "BACKEND",
        default_value = "reference-cpu",
        conflicts_with = "plugin",
        help_heading = "Who is tested"
    )]
    pub backend: Selection,

    /// A plugin's library, or its manifest, wherever it lies.
    #[arg(long, value_name = "FILE", help_heading = "Who is tested")]
    pub plugin: Option<PathBuf>,

    /// The plugin's device, by position or stable id [default: the first].
    #[arg(
        long,
        value_name = "SELECTOR",
        requires = "plugin",
        // What is required gives way to what is given in its place, so that has to be said too.
        conflicts_with = "backend",
        help_heading = "Who is tested"
    )]
    pub device: Option<String>,

    /// Every case: all models in all precisions and schemes.
    #[arg(long, help_heading = "What is run")]
    pub full: bool,

    /// Only cases with this in their name, or whose name is this with * for any text; may be given
    /// several times. Chooses among all cases, as --full does.
    #[arg(long, value_name = "NAME", help_heading = "What is run")]
    pub only: Vec<String>,

    /// A checkpoint folder with an expected.json, or a folder of such: their cases are run as well.
    #[arg(long, value_name = "DIR", help_heading = "What is run")]
    pub checkpoints: Vec<PathBuf>,

    /// In place of the suite: so many random models against the reference.
    #[arg(
        long,
        value_name = "N",
        conflicts_with_all = ["full", "only", "checkpoints", "list"],
        value_parser = clap::value_parser!(u32).range(1..=1_000_000),
        help_heading = "What is run"
    )]
    pub random: Option<u32>,

    /// Where the random numbers start: the same seed gives the same models.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 0,
        value_parser = values::whole::<u64>,
        requires = "random",
        help_heading = "What is run"
    )]
    pub seed: u64,

    /// Print the cases' names and run none.
    #[arg(long, help_heading = "What is run")]
    pub list: bool,

    /// A case that takes longer fails: the backend hangs.
    #[arg(
        long,
        value_name = "SECONDS",
        default_value = "600",
        value_parser = clap::value_parser!(u32).range(1..=86_400),
        help_heading = "Verdict"
    )]
    pub time_limit: u32,

    /// A file of cases that are known to fail: NAME # REASON, a line each; * stands for any text.
    #[arg(long, value_name = "FILE", help_heading = "Verdict")]
    pub expect_failures: Option<PathBuf>,

    /// A case, or pattern, that is known to fail; may be given several times.
    #[arg(long, value_name = "NAME", help_heading = "Verdict")]
    pub expect_failure: Vec<String>,

    /// Print one JSON object.
    #[arg(long, help_heading = "Output")]
    pub json: bool,

    /// Write a report for servers that run tests.
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub junit: Option<PathBuf>,

    /// Write a page with the failing cases' details, in one file.
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub html: Option<PathBuf>,

    /// Keep the smallest wrong random model as a checkpoint folder in here.
    #[arg(long, value_name = "DIR", requires = "random", help_heading = "Output")]
    pub save: Option<PathBuf>,

    /// Be the process in which memory runs out.
    #[arg(long, hide = true)]
    pub confined: bool,
}
