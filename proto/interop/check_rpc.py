"""A stock MessagePack library against a running engine, as a caller in another language sees it.

    python3 proto/interop/check_rpc.py target/release/sealwire

Starts `sealwire dev` in a temporary folder and a free port, and uses nothing of ours but call.py's thirty lines.
"""

import math
import os
import re
import ssl
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from call import call, connect  # noqa: E402

DOCUMENT = {
    "strings": ["", "x", "Zoë \U0001f511", "a" * 70_000],
    "integers": [0, 1, -1, 127, 128, -128, -129, 2**63 - 1, -(2**63), 2**64 - 1],
    "floats": [0.0, -0.0, 1.5, 1e308, 5e-324, math.inf, -math.inf],
    "booleans": [True, False],
    "binary": [b"", b"\x00\xff", bytes(300)],
    "nil": None,
    "nested": {"a": [{"b": [{"c": []}, {}]}]},
}


def leaves(value):
    if isinstance(value, dict):
        return [leaf for child in value.values() for leaf in leaves(child)]
    if isinstance(value, list):
        return [leaf for child in value for leaf in leaves(child)]
    return [value]


def check_documents(engine):
    for options in ({}, {"suite": "secp256k1"}, {"suite": "xaes"}, {"key_scope": "field"}, {"encoding": "binary"}, {"context": "row 7"}):
        sealed = call(engine, "encrypt", {"app": "demo", "payload": DOCUMENT, **options})["payload"]
        assert all(leaf is None or leaf[:4] in ("sw1:",) or leaf[:3] == b"SW\x01" for leaf in leaves(sealed)), options
        context = {key: value for key, value in options.items() if key == "context"}
        opened = call(engine, "decrypt", {"app": "demo", "payload": sealed, **context})["payload"]
        assert opened == DOCUMENT, options
        assert [type(leaf) for leaf in leaves(opened)] == [type(leaf) for leaf in leaves(DOCUMENT)], options
    sealed = call(engine, "encrypt", {"app": "demo", "payload": DOCUMENT, "select": ["$.nested", "$.integers[2]"]})
    payload = sealed["payload"]
    assert payload["nested"].startswith("sw1:") and payload["integers"][2].startswith("sw1:")
    assert payload["strings"] == DOCUMENT["strings"] and payload["integers"][3:] == DOCUMENT["integers"][3:]
    assert call(engine, "decrypt", {"app": "demo", "payload": payload})["payload"] == DOCUMENT


def check_contexts(engine):
    """Rows with a context each in one request are the same as one request per row."""
    rows = [{"id": "row 7", "card": "4111"}, {"id": 8, "card": None}, {"id": -9, "card": {"n": [1, "x"]}}]
    contexts = ["row 7", "8", "-9"]
    for one_of in ({"contexts": {"path": "$.id"}}, {"contexts": contexts, "select": ["$[*].card"]}):
        params = {"app": "demo", "payload": rows, "select": ["$[*].card"], **one_of}
        sealed = call(engine, "encrypt", params)["payload"]
        for row, plain, context in zip(sealed, rows, contexts):
            opened = call(engine, "decrypt", {"app": "demo", "payload": row, "context": context})["payload"]
            assert opened == plain, (one_of, opened)
        single = [
            call(engine, "encrypt", {"app": "demo", "payload": row, "select": ["$.card"], "context": context})["payload"]
            for row, context in zip(rows, contexts)
        ]
        for document in (sealed, single):
            opened = call(engine, "decrypt", {"app": "demo", "payload": document, **one_of})["payload"]
            assert opened == rows, (one_of, opened)


