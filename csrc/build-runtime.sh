#!/usr/bin/env bash
# The IREE runtime's build recipe. Everything goes under .cache/ in this checkout.
#
#   build-runtime.sh build [--drivers cuda,vulkan,metal]   build if absent, print the folder
#   build-runtime.sh print-paths [--drivers ...]           key=value lines; 3 when it is not built
#   build-runtime.sh compiler                              the pinned iree-compile's path
#   build-runtime.sh env                                   what is there; changes nothing
#
# The drivers local-sync and local-task are always in. Environment: CC, CXX, IREE_SOURCE_DIR (an
# IREE checkout of the same version instead of the pinned crate), HALFHITCH_JOBS, PYTHON.
# Exit codes: 2 usage, 3 not built, 4 something is missing, 5 versions differ, 6 a step failed.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
python="${PYTHON:-python3}"
if ! command -v "$python" >/dev/null; then
  echo "iree-runtime: error: no '$python': install Python 3.11 or later, or set PYTHON" >&2
  exit 4
fi
exec "$python" -B "$here/build_runtime.py" "$@"
