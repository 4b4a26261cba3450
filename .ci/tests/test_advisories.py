"""The check for advisories tells what it found from what it could not reach."""

import contextlib
import importlib.machinery
import importlib.util
import io
import json
import pathlib
import unittest

FILE = pathlib.Path(__file__).resolve().parent.parent / "advisories"
loader = importlib.machinery.SourceFileLoader("advisories", str(FILE))
advisories = importlib.util.module_from_spec(importlib.util.spec_from_loader("advisories", loader))
loader.exec_module(advisories)


def entry(name, identity):
    return {"package": {"name": name, "version": "1.0.0"}, "advisory": {"id": identity, "title": "a title"}}


class Judgement(unittest.TestCase):
    def check(self, status, *outcomes):
        def outcome(result):
            if isinstance(result, Exception):
                return advisories.failing(result)
            return lambda: result

        said = io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            done = advisories.judge([(f"lock {index}", outcome(result)) for index, result in enumerate(outcomes)])
        self.assertEqual(done, status, said.getvalue())
        return said.getvalue()

    def test_the_status_tells_findings_from_what_was_not_checked(self):
        good, bad = ([], []), (["openssl 0.9: RUSTSEC-0"], [])
        lost = advisories.unreachable("RustSec", "fatal: no route to host\n")
        self.check(0, good, ([], ["old 1.0.0: RUSTSEC-1 unmaintained"]))
        self.assertIn("openssl 0.9", self.check(1, good, bad))
        self.assertIn("could not reach the advisory database of RustSec: fatal: no route to host", self.check(2, good, lost))
        self.assertIn("NOT CHECKED", self.check(1, lost, bad))


class Rust(unittest.TestCase):
    def test_vulnerabilities_fail_and_unmaintained_crates_are_listed(self):
        report = {
            "vulnerabilities": {"list": [entry("a", "RUSTSEC-1"), entry("b", "RUSTSEC-2")]},
            "warnings": {
                "unmaintained": [entry("c", "RUSTSEC-3")],
                "unsound": [entry("d", "RUSTSEC-4")],
                "yanked": [{"package": {"name": "e", "version": "2.0.0"}, "advisory": None}],
            },
        }
        found, listed = advisories.rust_findings(report, {"RUSTSEC-2"})
        self.assertEqual([line.split()[0] for line in found], ["a", "d", "e"])
        self.assertEqual([line.split()[0] for line in listed], ["c"])

    def test_every_lock_file_is_found(self):
        names = [str(file) for file in advisories.files("Cargo.lock")]
        self.assertEqual(names, ["Cargo.lock", "fuzz/Cargo.lock", "loadtest/native/Cargo.lock", "python/Cargo.lock"])


class Npm(unittest.TestCase):
    def test_an_advisory_is_named_once(self):
        advisory = {"title": "a title", "severity": "high", "url": "https://example.org"}
        report = {"vulnerabilities": {"a": {"range": "<2", "via": [advisory]}, "b": {"range": "*", "via": ["a"]}}}
        self.assertEqual(advisories.npm_findings(json.dumps(report)), ["a <2: a title (high) https://example.org"])
        self.assertEqual(advisories.npm_findings('{"vulnerabilities": {}}'), [])

    def test_no_report_is_no_clean_report(self):
        for text in ["", "405 Method Not Allowed", "{}", '{"message": "failed"}', '{"error": {"summary": "failed"}}']:
            with self.subTest(text=text), self.assertRaisesRegex(advisories.Unchecked, "could not reach the advisory"):
                advisories.npm_findings(text)

    def test_folders_with_packages_from_a_registry_are_checked(self):
        for package, expect in [
            ({}, False),
            ({"dependencies": {"a": "file:../a"}}, False),
            ({"dependencies": {"a": "file:../a", "b": "^1"}}, True),
            ({"devDependencies": {"a": "npm:b@1"}}, True),
        ]:
            self.assertEqual(advisories.from_registry(package), expect, package)


if __name__ == "__main__":
    unittest.main()
