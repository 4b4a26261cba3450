"""Records of objects, written again from proto/object.md on the `cryptography` package.

Shares no code with the engine. `check.py` beside it holds the two against each other.
"""

import hashlib
import hmac
import struct

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCMSIV

from envelope import Refused

LABEL = b"sealwire/object/2"


def seal_key(secret):
    """HKDF-SHA256 (RFC 5869) without salt; one hash of output is one block."""
    prk = hmac.digest(bytes(32), secret, hashlib.sha256)
    return hmac.digest(prk, b"sealwire/object/seal/1\x01", hashlib.sha256)


def _aad(form, app, collection, identity, version, created, subject, clear):
    place = LABEL + bytes([form]) + struct.pack(">II", app, collection) + identity + struct.pack(">QQ", version, created)
    of = b"\x00" if subject is None else b"\x01" + subject[0] + struct.pack(">Q", subject[1])
    return place + of + clear


def encode(values):
    return b"".join(struct.pack(">II", number, len(value)) + value for number, value in sorted(values.items()))


def _decode(data, values):
    last = -1
    while data:
        if len(data) < 8:
            raise Refused
        number, length = struct.unpack(">II", data[:8])
        value, data = data[8 : 8 + length], data[8 + length :]
        if len(value) < length or number <= last or number in values:
            raise Refused
        values[number], last = value, number


def seal(secrets, number, nonce, place, creation, sealed, clear):
    """A record without a subject. `place` is (app, collection, id, version, created)."""
    content = (b"\x00" if creation is None else b"\x01" + creation) + encode(sealed)
    clear = encode(clear)
    ciphertext = AESGCMSIV(seal_key(secrets[number])).encrypt(nonce, content, _aad(3, *place, None, clear))
    return b"\x03" + struct.pack(">I", number) + nonce + struct.pack(">I", len(clear)) + clear + ciphertext


def open(secrets, active, place, subject, record):
    """Gives (creation hash or None, values, numbers of clear values) or raises Refused. `subject`: (id, version, key), or None."""
    form, number, rest = record[0], int.from_bytes(record[1:5], "big"), record[5:]
    if form != (3 if subject is None else 4) or number not in active:
        raise Refused
    if subject is not None:
        if int.from_bytes(rest[:8], "big") != subject[1]:
            raise Refused
        rest = rest[8:]
    nonce, length, rest = rest[:12], int.from_bytes(rest[12:16], "big"), rest[16:]
    clear, ciphertext = rest[:length], rest[length:]
    aad = _aad(form, *place, subject, clear)
    try:
        content = AESGCMSIV(seal_key(secrets[number])).decrypt(nonce, ciphertext, aad)
        if subject is not None:
            content = AESGCMSIV(subject[2]).decrypt(content[:12], content[12:], aad)
    except (ValueError, InvalidTag) as error:
        raise Refused from error
    if content[:1] not in (b"\x00", b"\x01"):
        raise Refused
    creation = content[1:17] if content[0] else None
    values, in_clear = {}, {}
    _decode(clear, in_clear)
    _decode(content[17 if content[0] else 1 :], values)
    if values.keys() & in_clear.keys():
        raise Refused
    return creation, {**values, **in_clear}, set(in_clear)
