# shellcheck shell=bash
# What the set-up scripts share. Sourced, not run.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
export root

say() { printf '%s\n' "$*" >&2; }

die() {
    printf 'error: %s\n' "$1" >&2
    shift
    for hint in "$@"; do printf '  %s\n' "$hint" >&2; done
    exit 1
}

have() { command -v "$1" >/dev/null 2>&1; }

need_cargo() {
    have cargo || die "cargo was not found" \
        "install Rust 1.95 or newer with rustup, or your distribution's rustc and cargo"
    local want got
    want=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' "$root/Cargo.toml")
    got=$(rustc --version | cut -d' ' -f2)
    [ "$(printf '%s\n%s\n' "$want" "${got%%-*}" | sort -V | head -n1)" = "$want" ] ||
        die "rustc $got is too old: $want or newer is needed" "rustup update stable"
}

need_cc() {
    have cc || die "no C compiler was found (cc)" "Debian, Ubuntu: sudo apt-get install build-essential"
}

# Prints a python that has pip: the system's, or that of a virtual environment made for the purpose.
python_with_pip() {
    have python3 || die "python3 was not found" \
        "Debian, Ubuntu: sudo apt-get install python3 python3-venv"
    if python3 -m pip --version >/dev/null 2>&1; then
        echo python3
        return
    fi
    local venv=$root/.venv
    if [ ! -x "$venv/bin/pip" ]; then
        python3 -c 'import ensurepip, venv' 2>/dev/null || die "python3 has neither pip nor venv" \
            "Debian, Ubuntu: sudo apt-get install python3-venv"
        python3 -m venv "$venv" >&2 || die "the virtual environment $venv could not be made"
    fi
    echo "$venv/bin/python"
}
