"""Seals fields to a public key of an app with pyhpke: the recipe of proto/envelope.md, "Sealing outside".

Reads a JSON object per line and answers with one:
{"signed": {"keys", "signature"}, "signer", "app", "min_generation", "now", "context", "fields": [{"datatype", "plaintext"}]}
gives {"envelopes": [..]} or {"refused": ".."}. Context and plaintexts are hexadecimal.
"""

import base64
import hashlib
import json
import sys

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from pyhpke import AEADId, CipherSuite, KDFId, KEMId


def checked_key(signed, signer, app, min_generation, now):
    """The key to seal to. Nothing of the text is read before its signature holds."""
    message = b"sealwire/keys/1\x00" + signed["keys"].encode()
    Ed25519PublicKey.from_public_bytes(base64.b64decode(signer)).verify(base64.b64decode(signed["signature"]), message)
    text = json.loads(signed["keys"])
    if text["version"] != 1 or text["app"] != app or text["generation"] < min_generation or text["expires_unix_s"] <= now:
        raise ValueError("another version or app, or too old")
    key = next(key for key in text["keys"] if key["suite"] == "p256")
    public = base64.b64decode(key["public_key"])
    if hashlib.sha256(b"sealwire/key-id/1\x01" + public).hexdigest()[:10] != key["key_id"]:
        raise ValueError("the key has another id")
    return key, public


def seal(key, public, context, fields):
    suite = CipherSuite.new(KEMId(key["kem"]), KDFId(key["kdf"]), AEADId(key["aead"]))
    enc, sender = suite.create_sender_context(suite.kem.deserialize_public_key(public), info=key["info"].encode())
    compressed = bytes([2 | enc[64] & 1]) + enc[1:33]
    header = b"\x01" + bytes.fromhex(key["key_id"]) + compressed
    for sequence, (datatype, plaintext) in enumerate(fields):
        sealed = sender.seal(plaintext, aad=bytes([datatype]) + context)
        envelope = header + bytes([datatype]) + sequence.to_bytes(4, "big") + sealed
        yield "sw1:" + base64.urlsafe_b64encode(envelope).rstrip(b"=").decode()


def answer(ask):
    try:
        key, public = checked_key(*(ask[name] for name in ("signed", "signer", "app", "min_generation", "now")))
    except (InvalidSignature, ValueError) as error:
        return {"refused": repr(error)}
    fields = [(field["datatype"], bytes.fromhex(field["plaintext"])) for field in ask["fields"]]
    return {"envelopes": list(seal(key, public, bytes.fromhex(ask["context"]), fields))}


if __name__ == "__main__":
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), flush=True)
