#!/usr/bin/env bash
# Checks what building and the set-up need, before anything is built; then asks the program itself,
# where it has been built.
set -uo pipefail
# shellcheck source=tests/tools/common.sh
source "$(dirname "$0")/common.sh"
cd "$root" || exit 1

failed=0
row() { printf '%-5s %-10s %s\n' "$1" "$2" "$3"; }

# check NAME FOUND FUNCTION: the function dies with what is missing.
check() {
    local problem
    if problem=$("$3" 2>&1 >/dev/null); then
        row ok "$1" "$($2 2>&1 | head -n1)"
        return
    fi
    failed=1
    row FAIL "$1" "$(head -n1 <<<"${problem#error: }")"
    tail -n +2 <<<"$problem" | sed 's/^ */                 -> /'
}

# Called by name.
# shellcheck disable=SC2329
rust_version() { rustc --version; }
# shellcheck disable=SC2329
cc_version() { cc --version; }
# shellcheck disable=SC2329
python_version() { "$(python_with_pip)" -m pip --version | cut -d' ' -f1,2; }

check rust rust_version need_cargo
check "C compiler" cc_version need_cc
check python python_version python_with_pip

free=$(df -Pk . | awk 'NR == 2 { print int($4 / 1048576) }')
if [ "${free:-0}" -ge 6 ]; then
    row ok disk "$free GiB free"
else
    failed=1
    row FAIL disk "$free GiB free; building everything takes about 6"
fi
if have cargo-nextest; then
    row ok nextest "$(cargo nextest --version | head -n1)"
else
    row ok nextest "not there; tests run with cargo test"
fi

for program in target/release/halfhitch target/debug/halfhitch; do
    [ -x "$program" ] || continue
    printf '\n%s doctor\n' "$program"
    "$program" doctor || failed=1
    exit $failed
done
printf '\n%s\n' "halfhitch is not built yet: make run does all of it"
exit $failed
