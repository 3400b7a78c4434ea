#!/usr/bin/env bash
# Builds the shim and its C tests with sanitizers and runs them; then again under valgrind, if it is
# installed. Everything is built in .cache/csrc-tests. Closes with 'N passed, N failed, N skipped'.
#
# Needs `make iree-runtime`. Environment: CC; HH_SKIP_VALGRIND=1 leaves the slow second half out.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
out="$here/../.cache/csrc-tests"
cc="${CC:-cc}"
tests=(devices buffers programs)
mkdir -p "$out"

declare -A runtime
paths="$("$here/build-runtime.sh" print-paths)"
while IFS='=' read -r key value; do runtime[$key]="$value"; done <<<"$paths"
compile="$("$here/build-runtime.sh" compiler)"

# modules FOLDER CPU: made again when the compiler or the text changes.
modules() {
  mkdir -p "$1"
  for text in "$here"/tests/modules/*.mlir; do
    local made="$1/$(basename "$text" .mlir).vmfb"
    if [[ ! -e "$made" || "$text" -nt "$made" || "$compile" -nt "$made" ]]; then
      "$compile" --iree-hal-target-backends=llvm-cpu --iree-llvmcpu-target-cpu="$2" \
        --iree-input-type=auto "$text" -o "$made.new"
      mv "$made.new" "$made"
    fi
  done
}

warnings=(-std=c11 -D_GNU_SOURCE -Wall -Wextra -Werror -g)
defines=(-DHH_IREE_VERSION="\"${runtime[version]}\"")
IFS=',' read -ra given <<<"${runtime[defines]}"
for define in "${given[@]}"; do defines+=("-D$define"); done
libs=(-L"${runtime[lib]}" -lhalfhitch_iree -lflatcc_parsing)
IFS=',' read -ra given <<<"${runtime[system_libs]}"
for lib in "${given[@]}"; do libs+=("-l$lib"); done

# build FOLDER FLAGS...: the shim and every test.
build() {
  local folder="$1"
  shift
  mkdir -p "$folder"
  # IREE's headers do not pass -Wextra; they are system headers here.
  "$cc" "${warnings[@]}" "$@" "${defines[@]}" -isystem "${runtime[include]}" \
    -c "$here/xla_iree.c" -o "$folder/xla_iree.o"
  for test in "${tests[@]}"; do
    "$cc" "${warnings[@]}" "$@" -I"$here" "$here/tests/${test}_test.c" "$folder/xla_iree.o" \
      "${libs[@]}" -o "$folder/${test}_test"
  done
}

passed=0 failed=0 skipped=0
# check NAME COMMAND...
check() {
  local name="$1"
  shift
  if "$@" >"$out/$name.log" 2>&1; then
    echo "ok      $name"
    passed=$((passed + 1))
  else
    echo "FAILED  $name (exit code $?)"
    tail -n 60 "$out/$name.log"
    failed=$((failed + 1))
  fi
}

# The tests ask for more memory than there is; the sanitizer must answer as malloc would.
export ASAN_OPTIONS="allocator_may_return_null=1:detect_stack_use_after_return=1:strict_string_checks=1"
export UBSAN_OPTIONS="print_stacktrace=1:halt_on_error=1"
modules "$out/modules" host
export HH_TEST_MODULES="$out/modules"
build "$out/sanitized" -O1 -fsanitize=address,undefined -fno-sanitize-recover=all
for test in "${tests[@]}"; do check "$test-sanitized" "$out/sanitized/${test}_test"; done

if [[ -n "${HH_SKIP_VALGRIND:-}" ]] || ! command -v valgrind >/dev/null; then
  echo "skipped valgrind"
  skipped=${#tests[@]}
else
  # Valgrind does not know AVX-512: the modules are made for a CPU that it knows.
  cpu=host
  [[ "$(uname -m)" == x86_64 ]] && cpu=x86-64-v3
  modules "$out/modules-valgrind" "$cpu"
  export HH_TEST_MODULES="$out/modules-valgrind"
  build "$out/plain" -O1
  # It does not get on with io_uring either: see the launcher.
  "$cc" "${warnings[@]}" -O1 "$here/tests/no_io_uring.c" -o "$out/plain/no_io_uring"
  for test in "${tests[@]}"; do
    check "$test-valgrind" timeout 600 "$out/plain/no_io_uring" valgrind --quiet --leak-check=full --show-leak-kinds=definite,indirect,possible \
      --errors-for-leak-kinds=definite,indirect,possible --error-exitcode=9 "$out/plain/${test}_test"
  done
fi
echo "$passed passed, $failed failed, $skipped skipped"
[[ $failed -eq 0 ]]
