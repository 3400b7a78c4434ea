#!/usr/bin/env bash
# Builds the program and the local-task plugin as they are tested, and soaks them: see tests/soak/soak.py,
# which gets the arguments. Environment: SOAK_MINUTES (30), SOAK_SEED (a new one each time).
set -euo pipefail
# shellcheck source=tests/tools/common.sh
source "$(dirname "$0")/common.sh"
cd "$root"
need_cargo
need_cc

csrc/build-runtime.sh build >/dev/null
cargo build --locked -p halfhitch -p halfhitch-xla-iree-local-task
tests/tools/install-plugins.sh debug local-task
seed=()
if [[ -n ${SOAK_SEED:-} ]]; then seed=(--seed "$SOAK_SEED"); fi
exec python3 tests/soak/soak.py --program target/debug/halfhitch --minutes "${SOAK_MINUTES:-30}" \
    "${seed[@]}" "$@"
