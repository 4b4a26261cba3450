"""The runner of tests fails when a test, a process or its output is not as it must be."""

import contextlib
import io
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import run_tests

PASSED = "echo 'test result: ok. 3 passed; 0 failed; 0 ignored'"


def job(script, tests=3):
    return run_tests.Job("a job", ["sh", "-c", script], tests=tests)


class Runner(unittest.TestCase):
    def check(self, script, passed, failed, tests=3):
        done = job(script, tests).run()
        self.assertEqual((done.passed, done.failed), (passed, failed), done.output)
        return done

    def test_results_are_counted(self):
        self.check(PASSED, 3, 0)
        self.check("echo 'test result: FAILED. 2 passed; 1 failed; 0 ignored'; exit 101", 2, 1)

    def test_a_command_is_one_test(self):
        self.check("true", 1, 0, tests=None)
        self.check("exit 3", 0, 1, tests=None)
        # It may print results of its own, which are not ours to count.
        self.check(PASSED, 1, 0, tests=None)

    def test_a_crash_is_a_failure(self):
        self.check("kill -9 $$", 0, 1)
        self.check(f"{PASSED}; kill -9 $$", 3, 1)
        self.check("exit 0", 0, 1)

    def test_a_hang_is_a_failure(self):
        allowed, run_tests.JOB_SECONDS_MAX = run_tests.JOB_SECONDS_MAX, 0.1
        try:
            self.assertIn("no end", self.check("sleep 1000", 0, 1).output)
        finally:
            run_tests.JOB_SECONDS_MAX = allowed

    def test_all_jobs_run_and_the_failed_are_named(self):
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            counts = run_tests.run_jobs([job("exit 1"), job(PASSED), job(PASSED)], [job(PASSED)], 2)
        self.assertEqual(counts, (9, 1))
        self.assertIn("failed: a job", printed.getvalue())


if __name__ == "__main__":
    unittest.main()
