"""Holds envelope.py, tokens.py and objects.py against the engine's crypto crate.

    python3 proto/interop/check.py target/release/examples/interop [target/interop-outside/hybrid [NAME=COMMAND...]]

1. Every vector in proto/vectors/envelope.jsonl, token.jsonl and object.jsonl gets its verdict here too, and those that open
   are made again byte for byte. 2. What the engine's crate seals opens here. 3. What is sealed here opens there.
4. A copy with one bit changed opens on neither side. With the second program, built by outside/check.sh, Go's crypto/hpke does
2 to 4 for p256-mlkem768 too, and opens its vectors. So does the HPKE library of each COMMAND for p256-psk, in mode_psk:
outside/psk.py, outside/psk.mjs, or the program of outside/psk.
"""

import json
import os
import pathlib
import secrets
import shlex
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import envelope as sw  # noqa: E402
import objects as ob  # noqa: E402
import tokens as tk  # noqa: E402

VECTORS = pathlib.Path(__file__).parent.parent / "vectors"


def raw(vector):
    return vector["envelope"] if vector["encoding"] == "text" else bytes.fromhex(vector["envelope"])


def opening_key(suite, key):
    if suite == "p256-mlkem768":
        return sw.HybridKey(key)
    if suite in sw.PSK_SUITES:
        return sw.PskKey(suite, key)
    return key if suite == "xaes" else sw.private_key(suite, key)


def sealed_again(v, key, want):
    context, data = bytes.fromhex(v["context"]), bytes.fromhex(want["plaintext"])
    rest = (v["app"], context, want["datatype"], data, v["encoding"])
    if v["suite"] == "xaes":
        return sw.seal_xaes(key, *rest, bytes.fromhex(want["random"]), want["sequence"])
    if v["suite"] in sw.PSK_SUITES:
        ephemeral = sw.private_key(key.base, bytes.fromhex(want["ephemeral_private_key"]))
        return sw.seal_psk(key, *rest, ephemeral, want["sequence"])
    ephemeral = sw.private_key(v["suite"], bytes.fromhex(want["ephemeral_private_key"]))
    return sw.seal(v["suite"], key.public_key(), *rest, ephemeral, want["sequence"])


def check_vectors():
    opened, refused = set(), 0
    for line in (VECTORS / "envelope.jsonl").read_text().splitlines():
        v = json.loads(line)
        key = opening_key(v["suite"], bytes.fromhex(v["key"]))
        try:
            got = sw.open(v["suite"], key, v["app"], bytes.fromhex(v["context"]), v["encoding"], raw(v))
        except sw.Refused:
            assert v["expect"] == "refuse", v["name"]
            refused += 1
            continue
        want = v["opens_to"]
        assert v["expect"] == "open" and got == (want["datatype"], bytes.fromhex(want["plaintext"])), v["name"]
        # The `cryptography` package encapsulates by ML-KEM with randomness of its own alone.
        assert v["suite"] == "p256-mlkem768" or sealed_again(v, key, want) == raw(v), v["name"]
        opened.add((v["suite"], v["name"]))
    assert {suite for suite, _ in opened} == {*sw.SUITES, *sw.PSK_SUITES, "xaes", "p256-mlkem768"} and refused >= 4 * len(opened), (opened, refused)
    return len(opened), refused


def token_hash(v, secret):
    context, value = bytes.fromhex(v["context"]), bytes.fromhex(v["value"])
    if v["of"] == "context":
        return tk.context_hash(secret, v["app"], context)
    if v["of"] == "id":
        return tk.token_id(secret, v["app"], v["collection"], v["token"])
    field = (v["datatype"], value)
    if v["of"] == "value":
        return tk.fingerprint_of_value(secret, v["app"], v["collection"], context, *field)
    key = bytes.fromhex(v["idempotency_key"])
    client = v.get("principal", "")
    return tk.fingerprint_of_request(secret, v["app"], v["collection"], context, client, key, v["index"], *field)


