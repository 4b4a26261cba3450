"""The check of the client's public types finds open types and names of the codec."""

import importlib.util
import pathlib
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
spec = importlib.util.spec_from_file_location("client_api", ROOT / ".ci" / "client_api.py")
client_api = importlib.util.module_from_spec(spec)
spec.loader.exec_module(client_api)


def page(declaration, rest=""):
    return f'<pre class="rust item-decl"><code>{declaration}</code></pre>{rest}'


OPEN_VARIANT = '<section id="variant.Late" class="variant"></section><span id="variant.Late.field.by"></span>'
CLOSED_VARIANT = OPEN_VARIANT.replace("</section>", "</section>This variant is marked as non-exhaustive")


class ClientApi(unittest.TestCase):
    def test_findings(self):
        cases = [
            ("struct.Document.html", page("#[non_exhaustive]pub struct Document { pub payload: Bytes }"), (1, [], [])),
            ("struct.Health.html", page("#[non_exhaustive]pub struct Health;"), (1, [], [])),
            ("struct.Health.html", page("pub struct Health;"), (1, ["struct Health"], [])),
            ("struct.Encrypt.html", page("pub struct Encrypt&lt;'a&gt;(<span>/* private fields */</span>);"), (1, [], [])),
            ("struct.Decrypt.html", page("pub struct Decrypt { pub app: &amp;str }"), (1, ["struct Decrypt"], [])),
            ("control/enum.Kind.html", page("pub enum Kind { Random }"), (1, ["enum control/Kind"], [])),
            ("enum.Error.html", page("#[non_exhaustive]pub enum Error { Late { by: u32 } }", OPEN_VARIANT), (1, ["variant Error::Late"], [])),
            ("enum.Error.html", page("#[non_exhaustive]pub enum Error { Late { by: u32 } }", CLOSED_VARIANT), (1, [], [])),
            ("enum.Error.html", page("#[non_exhaustive]pub enum Error { Protocol(<i>Malformed</i>) }"), (1, [], ["Error names Malformed"])),
            ("fn.to_payload.html", page("pub fn to_payload() -&gt; ScanError"), (0, [], ["to_payload names ScanError"])),
            ("client/struct.Old.html", '<meta http-equiv="refresh">', (0, [], [])),
            ("public_keys/struct.Signed.html", page("pub struct Signed;"), (0, [], [])),
        ]
        for name, html, expected in cases:
            with self.subTest(name=name, html=html), tempfile.TemporaryDirectory() as folder:
                path = pathlib.Path(folder, name)
                path.parent.mkdir(exist_ok=True)
                path.write_text(html)
                self.assertEqual(client_api.check(pathlib.Path(folder)), expected)


if __name__ == "__main__":
    unittest.main()
