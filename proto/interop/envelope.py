"""The native envelope, written again from proto/envelope.md on the `cryptography` package.

Shares no code with the engine. `check.py` beside it holds the two against each other.
"""

import base64
import hashlib
import hmac

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric import ec, mlkem
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.cmac import CMAC
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

# suite -> (suite byte, curve, HPKE KEM id); `xaes` has a secret instead of a key pair
SUITES = {"p256": (1, ec.SECP256R1(), 0x0010), "secp256k1": (2, ec.SECP256K1(), 0x0016)}
XAES = 3
HYBRID, HYBRID_KEM, ENC = 4, 0x0050, 1088 + 65
# suite -> (suite byte, suite of the same KEM in base mode)
PSK_SUITES = {"p256-psk": (5, "p256"), "secp256k1-psk": (6, "secp256k1")}
# The orders of the groups: a candidate for a private key is below.
ORDERS = {
    "p256": 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551,
    "secp256k1": 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141,
}


class Refused(Exception):
    """The envelope does not open. Says no more, as the engine says no more."""


def _extract(suite, salt, label, ikm):
    return hmac.digest(salt or bytes(32), b"HPKE-v1" + suite + label + ikm, hashlib.sha256)


def _expand(suite, prk, label, info, length):
    labeled = length.to_bytes(2, "big") + b"HPKE-v1" + suite + label + info
    return hmac.digest(prk, labeled + b"\x01", hashlib.sha256)[:length]  # length <= 32: one block


def _schedule(kem_id, dh, enc, recipient, info, psk=b"", psk_id=b""):
    kem = b"KEM" + kem_id.to_bytes(2, "big")
    prk = _extract(kem, b"", b"eae_prk", dh)
    return _key_schedule(kem_id, _expand(kem, prk, b"shared_secret", enc + recipient, 32), info, psk, psk_id)


def _key_schedule(kem_id, shared, info, psk=b"", psk_id=b""):
    suite = b"HPKE" + kem_id.to_bytes(2, "big") + b"\x00\x01" + b"\x00\x02"
    mode = b"\x01" if psk else b"\x00"
    context = mode + _extract(suite, b"", b"psk_id_hash", psk_id) + _extract(suite, b"", b"info_hash", info)
    secret = _extract(suite, shared, b"secret", psk)
    return _expand(suite, secret, b"key", context, 32), _expand(suite, secret, b"base_nonce", context, 12)


def _point(key, form):
    return key.public_bytes(Encoding.X962, form)


def _nonce(base, sequence):
    return bytes(a ^ b for a, b in zip(base, sequence.to_bytes(12, "big")))


def _hkdf_expand(secret, label, app, length):
    return hmac.digest(secret, label + app.encode() + b"\x01", hashlib.sha256)[:length]  # length <= 32: one block


def _xaes_key(secret, app, nonce):
    """The AES-256-GCM key that C2SP's XAES-256-GCM derives for a nonce of 24 bytes."""
    key = b""
    for counter in (1, 2):
        mac = CMAC(AES256(_hkdf_expand(secret, b"sealwire/xaes/1", app, 32)))
        mac.update(bytes([0, counter]) + b"X\x00" + nonce[:12])
        key += mac.finalize()
    return key


class HybridKey:
    """A key of MLKEM768-P256, expanded from its seed as draft-ietf-hpke-pq has it."""

    def __init__(self, seed):
        stream = hashlib.shake_256(seed).digest(64 + 32 * 8)
        self.ml_kem = mlkem.MLKEM768PrivateKey.from_seed_bytes(stream[:64])
        for start in range(64, len(stream), 32):
            try:
                self.ec = private_key("p256", stream[start : start + 32])
                break
            except ValueError:
                pass  # not below the order
        self.point = _point(self.ec.public_key(), PublicFormat.UncompressedPoint)
        self.public = self.ml_kem.public_key().public_bytes_raw() + self.point
        self.id = hashlib.sha256(b"sealwire/key-id/1" + bytes([HYBRID]) + self.public).digest()[:5]

    def combine(self, of_ml_kem, dh, ephemeral):
        return hashlib.sha3_256(of_ml_kem + dh + ephemeral + self.point + b"MLKEM768-P256").digest()

    def encapsulate(self):
        ephemeral = ec.generate_private_key(ec.SECP256R1())
        point = _point(ephemeral.public_key(), PublicFormat.UncompressedPoint)
        of_ml_kem, ciphertext = self.ml_kem.public_key().encapsulate()
        return self.combine(of_ml_kem, ephemeral.exchange(ec.ECDH(), self.ec.public_key()), point), ciphertext + point

    def decapsulate(self, enc):
        ephemeral = ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), enc[1088:])
        dh = self.ec.exchange(ec.ECDH(), ephemeral)
        return self.combine(self.ml_kem.decapsulate(enc[:1088]), dh, enc[1088:])


