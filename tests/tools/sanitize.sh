#!/usr/bin/env bash
# Runs what only a tool that watches memory and threads can find: `sanitize.sh [PART...]`, all unless named.
#
#   shim      the C shim under AddressSanitizer, UBSan, valgrind and ThreadSanitizer (runtime included)
#   program   the program under valgrind: a plugin loaded, a model run, another prompt, unloaded
#   miri      unsafe Rust of the seam, interpreted
#   address   the host's tests under AddressSanitizer
#   thread    sessions side by side under ThreadSanitizer, with a standard library built for it
#
# The last three need a nightly toolchain (SANITIZE_TOOLCHAIN, default `nightly`), miri its component of
# that name, thread the component rust-src. A part that this machine cannot run is skipped and says why; one
# that fails does not keep the others from running. Closes with a line a part; exit code 1 where one failed.
set -euo pipefail
# shellcheck source=tests/tools/common.sh
source "$(dirname "$0")/common.sh"
cd "$root"
need_cargo
need_cc

toolchain=${SANITIZE_TOOLCHAIN:-nightly}
triple=$(rustc -vV | sed -n 's/^host: //p')
out=$root/target/sanitize
# What is not there is not installed by the way.
export RUSTUP_AUTO_INSTALL=0

# skip WHY: ends a part.
skip() {
    say "skipped $*"
    exit 77
}
# component NAME: whether the toolchain has it.
component() { grep -q "^$1" <<<"$(rustup component list --toolchain "$toolchain" --installed 2>/dev/null)"; }
nightly() {
    cargo "+$toolchain" --version >/dev/null 2>&1 ||
        skip "$1: there is no toolchain '$toolchain' (rustup toolchain install nightly)"
}

shim() {
    csrc/build-runtime.sh build >/dev/null
    HH_TSAN=1 csrc/run-tests.sh
}

program() {
    have valgrind || skip "program: valgrind is not installed"
    csrc/build-runtime.sh build >/dev/null
    cargo build --locked -p halfhitch -p halfhitch-xla-iree-local-task
    tests/tools/install-plugins.sh debug local-task
    local compile
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    compile=$(csrc/build-runtime.sh compiler)
    # Valgrind knows neither AVX-512 nor io_uring: code is made for a processor that it knows, and see
    # csrc/tests/no_io_uring.c.
    if [[ $(uname -m) == x86_64 ]]; then
        local cpu=--iree-llvmcpu-target-cpu
        # What is quoted is for the script that is written.
        # shellcheck disable=SC2016
        printf '#!/usr/bin/env bash\nexec %q "${@/%s=host/%s=x86-64-v3}"\n' "$compile" "$cpu" "$cpu" >"$work/iree-compile"
        chmod 755 "$work/iree-compile"
        compile=$work/iree-compile
    fi
    cc -O1 -D_GNU_SOURCE csrc/tests/no_io_uring.c -o "$work/no_io_uring"
    # Compiled outside valgrind, run inside.
    local run=(env HALFHITCH_CACHE_DIR="$work/cache" HALFHITCH_IREE_COMPILE="$compile")
    # shellcheck disable=SC2054
    local args=(generate --json -q -m tests/fixtures/tiny/llama -b xla-iree:local-task --threads 1
        --prompt-tokens 1,2,3,4,5 -n 6)
    mkdir -m 700 "$work/cache"
    "${run[@]}" target/debug/halfhitch "${args[@]}" >"$work/plain.json"
    # Plugins stay loaded to the end, and threads with them: what they hold is reachable, not lost.
    "${run[@]}" "$work/no_io_uring" valgrind --quiet --error-exitcode=9 --leak-check=full \
        --errors-for-leak-kinds=definite --show-leak-kinds=definite --fair-sched=yes \
        --suppressions=tests/tools/valgrind.supp \
        target/debug/halfhitch "${args[@]}" >"$work/valgrind.json"
    cmp <(python3 -c 'import json,sys; print(json.load(sys.stdin)["tokens"])' <"$work/plain.json") \
        <(python3 -c 'import json,sys; print(json.load(sys.stdin)["tokens"])' <"$work/valgrind.json")
    say "program: no error under valgrind, and the same tokens"
}

miri() {
    nightly miri
    if ! component miri || ! component rust-src; then
        skip "miri: rustup component add --toolchain $toolchain miri rust-src"
    fi
    # Properties are tried a few times: Miri takes a thousand times as long. It has no files or libraries
    # of another language, so the parts that map files and load plugins are for the other tools.
    PROPTEST_CASES=4 MIRIFLAGS=-Zmiri-disable-isolation cargo "+$toolchain" miri test --locked \
        --target-dir "$out/miri" -p halfhitch-seam --lib
}

address() {
    nightly address
    # Leaks are not looked for: proptest and the tokenizers keep statics.
    ASAN_OPTIONS=detect_leaks=0 RUSTFLAGS=-Zsanitizer=address cargo "+$toolchain" test --locked \
        --target "$triple" --target-dir "$out/address" -p halfhitch --lib --test checkpoint_folders \
        --test bad_checkpoints --test import_hostile --test text_tokenizer
}

thread() {
    nightly thread
    component rust-src || skip "thread: rustup component add --toolchain $toolchain rust-src"
    RUSTFLAGS=-Zsanitizer=thread \
        cargo "+$toolchain" test --locked -Zbuild-std --target "$triple" --target-dir "$out/thread" \
        -p halfhitch-reference-cpu -p halfhitch-suite --test reference-cpu
}

parts=(shim program miri address thread)
# One part, in a shell of its own: an error ends it and not the rest.
if [[ ${1:-} == --part ]]; then
    case $2 in
    shim) shim ;;
    program) program ;;
    miri) miri ;;
    address) address ;;
    thread) thread ;;
    esac
    exit
fi
if [[ $# -gt 0 && $* != all ]]; then
    for part in "$@"; do
        [[ " ${parts[*]} " == *" $part "* ]] || die "unknown part: $part" "one of ${parts[*]}"
    done
    parts=("$@")
fi
results=() failed=0
for part in "${parts[@]}"; do
    say "sanitize: $part"
    rc=0
    tests/tools/sanitize.sh --part "$part" || rc=$?
    case $rc in
    0) results+=("$part: ok") ;;
    77) results+=("$part: skipped") ;;
    130) exit 130 ;;
    *) results+=("$part: FAILED") failed=1 ;;
    esac
done
printf '%s\n' "${results[@]}"
exit $failed
