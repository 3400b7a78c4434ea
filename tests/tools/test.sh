#!/usr/bin/env bash
# Sets up what the tests need and runs all of them. Arguments go to the test runner.
set -euo pipefail
# shellcheck source=tests/tools/common.sh
source "$(dirname "$0")/common.sh"
cd "$root"
need_cargo
need_cc

csrc/build-runtime.sh build
say "test: the C shim"
csrc/run-tests.sh
cargo build --locked --workspace --all-targets
export HALFHITCH_TEST_LIBRARIES=$root/target/debug
# Compiled code is kept in the checkout, apart from the user's.
export HALFHITCH_CACHE_DIR=${HALFHITCH_CACHE_DIR:-$root/.cache/test}
mkdir -p "$HALFHITCH_CACHE_DIR"
chmod 700 "$HALFHITCH_CACHE_DIR"
tests/tools/fetch-model.sh target/debug/halfhitch
if have cargo-nextest; then
    cargo nextest run --locked --workspace --no-fail-fast "$@"
else
    # One process a crate's test program, its tests side by side in threads.
    cargo test --locked --workspace --all-targets --no-fail-fast "$@"
fi
cargo test --quiet --locked --workspace --doc
