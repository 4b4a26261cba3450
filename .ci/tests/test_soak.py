#!/usr/bin/env python3
"""Tests of .ci/soak with steps that pass, fail, hang and are interrupted.

    python3 .ci/tests/test_soak.py
"""

import contextlib
import importlib.machinery
import importlib.util
import io
import json
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from unittest import mock

HERE = pathlib.Path(__file__).resolve().parent.parent
loader = importlib.machinery.SourceFileLoader("soak", str(HERE / "soak"))
soak = importlib.util.module_from_spec(importlib.util.spec_from_loader("soak", loader))
sys.modules["soak"] = soak
# No compiled copy of the script beside it.
sys.dont_write_bytecode = True
loader.exec_module(soak)

# Starts a process in its own session, which no signal to a process group reaches, writes its id, and hangs.
HANG = """import subprocess, time
print(subprocess.Popen(['sleep', '600'], start_new_session=True).pid, flush=True)
time.sleep(600)"""


def passing(run):
    run.unit = "rounds"
    while run.count < 3:
        run.count += run.child("one", ["sh", "-c", "echo round of $NAME"], {"NAME": "one"})[0] == 0


def failing(run):
    run.child("two", ["sh", "-c", "echo broken; exit 3"])


def hanging(run):
    run.count = 7
    run.child("hang", [sys.executable, "-c", HANG])


def left_behind(run):
    run.spawn(["sleep", "600"])
    run.details["pid"] = run.processes[0].pid


def missing(run):
    raise soak.Skip("no tool: apt-get install tool")


def mistaken(run):
    raise KeyError("mistake")


def is_running(pid):
    """Whether a process exists that is not just a zombie."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


class Soak(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def descendant(self):
        """The id that the hanging child printed, or None."""
        log = self.folder / "hanging.log"
        lines = log.read_text().splitlines(keepends=True) if log.exists() else []
        return int(lines[-1]) if len(lines) == 4 and lines[-1].endswith("\n") else None

    def run_soak(self, *steps, arguments=("1",)):
        """Runs fake steps. Returns the exit status, what was printed, and the steps of results.json by name."""
        table = [soak.Step(step.__name__, 0, "", step, limit=600) for step in steps]
        clock = time.monotonic

        def clock_that_jumps():
            return clock() + (1_000 if self.descendant() else 0)

        # The time of the hanging step is up as soon as it hangs, however slow the machine is.
        jumping = mock.patch.object(soak.time, "monotonic", clock_that_jumps)
        with contextlib.redirect_stdout(io.StringIO()) as printed, jumping:
            status = soak.main(list(arguments), table, self.folder)
        results = json.loads((self.folder / "results.json").read_text())["steps"]
        self.assertTrue(printed.getvalue().endswith((self.folder / "table.md").read_text()))
        return status, printed.getvalue(), {step["step"]: step for step in results}

    def await_end(self, pid):
        """Killed processes disappear in their own time."""
        while is_running(pid):
            time.sleep(0.01)

    def test_all_steps_run_although_some_fail(self):
        status, printed, results = self.run_soak(failing, hanging, missing, mistaken, passing)
        self.assertEqual(status, 1)
        outcomes = {name: (step["result"], step["count"], step["failures"]) for name, step in results.items()}
        self.assertEqual(outcomes, {
            "failing": ("failed", 0, ["two exited with 3"]),
            "hanging": ("failed", 7, ["hang timed out"]),
            "missing": ("skipped", 0, []),
            "mistaken": ("failed", 0, ["KeyError: 'mistake'"]),
            "passing": ("passed", 3, []),
        })
        self.assertIn("| SKIPPED; no tool: apt-get install tool |", printed)
        self.assertIn("| 3 rounds | passed |", printed)
        log = (self.folder / "passing.log").read_text()
        self.assertEqual(log, "$ NAME='one' sh -c echo round of $NAME\nround of one\n" * 3)

    def test_a_child_is_killed_with_all_its_descendants(self):
        self.run_soak(hanging)
        self.await_end(self.descendant())

    def test_a_step_ends_what_it_leaves_running(self):
        _, _, results = self.run_soak(left_behind)
        self.await_end(results["left_behind"]["details"]["pid"])

    def test_skipped_is_not_failed(self):
        self.assertEqual(self.run_soak(passing, missing)[0], 0)

    def test_only(self):
        status, _, results = self.run_soak(failing, passing, arguments=("--only", "passing", "1"))
        self.assertEqual((status, list(results)), (0, ["passing"]))
        for wrong in (["--only", "nothing", "1"], ["0"], []):
            with self.assertRaises(SystemExit) as ended, contextlib.redirect_stderr(io.StringIO()):
                soak.main(wrong, soak.STEPS, self.folder)
            self.assertEqual(ended.exception.code, 2)

    def test_minutes_are_shared_by_weight(self):
        shares = {}
        steps = [soak.Step(name, weight, "", lambda run: shares.update({run.step.name: run.share}))
                 for name, weight in [("one", 1), ("three", 3), ("fixed", 0)]]
        with contextlib.redirect_stdout(io.StringIO()):
            soak.main(["2"], steps, self.folder)
        self.assertEqual(shares, {"one": 30, "three": 90, "fixed": 0})

    def test_signals_kill_children_and_print_the_table(self):
        script = f"import sys; sys.path.insert(0, {str(HERE / 'tests')!r}); import pathlib, test_soak as tests; soak = tests.soak\n" \
            "steps = [soak.Step(step.__name__, 0, '', step, 600) for step in (tests.passing, tests.hanging, tests.failing)]\n" \
            f"sys.exit(soak.main(['1'], steps, pathlib.Path({str(self.folder)!r})))"
        for sent in (signal.SIGINT, signal.SIGTERM):
            process = subprocess.Popen([sys.executable, "-B", "-c", script], stdout=subprocess.PIPE, text=True)
            while self.descendant() is None:
                time.sleep(0.01)
            process.send_signal(sent)
            printed = process.communicate()[0]
            self.assertEqual(process.returncode, 130)
            self.assertIn("| 7  | INTERRUPTED |", printed)
            self.assertIn("| 3 rounds | passed |", printed)
            self.assertNotIn("failing", printed)
            self.await_end(self.descendant())
            (self.folder / "hanging.log").unlink()


class Readings(unittest.TestCase):
    def test_promises_of_the_benches(self):
        printed = """
