"""Holds the engine against the published Evervault packages, and against a reader of our own.

    python proto/interop/evervault/check.py <evervault_interop example> <sealwire program> <folder that check.sh made>

1. Every vector in proto/vectors/evervault.jsonl gets its verdict from evervault_format.py too. 2. What the Node and
Python clients encrypt opens in the engine's crate: both curves, with and without a role, every datatype, documents,
files, and the mixed derivations of a client that is used with a role and without; their older versions make what
legacy reading is for. 3. What the crate writes opens in evervault_format.py. 4. Everything of 2 also
travels through a running engine that was given the key by `apps import`, and what `encrypt` answers there opens in
evervault_format.py. Copies with one character changed open nowhere. The clients get their public key from a server on
loopback and reach nothing else.
"""

import base64
import http.server
import json
import os
import pathlib
import re
import secrets
import subprocess
import sys
import tempfile
import threading

sys.path[:0] = [os.path.dirname(os.path.abspath(__file__)), os.path.dirname(os.path.dirname(os.path.abspath(__file__)))]
import evervault_format as ev  # noqa: E402
from call import call, connect  # noqa: E402

HERE = pathlib.Path(__file__).parent
VECTORS = HERE.parent.parent / "vectors" / "evervault.jsonl"
API_KEY = "any text the key server does not look at"

DOCUMENT = {
    "text": "4242424242424242",
    "accents": "Zo\u00eb \U0001f511",
    "long": "x" * 5000,
    "looks like a number": "007",
    "integers": [0, 1, -1, 42, 2**53 - 1, -(2**53 - 1)],
    "floats": [1.5, -0.1, 1e21, 1e-7, 0.30000000000000004, 5e-324, 1.7976931348623157e308],
    "booleans": [True, False],
    "nested": {"deeper": [{"deepest": ["x", 1, True]}], "nothing here": {}, "nor here": []},
}
PYTHON_ONLY = {"big": [2**64 - 1, -(2**63), 2**64, 10**30], "specials": [float("inf"), 1e16], "empty": ""}

# A curve of Evervault, and the suite whose key pairs are on it.
SUITES = {"r1": "p256", "k1": "secp256k1"}


class KeyServer(http.server.BaseHTTPRequestHandler):
    """Answers the one request the clients make: the app's public keys."""

    keys = {}

    def do_GET(self):
        found = self.path.lstrip("/") == "cages/key"
        body = json.dumps(self.keys).encode() if found else b"{}"
        self.send_response(200 if found else 404)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def leaves(plain, sealed):
    """Pairs of leaves at the same place; the shape and the keys must be the same."""
    if isinstance(plain, dict):
        assert isinstance(sealed, dict) and plain.keys() == sealed.keys(), sealed
        return [pair for key in plain for pair in leaves(plain[key], sealed[key])]
    if isinstance(plain, list):
        assert isinstance(sealed, list) and len(plain) == len(sealed), sealed
        return [pair for at, each in enumerate(plain) for pair in leaves(each, sealed[at])]
    assert isinstance(sealed, str), sealed
    return [(plain, sealed)]


def value_of(opened):
    convert = {"text": str, "integer": int, "float": float, "boolean": lambda text: {"true": True, "false": False}[text]}
    return convert[opened["type"]](opened["value"])


def expected_of(plain):
    # Digits that 64 bits cannot hold come back as text rather than as another number.
    beyond = type(plain) is int and not -(2**63) <= plain < 2**64 and int(float(plain)) != plain
    return str(plain) if beyond else plain


class Program:
    """A child that answers one JSON line with one."""

    def __init__(self, *command, **environment):
        environment = {**os.environ, "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1", **environment}
        self.child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)

    def ask(self, **request):
        self.child.stdin.write(json.dumps(request) + "\n")
        self.child.stdin.flush()
        line = self.child.stdout.readline()
        assert line, f"{self.child.args} ended"
        return json.loads(line)

    def close(self):
        self.child.stdin.close()
        assert self.child.wait(30) == 0, self.child.args


