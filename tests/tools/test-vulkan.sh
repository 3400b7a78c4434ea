#!/usr/bin/env bash
# Builds the Vulkan plugin and runs its tests on whatever Vulkan device there is: a GPU, or Mesa's
# software. Says so and ends well where there is none, unless HALFHITCH_TEST_VULKAN=1 asks for one.
# Needs what tests/tools/test.sh sets up: the program, the local-task plugin's library, the model. Where
# HALFHITCH_TEST_LIBRARIES names the folder that they were built in, they are not built again.
set -euo pipefail
# shellcheck source=tests/tools/common.sh
source "$(dirname "$0")/common.sh"
cd "$root"

skip() {
    [ "${HALFHITCH_TEST_VULKAN:-}" != 1 ] || die "no Vulkan device: $1"
    say "SKIPPED the Vulkan tests: $1"
    exit 0
}

# Read to its end: a reader that stops at the first match fails the whole pipe.
ldconfig -p 2>/dev/null | grep 'libvulkan\.so\.1' >/dev/null ||
    skip "libvulkan.so.1 is not there (Debian, Ubuntu: apt-get install libvulkan1 mesa-vulkan-drivers)"
# By itself this is a build of its own: other features of what both stand on.
[ -n "${HALFHITCH_TEST_LIBRARIES:-}" ] || cargo build --locked -p halfhitch -p halfhitch-xla-iree-local-task
tests/tools/build-plugin.sh debug vulkan
tests/tools/install-plugins.sh debug local-task
row=$(target/debug/halfhitch backends --json | python3 -c '
import json, sys
for row in json.load(sys.stdin)["backends"]:
    if row["name"] == "xla-iree:vulkan":
        print(row["state"], row["reason"] or "")')
case $row in
ready*) ;;
no_device* | unavailable*) skip "${row#* }" ;;
*) die "the Vulkan plugin does not work: $row" ;;
esac
export HALFHITCH_TEST_LIBRARIES=${HALFHITCH_TEST_LIBRARIES:-$root/target/debug}
export HALFHITCH_CACHE_DIR=${HALFHITCH_CACHE_DIR:-$root/.cache/test}
cargo test --locked -p halfhitch-vulkan-tests --features device "$@"
