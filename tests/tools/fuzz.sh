#!/usr/bin/env bash
# Builds the fuzzers and runs each for a bounded time: `fuzz.sh [TARGET...]`, all unless named.
#
#   FUZZ_SECONDS  seconds a target (60)
#   FUZZ_RUNS     executions a target, instead of seconds
#   FUZZ_JOBS     targets at a time (1)
#   FUZZ_TIMEOUT  most seconds for one input that waits (10); of the processors' time it gets one
#   FUZZ_MEMORY   most MiB a fuzzer may take (2048)
#
# What libFuzzer found out about a parser grows in target/fuzz/corpus and is used again. An input that
# breaks one is left in target/fuzz/found, and belongs into fuzz/cases with the repair: see
# docs/hardening.md.
set -euo pipefail
# shellcheck source=tests/tools/common.sh
source "$(dirname "$0")/common.sh"
cd "$root"
need_cargo
need_cc

out=$root/target/fuzz
triple=$(rustc -vV | sed -n 's/^host: //p')
# cargo-fuzz's flags without a sanitizer. They are the compiler's own, so that any toolchain builds it.
flags=(
    --cfg fuzzing
    -Cpasses=sancov-module
    -Cllvm-args=-sanitizer-coverage-level=4
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters
    -Cllvm-args=-sanitizer-coverage-pc-table
    -Cllvm-args=-sanitizer-coverage-trace-compares
)
# Targets of the IREE backend need its runtime.
features=()
if csrc/build-runtime.sh print-paths >/dev/null 2>&1; then features=(--features iree); fi
# With a target, the flags are not for build scripts and macros.
RUSTFLAGS="${flags[*]}" cargo build --release --locked --manifest-path fuzz/Cargo.toml \
    "${features[@]}" --target "$triple" --target-dir "$out/build"

mapfile -t all < <(find fuzz/fuzz_targets -name '*.rs' -exec basename {} .rs \; | sort)
read -ra targets <<<"${*:-${all[*]}}"

# fuzz TARGET: prints one line of what was done.
fuzz() {
    local target=$1 log="$out/logs/$1.log" limits=("-max_total_time=${FUZZ_SECONDS:-60}") rc=0
    if [[ -n ${FUZZ_RUNS:-} ]]; then limits=("-runs=$FUZZ_RUNS"); fi
    mkdir -p "$out/logs" "$out/found/$target" "$out/corpus/$target"
    # Some targets make files; in memory they are made faster.
    if [[ -w /dev/shm ]]; then export TMPDIR=/dev/shm; fi
    local extra=()
    if [[ -e fuzz/dictionaries/$target.dict ]]; then extra+=("-dict=fuzz/dictionaries/$target.dict"); fi
    if [[ -d fuzz/cases/$target ]]; then extra+=("fuzz/cases/$target"); fi
    "$out/build/$triple/release/$target" "${limits[@]}" -timeout="${FUZZ_TIMEOUT:-10}" -max_len=12288 -print_final_stats=1 \
        -rss_limit_mb="${FUZZ_MEMORY:-2048}" -artifact_prefix="$out/found/$target/" \
        "$out/corpus/$target" "fuzz/seeds/$target" "${extra[@]}" >"$log" 2>&1 || rc=$?
    awk -v target="$target" -v rc="$rc" '
        /stat::number_of_executed_units/ { n = $2 }
        /stat::slowest_unit_time_sec/ { slow = $2 }
        /stat::peak_rss_mb/ { rss = $2 }
        END {
            printf "%-18s %10d executions, slowest under %d s, peak %d MiB: %s\n", target, n,
                slow + 1, rss, rc == 0 ? "nothing found" : "FOUND"
        }' "$log"
    if [[ $rc -ne 0 ]]; then
        grep -aE 'panicked at|ERROR: libFuzzer|SUMMARY|Test unit written' -A1 "$log" | head -n 8 || true
        return 1
    fi
}

failed=0
for target in "${targets[@]}"; do
    if [[ $target == cache_entry && ${#features[@]} -eq 0 ]]; then
        say "skipped cache_entry: run \`make iree-runtime\` for it"
        continue
    fi
    [[ -x "$out/build/$triple/release/$target" ]] || die "no such target: $target" "one of ${all[*]}"
    while [[ $(jobs -rp | wc -l) -ge ${FUZZ_JOBS:-1} ]]; do wait -n || failed=1; done
    fuzz "$target" &
done
while [[ -n $(jobs -p) ]]; do wait -n || { [[ $? -eq 127 ]] && break; failed=1; }; done
exit $failed
