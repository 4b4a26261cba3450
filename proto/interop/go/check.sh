#!/usr/bin/env bash
# Checks Go's stock MessagePack-RPC client against the engine. Needs Go, and its module proxy the first time.
#
#     proto/interop/go/check.sh [the sealwire program, built here if not given]
#     proto/interop/go/check.sh --set-up      only downloads and compiles
set -euo pipefail
cd "$(dirname "$0")/../../.."

work=$PWD/target/interop-go
export GOCACHE=$work/cache GOMODCACHE=$work/modules
# The cache of modules can be deleted like the rest of target/.
export GOFLAGS=-modcacherw
mkdir -p "$work"
.ci/again go build -C proto/interop/go -buildvcs=false -o "$work/check" .

[ "${1:-}" != --set-up ] || exit 0
if [ $# -lt 1 ]; then
    profile=${SEALWIRE_PROFILE:-release}
    cargo build --profile "$profile" --package sealwire-cli
    set -- "${CARGO_TARGET_DIR:-target}/${profile/#dev/debug}/sealwire"
fi
exec "$work/check" "$1" proto/vectors/text-errors.jsonl
