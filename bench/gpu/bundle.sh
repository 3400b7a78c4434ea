#!/usr/bin/env bash
# Puts together what `check.py` needs on a bare machine: the program, one driver's plugin, code compiled for
# its targets, the model in parts, the oracle's tokens. No compiler and no network is needed there.
#
# usage: bundle.sh [DRIVER [TARGET...]]      (default: cuda cuda:sm_80 cuda:sm_89 cuda:sm_120)
#
# BUNDLE names the folder, PROFILE=debug takes what a debug build has. SHORT=1 leaves the 1.2 B model out.
set -euo pipefail
# shellcheck source=tests/tools/common.sh
source "$(dirname "$0")/../../tests/tools/common.sh"
cd "$root"

driver=${1:-cuda}
shift || true
[ $# -gt 0 ] || case $driver in
cuda) set -- cuda:sm_80 cuda:sm_89 cuda:sm_120 ;;
local-*) set -- local ;;
*) die "name the targets that code is to be made for" "bundle.sh rocm rocm:gfx942" ;;
esac
profile=${PROFILE:-release}
built=target/$profile
bundle=${BUNDLE:-$root/.cache/gpu-bundle/$driver}
program=$built/halfhitch
plugin=halfhitch_xla_iree_${driver//-/_}
for file in "$program" "$built/plugins/lib$plugin.so" "$built/plugins/libhalfhitch_xla_iree_local_task.so"; do
    [ -f "$file" ] || die "$file is not there" "run \`make plugins plugins-$driver\`"
done
[ -f models/smollm2-135m/config.json ] || die "the model is not there" "run \`make model\`"

say "putting the bundle together in $bundle"
rm -rf "$bundle"
umask 022
mkdir -p "$bundle/bin" "$bundle/lib/halfhitch/plugins" "$bundle/smollm2-135m"
cp "$program" "$bundle/bin/"
[ "$profile" = release ] && strip "$bundle/bin/halfhitch"
cp "$built/plugins/lib$plugin.so" "$built/plugins/$plugin.plugin.json" "$bundle/lib/halfhitch/plugins/"
cp bench/gpu/check.py bench/gpu/models.py "$bundle/"
cp tests/fixtures/oracle/smollm2-135m-float32.json "$bundle/oracle.json"
cp models/smollm2-135m/*.json "$bundle/smollm2-135m/"
split -b 50M -d models/smollm2-135m/model.safetensors "$bundle/smollm2-135m/model.safetensors."

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 bench/gpu/models.py widen "$work/smollm2-8bit" models/smollm2-135m
models=("$root/models/smollm2-135m" "$work/smollm2-8bit")
if [ -z "${SHORT:-}" ]; then
    for bits in 4 8; do
        python3 bench/gpu/models.py random "$work/1b-${bits}bit" --bits "$bits" --empty
        models+=("$work/1b-${bits}bit")
    done
fi

# Code goes through the cache that a run reads.
export HALFHITCH_CACHE_DIR=$work/cache
mkdir -m 700 "$HALFHITCH_CACHE_DIR"
compile() {
    "$program" graph --quiet --backend xla-iree:local-task --ahead --target "$@" >"$work/log" 2>&1 ||
        say "  left out: $(tail -n 1 "$work/log")"
}
for target in "$@"; do
    for model in "${models[@]}"; do
        say "compiling $(basename "$model") for $target"
        compile "$target" --model "$model" --quant packed --precision f32
        case $model in *8bit) continue ;; esac
        for precision in f32 f16 bf16; do
            compile "$target" --model "$model" --quant dequant --precision "$precision"
        done
    done
done
made=$HALFHITCH_CACHE_DIR/xla-iree
mkdir -p "$bundle/cache/xla-iree/modules" "$bundle/cache/xla-iree/notes"
cp "$made"/modules/*.vmfb "$bundle/cache/xla-iree/modules/"
cp "$made/notes/compiler" "$bundle/cache/xla-iree/notes/"
# What a target has no code for, so that it is not offered there either.
find "$made/notes" -name 'refused-*' -exec cp {} "$bundle/cache/xla-iree/notes/" \;

python3 - "$bundle" "$driver" "${SHORT:+short}" "$@" <<'PYTHON'
import hashlib, json, sys
from pathlib import Path
folder, driver, short = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
files = {
    str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
    for path in sorted(folder.rglob("*"))
    if path.is_file()
}
told = {"backend": f"xla-iree:{driver}", "targets": sys.argv[4:], "large": not short, "files": files}
(folder / "bundle.json").write_text(json.dumps(told, indent=1) + "\n")
PYTHON
say "$(du -sh "$bundle" | cut -f1) in $bundle; on the other machine: python3 check.py"
