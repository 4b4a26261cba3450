"""Seals and opens envelopes of suite p256-psk with pyhpke, for proto/interop/check.py.

Reads a JSON object per line and answers with one, as psk/main.go does.
"""

import hashlib
import hmac
import json
import sys

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from pyhpke import AEADId, CipherSuite, KDFId, KEMId
from pyhpke.exceptions import PyHPKEError

SUITE = CipherSuite.new(KEMId.DHKEM_P256_HKDF_SHA256, KDFId.HKDF_SHA256, AEADId.AES256_GCM)
PREFIX = b"SW\x01\x05"
HEADER = 3 + 39


def expand(seed, label):
    """HKDF-Expand alone: the seed is the pseudorandom key. One block is 32 bytes."""
    return hmac.digest(seed, label + b"\x05\x01", hashlib.sha256)


class Key:
    def __init__(self, seed):
        self.pair = SUITE.kem.derive_key_pair(expand(seed, b"sealwire/psk-key/1"))
        point = self.pair.public_key.to_public_bytes()
        self.id = hashlib.sha256(b"sealwire/key-id/1\x05" + point).digest()[:5]
        self.psk = {"psk": expand(seed, b"sealwire/psk/1"), "psk_id": b"sealwire/psk-id/1" + self.id}


def seal(key, app, context, fields):
    enc, sender = SUITE.create_sender_context(key.pair.public_key, info=b"sealwire/1" + app.encode(), **key.psk)
    header = PREFIX + key.id + bytes([2 | enc[64] & 1]) + enc[1:33]
    for sequence, field in enumerate(fields):
        datatype = bytes([field["datatype"]])
        sealed = sender.seal(bytes.fromhex(field["plaintext"]), aad=datatype + context)
        yield (header + datatype + sequence.to_bytes(4, "big") + sealed).hex()


def open(key, app, context, envelopes):
    header = envelopes[0][:HEADER]
    if len(header) != HEADER or header[:4] != PREFIX or header[4:9] != key.id:
        raise ValueError("no envelope of this key")
    point = ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), header[9:])
    enc = point.public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)
    info = b"sealwire/1" + app.encode()
    recipient = SUITE.create_recipient_context(enc, key.pair.private_key, info=info, **key.psk)
    for number, envelope in enumerate(envelopes):
        if envelope[:HEADER] != header or envelope[HEADER + 1 : HEADER + 5] != number.to_bytes(4, "big"):
            raise ValueError("pyhpke opens the fields of one request in order")
        datatype = envelope[HEADER : HEADER + 1]
        yield {"datatype": datatype[0], "plaintext": recipient.open(envelope[HEADER + 5 :], aad=datatype + context).hex()}


def answer(ask):
    key, context = Key(bytes.fromhex(ask["key"])), bytes.fromhex(ask["context"])
    if ask["op"] == "seal":
        return {"envelopes": list(seal(key, ask["app"], context, ask["fields"]))}
    try:
        return {"fields": list(open(key, ask["app"], context, [bytes.fromhex(text) for text in ask["envelopes"]]))}
    except (ValueError, PyHPKEError) as error:
        return {"refused": repr(error)}


if __name__ == "__main__":
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), flush=True)
