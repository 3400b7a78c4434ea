#!/usr/bin/env bash
# Puts the plugins that were built into target/PROFILE/plugins, where the program beside them looks, and
# writes their manifests. Usage: install-plugins.sh debug|release DRIVER...
set -euo pipefail
# shellcheck source=tests/tools/common.sh
source "$(dirname "$0")/common.sh"
cd "$root"

profile=$1
shift
built=target/$profile
plugins=$built/plugins
program=$built/halfhitch
[ -x "$program" ] || die "$program is not built" "run \`make setup\`"

version=$(csrc/build-runtime.sh print-paths | sed -n 's/^version=//p')
# Only their owner may change them, whatever the umask: the program refuses others.
umask 022
mkdir -p "$plugins"
suffix=so
[ "$(uname -s)" = Darwin ] && suffix=dylib
chmod go-w "$plugins"
for driver in "$@"; do
    name=halfhitch_xla_iree_${driver//-/_}
    library=$plugins/lib$name.$suffix
    # A new file and a rename: a program that has the old one loaded keeps it whole.
    install -m 755 "$built/lib$name.$suffix" "$library.new"
    mv "$library.new" "$library"
    "$program" plugin-manifest "$library" --name "xla-iree:$driver" --driver "$driver" \
        --component "iree-runtime=$version"
done