def _header_id(key, enc):
    return hashlib.sha256(b"sealwire/header/1" + bytes([HYBRID]) + key.id + enc).digest()[:20]


def seal_hybrid(key, app, context, datatype, plaintext, encoding, sequence=0):
    shared, enc = key.encapsulate()
    aes, base = _key_schedule(HYBRID_KEM, shared, b"sealwire/1" + app.encode())
    sealed = AESGCM(aes).encrypt(_nonce(base, sequence), plaintext, bytes([datatype]) + context)
    header = bytes([HYBRID]) + key.id + _header_id(key, enc) + b"\x01" + enc + b"\x00\x00"
    return _envelope(encoding, header, bytes([datatype]) + sequence.to_bytes(4, "big") + sealed)


class PskKey:
    """A key pair and a pre-shared key, derived from a seed."""

    def __init__(self, suite, seed):
        number, base = PSK_SUITES[suite]
        self.suite, self.base, self.byte = suite, base, bytes([number])
        ikm = _hkdf_expand(seed, b"sealwire/psk-key/1" + self.byte, "", 32)
        self.psk = _hkdf_expand(seed, b"sealwire/psk/1" + self.byte, "", 32)
        kem = b"KEM" + SUITES[base][2].to_bytes(2, "big")
        prk = _extract(kem, b"", b"dkp_prk", ikm)
        candidates = (_expand(kem, prk, b"candidate", bytes([counter]), 32) for counter in range(256))
        scalar = next(each for each in candidates if 0 < int.from_bytes(each, "big") < ORDERS[base])
        self.ec = private_key(base, scalar)
        self.point = _point(self.ec.public_key(), PublicFormat.UncompressedPoint)
        self.id = hashlib.sha256(b"sealwire/key-id/1" + self.byte + self.point).digest()[:5]

    def schedule(self, dh, enc, app):
        info, psk_id = b"sealwire/1" + app.encode(), b"sealwire/psk-id/1" + self.id
        return _schedule(SUITES[self.base][2], dh, enc, self.point, info, self.psk, psk_id)


def seal_psk(key, app, context, datatype, plaintext, encoding, ephemeral, sequence=0):
    """`ephemeral` is a private key that is used for no other purpose."""
    enc = _point(ephemeral.public_key(), PublicFormat.UncompressedPoint)
    aes, base = key.schedule(ephemeral.exchange(ec.ECDH(), key.ec.public_key()), enc, app)
    sealed = AESGCM(aes).encrypt(_nonce(base, sequence), plaintext, bytes([datatype]) + context)
    header = key.byte + key.id + _point(ephemeral.public_key(), PublicFormat.CompressedPoint)
    return _envelope(encoding, header, bytes([datatype]) + sequence.to_bytes(4, "big") + sealed)


def private_key(suite, scalar):
    return ec.derive_private_key(int.from_bytes(scalar, "big"), SUITES[suite][1])


def key_id(suite, public):
    tag = b"sealwire/key-id/1" + bytes([SUITES[suite][0]])
    return hashlib.sha256(tag + _point(public, PublicFormat.UncompressedPoint)).digest()[:5]


def xaes_key_id(secret, app):
    return _hkdf_expand(secret, b"sealwire/xaes-id/1", app, 5)


def _envelope(encoding, header, body):
    if encoding == "binary":
        return b"SW\x01" + header + body
    return "sw1:" + base64.urlsafe_b64encode(header + body).rstrip(b"=").decode()


def seal(suite, recipient, app, context, datatype, plaintext, encoding, ephemeral, sequence=0):
    """`recipient` is a public key, `ephemeral` a private one that is used for no other purpose."""
    number, _, kem_id = SUITES[suite]
    full, short = PublicFormat.UncompressedPoint, PublicFormat.CompressedPoint
    enc = _point(ephemeral.public_key(), full)
    dh = ephemeral.exchange(ec.ECDH(), recipient)
    key, base = _schedule(kem_id, dh, enc, _point(recipient, full), b"sealwire/1" + app.encode())
    sealed = AESGCM(key).encrypt(_nonce(base, sequence), plaintext, bytes([datatype]) + context)
    header = bytes([number]) + key_id(suite, recipient) + _point(ephemeral.public_key(), short)
    return _envelope(encoding, header, bytes([datatype]) + sequence.to_bytes(4, "big") + sealed)


