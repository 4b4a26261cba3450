#!/usr/bin/env python3
"""Checks that a program outside this workspace can use the client: its default features, and an engine.

    crates/client/client/examples/check.py [the sealwire program, built here if not given]

Builds the example `call` with the default features of the client, and runs it. The crates of this workspace turn the feature
`workspace` on, so their tests do not show whether the client works without it.
"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[4]
CLIENT = ["--package", "sealwire-client"]
ANY_PORT = "127.0.0.1:0"
RESULTS = ["encrypted: sw1:", "token: ", "in another row: cannot_open", "without an app: not_found"]


def built():
    return ROOT / os.environ.get("CARGO_TARGET_DIR", "target") / "debug"


def features(crate):
    """Returns the features of a crate, as the client has it by default."""
    tree = ["cargo", "tree", *CLIENT, "--edges", "normal", "--prefix", "none", "--format", "{p};{f}"]
    for line in subprocess.run(tree, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines():
        name, _, found = line.partition(";")
        if name.split()[0] == crate:
            return found.removesuffix(" (*)").split(",")
    raise AssertionError(f"the client does not use {crate}")


def run(program, example):
    with tempfile.TemporaryDirectory() as folder:
        addresses = [word for name in ("--listen", "--admin", "--control", "--http") for word in (name, ANY_PORT)]
        command = [program, "dev", "--folder", folder, *addresses]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as engine:
            try:
                address = re.search(r"listens on (127\.0\.0\.1:\d+)", engine.stdout.readline()).group(1)
                command = [example, folder, address]
                return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=60).stdout
            finally:
                engine.terminate()
                engine.stdout.read()


def main():
    found = [(crate, feature) for crate, feature in (("sealwire-client", "workspace"), ("sealwire-wire", "exhaustive"))
             if feature in features(crate)]
    assert not found, f"on by default: {found}"
    subprocess.run(["cargo", "build", "--quiet", *CLIENT, "--example", "call"], cwd=ROOT, check=True)
    if len(sys.argv) < 2:
        subprocess.run(["cargo", "build", "--quiet", "--package", "sealwire-cli"], cwd=ROOT, check=True)
    program = os.path.abspath(sys.argv[1]) if len(sys.argv) > 1 else built() / "sealwire"
    printed = run(program, built() / "examples" / "call")
    missing = [result for result in RESULTS if result not in printed]
    assert not missing, f"not printed: {missing} in\n{printed}"
    print("Rust: an outside program encrypts, decrypts, tokenizes and handles errors")


if __name__ == "__main__":
    main()
