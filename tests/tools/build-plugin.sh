#!/usr/bin/env bash
# Builds the IREE backend's plugin on one driver besides the local ones, with the runtime that has it, and
# installs it. Each is built by itself: together they would be one crate with every driver in it.
# Usage: build-plugin.sh debug|release DRIVER
set -euo pipefail
# shellcheck source=tests/tools/common.sh
source "$(dirname "$0")/common.sh"
cd "$root"

profile=$1 driver=$2
csrc/build-runtime.sh build --drivers "$driver" >&2
flags=()
[ "$profile" = release ] && flags=(--release)
cargo build "${flags[@]}" --locked -p "halfhitch-xla-iree-$driver" --features driver
tests/tools/install-plugins.sh "$profile" "$driver"