def check_errors(engine):
    sealed = call(engine, "encrypt", {"app": "demo", "payload": {"a": "x", "b": "y"}, "context": "here"})["payload"]
    cases = [
        ("cannot_open", "decrypt", {"app": "demo", "payload": sealed, "context": "there"}),
        ("not_found", "encrypt", {"app": "nobody", "payload": 1}),
        ("not_found", "explode", {}),
        ("bad_request", "encrypt", {"app": "demo", "payload": 1, "colour": "red"}),
        ("bad_request", "encrypt", {"app": "demo"}),
        ("bad_request", "encrypt", {"app": 7, "payload": 1}),
        ("bad_request", "encrypt", {"app": "demo", "payload": [1, 2], "contexts": ["one"]}),
        ("bad_request", "encrypt", {"app": "demo", "payload": [{"a": 1}], "contexts": {"path": "$.id"}}),
    ]
    for code, method, params in cases:
        try:
            call(engine, method, params)
        except RuntimeError as refused:
            assert refused.args[0]["code"] == code, (method, params, refused)
        else:
            raise AssertionError(f"{method} {params} was not refused")
    reported = call(engine, "decrypt", {"app": "demo", "payload": sealed, "on_error": "report"})
    assert reported["payload"] == sealed
    assert [error["path"] for error in reported["errors"]] == ["$.a", "$.b"], reported["errors"]


PROPERTIES = ["email:email unique required", "name:name index", "born:date", "photo:blob", "notes:json"]


def set_up_objects(program, folder):
    options = [option for text in PROPERTIES for option in ("--property", text)]
    for command in (
        ["collections", "create", "demo", "customers", "--objects", *options],
        ["roles", "set", "customers", "objects.* apps=demo collections=customers properties=*"],
        ["principals", "grant", "dev-client", "customers"],
    ):
        subprocess.run([program, *command, "--folder", folder], check=True, stdout=subprocess.DEVNULL)


def check_objects(engine):
    place = {"app": "demo", "collection": "customers"}
    anna = {"email": "anna@example.com", "name": "Anna Strauß", "born": "1985-02-28", "photo": b"\x00\xff",
            "notes": {"likes": ["tea", None, 1.5]}}
    added = call(engine, "objects.add", {**place, "payload": [anna, {"email": "bo@example.com"}]})["objects"]
    assert [entry["version"] for entry in added] == [1, 1]
    ids = [entry["id"] for entry in added]
    found = call(engine, "objects.get", {**place, "ids": [ids[0], "00000000-0000-0000-0000-000000000000"]})["objects"]
    assert found[0]["properties"] == anna and found[1] is None, found
    where = [{"property": "name", "eq": "ANNA  strauss"}]
    page = call(engine, "objects.query", {**place, "payload": where, "properties": ["email"]})
    assert [entry["properties"] for entry in page["objects"]] == [{"email": "anna@example.com"}], page
    changes = [{"id": ids[1], "set": {"name": "Bo"}, "if_version": 1}]
    assert call(engine, "objects.update", {**place, "payload": changes})["objects"] == [{"id": ids[1], "version": 2}]
    try:
        call(engine, "objects.add", {**place, "payload": [{"email": "c@example.com"}, {"email": "ANNA@example.com"}]})
    except RuntimeError as refused:
        error = refused.args[0]
        assert error["code"] == "conflict" and error["details"]["path"] == "$[1].email", error
        assert [part["path"] for part in error["details"]["errors"]] == ["$[1].email"], error
    else:
        raise AssertionError("a unique value was added twice")
    assert call(engine, "objects.delete", {**place, "ids": ids})["count"] == 2
    assert call(engine, "objects.list", place)["objects"] == []


def check_identity(folder, port):
    tls = ssl.create_default_context(cafile=f"{folder}/ca.pem")
    import socket

    try:
        with tls.wrap_socket(socket.create_connection(("127.0.0.1", port)), server_hostname="localhost") as bare:
            call(bare, "health", {})
    except (ssl.SSLError, ConnectionError):
        return
    raise AssertionError("served without a client certificate")


def main():
    program = os.path.abspath(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        command = [program, "dev", "--folder", folder, "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--http", "127.0.0.1:0"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as engine:
            try:
                first = engine.stdout.readline()
                port = int(re.search(r"listens on 127\.0\.0\.1:(\d+)", first).group(1))
                with connect(folder, "127.0.0.1", port) as connection:
                    assert call(connection, "health", {}) == {"status": "ok"}
                    check_documents(connection)
                    check_contexts(connection)
                    check_errors(connection)
                    set_up_objects(program, folder)
                    check_objects(connection)
                    assert call(connection, "info", {})["protocol"] == 1
                check_identity(folder, port)
            finally:
                engine.terminate()
                engine.stdout.read()
        assert engine.returncode == 0, engine.returncode
    print("rpc interop: documents, objects, errors and identity as the contract says, from Python")


if __name__ == "__main__":
    main()
