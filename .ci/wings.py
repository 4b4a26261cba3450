#!/usr/bin/env python3
"""Checks that the wings of the house, the folders below crates/, point one way.

A crate may use crates of its own wing and of those that `USES` names. Dependencies of tests are free.
"""

import json
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
USES = {
    "core": [],
    "service": ["core"],
    "engine": ["core", "service"],
    "client": ["core", "service"],
    "relay": ["core", "service", "client"],
    "data": ["core", "service", "client"],
    "dev": ["core"],
    "cli": ["core", "service", "engine", "client", "relay", "dev"],
}


def wing_of(manifest):
    """Returns the wing of a crate, or None outside crates/."""
    parts = pathlib.Path(manifest).relative_to(ROOT).parts
    return parts[1] if parts[0] == "crates" else None


def problems(packages):
    """Returns a line for each dependency that no wing may have. `packages`: those of `cargo metadata`."""
    wings = {package["name"]: wing_of(package["manifest_path"]) for package in packages}
    found = []
    for package in packages:
        wing = wings[package["name"]]
        if wing is None:
            continue
        if wing not in USES:
            found.append(f"{package['name']}: crates/{wing} is no wing: .ci/wings.py lists them")
            continue
        for used in package["dependencies"]:
            if used["kind"] == "dev" or used["name"] not in wings:
                continue
            target = wings[used["name"]]
            if target != wing and target not in USES[wing]:
                found.append(f"{package['name']} ({wing}) uses {used['name']} ({target or 'outside crates/'})")
    return found


def main():
    command = ["cargo", "metadata", "--no-deps", "--format-version", "1"]
    metadata = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout
    found = problems(json.loads(metadata)["packages"])
    print("\n".join(found), end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
