//! The `halfhitch` program; everything is in [`halfhitch::cli`].

use std::process::ExitCode;

fn main() -> ExitCode {
    halfhitch::cli::main()
}