def altered(text):
    """A copy of a string with one character of its ciphertext or IV changed; never only the point's sign."""
    parts = text.split(":")
    part = secrets.choice([-2, -4])
    at = secrets.randbelow(len(parts[part]) - 1)
    other = secrets.choice([c for c in "ABCDwxyz0123+/" if c != parts[part][at]])
    parts[part] = parts[part][:at] + other + parts[part][at + 1 :]
    return ":".join(parts)


def refuses(scalar, text):
    try:
        ev.open_string(scalar, True, text)
    except ev.Refused:
        return True
    return False


def check_vectors():
    opened = refused = 0
    for line in VECTORS.read_text().splitlines():
        v = json.loads(line)
        scalar = bytes.fromhex(v["private_key"])
        try:
            if v["kind"] == "file":
                content, role = ev.open_file(scalar, v["legacy"], bytes.fromhex(v["sealed"]))
                got = {"type": "file", "value": content.hex(), **({"role": role} if role else {})}
            else:
                got = ev.open_string(scalar, v["legacy"], v["sealed"])
        except ev.Refused:
            assert v["expect"] == "refuse", v["name"]
            refused += 1
            continue
        want = v.get("opens_to", {})
        if want.get("type") == "float":  # Two languages print one float in their own ways.
            got["value"], want["value"] = float(got["value"]), float(want["value"])
        assert v["expect"] == "open" and got == want, (v["name"], got)
        opened += 1
    assert opened >= 50 and refused > opened, (opened, refused)
    return opened, refused


class Check:
    def __init__(self, engine, scalar):
        self.engine, self.scalar = engine, scalar
        self.strings = self.files = 0
        self.tags = set()
        self.seen = []  # What each client made and what it must come back as.

    def open(self, sealed, legacy):
        return self.engine.ask(op="open", private_key=self.scalar.hex(), legacy=legacy, sealed=sealed)

    def client_string(self, plain, sealed, role, legacy):
        opened = self.open(sealed, legacy)
        assert "refused" not in opened, sealed
        got, want = value_of(opened), expected_of(plain)
        # JSON.stringify writes 1.0 as 1, so a whole float of Node's is an integer; in Python they compare equal.
        assert got == want and isinstance(got, bool) == isinstance(want, bool), (got, want)
        assert opened.get("role") == role, (opened, role)
        # The reader of our own agrees, so that each vouches for the other.
        again = ev.open_string(self.scalar, legacy, sealed)
        assert value_of(again) == want and again.get("role") == role
        bad = altered(sealed)
        assert self.open(bad, True) == {"refused": True} and refuses(self.scalar, bad), bad
        self.tags.add(sealed.split(":")[1])
        self.seen.append((sealed, want))
        self.strings += 1

    def client_file(self, content, sealed, role, legacy):
        opened = self.engine.ask(op="open_file", private_key=self.scalar.hex(), legacy=legacy, sealed=sealed)
        assert opened == {"content": content.hex(), "role": role}, (opened, sealed[:14])
        assert ev.open_file(self.scalar, legacy, bytes.fromhex(sealed)) == (content, role)
        self.tags.add(f"file {bytes.fromhex(sealed)[6]}")
        self.seen.append((bytes.fromhex(sealed), content))
        self.files += 1


def check_client(check, client, document, is_old, api_key):
    """Everything one client can make. Its older version is what legacy reading is for."""
    contents = [b"hello", bytes(range(256)) * 300]
    role = "card-number"
    for curve in ("r1", "k1"):
        key = "pk:" + base64.b64encode(ev.compressed(curve, check.scalar)).decode() if api_key == "pk" else api_key
        for given in (None, role, "a", "a" * 20):
            legacy = is_old and given is not None
            [made] = client.ask(key=key, curve=curve, steps=[{"role": given, "value": document}])["results"]
            assert "value" in made, made
            for plain, sealed in leaves(document, made["value"]):
                check.client_string(plain, sealed, given, legacy)
                if legacy:
                    assert check.open(sealed, False) == {"refused": True}
        for content in contents:
            [made] = client.ask(key=key, curve=curve, steps=[{"role": None, "file": content.hex()}])["results"]
            check.client_file(content, made["file"], None, False)
            [made] = client.ask(key=key, curve=curve, steps=[{"role": role, "file": content.hex()}])["results"]
            if is_old:
                check.client_file(content, made["file"], role, True)
            else:
                assert "error" in made, "files take no role"
        # One client, with a role and without, in both orders: on k1 the first call decides the derivation of all.
        for first, second in ((role, None), (None, role)):
            steps = [{"role": first, "value": "first"}, {"role": second, "value": "second"}, {"role": None, "file": "00ff"}]
            results = client.ask(key=key, curve=curve, steps=steps)["results"]
            check.client_string("first", results[0]["value"], first, is_old)
            check.client_string("second", results[1]["value"], second, is_old)
            check.client_file(b"\x00\xff", results[2]["file"], None, False)


