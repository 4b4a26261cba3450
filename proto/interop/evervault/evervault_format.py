"""The Evervault format, read by a program written from proto/evervault.md on the `cryptography` package.

Shares no code with the engine; even the DER that the key derivation hashes is built from the curves' parameters.
`check.py` beside it holds the two against each other.
"""

import base64
import hashlib
import re
import zlib

import msgpack
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

CURVES = {"r1": ec.SECP256R1(), "k1": ec.SECP256K1()}
# tag -> (curve, derivation, additional data, metadata, legacy)
TAGS = {
    "QkTC": ("r1", True, 1, True, False),
    "S0lS": ("k1", True, 0, True, False),
    "Tk9D": ("r1", True, "app", False, False),
    "RFVC": ("k1", False, None, False, False),
    "TENZ": ("r1", True, "app", True, True),
    "QlJV": ("k1", True, "app", True, True),
    "T1JL": ("r1", False, None, False, True),
    "": ("k1", False, None, False, True),
}
# file version -> (curve, derivation, additional data, metadata and legacy)
FILES = {2: ("k1", False, None, False), 3: ("r1", True, "app", False), 4: ("k1", True, "app", True), 5: ("r1", True, "app", True)}
TYPES = {"": 0, "string": 0, "number": 1, "boolean": 2}
STRING = re.compile(
    r"ev:(?:(?P<tag>[A-Za-z0-9]{4}):)?(?:(?P<type>string|number|boolean):)?"
    r"(?P<iv>[A-Za-z0-9+/]{16}):(?P<point>[A-Za-z0-9+/]{44}):(?P<sealed>[A-Za-z0-9+/]+=*):\$"
)


class Refused(Exception):
    """The value does not open. Says no more, as the engine says no more."""


