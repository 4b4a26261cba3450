"""The native envelope, written again from proto/envelope.md on the `cryptography` package.

Shares no code with the engine. `check.py` beside it holds the two against each other.
"""

import base64
import hashlib
import hmac

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

# curve name -> (suite byte, curve, HPKE KEM id)
CURVES = {"r1": (1, ec.SECP256R1(), 0x0010), "k1": (2, ec.SECP256K1(), 0x0016)}


class Refused(Exception):
    """The envelope does not open. Says no more, as the engine says no more."""


def _extract(suite, salt, label, ikm):
    return hmac.digest(salt or bytes(32), b"HPKE-v1" + suite + label + ikm, hashlib.sha256)


def _expand(suite, prk, label, info, length):
    labeled = length.to_bytes(2, "big") + b"HPKE-v1" + suite + label + info
    return hmac.digest(prk, labeled + b"\x01", hashlib.sha256)[:length]  # length <= 32: one block


def _schedule(kem_id, dh, enc, recipient, info):
    kem = b"KEM" + kem_id.to_bytes(2, "big")
    prk = _extract(kem, b"", b"eae_prk", dh)
    shared = _expand(kem, prk, b"shared_secret", enc + recipient, 32)
    suite = b"HPKE" + kem_id.to_bytes(2, "big") + b"\x00\x01" + b"\x00\x02"
    context = b"\x00" + _extract(suite, b"", b"psk_id_hash", b"") + _extract(suite, b"", b"info_hash", info)
    secret = _extract(suite, shared, b"secret", b"")
    return _expand(suite, secret, b"key", context, 32), _expand(suite, secret, b"base_nonce", context, 12)


def _point(key, form):
    return key.public_bytes(Encoding.X962, form)


def _nonce(base, sequence):
    return bytes(a ^ b for a, b in zip(base, sequence.to_bytes(12, "big")))


def private_key(curve, scalar):
    return ec.derive_private_key(int.from_bytes(scalar, "big"), CURVES[curve][1])


def key_id(curve, public):
    tag = b"sealwire/key-id/1" + bytes([CURVES[curve][0]])
    return hashlib.sha256(tag + _point(public, PublicFormat.UncompressedPoint)).digest()[:5]


def seal(curve, recipient, app, context, datatype, plaintext, encoding, ephemeral, sequence=0):
    """`recipient` is a public key, `ephemeral` a private one that is used for no other purpose."""
    suite, _, kem_id = CURVES[curve]
    full, short = PublicFormat.UncompressedPoint, PublicFormat.CompressedPoint
    enc = _point(ephemeral.public_key(), full)
    dh = ephemeral.exchange(ec.ECDH(), recipient)
    key, base = _schedule(kem_id, dh, enc, _point(recipient, full), b"sealwire/1" + app.encode())
    sealed = AESGCM(key).encrypt(_nonce(base, sequence), plaintext, bytes([datatype]) + context)
    header = bytes([suite]) + key_id(curve, recipient) + _point(ephemeral.public_key(), short)
    body = bytes([datatype]) + sequence.to_bytes(4, "big") + sealed
    if encoding == "binary":
        return b"SW\x01" + header + body
    return "sw1:" + base64.urlsafe_b64encode(header + body).rstrip(b"=").decode()


def open(curve, recipient, app, context, encoding, envelope):
    """`recipient` is a private key. Gives (datatype, plaintext) or raises Refused."""
    suite, group, kem_id = CURVES[curve]
    try:
        if encoding == "text":
            if not envelope.startswith("sw1:"):
                raise Refused
            text = envelope[4:]
            data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
            if base64.urlsafe_b64encode(data).rstrip(b"=").decode() != text:
                raise Refused  # one envelope, one text
        else:
            if not envelope.startswith(b"SW\x01"):
                raise Refused
            data = envelope[3:]
        if len(data) < 39 + 21 or data[0] != suite or data[39] > 2:
            raise Refused
        if data[1:6] != key_id(curve, recipient.public_key()):
            raise Refused
        ephemeral = ec.EllipticCurvePublicKey.from_encoded_point(group, data[6:39])
        full = PublicFormat.UncompressedPoint
        dh = recipient.exchange(ec.ECDH(), ephemeral)
        own = _point(recipient.public_key(), full)
        key, base = _schedule(kem_id, dh, _point(ephemeral, full), own, b"sealwire/1" + app.encode())
        datatype, sequence = data[39], int.from_bytes(data[40:44], "big")
        plaintext = AESGCM(key).decrypt(_nonce(base, sequence), data[44:], bytes([datatype]) + context)
        if datatype == 0:
            plaintext.decode()
        return datatype, plaintext
    except (ValueError, InvalidTag) as error:
        raise Refused from error
