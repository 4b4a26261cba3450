#!/usr/bin/env bash
# Holds the relay against readers of PHP, Python, Go and Node. Needs php, Go, Node with npm, and the Python environment of .ci/setup.
#
#     proto/interop/relay/check.sh [the relay_verdicts example, built here if not given] [options of check.py]
#     proto/interop/relay/check.sh --set-up      only installs and compiles
set -euo pipefail
cd "$(dirname "$0")/../../.."

here=proto/interop/relay
work=$PWD/target/interop-relay
export GOCACHE=$PWD/target/interop-go/cache GOMODCACHE=$PWD/target/interop-go/modules GOFLAGS=-modcacherw
mkdir -p "$work"
.ci/again go build -C "$here" -buildvcs=false -o "$work/readers" .
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
    cargo build --profile "$profile" --package sealwire-relay --example relay_verdicts
    set -- "${CARGO_TARGET_DIR:-target}/${profile/#dev/debug}/examples/relay_verdicts"
fi
verdicts=$1
shift
exec target/interop-venv/bin/python "$here/check.py" "$verdicts" "$work/readers" "$work/node" "$@"
