#!/usr/bin/env python3
"""Checks the public types of the Rust client, as an application with its default features sees them.

    .ci/client_api.py            documents the client and checks the pages
    .ci/client_api.py PAGES      checks these pages of rustdoc and prints every finding

A type is open if an application can write a literal of it, or can match all of it, so that a new field or variant breaks the
application. A page leaks if it names a type of the codec or of a TLS library, which change without notice.
"""

import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGES = ROOT / "target" / "doc" / "sealwire_client"
LEAKS = ["sealwire_wire", "sealwire_msgpack", "Malformed", "ScanError", "TokenReader", "InvalidRequest", "OverloadReason", "rustls::"]
# Applications share these with another crate on purpose: `public-keys` re-exports it whole.
ELSEWHERE = "public_keys"


def text_of(html):
    """Returns the text of a page, without its markup."""
    return re.sub(r"<[^>]+>", "", html).replace("&lt;", "<").replace("&gt;", ">").replace("&#60;", "<").replace("&#62;", ">")


def is_open(kind, html):
    """Returns true if a new field or variant of this type breaks an application."""
    declaration = text_of(re.search(r'<pre class="rust item-decl">(.*?)</pre>', html, re.DOTALL).group(1))
    if "#[non_exhaustive]" in declaration.split(" {")[0]:
        return False
    return kind == "enum" or "private fields" not in declaration


def open_variants(html):
    """Returns the variants with named fields that can be matched whole."""
    found = []
    for section in re.split(r'<section id="variant\.', html)[1:]:
        name = section.split('"', 1)[0]
        if f'id="variant.{name}.field' in section and "This variant is marked as non-exhaustive" not in section:
            found.append(name)
    return found


def check(pages):
    """Returns the number of types, the open ones and the leaks of a folder of pages."""
    types, opened, leaks = 0, [], []
    for page in sorted(pages.rglob("*.html")):
        kind, _, rest = page.name.partition(".")
        if ELSEWHERE in page.parts or kind not in ("struct", "enum", "trait", "fn", "type"):
            continue
        html = page.read_text()
        # The address of a type in its private module.
        if 'http-equiv="refresh"' in html:
            continue
        name = str(page.relative_to(pages).with_name(rest.removesuffix(".html")))
        leaks += [f"{name} names {leak}" for leak in LEAKS if leak in text_of(html)]
        if kind in ("struct", "enum"):
            types += 1
            if is_open(kind, html):
                opened.append(f"{kind} {name}")
            elif kind == "enum":
                opened += [f"variant {name}::{variant}" for variant in open_variants(html)]
    return types, opened, leaks


def main():
    pages = PAGES
    if len(sys.argv) > 1:
        pages = pathlib.Path(sys.argv[1])
    else:
        # Pages of types that are gone would stay.
        subprocess.run(["rm", "-rf", str(PAGES)], check=True)
        command = ["cargo", "doc", "--quiet", "--package", "sealwire-client", "--no-deps", "--target-dir", "target"]
        subprocess.run(command, cwd=ROOT, check=True)
    types, opened, leaks = check(pages)
    for finding in opened + leaks:
        print(finding)
    print(f"the client: {types} types, {len(opened)} open, {len(leaks)} leaks")
    return 1 if opened or leaks or not types else 0


if __name__ == "__main__":
    sys.exit(main())
