#!/usr/bin/env bash
# Prints what is there of IREE: versions, tools, built runtimes. Installs and builds nothing.
set -euo pipefail
exec "$(dirname "${BASH_SOURCE[0]}")/build-runtime.sh" env