met     2,000 fields: CPU per field <= 4 seals: 3.50 seals
NOT MET 1 field, 64 callers, warm: CPU <= 0.75x (keygen + ECDH): 1.45x
throughput with the trail >= 0.9 of that without: missed
| gate | measured | verdict |
| --- | --- | --- |
| p99 <= 2x that without | 0.61 (0.53 to 0.77) | pass |
| work >= 97 % | 0.9; not judged: the machine was not ours | inconclusive |
| postgres | 1000000 | look-up | 133961 | 0.40 / 1.20 | 259561 | 0.51 (0.44-0.56) | >= 0.5: inconclusive |
postgres, random: with 10000000 rows 0.68 of that with 1000000, >= 0.8: FAIL
"""
        verdicts = [verdict for verdict, _ in soak.promises(printed)]
        self.assertEqual(verdicts, ["met", "NOT MET", "missed", "pass", "inconclusive", "inconclusive", "FAIL"])
        self.assertEqual(soak.promises(printed)[3][1], "p99 <= 2x that without | 0.61 (0.53 to 0.77)")

    def test_every_verdict_has_a_meaning(self):
        verdicts = {"met", "pass", "NOT MET", "missed", "FAIL", "inconclusive"}
        self.assertEqual(soak.KEPT | soak.MISSED | soak.UNSURE, verdicts)

    def test_a_test_that_does_not_exist_is_a_failure(self):
        class FakeRun:
            failures = []

            def child(self, *_):
                return 0, "\nrunning 0 tests\n\ntest result: ok. 0 passed; 0 failed; 0 ignored; 9 filtered out\n"

        run = FakeRun()
        self.assertFalse(soak.run_test(run, "audit log", "audit", "kils", {}))
        self.assertEqual(run.failures, ["audit log: no test is called kils"])


if __name__ == "__main__":
    unittest.main()
