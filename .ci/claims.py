#!/usr/bin/env python3
"""Checks the claims of SECURITY.md: ids ascend, and every claim names tests that exist.

    .ci/claims.py [FILE]      FILE: SECURITY.md of this repository
"""

import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
ROW = re.compile(r"^\| *C(\d+) *\| *(.*?) *\| *(.*?) *\|$")
RUST_TEST = re.compile(
    r"#\[(?:tokio::)?test\b[^\]]*\]\s*(?:#\[[^\]]*\]\s*|//[^\n]*\n\s*)*(?:pub(?:\([^)]*\))? )?(?:async )?fn (\w+)")
PROPERTY = re.compile(r"\bfn (\w+)\s*\(\s*(?:mut )?[\w(), ]+ in\b")
PYTHON_TEST = re.compile(r"^\s*def (test_\w+)", re.M)


def tests_in(name, text):
    """Returns the names of the test functions in a file."""
    if name.endswith(".py"):
        return set(PYTHON_TEST.findall(text))
    return set(RUST_TEST.findall(text)) | (set(PROPERTY.findall(text)) if "proptest!" in text else set())


def all_tests():
    """Returns the names of all test functions in files that git knows."""
    listed = subprocess.run(["git", "ls-files", "-z", "*.rs", "*.py"], cwd=ROOT, stdout=subprocess.PIPE, check=True)
    found = set()
    for name in filter(None, listed.stdout.decode().split("\0")):
        file = ROOT / name
        if file.is_file():
            found |= tests_in(name, file.read_text())
    return found


def problems(text, tests):
    """Returns what is wrong with the claims of a text, one line each."""
    found, last = [], 0
    for line in text.splitlines():
        row = ROW.match(line)
        if not row:
            if re.match(r"^\| *C\d+", line):
                found.append(f"not a row of id, claim and test: {line}")
            continue
        number, claim, named = int(row[1]), row[2], re.findall(r"`(\w+)`", row[3])
        if number != last + 1:
            found.append(f"C{number} follows C{last}")
        last = number
        if not claim:
            found.append(f"C{number} claims nothing")
        if not named:
            found.append(f"C{number} names no test")
        found += [f"C{number}: there is no test {name}" for name in named if name not in tests]
    return found if last else [*found, "no claim was found"]


def main():
    file = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "SECURITY.md"
    found = problems(file.read_text(), all_tests())
    print("\n".join(found) or "every claim names tests that exist")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
