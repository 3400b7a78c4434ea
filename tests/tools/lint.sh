#!/usr/bin/env bash
# Every check that is not a test. With an argument, that check alone: fmt, clippy, docs, deny, shell.
set -euo pipefail
# shellcheck source=tests/tools/common.sh
source "$(dirname "$0")/common.sh"
cd "$root"
need_cargo

fmt() {
    cargo fmt --all --check
    cargo fmt --manifest-path fuzz/Cargo.toml --check
}

# The bindings are checked against a runtime, so that has to be there. Drivers that need a runtime of
# their own are features, checked where that is built.
clippy() {
    need_cc
    csrc/build-runtime.sh build
    cargo clippy --locked --workspace --all-targets --features halfhitch-vulkan-tests/device -- -D warnings
}

docs() {
    csrc/build-runtime.sh build
    RUSTDOCFLAGS="-D warnings" cargo doc --locked --workspace --no-deps
}

# Licences, sources and banned crates. Advisories need a database that is not a package, so they are
# checked by hand: `cargo deny check advisories`.
deny() {
    "$(tests/tools/lint-tools.sh)/cargo-deny" --locked check bans licenses sources
    # The fuzzers are a workspace of their own, whose lock file nothing else looks at.
    cargo metadata --locked --format-version 1 --manifest-path fuzz/Cargo.toml >/dev/null
}

shell() {
    git ls-files -z '*.sh' .ci/run | xargs -0 "$(tests/tools/lint-tools.sh)/shellcheck" --external-sources
}

for step in "${@:-all}"; do
    case $step in
    all) for each in fmt shell deny clippy docs; do
        say "lint: $each"
        $each
    done ;;
    fmt | clippy | docs | deny | shell) $step ;;
    *) die "unknown check: $step" "one of fmt, clippy, docs, deny, shell" ;;
    esac
done
