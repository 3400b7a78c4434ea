#!/usr/bin/env bash
# Builds the shim and its C tests with sanitizers and runs them; then again under valgrind, if it is
# installed; then driver_test for each driver that a runtime was built for and that has a device.
# Everything is built in .cache/csrc-tests. Closes with 'N passed, N failed, N skipped'.
#
# Needs `make iree-runtime`. Environment: CC; HH_SKIP_VALGRIND=1 leaves the slow part out; HH_TSAN=1 adds the
# tests under ThreadSanitizer, for which the runtime is built once more (two minutes).
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
out="$here/../.cache/csrc-tests"
cc="${CC:-cc}"
tests=(devices buffers programs calls threads)
mkdir -p "$out"

compile="$("$here/build-runtime.sh" compiler)"
declare -A runtime
# use DRIVERS: reads the paths of the runtime that was built for them.
use() {
  local paths key value
  paths="$("$here/build-runtime.sh" print-paths --drivers "$1")" || return 1
  while IFS='=' read -r key value; do runtime[$key]="$value"; done <<<"$paths"
}

# modules FOLDER FLAGS...: made again when the compiler or the text changes.
modules() {
  local folder="$1" text made
  shift
  mkdir -p "$folder"
  for text in "$here"/tests/modules/*.mlir; do
    made="$folder/$(basename "$text" .mlir).vmfb"
    if [[ ! -e "$made" || "$text" -nt "$made" || "$compile" -nt "$made" ]]; then
      "$compile" --iree-input-type=auto "$@" "$text" -o "$made.new"
      mv "$made.new" "$made"
    fi
  done
  export HH_TEST_MODULES="$folder"
}

# A function that is neither static nor declared in a header would be exported.
warnings=(-std=c11 -D_GNU_SOURCE -Wall -Wextra -Wmissing-prototypes -Werror -g)
# build FOLDER TESTS FLAGS...: the shim and the tests, against the runtime in use.
build() {
  local folder="$1" test item source object defines libs given objects=()
  read -ra chosen <<<"$2"
  shift 2
  mkdir -p "$folder"
  defines=(-DHH_IREE_VERSION="\"${runtime[version]}\"")
  IFS=',' read -ra given <<<"${runtime[defines]}"
  for item in "${given[@]}"; do defines+=("-D$item"); done
  libs=(-L"${runtime[lib]}")
  IFS=',' read -ra given <<<"${runtime[libs]},${runtime[system_libs]}"
  for item in "${given[@]}"; do libs+=("-l$item"); done
  # IREE's headers do not pass -Wextra; they are system headers here.
  for source in "$here"/xla_iree/*.c; do
    object="$folder/$(basename "$source" .c).o"
    "$cc" "${warnings[@]}" "$@" "${defines[@]}" -isystem "${runtime[include]}" -I"$here" \
      -c "$source" -o "$object"
    objects+=("$object")
  done
  for test in "${chosen[@]}"; do
    "$cc" "${warnings[@]}" "$@" -I"$here" "$here/tests/${test}_test.c" "${objects[@]}" \
      "${libs[@]}" -o "$folder/${test}_test"
  done
}

passed=0 failed=0 skipped=0
# check NAME COMMAND...: exit code 77 means skipped, and the output says why.
check() {
  local name="$1" rc=0
  shift
  "$@" >"$out/$name.log" 2>&1 || rc=$?
  case $rc in
    0) echo "ok      $name" && passed=$((passed + 1)) ;;
    77) echo "skipped $name: $(head -n 1 "$out/$name.log")" && skipped=$((skipped + 1)) ;;
    *)
      echo "FAILED  $name (exit code $rc)"
      tail -n 60 "$out/$name.log"
      failed=$((failed + 1))
      ;;
  esac
}

sanitize=(-O1 "-fsanitize=address,undefined" -fno-sanitize-recover=all)
# The tests ask for more memory than there is; the sanitizer must answer as malloc would.
export ASAN_OPTIONS="allocator_may_return_null=1:detect_stack_use_after_return=1:strict_string_checks=1"
export UBSAN_OPTIONS="print_stacktrace=1:halt_on_error=1"
use ""
llvm_cpu=(--iree-hal-target-backends=llvm-cpu)
modules "$out/modules" "${llvm_cpu[@]}" --iree-llvmcpu-target-cpu=host
build "$out/sanitized" "${tests[*]}" "${sanitize[@]}"
for test in "${tests[@]}"; do check "$test-sanitized" "$out/sanitized/${test}_test"; done

if [[ -n "${HH_SKIP_VALGRIND:-}" ]] || ! command -v valgrind >/dev/null; then
  echo "skipped valgrind: it is not installed, or HH_SKIP_VALGRIND is set"
  skipped=$((skipped + ${#tests[@]}))
else
  # Valgrind does not know AVX-512: the modules are made for a CPU that it knows.
  cpu=host
  [[ "$(uname -m)" == x86_64 ]] && cpu=x86-64-v3
  modules "$out/modules-valgrind" "${llvm_cpu[@]}" --iree-llvmcpu-target-cpu="$cpu"
  build "$out/plain" "${tests[*]}" -O1
  # It does not get on with io_uring either: see the launcher.
  "$cc" "${warnings[@]}" -O1 "$here/tests/no_io_uring.c" -o "$out/plain/no_io_uring"
  leaks=definite,indirect,possible
  for test in "${tests[@]}"; do
    check "$test-valgrind" timeout 600 "$out/plain/no_io_uring" valgrind --quiet --leak-check=full \
      --show-leak-kinds=$leaks --errors-for-leak-kinds=$leaks --error-exitcode=9 \
      "$out/plain/${test}_test"
  done
fi

if [[ -n "${HH_TSAN:-}" ]]; then
  tsan="$here/tests/tsan"
  CC="$tsan/cc" CXX="$tsan/c++" "$here/build-runtime.sh" build >/dev/null
  plain_cc="$cc" cc="$tsan/cc"
  CC="$tsan/cc" CXX="$tsan/c++" use ""
  export HH_TEST_MODULES="$out/modules"
  build "$out/tsan" "${tests[*]}" -O1
  for test in "${tests[@]}"; do
    TSAN_OPTIONS="halt_on_error=1:allocator_may_return_null=1:second_deadlock_stack=1:suppressions=$tsan/suppressions" \
      check "$test-tsan" "$out/tsan/${test}_test"
  done
  cc="$plain_cc"
fi

# SPIR-V that any Vulkan 1.3 device with 8 and 16 bit storage takes; without memoisation, because
# with it every call after the first reads the first call's inputs. (Used by name below.)
# shellcheck disable=SC2034
vulkan=(
  --iree-hal-target-backends=vulkan-spirv --iree-hal-memoization=false
  "--iree-vulkan-target-features=spirv:v1.3,cap:Shader,cap:Float16,cap:StorageBuffer16BitAccess,cap:StorageUniform16,cap:Int8,cap:StorageBuffer8BitAccess,cap:UniformAndStorageBuffer8BitAccess,cap:Int16,cap:Int64,ext:SPV_KHR_16bit_storage,ext:SPV_KHR_8bit_storage,ext:SPV_KHR_storage_buffer_storage_class"
)
# shellcheck disable=SC2034
cuda=(--iree-hal-target-backends=cuda --iree-cuda-target=sm_80)
for driver in cuda vulkan; do
  if ! use "$driver" 2>/dev/null; then
    echo "skipped driver-$driver: run \`make iree-runtime-$driver\` for it"
    skipped=$((skipped + 1))
    continue
  fi
  declare -n flags="$driver"
  modules "$out/modules-$driver" "${flags[@]}"
  build "$out/$driver" driver "${sanitize[@]}"
  # The vendors' libraries leak: that is not ours to report.
  ASAN_OPTIONS="$ASAN_OPTIONS:detect_leaks=0:protect_shadow_gap=0" HH_TEST_DRIVER="$driver" \
    check "driver-$driver" "$out/$driver/driver_test"
done
echo "$passed passed, $failed failed, $skipped skipped"
[[ $failed -eq 0 ]]
