"""Runs all tests: `SEALWIRE_PROGRAM=target/debug/sealwire python python/tests`, with the package installed."""

import pathlib
import sys
import unittest

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE))

import support  # noqa: E402


def main():
    tests = unittest.defaultTestLoader.discover(str(HERE), "test_*.py")
    try:
        outcome = unittest.TextTestRunner().run(tests)
    finally:
        support.stop_engine()
    print(f"python package: {outcome.testsRun} tests")
    return 0 if outcome.wasSuccessful() else 1


sys.exit(main())
