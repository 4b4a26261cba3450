"""The typed stubs agree with the package, and the package with the contract."""

import ast
import inspect
import pathlib
import subprocess
import sys
import tempfile
import unittest

import sealwire
import sealwire.arrow
from sealwire import _native
from support import client_files, engine

HERE = pathlib.Path(__file__).parent
CONTRACT = HERE.parents[1] / "proto/README.md"
STUBS = pathlib.Path(sealwire.__file__).parent / "__init__.pyi"
METHODS = ["encrypt", "decrypt", "rewrap", "tokenize", "detokenize", "mask"]
# Classes of results, which only the package creates.
NOT_CONSTRUCTED = {"Document", "FieldError", "arrow.Discovery", "arrow.DiscoveredField"}
REQUIRED = {"collection": "people", "rules": [{"kind": "card", "mask": "keep"}]}


def table(heading):
    """The first column of the table under a heading of the contract."""
    section = CONTRACT.read_text().split(f"### {heading}\n")[1].split("\n### ")[0].split("\n## ")[0]
    rows = [line.split("`")[1] for line in section.splitlines() if line.startswith("| `")]
    assert rows, heading
    return set(rows)


def keywords(kind, name):
    """The keyword arguments of a method in the stubs."""
    (found,) = [node for node in ast.parse(STUBS.read_text()).body if isinstance(node, ast.ClassDef) and node.name == kind]
    (method,) = [node for node in found.body if getattr(node, "name", None) == name]
    return {argument.arg for argument in method.args.kwonlyargs}


class Types(unittest.TestCase):
    def test_stubs_have_the_signatures_of_the_package(self):
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-m", "mypy.stubtest", "sealwire", "--ignore-missing-stub", "--concise"]
            # Without pyspark, `sealwire.spark` cannot be imported here.
            command += ["--mypy-config-file", HERE / "mypy.ini", "--allowlist", HERE / "stubtest_allowed.txt"]
            checked = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.assertEqual((checked.returncode, checked.stdout), (0, ""))

    def test_public_members_have_docstrings_and_signatures(self):
        public = {f"arrow.{name}": getattr(sealwire.arrow, name) for name in sealwire.arrow.__all__}
        public |= {name: getattr(sealwire, name) for name in ("AsyncClient", "Client", "Document", "Extension", "FieldError")}
        for name, kind in list(public.items()):
            if inspect.isclass(kind):
                public |= {f"{name}.{key}": getattr(kind, key) for key in vars(kind) if not key.startswith("_")}
        for name, member in public.items():
            with self.subTest(name=name):
                self.assertTrue(inspect.getdoc(member))
                if callable(member) and name not in NOT_CONSTRUCTED:
                    inspect.signature(member)

    def test_docstrings_of_requests_have_arguments_results_errors_and_an_example(self):
        for method in METHODS:
            for kind in (sealwire.Client, sealwire.AsyncClient):
                text = inspect.getdoc(getattr(kind, method))
                for part in ("Args:", "Returns:", "Raises:", "Example:", f"client.{method}("):
                    self.assertIn(part, text, f"{kind.__name__}.{method}")
                for option in keywords(kind.__name__, method):
                    self.assertIn(f"\n    {option}: ", text, f"{kind.__name__}.{method}")

    def test_subinterpreters_are_rejected_before_python_3_13(self):
        inner = "try:\\n    import sealwire\\nexcept ImportError as error:\\n    print(error)"
        script = f"""
import sealwire
import _xxsubinterpreters as interpreters
interpreters.run_string(interpreters.create(), "{inner}")
"""
        if sys.version_info < (3, 13):
            done = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, check=True)
            self.assertIn("does not support subinterpreters before Python 3.13", done.stdout)

    def test_options_are_those_of_the_contract(self):
        common = table("Request options")
        for method in METHODS:
            expected = table(f"{method} params") - {"app", "payload"} | common
            for kind in ("Client", "AsyncClient"):
                self.assertEqual(keywords(kind, method), expected, (kind, method))

    def test_every_option_of_the_stubs_is_taken(self):
        for method in METHODS:
            options = {name: REQUIRED.get(name) for name in keywords("Client", method)}
            _native.request(method, ["demo", 1], options)
            with self.assertRaises(TypeError):
                _native.request(method, ["demo", 1], {**options, "colour": None})
        settings = dict.fromkeys(keywords("Client", "__init__"))
        self.assertEqual(settings, dict.fromkeys(keywords("AsyncClient", "__init__")))
        sealwire.Client("127.0.0.1:1", **{**settings, **client_files(engine().folder)}).close()

    def test_names_of_options_are_those_of_the_contract(self):
        for method, name in [("encrypt", "suite"), ("encrypt", "key_scope"), ("encrypt", "format"), ("rewrap", "outside")]:
            section = CONTRACT.read_text().split(f"### {method} params\n")[1]
            row = next(line for line in section.splitlines() if line.startswith(f"| `{name}`"))
            for value in row.rsplit("|", 2)[1].replace('"', "").split(" or "):
                _native.request(method, ["demo", 1], {name: value.strip()})


if __name__ == "__main__":
    unittest.main()
