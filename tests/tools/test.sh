#!/usr/bin/env bash
# Sets up what the tests need and runs all of them. Arguments go to the test runner.
set -euo pipefail
# shellcheck source=tests/tools/common.sh
source "$(dirname "$0")/common.sh"
cd "$root"
need_cargo
need_cc

cargo build --locked --workspace --all-targets
tests/tools/fetch-model.sh target/debug/halfhitch
if have cargo-nextest; then
    cargo nextest run --locked --workspace "$@"
else
    cargo test --locked --workspace --all-targets "$@"
fi
cargo test --quiet --locked --workspace --doc
