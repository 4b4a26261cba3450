"""The check of SECURITY.md finds what is wrong with claims, and unsafe code has one place."""

import importlib.util
import pathlib
import tomllib
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
spec = importlib.util.spec_from_file_location("claims", ROOT / ".ci" / "claims.py")
claims = importlib.util.module_from_spec(spec)
spec.loader.exec_module(claims)


class Claims(unittest.TestCase):
    def test_problems_are_found(self):
        tests = {"one", "two"}
        cases = [
            ("| C1 | a claim | `one` |\n| C2 | another | `two`, `one` |", []),
            ("| C1 | a claim | |", ["C1 names no test"]),
            ("| C1 | a claim | one |", ["C1 names no test"]),
            ("| C1 | | `one` |", ["C1 claims nothing"]),
            ("| C1 | a claim | `three` |", ["C1: there is no test three"]),
            ("| C1 | a claim | `one` |\n| C3 | another | `one` |", ["C3 follows C1"]),
            ("| C1 | a claim | `one` |\n| C1 | another | `one` |", ["C1 follows C1"]),
            ("| C1 | a claim `one` |", ["not a row of id, claim and test: | C1 | a claim `one` |", "no claim was found"]),
            ("no table", ["no claim was found"]),
        ]
        for text, expected in cases:
            with self.subTest(text=text):
                self.assertEqual(claims.problems(text, tests), expected)

    def test_only_functions_that_run_as_tests_count(self):
        rust = """
            #[test]
            fn plain() {}
            #[tokio::test(flavor = "multi_thread")]
            #[ignore]
            async fn asynchronous() {}
            fn helper() {}
            // #[test] of another
            fn commented() {}
        """
        self.assertEqual(claims.tests_in("a.rs", rust), {"plain", "asynchronous"})
        properties = "proptest! {\n    fn property(value in any::<u8>()) {}\n}\nfn helper(value: u8) {}"
        self.assertEqual(claims.tests_in("a.rs", properties), {"property"})
        self.assertEqual(claims.tests_in("a.py", "def test_it():\n    pass\ndef helper():\n    pass"), {"test_it"})


class Unsafe(unittest.TestCase):
    def test_unsafe_code_is_forbidden_outside_one_crate(self):
        workspace = tomllib.loads((ROOT / "Cargo.toml").read_text())
        self.assertEqual(workspace["workspace"]["lints"]["rust"]["unsafe_code"], "forbid")
        manifests = sorted([*(ROOT / "crates").glob("**/Cargo.toml"), *(ROOT / "loadtest").glob("*/Cargo.toml"),
                            ROOT / "fuzz/targets/Cargo.toml"])
        self.assertGreater(len(manifests), 15)
        for manifest in manifests:
            # Fuzz programs and the binding of load tests are workspaces of their own, and no part of the engine.
            if manifest.parent.name in {"fixed-base", "fuzz", "native"}:
                continue
            with self.subTest(crate=manifest.parent.name):
                self.assertEqual(tomllib.loads(manifest.read_text()).get("lints"), {"workspace": True})


if __name__ == "__main__":
    unittest.main()
