#!/usr/bin/env bash
# Installs the pinned linters that are not part of Rust (cargo-deny, shellcheck) into .cache/lint-tools and
# prints the folder of their programs. Does nothing where that has been done.
set -euo pipefail
# shellcheck source=tests/tools/common.sh
source "$(dirname "$0")/common.sh"

requirements=$root/tests/tools/lint-requirements.txt
tools=$root/.cache/lint-tools
pinned=$(sha256sum "$requirements" | cut -d' ' -f1)
if [ "$(cat "$tools/stamp" 2>/dev/null)" != "$pinned" ]; then
    rm -rf "$tools"
    "$(python_with_pip)" -m pip install --quiet --disable-pip-version-check --root-user-action=ignore \
        --no-deps --require-hashes --only-binary=:all: \
        --target "$tools" -r "$requirements" >&2 ||
        die "the linters could not be installed" "is the network there? run it again to go on"
    printf '%s\n' "$pinned" >"$tools/stamp"
fi
printf '%s\n' "$tools/bin"
