#!/usr/bin/env python3
"""Builds all Rust tests, then runs them together with other test commands, several at a time.

    .ci/run_tests.py [--jobs N] [--only TEXT] [--profile NAME] [--also NAME=COMMAND]... [--cargo-args ARGS]

`cargo test` runs one executable after the other. Most of ours wait for sockets, databases and processes, so this runner
keeps all cores busy instead: each executable and each `--also` command is a job, the largest are started first, and each
job's output is printed only if it fails. Tests whose path contains `::exclusive::` need the machine for themselves: they
run at the end, one at a time, with nothing beside them.

The last line is `N passed, N failed`. The exit status is 1 if a test or a job failed.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
EXCLUSIVE = "::exclusive::"
# Turns a hang into a failure, on the slowest machine and beside other work.
JOB_SECONDS_MAX = 2_400
# The end of a failed job's output that is printed again at the end, in characters.
FAILURES_MAX = 6_000
RESULT = re.compile(r"^test result: \w+\. (\d+) passed; (\d+) failed", re.M)

# For the engines that tests start: on a busy machine calls wait long, and an engine would reject them.
ENVIRONMENT = {"SEALWIRE_SCHEDULE_WAIT_MAX_MS": "3600000"}


class Job:
    """A process to run: a test executable, or a command that is one test."""

    def __init__(self, name, command, folder=ROOT, environment=None, tests=None):
        self.name, self.command, self.folder = name, command, folder
        self.environment = {**os.environ, **ENVIRONMENT, **(environment or {})}
        self.tests = tests
        self.seconds, self.passed, self.failed, self.output = 0.0, 0, 0, ""

    def run(self):
        """Runs to the end, or kills the whole process group when the time is up. Counts what passed and failed."""
        started = time.monotonic()
        with tempfile.TemporaryFile() as kept:
            process = subprocess.Popen(
                self.command, cwd=self.folder, env=self.environment, stdin=subprocess.DEVNULL, stdout=kept,
                stderr=subprocess.STDOUT, start_new_session=True,
            )
            try:
                status = process.wait(JOB_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                status = f"no end after {JOB_SECONDS_MAX} s"
            finally:
                # Also ends what a test has left running.
                try:
                    os.killpg(process.pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            kept.seek(0)
            self.output = kept.read().decode(errors="replace")
        self.seconds = time.monotonic() - started
        self.count(status)
        return self

    def count(self, status):
        found = RESULT.search(self.output)
        if self.tests is None or not found:
            self.passed, self.failed = (1, 0) if status == 0 else (0, 1)
            if self.tests and status == 0:
                self.passed, self.failed = 0, 1
                self.output += "\nit printed no test result\n"
        else:
            self.passed, self.failed = int(found[1]), int(found[2])
            # A crash after the last result is a failure too.
            if status != 0 and self.failed == 0:
                self.failed = 1
        if status != 0:
            self.output += f"\nexit status: {status}\n"


def build(profile, cargo_args):
    """Compiles every test executable. Returns (name, executable, package folder) of each."""
    command = ["cargo", "test", "--profile", profile, "--no-run",
               "--message-format=json-render-diagnostics", *cargo_args]
    process = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    if process.returncode != 0:
        sys.exit(process.returncode)
    found = []
    for line in process.stdout.splitlines():
        message = json.loads(line)
        if message.get("reason") != "compiler-artifact" or not message.get("executable"):
            continue
        target = message["target"]
        is_bench = target["kind"] == ["bench"]
        if message["profile"]["test"] or is_bench:
            folder = pathlib.Path(message["manifest_path"]).parent
            found.append((f"{folder.name} {'/'.join(target['kind'])} {target['name']}", message["executable"], folder, is_bench))
    return found


def listed(executable, folder):
    """The names of an executable's tests."""
    printed = subprocess.run([executable, "--list", "--format", "terse"], cwd=folder, capture_output=True, text=True, check=True)
    return [line.removesuffix(": test") for line in printed.stdout.splitlines() if line.endswith(": test")]


def jobs_of(executables):
    """Turns executables into jobs: those that run beside others, and those that run alone."""
    shared, alone = [], []
    for name, executable, folder, is_bench in executables:
        # Most tests wait, so two for each core keep it busy.
        environment = {"CARGO_MANIFEST_DIR": str(folder), "RUST_TEST_THREADS": str(3 * (os.cpu_count() or 1))}
        if is_bench:
            shared.append(Job(name, [executable], folder, environment))
            continue
        tests = listed(executable, folder)
        exclusive = [test for test in tests if EXCLUSIVE in test]
        if len(tests) > len(exclusive):
            shared.append(Job(name, [executable, "--skip", EXCLUSIVE], folder, environment, len(tests) - len(exclusive)))
        if exclusive:
            command = [executable, EXCLUSIVE, "--test-threads=1"]
            alone.append(Job(f"{name} (exclusive)", command, folder, environment, len(exclusive)))
    return shared, alone


def longest_first(jobs, commands):
    """Orders jobs so that none of the long ones is left over at the end: integration tests, other commands, the rest."""
    by_tests = sorted(jobs, key=lambda job: -(job.tests or 0))
    outside = [job for job in by_tests if " test " in job.name]
    return outside + commands + [job for job in by_tests if job not in outside]


def report(job, number, total):
    verdict = "ok  " if job.failed == 0 else "FAIL"
    # The last line of a command tells what it compared.
    lines = job.output.strip().splitlines() or [""]
    result = f"{job.passed + job.failed} tests" if job.tests else lines[-1].strip()[:120]
    print(f"{verdict} {job.seconds:6.1f} s  [{number}/{total}] {job.name}: {result}", flush=True)
    if job.failed:
        print(job.output, flush=True)


def failures(output):
    """The part of a job's output that explains its failures, short enough to stand at the end of a log."""
    start = output.find("\nfailures:\n")
    return (output[start:] if start >= 0 else output)[-FAILURES_MAX:].strip()


def run_jobs(shared, alone, workers):
    """Runs all jobs and reports each as it ends. Returns the numbers of passed and failed tests."""
    total, done = len(shared) + len(alone), []
    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        for ended in concurrent.futures.as_completed([pool.submit(job.run) for job in shared]):
            done.append(ended.result())
            report(done[-1], len(done), total)
    for job in alone:
        done.append(job.run())
        report(job, len(done), total)
    for job in [job for job in done if job.failed]:
        print(f"failed: {job.name}\n{failures(job.output)}")
    return sum(job.passed for job in done), sum(job.failed for job in done)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=(os.cpu_count() or 1) + 1, help="jobs at a time [cores + 1]")
    parser.add_argument("--only", default="", help="run only jobs whose name contains this")
    parser.add_argument("--profile", default="dev", help="cargo profile [dev]")
    parser.add_argument("--also", action="append", default=[], metavar="NAME=COMMAND", help="one more job, run by a shell word split")
    parser.add_argument("--cargo-args", default="--workspace", help="packages to build, as cargo takes them [--workspace]")
    parser.add_argument("--build-only", action="store_true", help="compile and stop")
    arguments = parser.parse_args()
    executables = build(arguments.profile, shlex.split(arguments.cargo_args))
    if arguments.build_only:
        return 0
    commands = [also.split("=", 1) for also in arguments.also]
    shared, alone = jobs_of(executables)
    shared = longest_first(shared, [Job(name, shlex.split(command)) for name, command in commands])
    chosen = [[job for job in jobs if arguments.only in job.name] for jobs in (shared, alone)]
    if not any(chosen):
        sys.exit(f"no job's name contains {arguments.only!r}")
    passed, failed = run_jobs(*chosen, arguments.jobs)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
