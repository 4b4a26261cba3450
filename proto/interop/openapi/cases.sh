#!/usr/bin/env bash
# Sends generated requests to an engine, valid and invalid ones by docs/openapi.json, and compares the responses with the
# description (Schemathesis).
#
#     proto/interop/openapi/cases.sh [the sealwire program, built here if not given] [number of cases: 10000] [option of schemathesis]...
set -euo pipefail
cd "$(dirname "$0")/../../.."

here=proto/interop/openapi
venv=target/interop-openapi
[ -x "$venv/bin/pip" ] || python3 -m venv "$venv"
.ci/again "$venv/bin/pip" install --quiet --disable-pip-version-check --requirement "$here/requirements.txt"
if [ $# -lt 1 ]; then
    profile=${SEALWIRE_PROFILE:-release}
    cargo build --profile "$profile" --package sealwire-cli
    set -- "${CARGO_TARGET_DIR:-target}/${profile/#dev/debug}/sealwire"
fi
exec "$venv/bin/python" "$here/cases.py" "$@"
