#!/usr/bin/env bash
# Holds the engine against the published Evervault packages. Needs Node with npm, Python with venv, and a package
# registry the first time; the packages themselves then talk to nobody but a key server on loopback.
#
#     proto/interop/evervault/check.sh [the evervault_interop example and the sealwire program, built here if not given]
#     proto/interop/evervault/check.sh --set-up      only installs the packages
set -euo pipefail
cd "$(dirname "$0")/../../.."

here=proto/interop/evervault
work=target/evervault-interop
mkdir -p "$work/node"

# One environment per set of pinned versions, made anew when the pins change.
python_with() {
    local venv="$work/$1" pins="$here/$2"
    if ! cmp -s "$pins" "$venv/pins"; then
        rm -rf "$venv"
        python3 -m venv "$venv"
        .ci/again "$venv/bin/pip" install --quiet --disable-pip-version-check --requirement "$pins"
        cp "$pins" "$venv/pins"
    fi
}
python_with venv requirements.txt
python_with venv-legacy requirements-legacy.txt

if ! cmp -s "$here/package.json" "$work/node/pins"; then
    rm -rf "$work/node"
    mkdir -p "$work/node"
    cp "$here/package.json" "$here/.npmrc" "$work/node/"
    .ci/again npm install --prefix "$work/node" --no-package-lock --ignore-scripts --no-audit --no-fund --loglevel=error >/dev/null
    cp "$here/package.json" "$work/node/pins"
fi

[ "${1:-}" != --set-up ] || exit 0
profile=${SEALWIRE_PROFILE:-release}
built=${CARGO_TARGET_DIR:-target}/${profile/#dev/debug}
if [ $# -lt 2 ]; then
    cargo build --profile "$profile" --package sealwire-crypto --example evervault_interop
    cargo build --profile "$profile" --package sealwire-cli
    set -- "$built/examples/evervault_interop" "$built/sealwire"
fi
"$work/venv/bin/python" "$here/check.py" "$1" "$2" "$work"