def check_token_row(v):
    """Its verdict: hold, token or refuse. What opens and names no subject is sealed again to the same bytes."""
    keys = {key["number"]: bytes.fromhex(key["secret"]) for key in v["keys"]}
    active = {key["number"] for key in v["keys"] if key["active"]}
    identity, context, row = (bytes.fromhex(v[name]) for name in ("id", "context", "row"))
    place = (keys, active, v["app"], v["collection"], identity)
    subject = v.get("subject")
    try:
        if subject:
            of = (bytes.fromhex(subject["id"]), subject["version"])
            key = tk.subject_key(keys, active, v["app"], of, bytes.fromhex(subject["key"]))
            bound, fingerprint, token, value = tk.open_of_subject(*place, of, key, row)
        else:
            bound, fingerprint, token, value = tk.open(*place, row)
    except sw.Refused:
        return "refuse"
    want = v["opens_to"]
    assert fingerprint == (bytes.fromhex(v["fingerprint"]) if "fingerprint" in v else None), v["name"]
    assert token == want["token"], v["name"]
    if bound != tk.context_hash(keys[1], v["app"], context):
        assert want["value"] is None, v["name"]
        return "token"
    assert value == (None if want["value"] is None else (want["datatype"], bytes.fromhex(want["value"]))), v["name"]
    if subject:
        return "hold"
    number = int.from_bytes(row[1:5], "big")
    assert tk.seal(keys, number, row[5:17], v["app"], v["collection"], identity, context, token, value, fingerprint) == row
    return "hold"


def check_token_vectors():
    counts = {"hold": 0, "token": 0, "refuse": 0}
    for line in (VECTORS / "token.jsonl").read_text().splitlines():
        v = json.loads(line)
        if v["kind"] == "row":
            verdict = check_token_row(v)
        else:
            held = (
                token_hash(v, bytes.fromhex(v["secret"])).hex() == v["hash"]
                if v["kind"] == "hash"
                else tk.has_shape(v["format"], v["text"])
            )
            verdict = "hold" if held else "refuse"
        assert verdict == v["expect"], v["name"]
        counts[verdict] += 1
    assert counts["hold"] >= 20 and counts["refuse"] > counts["hold"], counts
    return counts


def check_object_vectors():
    """Each opens as it says, or not at all. What names no subject is sealed again to the same bytes."""
    opened = refused = 0
    for line in (VECTORS / "object.jsonl").read_text().splitlines():
        v = json.loads(line)
        keys = {key["number"]: bytes.fromhex(key["secret"]) for key in v["keys"]}
        active = {key["number"] for key in v["keys"] if key["active"]}
        record, subject = bytes.fromhex(v["record"]), v.get("subject")
        place = (v["app"], v["collection"], bytes.fromhex(v["id"]), v["version"], v["created"])
        if subject:
            of = (bytes.fromhex(subject["id"]), subject["version"])
            subject = (*of, tk.subject_key(keys, active, v["app"], of, bytes.fromhex(subject["key"])))
        try:
            creation, values, clear = ob.open(keys, active, place, subject, record)
        except sw.Refused:
            assert "opens_to" not in v, v["name"]
            refused += 1
            continue
        want = v["opens_to"]
        assert creation == (None if want["creation"] is None else bytes.fromhex(want["creation"])), v["name"]
        assert {number: (value.hex(), number in clear) for number, value in values.items()} == {
            number: (value, in_clear) for number, value, in_clear in want["values"]
        }, v["name"]
        if not subject:
            parts = [{n: value for n, value in values.items() if (n in clear) == in_clear} for in_clear in (False, True)]
            number = int.from_bytes(record[1:5], "big")
            assert ob.seal(keys, number, record[5:17], place, creation, *parts) == record, v["name"]
        opened += 1
    assert opened >= 6 and refused > 6 * opened, (opened, refused)
    return opened, refused


def asker(program):
    def ask(**request):
        program.stdin.write(json.dumps(request) + "\n")
        program.stdin.flush()
        return json.loads(program.stdout.readline())

    return ask