def seal_xaes(secret, app, context, datatype, plaintext, encoding, random, sequence=0):
    """`random` is 20 bytes that are used for no other request."""
    nonce = random + sequence.to_bytes(4, "big")
    sealed = AESGCM(_xaes_key(secret, app, nonce)).encrypt(nonce[12:], plaintext, bytes([datatype]) + context)
    header = bytes([XAES]) + xaes_key_id(secret, app) + random + b"\x00"
    return _envelope(encoding, header, bytes([datatype]) + sequence.to_bytes(4, "big") + sealed)


def _bytes(encoding, envelope):
    if encoding != "text":
        if not envelope.startswith(b"SW\x01"):
            raise Refused
        return envelope[3:]
    if not envelope.startswith("sw1:"):
        raise Refused
    text = envelope[4:]
    data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    if base64.urlsafe_b64encode(data).rstrip(b"=").decode() != text:
        raise Refused  # one envelope, one text
    return data


def open(suite, key, app, context, encoding, envelope):
    """`key` is a private key, for `xaes` the secret, else a HybridKey or PskKey. Gives (datatype, plaintext) or raises Refused."""
    try:
        data = _bytes(encoding, envelope)
        header = {"xaes": 27, "p256-mlkem768": 27 + ENC + 2}.get(suite, 39)
        if len(data) < header + 21 or data[header] > 2:
            raise Refused
        datatype, sequence = data[header], data[header + 1 : header + 5]
        of_psk = dict.fromkeys(PSK_SUITES, _open_psk)
        opener = {"xaes": _open_xaes, "p256-mlkem768": _open_hybrid, **of_psk}.get(suite, _open_hpke)
        aead, nonce = opener(suite, key, app, data, sequence)
        plaintext = aead.decrypt(nonce, data[header + 5 :], bytes([datatype]) + context)
        if datatype == 0:
            plaintext.decode()
        return datatype, plaintext
    except (ValueError, InvalidTag) as error:
        raise Refused from error


def _open_xaes(_, secret, app, data, sequence):
    if data[0] != XAES or data[1:6] != xaes_key_id(secret, app) or data[26] != 0:
        raise Refused
    nonce = data[6:26] + sequence
    return AESGCM(_xaes_key(secret, app, nonce)), nonce[12:]


def _open_hybrid(_, key, app, data, sequence):
    enc = data[27 : 27 + ENC]
    expected = bytes([HYBRID]) + key.id + _header_id(key, enc) + b"\x01" + enc + b"\x00\x00"
    if data[: 27 + ENC + 2] != expected:
        raise Refused
    aes, base = _key_schedule(HYBRID_KEM, key.decapsulate(enc), b"sealwire/1" + app.encode())
    return AESGCM(aes), _nonce(base, int.from_bytes(sequence, "big"))


def _open_psk(_, key, app, data, sequence):
    if data[:6] != key.byte + key.id:
        raise Refused
    ephemeral = ec.EllipticCurvePublicKey.from_encoded_point(SUITES[key.base][1], data[6:39])
    enc = _point(ephemeral, PublicFormat.UncompressedPoint)
    aes, base = key.schedule(key.ec.exchange(ec.ECDH(), ephemeral), enc, app)
    return AESGCM(aes), _nonce(base, int.from_bytes(sequence, "big"))


def _open_hpke(suite, recipient, app, data, sequence):
    number, group, kem_id = SUITES[suite]
    if data[0] != number or data[1:6] != key_id(suite, recipient.public_key()):
        raise Refused
    ephemeral = ec.EllipticCurvePublicKey.from_encoded_point(group, data[6:39])
    full = PublicFormat.UncompressedPoint
    dh = recipient.exchange(ec.ECDH(), ephemeral)
    own = _point(recipient.public_key(), full)
    key, base = _schedule(kem_id, dh, _point(ephemeral, full), own, b"sealwire/1" + app.encode())
    return AESGCM(key), _nonce(base, int.from_bytes(sequence, "big"))
