"""Rejects interpreters that the native module does not support."""

import importlib
import sys


def _reject_subinterpreters():
    # Before Python 3.13 the native module has one set of classes for all interpreters of a process, and an object of one
    # interpreter would be used in another.
    if sys.version_info >= (3, 13):
        return
    try:
        interpreters = importlib.import_module("_xxsubinterpreters")
    except ImportError:
        return
    if interpreters.get_current() != interpreters.get_main():
        raise ImportError("sealwire does not support subinterpreters before Python 3.13: import it in the main interpreter")


_reject_subinterpreters()