def check_token_exchange(ask, rounds):
    for n in range(rounds):
        keys = {number: secrets.token_bytes(32) for number in range(1, 2 + n % 3)}
        app, collection, index = (secrets.randbelow(1 << 32) for _ in range(3))
        context, call, value = (secrets.token_bytes(secrets.randbelow(100)) for _ in range(3))
        fingerprint, client = secrets.token_bytes(16) if n % 3 else None, secrets.token_urlsafe(secrets.randbelow(40))
        token, field = secrets.token_urlsafe(secrets.randbelow(40)), (1, value) if n % 4 else None
        place = dict(app=app, collection=collection, context=context.hex(), secrets=[key.hex() for key in keys.values()])
        datatype, data = (1, value.hex()) if field else (None, None)

        theirs = ask(
            op="token.seal", token=token, datatype=datatype, value=data, idempotency_key=call.hex(), index=index,
            principal=client, fingerprint=fingerprint and fingerprint.hex(), **place
        )
        identity = tk.token_id(keys[1], app, collection, token)
        assert theirs["id"] == identity.hex()
        if field:
            of_value = tk.fingerprint_of_value(keys[1], app, collection, context, *field)
            of_call = tk.fingerprint_of_request(keys[1], app, collection, context, client, call, index, *field)
            assert (theirs["of_value"], theirs["of_call"]) == (of_value.hex(), of_call.hex())
        opened = tk.open(keys, set(keys), app, collection, identity, bytes.fromhex(theirs["row"]))
        assert opened == (tk.context_hash(keys[1], app, context), fingerprint, token, field)

        number = 1 + secrets.randbelow(len(keys))
        ours = tk.seal(keys, number, secrets.token_bytes(12), app, collection, identity, context, token, field, fingerprint)
        answer = ask(op="token.open", id=identity.hex(), row=ours.hex(), **place)
        assert answer == {"token": token, "datatype": datatype, "value": data}, answer

        altered = bytearray(ours)
        altered[secrets.randbelow(len(altered))] ^= 1 << secrets.randbelow(8)
        assert ask(op="token.open", id=identity.hex(), row=altered.hex(), **place) == {"refused": True}
        try:
            tk.open(keys, set(keys), app, collection, identity, bytes(altered))
            raise AssertionError("an altered row opened")
        except sw.Refused:
            pass
    return rounds


