#!/usr/bin/env bash
# Installs the HTTP clients of Node and compiles those of Go below target/relay-clients, for the tests of the relay. Needs Node
# with npm, and Go of 1.21 or later, which fetches the version that go.mod names. Quick when all of it is there.
set -euo pipefail
cd "$(dirname "$0")/../../../../.."

here=crates/relay/relay/tests/clients
work=$PWD/target/relay-clients
mkdir -p "$work"
if ! cmp -s "$here/package-lock.json" "$work/node/pins"; then
    rm -rf "$work/node"
    mkdir -p "$work/node"
    cp "$here/package.json" "$here/package-lock.json" "$here/.npmrc" "$work/node/"
    .ci/again npm ci --prefix "$work/node" --ignore-scripts --no-audit --no-fund --loglevel=error >/dev/null
    cp "$here/package-lock.json" "$work/node/pins"
fi
export GOCACHE=$PWD/target/interop-go/cache GOMODCACHE=$PWD/target/interop-go/modules GOFLAGS=-modcacherw
.ci/again go build -C "$here" -buildvcs=false -o "$work/go" .