def check_writer(engine, scalar):
    strings = 0
    values = [("string", "hello"), ("string", ""), ("string", "Zo\u00eb \U0001f511"), ("number", "42"), ("number", "-1"),
              ("number", "1.5"), ("boolean", "true"), ("boolean", "false")]
    kinds = {"string": "text", "boolean": "boolean"}
    for curve in ("r1", "k1"):
        for plain, role in ((True, None), (False, None), (False, "card-number")):
            for datatype, text in values:
                shared = dict(curve=curve, private_key=scalar.hex(), role=role, encrypted_at=1_700_000_000, plain=plain)
                sealed = engine.ask(op="seal", datatype=datatype, text=text, **shared)["sealed"]
                want = {"type": kinds.get(datatype, "float" if "." in text else "integer"), "value": text}
                if not plain:
                    want.update(origin=ord("S"), encrypted_at=1_700_000_000, **({"role": role} if role else {}))
                assert ev.open_string(scalar, False, sealed) == want, sealed
                tag = {("r1", True): "Tk9D", ("r1", False): "QkTC", ("k1", True): "RFVC", ("k1", False): "S0lS"}[curve, plain]
                assert sealed.startswith(f"ev:{tag}:") and refuses(scalar, altered(sealed))
                strings += 1
        for content in (b"", b"hello", secrets.token_bytes(200_000)):
            for pieces in (False, True):
                made = engine.ask(op="seal_file", curve=curve, private_key=scalar.hex(), content=content.hex(), pieces=pieces)
                file = bytes.fromhex(made["sealed"])
                assert ev.open_file(scalar, False, file) == (content, None) and file[6] == {"k1": 2, "r1": 3}[curve]
    return strings


class Server:
    """A running engine with the key imported, that reads all there is and seals with the same key."""

    def __init__(self, program, scalar):
        self.folder = tempfile.TemporaryDirectory()
        folder, program = self.folder.name, os.path.abspath(program)
        environment = {**os.environ, "SEALWIRE_EVERVAULT_LEGACY": "true", "SEALWIRE_EVERVAULT_OPEN_ROLES": "*"}
        command = [program, "dev", "--folder", folder]
        for listener in ("--listen", "--admin", "--control", "--http"):
            command += [listener, "127.0.0.1:0"]
        self.child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment)
        said = ""
        while "Serving until" not in said:
            said += self.child.stdout.readline()
        port, control = re.search(r"listens on 127\.0\.0\.1:(\d+).* on 127\.0\.0\.1:(\d+)", said).groups()
        for curve in ev.CURVES:
            add = [program, "apps", "import", "demo", "--suite", SUITES[curve], "--seals", "--key-file", "-"]
            add += ["--folder", folder, "--connect", f"127.0.0.1:{control}"]
            subprocess.run(add, input=scalar.hex(), text=True, check=True, stdout=subprocess.DEVNULL)
        self.connection = connect(folder, "127.0.0.1", int(port))

    def call(self, method, payload, **options):
        return call(self.connection, method, {"app": "demo", "payload": payload, **options})

    def close(self):
        self.connection.close()
        self.child.terminate()
        self.child.stdout.read()
        assert self.child.wait(30) == 0
        self.folder.cleanup()


