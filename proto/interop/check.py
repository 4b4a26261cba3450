"""Holds envelope.py against the engine's crypto crate.

    python3 proto/interop/check.py target/release/examples/interop

1. Every vector in proto/vectors/envelope.jsonl gets its verdict here too, and those that open are made again
   byte for byte. 2. What the engine's crate seals opens here. 3. What is sealed here opens there.
4. A copy with one bit changed opens on neither side.
"""

import json
import os
import pathlib
import secrets
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import envelope as sw  # noqa: E402

VECTORS = pathlib.Path(__file__).parent.parent / "vectors" / "envelope.jsonl"


def raw(vector):
    return vector["envelope"] if vector["encoding"] == "text" else bytes.fromhex(vector["envelope"])


def check_vectors():
    opened = refused = 0
    for line in VECTORS.read_text().splitlines():
        v = json.loads(line)
        key = sw.private_key(v["curve"], bytes.fromhex(v["private_key"]))
        context = bytes.fromhex(v["context"])
        try:
            got = sw.open(v["curve"], key, v["app"], context, v["encoding"], raw(v))
        except sw.Refused:
            assert v["expect"] == "refuse", v["name"]
            refused += 1
            continue
        want = v["opens_to"]
        assert v["expect"] == "open" and got == (want["datatype"], bytes.fromhex(want["plaintext"])), v["name"]
        ephemeral = sw.private_key(v["curve"], bytes.fromhex(want["ephemeral_private_key"]))
        again = sw.seal(v["curve"], key.public_key(), v["app"], context, *got, v["encoding"], ephemeral, want["sequence"])
        assert again == raw(v), v["name"]
        opened += 1
    assert opened >= 10 and refused > opened, (opened, refused)
    return opened, refused


def check_exchange(program, rounds):
    def ask(**request):
        program.stdin.write(json.dumps(request) + "\n")
        program.stdin.flush()
        return json.loads(program.stdout.readline())

    for n in range(rounds):
        curve, encoding = ("r1", "k1")[n & 1], ("text", "binary")[n >> 1 & 1]
        scalar = secrets.token_bytes(31).rjust(32, b"\x01")
        key = sw.private_key(curve, scalar)
        context = secrets.token_bytes(secrets.randbelow(40))
        datatype, plaintext = 1, secrets.token_bytes(secrets.randbelow(200))
        shared = dict(curve=curve, private_key=scalar.hex(), app="interop", context=context.hex(), encoding=encoding)

        theirs = ask(op="seal", datatype=datatype, plaintext=plaintext.hex(), **shared)["envelope"]
        theirs = theirs if encoding == "text" else bytes.fromhex(theirs)
        assert sw.open(curve, key, "interop", context, encoding, theirs) == (datatype, plaintext)

        ephemeral = sw.ec.generate_private_key(sw.CURVES[curve][1])
        sequence = secrets.randbelow(1 << 32)
        ours = sw.seal(curve, key.public_key(), "interop", context, datatype, plaintext, encoding, ephemeral, sequence)
        answer = ask(op="open", envelope=ours if encoding == "text" else ours.hex(), **shared)
        assert answer == {"datatype": datatype, "plaintext": plaintext.hex()}, answer

        if encoding == "binary":
            altered = bytearray(ours)
            altered[secrets.randbelow(len(altered))] ^= 1 << secrets.randbelow(8)
            assert ask(op="open", envelope=altered.hex(), **shared) == {"refused": True}
            try:
                sw.open(curve, key, "interop", context, encoding, bytes(altered))
                raise AssertionError("an altered envelope opened")
            except sw.Refused:
                pass
    return rounds


def main():
    opened, refused = check_vectors()
    with subprocess.Popen(sys.argv[1:2], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
        rounds = check_exchange(program, 200)
        program.stdin.close()
    assert program.returncode == 0
    print(f"envelope interop: {opened} vectors open, {refused} refuse, {rounds} fresh exchanges each way")


if __name__ == "__main__":
    main()
