import contextlib
import io
import pathlib
import re
import unittest

from support import engine

README = pathlib.Path(__file__).parents[1] / "README.md"


class Readme(unittest.TestCase):
    def test_examples_run(self):
        examples = re.findall(r"^```python\n(.*?)^```$", README.read_text(), re.M | re.S)
        self.assertEqual(len(examples), 3)
        for example in examples:
            example = example.replace("127.0.0.1:7443", f"127.0.0.1:{engine().port}")
            example = example.replace("sealwire-dev/", f"{engine().folder}/")
            with contextlib.redirect_stdout(io.StringIO()):
                exec(compile(example, str(README), "exec"), {})


if __name__ == "__main__":
    unittest.main()
