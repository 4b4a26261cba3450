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

# Spark is large, so its environment is kept, and gets only the new wheel each time.
spark=$work/spark
spark_wanted() { cat python/tests/spark/requirements.txt python/tests/spark/session.py; }
if ! command -v java >/dev/null; then
    echo "not tested, for want of a Java runtime: sealwire.spark" >&2
    [ -z "${SEALWIRE_TEST_ALL_PROGRAMS:-}" ] || exit 1
    spark=
elif ! spark_wanted | cmp --silent - "$spark/wanted"; then
    rm -rf "$spark"
    python3 -m venv "$spark/venv"
    .ci/again "$spark/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir --requirement python/tests/spark/requirements.txt
    .ci/again "$spark/venv/bin/python" python/tests/spark/session.py "$spark/ivy" >"$spark/packages.log" 2>&1
    spark_wanted >"$spark/wanted"
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
export SEALWIRE_PROGRAM=$program
"$work/venv/bin/python" python/tests
[ -n "$spark" ] || exit 0
"$spark/venv/bin/pip" install --quiet --disable-pip-version-check --no-index --no-deps --force-reinstall "$work"/wheels/sealwire-*.whl
SEALWIRE_SPARK_IVY=$spark/ivy exec "$spark/venv/bin/python" python/tests/spark
