"""The check of dependencies finds what deny.toml forbids."""

import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import dependencies

CONFIG = {
    "licenses": {"allow": ["MIT", "Apache-2.0", "ISC"], "exceptions": [{"crate": "curve", "allow": ["CC0-1.0"]}]},
    "bans": {
        "deny": [
            {"crate": "openssl", "wrappers": ["ours"], "reason": "one library"},
            {"crate": "sharing:<6.0.1", "reason": "coefficients"},
        ]
    },
    "sources": {},
}


def graph(*packages):
    """`cargo metadata` of packages (name, licence, source)."""
    return {
        "packages": [
            {"id": name, "name": name, "version": "1.0.0", "license": licence, "source": source, "dependencies": []}
            for name, licence, source in packages
        ],
        "resolve": {"nodes": [{"id": name, "dependencies": []} for name, _, _ in packages]},
    }


class Dependencies(unittest.TestCase):
    def check(self, metadata, *expected, users=(), config=CONFIG):
        found = list(dependencies.problems(metadata, lambda _: users, config))
        self.assertEqual(len(found), len(expected), found)
        for problem, words in zip(found, expected):
            self.assertIn(words, problem)

    def test_licence_expressions(self):
        allowed = {"MIT", "Apache-2.0"}
        for expression, verdict in [
            ("MIT", True),
            ("GPL-3.0", False),
            ("MIT OR GPL-3.0", True),
            ("MIT/GPL-3.0", True),
            ("MIT AND GPL-3.0", False),
            ("MIT OR GPL-3.0 AND GPL-2.0", True),
            ("(MIT OR GPL-3.0) AND GPL-2.0", False),
            ("(MIT OR GPL-3.0) AND Apache-2.0", True),
            ("Apache-2.0 WITH LLVM-exception", False),
        ]:
            self.assertEqual(dependencies.is_allowed(expression, allowed), verdict, expression)
        for unreadable in ["", "MIT)", "(MIT", "MIT OR", "MIT Apache-2.0"]:
            with self.assertRaises(ValueError):
                dependencies.is_allowed(unreadable, allowed)

    def test_what_is_allowed(self):
        registry = dependencies.REGISTRY
        self.check(graph(("ours", "MIT", None), ("openssl", "ISC", registry)), users=["ours"])
        self.check(graph(("curve", "CC0-1.0", registry)))

    def test_what_is_not(self):
        registry = dependencies.REGISTRY
        self.check(graph(("other", "CC0-1.0", registry)), "CC0-1.0 is not allowed")
        self.check(graph(("other", None, registry)), "names no licence")
        self.check(graph(("theirs", "MIT", registry), ("openssl", "ISC", registry)), "theirs depends on", users=["ours", "theirs"])
        self.check(graph(("other", "MIT", "git+https://example.org/other")), "comes from git+")
        wild = graph(("ours", "MIT", None))
        wild["packages"][0]["dependencies"] = [{"name": "other", "req": "*", "path": None}]
        self.check(wild, "any version of other")

    def test_versions_below_one_are_banned(self):
        for version, banned in [("6.0.1", False), ("6.0.10", False), ("10.0.0", False), ("6.0.0", True), ("5.9.9", True),
                                ("6.0.0-rc.1", True)]:
            metadata = graph(("sharing", "MIT", dependencies.REGISTRY))
            metadata["packages"][0]["version"] = version
            self.check(metadata, *["ours depends on sharing:<6.0.1"] * banned, users=["ours"])
        unknown = {"deny": [{"crate": "sharing:^6", "reason": ""}]}
        with self.assertRaises(ValueError):
            self.check(graph(("sharing", "MIT", dependencies.REGISTRY)), config=CONFIG | {"bans": unknown})

    def test_an_unknown_rule_is_an_error(self):
        self.check(graph(), "licenses.unused", config=CONFIG | {"licenses": {**CONFIG["licenses"], "unused": 1}})


if __name__ == "__main__":
    unittest.main()