def check_server(server, check, scalar):
    """All that the clients made, through the engine in one document; then what the engine makes."""
    sealed, wanted = map(list, zip(*check.seen))
    opened = server.call("decrypt", sealed)["payload"]
    for got, want, at in zip(opened, wanted, sealed):
        assert got == want and isinstance(got, bool) == isinstance(want, bool), (got, want, at)
    moved = server.call("rewrap", sealed, context="row 7", unbound="bind")["payload"]
    assert all(field[:4] in ("sw1:", b"sw1:") for field in moved)
    assert server.call("decrypt", moved, context="row 7")["payload"] == opened
    bad = [altered(text) for text in sealed if isinstance(text, str)]
    for start in range(0, len(bad), 500):
        part = bad[start : start + 500]
        refused = server.call("decrypt", part, on_error="report")
        assert refused["payload"] == part and {error["code"] for error in refused["errors"]} == {"cannot_open"}
        assert len(refused["errors"]) == len(part)

    made = 0
    values = ["hello", "", "Zo\u00eb \U0001f511", 42, -1, 2**64 - 1, 1.5, -0.0, 1e300, True, False, b"\x00\xff"]
    for curve in ("r1", "k1"):
        for format, role in (("evervault", None), ("evervault", "card-number"), ("evervault-bare", None)):
            plain = [value for value in values if not (role and isinstance(value, bytes))]
            options = {"suite": SUITES[curve], "format": format, **({"role": role} if role else {})}
            for value, theirs in zip(plain, server.call("encrypt", plain, **options)["payload"]):
                if isinstance(value, bytes):
                    assert ev.open_file(scalar, False, theirs) == (value, None)
                else:
                    found = ev.open_string(scalar, False, theirs)
                    assert str(value_of(found)) == str(value) and found.get("role") == role, (found, value)
                made += 1
    return len(sealed), made


def main():
    program, sealwire, work = sys.argv[1], sys.argv[2], pathlib.Path(sys.argv[3])
    opened, refused = check_vectors()
    scalar = secrets.token_bytes(31).rjust(32, b"\x01")
    keys = {curve: ev.compressed(curve, scalar) for curve in ev.CURVES}
    uncompressed = ev.app_key("r1", scalar).public_key().public_bytes(ev.Encoding.X962, ev.PublicFormat.UncompressedPoint)
    texts = [base64.b64encode(key).decode() for key in (keys["k1"], keys["r1"], uncompressed)]
    KeyServer.keys = {
        **dict(zip(("ecdhKey", "ecdhP256Key", "ecdhP256KeyUncompressed"), texts)),
        "teamUuid": "team_0123456789ab", "appUuid": "app_0123456789ab", "key": "",
    }
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), KeyServer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_address[1]}"

    engine = Program(program)
    check = Check(engine, scalar)
    both = {**DOCUMENT, **PYTHON_ONLY}
    for name, command, environment, document, is_old, api_key in (
        ("Node 6.4.0", ["node", HERE / "make.mjs", work / "node", "@evervault/sdk"], url, DOCUMENT, False, API_KEY),
        ("Node 6.4.0 by public key", ["node", HERE / "make.mjs", work / "node", "@evervault/sdk"], "http://127.0.0.1:9", DOCUMENT, False, "pk"),
        ("Node 5.1.4", ["node", HERE / "make.mjs", work / "node", "evervault-sdk-legacy"], url, DOCUMENT, True, API_KEY),
        ("Python 5.1.3", [work / "venv/bin/python", HERE / "make.py"], url + "/", both, False, API_KEY),
        ("Python 4.3.0", [work / "venv-legacy/bin/python", HERE / "make.py"], url + "/", both, True, API_KEY),
    ):
        before = check.strings, check.files
        client = Program(*map(str, command), EV_API_URL=environment)
        check_client(check, client, document, is_old, api_key)
        client.close()
        print(f"evervault interop: {name}: {check.strings - before[0]} strings, {check.files - before[1]} files open")
    expected = {"RFVC", "Tk9D", "S0lS", "QkTC", "QlJV", "TENZ", "file 2", "file 3", "file 4", "file 5"}
    assert check.tags == expected, check.tags ^ expected
    written = check_writer(engine, scalar)
    engine.close()
    server.shutdown()
    running = Server(sealwire, scalar)
    travelled, made = check_server(running, check, scalar)
    running.close()
    print(f"evervault interop: {opened} vectors open, {refused} refuse; {written} strings of ours open outside")
    print(f"evervault interop: {travelled} values of theirs through a running engine, {made} of its own open outside")


if __name__ == "__main__":
    main()
