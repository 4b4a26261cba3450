#!/usr/bin/env bash
# Seals with stock HPKE libraries of Python, Go and Node, and opens in the engine. Two of them have the KEM of p256-mlkem768. Needs Node with npm, Go of 1.21 or later,
# which fetches the version that go.mod names, and the Python environment of .ci/setup.
#
#     proto/interop/outside/check.sh [the sealwire program, built here if not given]
#     proto/interop/outside/check.sh --set-up      only installs and compiles
set -euo pipefail
cd "$(dirname "$0")/../../.."

here=proto/interop/outside
work=$PWD/target/interop-outside
export GOCACHE=$PWD/target/interop-go/cache GOMODCACHE=$PWD/target/interop-go/modules GOFLAGS=-modcacherw
mkdir -p "$work"
.ci/again go build -C "$here" -buildvcs=false -o "$work/seal" .
.ci/again go build -C "$here" -buildvcs=false -o "$work/hybrid" ./hybrid
.ci/again go build -C "$here" -buildvcs=false -o "$work/psk" ./psk
if ! cmp -s "$here/package.json" "$work/node/pins"; then
    rm -rf "$work/node"
    mkdir -p "$work/node"
    cp "$here/package.json" "$here/.npmrc" "$work/node/"
    .ci/again npm install --prefix "$work/node" --no-package-lock --ignore-scripts --no-audit --no-fund --loglevel=error >/dev/null
    cp "$here/package.json" "$work/node/pins"
fi

[ "${1:-}" != --set-up ] || exit 0
if [ $# -lt 1 ]; then
    profile=${SEALWIRE_PROFILE:-release}
    cargo build --profile "$profile" --package sealwire-cli
    set -- "${CARGO_TARGET_DIR:-target}/${profile/#dev/debug}/sealwire"
fi
python=target/interop-venv/bin/python
exec "$python" "$here/check.py" "$1" "p256:pyhpke=$python $here/seal.py" \
    "p256:Go's crypto/hpke=$work/seal" "p256-mlkem768:Go's crypto/hpke=$work/seal" \
    "p256:@hpke/core=node $here/seal.mjs $work/node" "p256-mlkem768:hpke=node $here/seal.mjs $work/node"
