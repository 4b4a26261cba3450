"""Ids, fingerprints and sealed rows of tokens, written again from proto/token.md on the `cryptography` package.

Shares no code with the engine. `check.py` beside it holds the two against each other.
"""

import hashlib
import hmac
import re
import struct

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCMSIV

from envelope import Refused

NO_VALUE = 0x80


def sub_key(secret, purpose):
    """HKDF-SHA256 (RFC 5869) without salt; one hash of output is one block."""
    prk = hmac.digest(bytes(32), secret, hashlib.sha256)
    return hmac.digest(prk, b"sealwire/token/" + purpose + b"/1\x01", hashlib.sha256)


def _hash(secret, purpose, *parts):
    return hmac.digest(sub_key(secret, purpose), b"".join(parts), hashlib.sha256)[:16]


def _u32(number):
    return struct.pack(">I", number)


def _sized(data):
    return struct.pack(">Q", len(data)) + data


def context_hash(secret, app, context):
    return _hash(secret, b"context", _u32(app), _sized(context))


def token_id(secret, app, collection, token):
    return _hash(secret, b"id", _u32(app), _u32(collection), _sized(token.encode()))


def fingerprint_of_value(secret, app, collection, context, datatype, value):
    place = _u32(app) + _u32(collection) + context_hash(secret, app, context)
    return _hash(secret, b"fingerprint", b"\x01", place, bytes([datatype]), _sized(value))


def principal_hash(secret, app, principal):
    return _hash(secret, b"context", _u32(app), b"\xff" * 7 + b"\xfe", _sized(principal.encode()))


def fingerprint_of_request(secret, app, collection, context, principal, key, index, datatype, value):
    place = _u32(app) + _u32(collection) + context_hash(secret, app, context) + principal_hash(secret, app, principal)
    return _hash(secret, b"fingerprint", b"\x03", place, _u32(index), _sized(key), bytes([datatype]), _sized(value))


def _aad(layout, app, collection, identity, subject=None):
    place = (b"" if layout == 1 else bytes([layout])) + _u32(app) + _u32(collection) + identity
    return place if subject is None else place + subject[0] + struct.pack(">Q", subject[1])


SUBJECTS = 0x7FFFFFFF


def subject_key(secrets, active, app, subject, stored):
    """The key in a stored row of a data subject, which is (id, version); or raises Refused."""
    context, _, text, value = open(secrets, active, app, SUBJECTS, subject[0], stored)
    ours = context == context_hash(secrets[1], app, b"sealwire/object/subject/1")
    if not ours or text != str(subject[1]) or value is None or value[0] != 1 or len(value[1]) != 32:
        raise Refused
    return value[1]


def open_of_subject(secrets, active, app, collection, identity, subject, key, row):
    """Like `open`, for a row of layout 3 or 4. `subject` is (id, version), `key` the subject's key."""
    number = int.from_bytes(row[1:5], "big")
    if len(row) < 25 + 12 + 19 + 32 or row[0] not in (3, 4) or number not in active:
        raise Refused
    if int.from_bytes(row[5:13], "big") != subject[1]:
        raise Refused
    aad = _aad(row[0], app, collection, identity, subject)
    try:
        content = AESGCMSIV(sub_key(secrets[number], b"seal")).decrypt(row[13:25], row[25:], aad)
        return _content(row[0] == 4, AESGCMSIV(key).decrypt(content[:12], content[12:], aad))
    except (ValueError, InvalidTag) as error:
        raise Refused from error


def seal(secrets, number, nonce, app, collection, identity, context, token, value, fingerprint=None):
    """`secrets` by version number; `value` is (datatype, bytes), or None for one-way. With a fingerprint: layout 2."""
    token = token.encode()
    datatype, data = value or (NO_VALUE, b"")
    layout = 1 if fingerprint is None else 2
    plain = context_hash(secrets[1], app, context) + (fingerprint or b"")
    plain += struct.pack(">H", len(token)) + token + bytes([datatype]) + data
    sealed = AESGCMSIV(sub_key(secrets[number], b"seal")).encrypt(nonce, plain, _aad(layout, app, collection, identity))
    return bytes([layout]) + _u32(number) + nonce + sealed


def open(secrets, active, app, collection, identity, row):
    """Gives (context hash, fingerprint or None, token, value as in `seal`) or raises Refused. `active` holds the numbers that may open."""
    number = int.from_bytes(row[1:5], "big")
    if len(row) < 17 + 19 + 16 or row[0] not in (1, 2) or number not in active:
        raise Refused
    try:
        key = AESGCMSIV(sub_key(secrets[number], b"seal"))
        return _content(row[0] == 2, key.decrypt(row[5:17], row[17:], _aad(row[0], app, collection, identity)))
    except (ValueError, InvalidTag) as error:
        raise Refused from error


def _content(is_bound, plain):
    context, plain = plain[:16], plain[16:]
    fingerprint = None
    if is_bound:
        fingerprint, plain = plain[:16], plain[16:]
    length = int.from_bytes(plain[:2], "big")
    token, rest = plain[2 : 2 + length], plain[2 + length :]
    if len(token) < length or not rest:
        raise Refused
    datatype, value = rest[0], rest[1:]
    if datatype == NO_VALUE and not value:
        return context, fingerprint, token.decode(), None
    if datatype > 2:
        raise Refused
    if datatype == 0:
        value.decode()
    return context, fingerprint, token.decode(), (datatype, value)


def _luhn(text):
    doubled = [int(d) if n % 2 == 0 else sum(divmod(2 * int(d), 10)) for n, d in enumerate(reversed(text))]
    return sum(doubled) % 10 == 0


_HEX = "[0-9a-f]"
_SHAPES = {
    "opaque": r"tok_[0-9A-Za-z]{22}",
    "uuid": f"{_HEX}{{8}}-{_HEX}{{4}}-4{_HEX}{{3}}-[89ab]{_HEX}{{3}}-{_HEX}{{12}}",
    "digits": r"[0-9]{1,64}",
    "card": r"[0-9]{12,19}",
    "email": r"tok-[0-9a-z]{25}@tokens\.invalid",
}


def has_shape(format, text):
    return bool(re.fullmatch(_SHAPES[format], text)) and (format != "card" or _luhn(text))
