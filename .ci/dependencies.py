#!/usr/bin/env python3
"""Checks licences, bans and sources of all dependencies against deny.toml, in a second and without building a tool.

    .ci/dependencies.py [MANIFEST...]        default: Cargo.toml, and those of loadtest/native and python

It reads the same deny.toml as `cargo deny check bans licenses sources` and applies these rules of it: licenses.allow and
exceptions, bans.deny with wrappers and with versions as `name:<1.2.3`, bans.wildcards, and registries alone as sources. An option of these sections that it
does not know is an error, so a new rule is never ignored. Advisories need a database: see CONTRIBUTING.md.
"""

import functools
import json
import pathlib
import re
import subprocess
import sys
import tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent
REGISTRY = "registry+https://github.com/rust-lang/crates.io-index"
KNOWN = {
    "licenses": {"allow", "exceptions", "confidence-threshold", "private"},
    "bans": {"multiple-versions", "wildcards", "allow-wildcard-paths", "highlight", "deny"},
    "sources": {"unknown-registry", "unknown-git", "allow-git"},
}


def is_allowed(expression, allowed):
    """Evaluates an SPDX expression (https://spdx.github.io/spdx-spec, annex D): AND binds closer than OR."""
    tokens = re.findall(r"[()]|[^\s()]+", expression.replace("/", " OR "))

    def either():
        value = both()
        while tokens and tokens[0] == "OR":
            tokens.pop(0)
            value = both() or value
        return value

    def both():
        value = one()
        while tokens and tokens[0] == "AND":
            tokens.pop(0)
            value = one() and value
        return value

    def one():
        if not tokens:
            raise ValueError(f"unreadable licence expression {expression!r}")
        token = tokens.pop(0)
        if token == "(":
            value = either()
            if not tokens or tokens.pop(0) != ")":
                raise ValueError(f"unreadable licence expression {expression!r}")
            return value
        if tokens and tokens[0] == "WITH":
            token = f"{token} WITH {tokens[1]}"
            del tokens[:2]
        return token in allowed

    value = either()
    if tokens:
        raise ValueError(f"unreadable licence expression {expression!r}")
    return value


def unknown_options(config):
    for section, known in KNOWN.items():
        for option in sorted(config.get(section, {}).keys() - known):
            yield f"deny.toml: this check does not know {section}.{option}"
    for ban in config["bans"]["deny"]:
        for option in sorted(ban.keys() - {"crate", "wrappers", "reason"}):
            yield f"deny.toml: this check does not know bans.deny.{option}"


def licence_problems(packages, rules):
    exceptions = {(entry["crate"], name) for entry in rules["exceptions"] for name in entry["allow"]}
    for package in packages:
        expression = package["license"]
        own = {name for crate, name in exceptions if crate == package["name"]}
        if not expression:
            yield f"{package['name']} {package['version']} names no licence"
        elif not is_allowed(expression, own | set(rules["allow"])):
            yield f"{package['name']} {package['version']}: licence {expression} is not allowed"


def users_of(manifest, package):
    """Names of the packages that depend on one. `cargo metadata` also lists optional dependencies that no feature turns
    on; `cargo tree` does not."""
    command = ["cargo", "tree", "--manifest-path", manifest, "--workspace", "--all-features", "--locked", "--target", "all",
               "--edges", "normal,build,dev", "--prefix", "none", "--depth", "1", "--format", "{p}",
               "--invert", f"{package['name']}@{package['version']}"]
    printed = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True).stdout
    return {line.split()[0] for line in printed.splitlines()[1:] if line.strip()}


def is_banned(package, crate):
    """Whether a package is `name`, or one below the version of `name:<1.2.3`."""
    name, _, requirement = crate.partition(":")
    if name != package["name"]:
        return False
    if not requirement:
        return True
    if not re.fullmatch(r"<\d+\.\d+\.\d+", requirement):
        raise ValueError(f"deny.toml: this check does not know the requirement {crate!r}")
    # A pre-release counts as its release.
    version = re.split("[-+]", package["version"])[0]
    return [int(part) for part in version.split(".")] < [int(part) for part in requirement[1:].split(".")]


def ban_problems(packages, users, rules):
    for package in packages:
        for ban in (ban for ban in rules["deny"] if is_banned(package, ban["crate"])):
            for user in sorted(users(package)):
                if user not in ban.get("wrappers", ()):
                    yield f"{user} depends on {ban['crate']}, which is banned: {ban['reason']}"
        if package["source"] is None:
            for dependency in package["dependencies"]:
                if dependency["req"] == "*" and not dependency.get("path"):
                    yield f"{package['name']} takes any version of {dependency['name']}"


def source_problems(packages):
    for package in packages:
        if package["source"] not in (None, REGISTRY):
            yield f"{package['name']} {package['version']} comes from {package['source']}"


def problems(metadata, users, config):
    """Everything about this graph of `cargo metadata` that deny.toml does not allow, as sentences. `users` gives the names
    of the packages that depend on a package."""
    reached = {node["id"] for node in metadata["resolve"]["nodes"]}
    packages = [package for package in metadata["packages"] if package["id"] in reached]
    yield from unknown_options(config)
    yield from licence_problems(packages, config["licenses"])
    yield from ban_problems(packages, users, config["bans"])
    yield from source_problems(packages)


def main(manifests):
    config = tomllib.loads((ROOT / "deny.toml").read_text())
    targets = [word for target in config["graph"]["targets"] for word in ("--filter-platform", target)]
    found, count = [], 0
    for manifest in manifests:
        command = ["cargo", "metadata", "--format-version", "1", "--locked", "--all-features", "--manifest-path", manifest]
        printed = subprocess.run(command + targets, cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout
        metadata = json.loads(printed)
        count += len(metadata["resolve"]["nodes"])
        users = functools.partial(users_of, manifest)
        found += [f"{manifest}: {problem}" for problem in problems(metadata, users, config)]
    print("\n".join(found) if found else f"{count} packages: licences, bans and sources as deny.toml allows")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or ["Cargo.toml", "loadtest/native/Cargo.toml", "python/Cargo.toml"]))
