"""The check of the wings finds an arrow that points back."""

import importlib.util
import pathlib
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
spec = importlib.util.spec_from_file_location("wings", ROOT / ".ci" / "wings.py")
wings = importlib.util.module_from_spec(spec)
spec.loader.exec_module(wings)


def package(name, folder, **dependencies):
    used = [{"name": name.replace("_", "-"), "kind": kind} for name, kind in dependencies.items()]
    return {"name": name, "manifest_path": str(ROOT / folder / "Cargo.toml"), "dependencies": used}


class Wings(unittest.TestCase):
    def test_problems_are_found(self):
        wire = package("wire", "crates/core/wire", rmp=None)
        cases = [
            ([wire, package("client", "crates/client", wire=None)], []),
            ([package("wire", "crates/core/wire", client=None), package("client", "crates/client")],
             ["wire (core) uses client (client)"]),
            ([package("wire", "crates/core/wire", client="dev"), package("client", "crates/client")], []),
            ([package("relay", "crates/relay/relay", engine="build"), package("engine", "crates/engine/engine")],
             ["relay (relay) uses engine (engine)"]),
            ([wire, package("loads", "loadtest/loads", wire=None)], []),
            ([package("wire", "crates/core/wire", loads=None), package("loads", "loadtest/loads")],
             ["wire (core) uses loads (outside crates/)"]),
            ([package("attic", "crates/attic/attic")], ["attic: crates/attic is no wing: .ci/wings.py lists them"]),
        ]
        for packages, expected in cases:
            with self.subTest(expected=expected):
                self.assertEqual(wings.problems(packages), expected)


if __name__ == "__main__":
    unittest.main()
