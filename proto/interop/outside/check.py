"""Fields that stock HPKE libraries of three languages seal to an app's published key open in the engine.

    python3 proto/interop/outside/check.py target/release/sealwire SUITE:NAME=COMMAND...

Starts `sealwire dev` in a temporary folder and free ports, with a published key of each suite. Each COMMAND is one of the
programs beside this file, and seals to the key of SUITE.
"""

import base64
import json
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile
import time

import msgpack

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent))
from call import call, connect  # noqa: E402

FIELDS = [(0, "4111 1111 1111 1111".encode()), (1, b"\x00\xff" * 500), (2, b"\xc3"), (0, b""), (0, "Zoë".encode())]
CONTEXT = b"row 7"
MANY = 300


def value(datatype, plaintext):
    """The MessagePack value of a field."""
    if datatype == 2:
        return msgpack.unpackb(plaintext)
    return plaintext.decode() if datatype == 0 else plaintext


def flipped(text):
    data = bytearray(base64.b64decode(text))
    data[7] ^= 1
    return base64.b64encode(data).decode()


def check(program, suite, engine, signed):
    signer, text = signed["signer"], json.loads(signed["keys"])
    key_id = next(key["key_id"] for key in text["keys"] if key["suite"] == suite)
    good = {
        "signed": {"keys": signed["keys"], "signature": signed["signature"]},
        "signer": signer, "app": "demo", "suite": suite, "min_generation": signed["generation"], "now": int(time.time()),
        "context": CONTEXT.hex(), "fields": [{"datatype": d, "plaintext": p.hex()} for d, p in FIELDS],
    }

    def ask(**changes):
        program.stdin.write(json.dumps(good | changes) + "\n")
        program.stdin.flush()
        return json.loads(program.stdout.readline())

    def opened(envelopes, context=CONTEXT, **params):
        return call(engine, "decrypt", {"app": "demo", "payload": envelopes, "context": context, **params})["payload"]

    envelopes = ask()["envelopes"]
    assert opened(envelopes) == [value(*field) for field in FIELDS]
    for sequence, (envelope, (datatype, plaintext)) in enumerate(zip(envelopes, FIELDS)):
        said = call(engine, "inspect", {"envelope": envelope})
        assert said["outside"] is True and said["key_id"] == key_id, said
        assert (said["suite"], said["sequence"], said["plaintext_bytes"]) == (suite, sequence, len(plaintext)), said
    # Many at once, each with a nonce of its own.
    fields = [{"datatype": 0, "plaintext": f"field {n}".encode().hex()} for n in range(MANY)]
    many = ask(fields=fields)["envelopes"]
    assert opened(many) == [f"field {n}" for n in range(MANY)]
    assert ask()["envelopes"] != envelopes, "another ephemeral key for each request"

    for wrong in (
        {"payload": envelopes, "context": b"row 8"},
        {"payload": envelopes, "context": CONTEXT, "outside": "refuse"},
        {"payload": [envelopes[0][:-2] + ("AA" if envelopes[0][-2:] != "AA" else "BB")], "context": CONTEXT},
    ):
        try:
            call(engine, "decrypt", {"app": "demo", **wrong})
            raise AssertionError(f"{wrong} opened")
        except RuntimeError as error:
            assert error.args[0]["code"] == "cannot_open", error

    keys, signature = signed["keys"], signed["signature"]
    for changes in (
        {"signer": base64.b64encode(bytes(32)).decode()},
        {"signer": flipped(signer)},
        {"signed": {"keys": keys, "signature": flipped(signature)}},
        {"signed": {"keys": keys + " ", "signature": signature}},
        {"signed": {"keys": keys.replace("demo", "shop"), "signature": signature}},
        {"app": "shop"},
        {"min_generation": signed["generation"] + 1},
        {"now": text["expires_unix_s"]},
    ):
        assert "refused" in ask(**changes), changes
    return len(envelopes) + len(many)


def main():
    sealwire, programs = sys.argv[1], [re.fullmatch(r"([^:]+):([^=]+)=(.*)", each).groups() for each in sys.argv[2:]]
    with tempfile.TemporaryDirectory() as folder:
        dev = [sealwire, "dev", "--folder", folder, *(f"--{listen}=127.0.0.1:0" for listen in ("listen", "admin", "control", "http"))]
        with subprocess.Popen(dev, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as engine:
            try:
                data, control = re.findall(r"127\.0\.0\.1:(\d+)", engine.stdout.readline())
                rotate = [sealwire, "apps", "rotate", "demo", "--outside", "--folder", folder, "--connect", f"127.0.0.1:{control}"]
                for suite in ("p256", "p256-mlkem768"):
                    command = [*rotate, "--server-name", "localhost", "--suite", suite]
                    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
                with connect(folder, "127.0.0.1", int(data)) as connection:
                    signed = call(connection, "apps.public_keys", {"app": "demo"})
                    for suite, name, command in programs:
                        with subprocess.Popen(shlex.split(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
                            count = check(program, suite, connection, signed)
                            program.stdin.close()
                        assert program.returncode == 0
                        print(f"sealing outside: {count} fields of {name} open, {suite}")
            finally:
                engine.terminate()
                engine.stdout.read()


if __name__ == "__main__":
    main()
