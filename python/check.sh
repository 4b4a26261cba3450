#!/usr/bin/env bash
# Builds the Python package's wheel, installs it in a clean virtual environment, and runs the package's tests against an engine.
#
#     python/check.sh [the sealwire program, built here if not given]
#     python/check.sh --set-up      only downloads
set -euo pipefail
cd "$(dirname "$0")/.."

work=$PWD/target/python
tools=$work/tools
mkdir -p "$work"
# Kept as files, so that the environment of the tests is made anew each time and without the network.
if ! cat python/tests/tools.txt python/tests/requirements.txt | cmp --silent - "$work/downloaded"; then
    python3 -m venv --clear "$tools"
    .ci/again "$tools/bin/pip" install --quiet --disable-pip-version-check --requirement python/tests/tools.txt
    .ci/again "$tools/bin/pip" download --quiet --disable-pip-version-check --only-binary :all: --dest "$work/downloads" \
        --requirement python/tests/requirements.txt
    cat python/tests/tools.txt python/tests/requirements.txt >"$work/downloaded"
fi

[ "${1:-}" != --set-up ] || exit 0
if [ $# -lt 1 ]; then
    cargo build --package sealwire-cli
    set -- "${CARGO_TARGET_DIR:-target}/debug/sealwire"
fi
program=$(realpath "$1")

# In the folder of the workspace, whose libraries are compiled alike.
rm -rf "$work/wheels"
"$tools/bin/maturin" build --quiet --locked --manifest-path python/Cargo.toml --profile dev --compatibility linux \
    --target-dir "${CARGO_TARGET_DIR:-target}" --out "$work/wheels"
python3 -m venv --clear --without-pip "$work/venv"
"$tools/bin/pip" --python "$work/venv" install --quiet --disable-pip-version-check --no-compile --no-index \
    --find-links "$work/downloads" --requirement python/tests/requirements.txt "$work"/wheels/sealwire-*.whl
SEALWIRE_PROGRAM=$program exec "$work/venv/bin/python" python/tests