def der(kind, *parts):
    body = b"".join(parts)
    size = bytes([len(body)]) if len(body) < 128 else (lambda n: bytes([0x80 | len(n)]) + n)(
        len(body).to_bytes((len(body).bit_length() + 7) // 8, "big"))
    return bytes([kind]) + size + body


def integer(value):
    return der(2, value.to_bytes(value.bit_length() // 8 + 1, "big"))


# SEC 2, sections 2.4.1 and 2.4.2: p, a, b, G uncompressed, n, seed.
PARAMETERS = {
    "k1": (
        2**256 - 2**32 - 977, 0, 7,
        "0479be667ef9dcbbac55a06295ce870b07029bfcdb2dce28d959f2815b16f81798"
        "483ada7726a3c4655da4fbfc0e1108a8fd17b448a68554199c47d08ffb10d4b8",
        0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141, None,
    ),
    "r1": (
        2**256 - 2**224 + 2**192 + 2**96 - 1, 2**256 - 2**224 + 2**192 + 2**96 - 4,
        0x5AC635D8AA3A93E7B3EBBD55769886BC651D06B0CC53B0F63BCE3C3E27D2604B,
        "046b17d1f2e12c4247f8bce6e563a440f277037d812deb33a0f4a13945d898c296"
        "4fe342e2fe1a7f9b8ee7eb4a7c0f9e162bce33576b315ececbb6406837bf51f5",
        0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551,
        "c49d360886e704936a6678e1139d26b7819f7e90",
    ),
}


def spki(curve, point):
    p, a, b, g, n, seed = PARAMETERS[curve]
    seed = der(3, b"\0" + bytes.fromhex(seed)) if seed else b""
    field = der(0x30, der(6, bytes.fromhex("2a8648ce3d0101")), integer(p))
    equation = der(0x30, der(4, a.to_bytes(32, "big")), der(4, b.to_bytes(32, "big")), seed)
    parameters = der(0x30, integer(1), field, equation, der(4, bytes.fromhex(g)), integer(n), integer(1))
    return der(0x30, der(0x30, der(6, bytes.fromhex("2a8648ce3d0201")), parameters), der(3, b"\0" + point))


def app_key(curve, scalar):
    return ec.derive_private_key(int.from_bytes(scalar, "big"), CURVES[curve])


def compressed(curve, scalar):
    return app_key(curve, scalar).public_key().public_bytes(Encoding.X962, PublicFormat.CompressedPoint)


def keys(curve, scalar, point, derived, mixed):
    """The AES keys to try: the one that is named and, where clients mix them, the other."""
    try:
        ephemeral = ec.EllipticCurvePublicKey.from_encoded_point(CURVES[curve], point)
    except ValueError:
        raise Refused from None
    x = app_key(curve, scalar).exchange(ec.ECDH(), ephemeral)
    uncompressed = ephemeral.public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)
    hashed = hashlib.sha256(x + b"\0\0\0\1" + spki(curve, uncompressed)).digest()
    both = [hashed, x] if derived else [x, hashed]
    return both if mixed else both[:1]


def gcm(keys, iv, aad, *sealed):
    for key in keys:
        try:
            return [AESGCM(key).decrypt(iv, each, aad) for each in sealed]
        except (InvalidTag, ValueError):
            continue
    raise Refused


def metadata(map_bytes):
    try:
        pairs = msgpack.unpackb(map_bytes, raw=False, strict_map_key=False, object_pairs_hook=lambda pairs: ("map", pairs))
    except Exception:
        raise Refused from None
    if not (isinstance(pairs, tuple) and pairs[0] == "map"):
        raise Refused
    known = [(key, value) for key, value in pairs[1] if key in ("dr", "eo", "et")]
    found = dict(known)
    if len(found) != len(known) or ("dr" in found and not isinstance(found["dr"], str)):
        raise Refused
    return found


def unmarked(content):
    """Metadata that a file's content begins with and nothing marks: a map of just its length that names a key of ours."""
    length = int.from_bytes(content[:2], "little")
    front = content[2 : 2 + length]
    # Maps as lists, since a key of random content can be a list, which a dictionary does not take.
    reader = msgpack.Unpacker(raw=False, strict_map_key=False, unicode_errors="surrogateescape", object_pairs_hook=list)
    reader.feed(front)
    named = False
    try:
        for _ in range(reader.read_map_header()):
            named |= reader.unpack() in ("dr", "eo", "et")
            reader.skip()
    except (msgpack.UnpackException, ValueError):
        return {}
    return metadata(front) if named and reader.tell() == len(front) == length else {}


def unbase64(text):
    if text.endswith("=") and len(text) % 4:
        raise Refused
    try:
        raw = base64.b64decode(text.rstrip("=") + "=" * (-len(text.rstrip("=")) % 4), validate=True)
    except ValueError:
        raise Refused from None
    canonical = base64.b64encode(raw).decode()
    if text not in (canonical, canonical.rstrip("=")):
        raise Refused
    return raw


def number(text):
    if text in ("nan", "NaN", "inf", "-inf", "+Inf", "-Inf"):
        return "float", {"n": "nan", "i": "inf", "+": "inf", "-": "-inf"}[text[0].lower()]
    if text == "null":
        return "text", text
    if not re.fullmatch(r"[0-9+\-.eE \t\n\f\r\v]*[0-9][0-9+\-.eE \t\n\f\r\v]*", text):
        raise Refused
    if not re.fullmatch(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?", text):
        return "text", text
    value = float(text)
    if re.fullmatch(r"-?[0-9]+", text) and text != "-0":
        if -(2**63) <= int(text) < 2**64:
            return "integer", text
        return ("float", repr(value)) if abs(value) != float("inf") and int(value) == int(text) else ("text", text)
    if abs(value) == float("inf"):
        return "text", text
    digits = len(re.sub(r"[eE].*|[-.]", "", text).strip("0")) or 1
    same = lambda print: plain(print) == plain(text)
    return ("float", repr(value)) if same(repr(value)) or same(f"{value:.{digits - 1}e}") else ("text", text)


def plain(text):
    """Sign, digits without zeros at their ends, exponent: what two prints of one value have in common."""
    sign, whole, fraction, exponent = re.fullmatch(r"(-?)([0-9]+)\.?([0-9]*)(?:[eE]([+-]?[0-9]+))?", text).groups()
    digits = (whole + fraction).lstrip("0")
    point = int(exponent or 0) - len(fraction) + len(digits)
    return sign, digits.rstrip("0"), point if digits else 0


def open_string(scalar, legacy, text):
    """Gives {type, value, role, origin, encrypted_at}, absent ones left out."""
    match = STRING.fullmatch(text)
    if not match or (match["tag"] or "") not in TAGS:
        raise Refused
    tag, datatype = match["tag"] or "", TYPES[match["type"] or ""]
    curve, derived, bound, has_metadata, is_legacy = TAGS[tag]
    if is_legacy and not legacy:
        raise Refused
    iv, point, sealed = (unbase64(match[part]) for part in ("iv", "point", "sealed"))
    app = compressed(curve, scalar)
    aad = {None: None, "app": app}[bound] if not isinstance(bound, int) else bytes([datatype << 4 | bound]) + point + app
    mixed = tag in ("RFVC", "S0lS", "QlJV")
    [payload] = gcm(keys(curve, scalar, point, derived, mixed), iv, aad, sealed)
    found = {}
    if has_metadata:
        length = int.from_bytes(payload[:2], "little")
        if len(payload) < 2 + length:
            raise Refused
        found, payload = metadata(payload[2 : 2 + length]), payload[2 + length :]
    try:
        plaintext = payload.decode("utf-8")
    except UnicodeDecodeError:
        raise Refused from None
    if datatype == 0:
        kind, value = "text", plaintext
    elif datatype == 1:
        kind, value = number(plaintext)
    else:
        kind, value = "boolean", {"true": "true", "1": "true", "false": "false", "0": "false"}.get(plaintext)
        if value is None:
            raise Refused
    result = {"type": kind, "value": value}
    names = {"dr": "role", "eo": "origin", "et": "encrypted_at"}
    result.update({names[key]: value for key, value in found.items() if key == "dr" or isinstance(value, int)})
    return result


def open_file(scalar, legacy, file):
    """Gives (content, role)."""
    if len(file) < 55 + 20 or file[:6] != b"%EVENC" or file[6] not in FILES or file[54] != 0:
        raise Refused
    if zlib.crc32(file[:-4]).to_bytes(4, "little") != file[-4:]:
        raise Refused
    curve, derived, bound, has_metadata = FILES[file[6]]
    offset = int.from_bytes(file[7:9], "little")
    if has_metadata:
        length = int.from_bytes(file[55:57], "little")
        if not legacy or offset != 57 + length or length < 16:
            raise Refused
        parts = [file[57:offset], file[offset:-4]]
    else:
        if offset != 55:
            raise Refused
        parts = [file[55:-4]]
    aad = compressed(curve, scalar) if bound else None
    opened = gcm(keys(curve, scalar, file[9:42], derived, curve == "k1"), file[42:54], aad, *parts)
    found = metadata(opened[0]) if has_metadata else unmarked(opened[0])
    if found and not legacy:
        raise Refused
    return opened[-1], found.get("dr")
