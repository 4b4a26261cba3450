"""Runs the tests of Spark: `SEALWIRE_PROGRAM=target/debug/sealwire python python/tests/spark`, with pyspark and the package installed."""

import pathlib
import sys
import unittest

HERE = pathlib.Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import support  # noqa: E402


def main():
    tests = unittest.defaultTestLoader.discover(str(HERE), "test_*.py")
    try:
        outcome = unittest.TextTestRunner().run(tests)
    finally:
        support.stop_engine()
    print(f"spark: {outcome.testsRun} tests")
    return 0 if outcome.wasSuccessful() else 1


sys.exit(main())