def check_exchange(ask, rounds):
    for n in range(rounds):
        suites = (*sw.SUITES, *sw.PSK_SUITES, "xaes", "p256-mlkem768")
        suite, encoding = suites[n % len(suites)], ("text", "binary")[n // len(suites) & 1]
        secret = secrets.token_bytes(31).rjust(32, b"\x01")
        key = opening_key(suite, secret)
        context = secrets.token_bytes(secrets.randbelow(40))
        datatype, plaintext = 1, secrets.token_bytes(secrets.randbelow(200))
        shared = dict(suite=suite, key=secret.hex(), app="interop", context=context.hex(), encoding=encoding)

        theirs = ask(op="seal", datatype=datatype, plaintext=plaintext.hex(), **shared)["envelope"]
        theirs = theirs if encoding == "text" else bytes.fromhex(theirs)
        assert sw.open(suite, key, "interop", context, encoding, theirs) == (datatype, plaintext)

        sequence, rest = secrets.randbelow(1 << 32), ("interop", context, datatype, plaintext, encoding)
        if suite == "xaes":
            ours = sw.seal_xaes(key, *rest, secrets.token_bytes(20), sequence)
        elif suite == "p256-mlkem768":
            ours = sw.seal_hybrid(key, *rest, sequence)
        elif suite in sw.PSK_SUITES:
            ours = sw.seal_psk(key, *rest, sw.ec.generate_private_key(sw.SUITES[key.base][1]), sequence)
        else:
            ephemeral = sw.ec.generate_private_key(sw.SUITES[suite][1])
            ours = sw.seal(suite, key.public_key(), *rest, ephemeral, sequence)
        answer = ask(op="open", envelope=ours if encoding == "text" else ours.hex(), **shared)
        assert answer == {"datatype": datatype, "plaintext": plaintext.hex()}, answer

        if encoding == "binary":
            altered = bytearray(ours)
            altered[secrets.randbelow(len(altered))] ^= 1 << secrets.randbelow(8)
            assert ask(op="open", envelope=altered.hex(), **shared) == {"refused": True}
            try:
                sw.open(suite, key, "interop", context, encoding, bytes(altered))
                raise AssertionError("an altered envelope opened")
            except sw.Refused:
                pass
    return rounds


def check_go(ask, go, rounds):
    """Go's crypto/hpke against the engine's crate, both ways."""
    vectors = 0
    for line in (VECTORS / "envelope.jsonl").read_text().splitlines():
        v = json.loads(line)
        if v["suite"] != "p256-mlkem768" or v.get("opens_to", {}).get("sequence") == 2**32 - 1:
            continue
        if v["encoding"] == "text":
            continue
        answer = go(op="open", key=v["key"], app=v["app"], context=v["context"], envelope=v["envelope"])
        want = v.get("opens_to")
        if want is None:
            assert "refused" in answer, v["name"]
        else:
            assert (answer["datatype"], answer["plaintext"]) == (want["datatype"], want["plaintext"]), v["name"]
        vectors += 1
    for _ in range(rounds):
        plaintext, context = secrets.token_hex(secrets.randbelow(200)), secrets.token_hex(secrets.randbelow(40))
        shared = dict(key=secrets.token_hex(32), app="interop", context=context)
        engine = dict(suite="p256-mlkem768", encoding="binary", **shared)
        theirs = ask(op="seal", datatype=1, plaintext=plaintext, **engine)["envelope"]
        answer = go(op="open", envelope=theirs, **shared)
        assert (answer["datatype"], answer["plaintext"]) == (1, plaintext), answer
        ours = go(op="seal", datatype=1, plaintext=plaintext, **shared)["envelope"]
        assert ask(op="open", envelope=ours, **engine) == {"datatype": 1, "plaintext": plaintext}
        for name, envelope in (("go", theirs), ("ask", ours)):
            altered = bytearray.fromhex(envelope)
            altered[secrets.randbelow(len(altered))] ^= 1 << secrets.randbelow(8)
            refused = go(op="open", envelope=altered.hex(), **shared) if name == "go" else ask(op="open", envelope=altered.hex(), **engine)
            assert refused.get("refused"), refused
    return vectors, rounds


def check_psk(ask, library, rounds):
    """An HPKE library in mode_psk against the engine's crate, both ways. It opens the fields of a request in order."""
    vectors = 0
    for line in (VECTORS / "envelope.jsonl").read_text().splitlines():
        v = json.loads(line)
        if v["suite"] != "p256-psk" or v["encoding"] == "text":
            continue
        answer = library(op="open", key=v["key"], app=v["app"], context=v["context"], envelopes=[v["envelope"]])
        want = v.get("opens_to")
        if want is None:
            assert "refused" in answer, v["name"]
        else:
            assert answer["fields"] == [{"datatype": want["datatype"], "plaintext": want["plaintext"]}], v["name"]
        vectors += 1
    assert vectors > 20
    for _ in range(rounds):
        fields = [{"datatype": 1, "plaintext": secrets.token_hex(secrets.randbelow(200))} for _ in range(1 + secrets.randbelow(5))]
        shared = dict(key=secrets.token_hex(32), app="interop", context=secrets.token_hex(secrets.randbelow(40)))
        engine = dict(suite="p256-psk", encoding="binary", **shared)
        theirs = ask(op="seal", fields=fields, **engine)["envelopes"]
        assert library(op="open", envelopes=theirs, **shared) == {"fields": fields}
        ours = library(op="seal", fields=fields, **shared)["envelopes"]
        assert [ask(op="open", envelope=each, **engine) for each in ours] == fields
        for who, envelope in ((library, theirs[0]), (ask, ours[-1])):
            altered = bytearray.fromhex(envelope)
            altered[secrets.randbelow(len(altered))] ^= 1 << secrets.randbelow(8)
            wrong = dict(envelopes=[altered.hex()], **shared) if who is library else dict(envelope=altered.hex(), **engine)
            assert who(op="open", **wrong).get("refused"), wrong
    return vectors, rounds


def main():
    opened, refused = check_vectors()
    tokens = check_token_vectors()
    objects = check_object_vectors()
    with subprocess.Popen(sys.argv[1:2], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
        rounds = check_exchange(asker(program), 200)
        token_rounds = check_token_exchange(asker(program), 200)
        if len(sys.argv) > 2:
            with subprocess.Popen(sys.argv[2:3], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as go:
                vectors, go_rounds = check_go(asker(program), asker(go), 100)
                go.stdin.close()
            assert go.returncode == 0
            print(f"envelope interop: Go's crypto/hpke judges {vectors} vectors alike, {go_rounds} fresh exchanges each way")
        for name, command in (each.split("=", 1) for each in sys.argv[3:]):
            with subprocess.Popen(shlex.split(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as library:
                vectors, psk_rounds = check_psk(asker(program), asker(library), 50)
                library.stdin.close()
            assert library.returncode == 0
            print(f"envelope interop: {name} judges {vectors} vectors of p256-psk alike, {psk_rounds} fresh requests each way")
        program.stdin.close()
    assert program.returncode == 0
    print(f"envelope interop: {opened} vectors open, {refused} refuse, {rounds} fresh exchanges each way")
    held = tokens["hold"] + tokens["token"]
    print(f"token interop: {held} vectors hold, {tokens['refuse']} refuse, {token_rounds} fresh rows each way")
    print(f"object interop: {objects[0]} vectors open, {objects[1]} refuse")


if __name__ == "__main__":
    main()
