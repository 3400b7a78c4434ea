#!/usr/bin/env bash
# Runs the accuracy gate and writes the records of docs/gates: the defaults on the real model and on every tiny
# fixture, and the other precisions of the real model.
#
# usage: record-gates.sh HALFHITCH
set -euo pipefail
# shellcheck source=tests/tools/common.sh
source "$(dirname "$0")/common.sh"
cd "$root"

halfhitch=${1:?usage: record-gates.sh HALFHITCH}
backend=xla-iree:local-task
failed=()

# record NAME OPTIONS...: one run; a record is written whatever its verdict.
record() {
    local name=$1
    shift
    say "gate: $name"
    "$halfhitch" verify --backend "$backend" --record "docs/gates/$name.json" "$@" >/dev/null ||
        failed+=("$name")
}

mkdir -p docs/gates/tiny
record smollm2-135m-local-task-f32-packed --model models/smollm2-135m
for precision in f16 bf16; do
    record "smollm2-135m-local-task-$precision-dequant" --model models/smollm2-135m \
        --precision "$precision" --quant dequant
done
for folder in tests/fixtures/tiny/*/; do
    folder=${folder%/}
    record "tiny/${folder##*/}-local-task-f32" --model "$folder"
done
[ ${#failed[@]} -eq 0 ] || die "these do not pass: ${failed[*]}"
