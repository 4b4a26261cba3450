"""Masked values, written again from proto/mask.md on the `cryptography` package. Shares no code with the engine.

    python masks.py            holds proto/vectors/mask.jsonl against this program
"""

import decimal
import hashlib
import hmac
import json
import math
import pathlib
import re
import struct
import sys
from datetime import date, timedelta

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

ROOT = pathlib.Path(__file__).resolve().parent.parent
ALPHANUMERIC = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
ALPHABETS = {
    "digits": ALPHANUMERIC[:10],
    "hex": ALPHANUMERIC[:16],
    "lower": ALPHANUMERIC[10:36],
    "upper": ALPHANUMERIC[36:],
    "letters": ALPHANUMERIC[10:],
    "alphanumeric_lower": ALPHANUMERIC[:36],
    "alphanumeric_upper": ALPHANUMERIC[:10] + ALPHANUMERIC[36:],
    "alphanumeric": ALPHANUMERIC,
}
NAMES = (
    "alex anna ben carla chris dana david elena eva felix hana ivan jan julia kai lara leo lina luca maria max mina nico "
    "nora olga oscar paula robin sara tom vera yuki"
).split()
# Calling codes of one and two digits; all others have three.
SHORT_CODES = {"1", "7"} | set(
    "20 27 30 31 32 33 34 36 39 40 41 43 44 45 46 47 48 49 51 52 53 54 55 56 57 58 60 61 62 63 64 65 66 81 82 84 86 90 91 "
    "92 93 94 95 98".split()
)


def sized(data):
    return struct.pack(">Q", len(data)) + data


def sub_key(secret, info):
    prk = hmac.digest(bytes(32), secret, hashlib.sha256)
    return hmac.digest(prk, info + b"\x01", hashlib.sha256)


class Mask:
    def __init__(self, secret, text):
        name, arguments = re.fullmatch(r"(\w+)(?:\((.*)\))?", text).groups()
        self.name = name
        self.settings = dict(argument.split("=") for argument in arguments.split(", ")) if arguments else {}
        domain = self.settings.get("domain", name).encode()
        self.hash_key = sub_key(secret, b"sealwire/mask/domain/1" + sized(domain))
        ff1_key = sub_key(secret, b"sealwire/mask/ff1/1" + sized(domain))
        self.aes = Cipher(algorithms.AES(ff1_key), modes.ECB())

    def number(self, setting, default=0):
        return int(self.settings.get(setting, default))

    def hash(self, purpose, *parts):
        parts = (purpose.encode(), *parts)
        return hmac.digest(self.hash_key, b"".join(sized(part) for part in parts), hashlib.sha256)

    def block(self, data):
        encryptor = self.aes.encryptor()
        return encryptor.update(data) + encryptor.finalize()

    def ff1(self, tweak, numerals, radix):
        """NIST SP 800-38G, algorithm 7, step by step."""
        n, t = len(numerals), len(tweak)
        u = n // 2
        v = n - u
        to_int = lambda digits: sum(d * radix**i for i, d in enumerate(reversed(digits)))
        to_digits = lambda value, m: [value // radix ** (m - 1 - i) % radix for i in range(m)]
        a, b = numerals[:u], numerals[u:]
        size = ((radix**v - 1).bit_length() + 7) // 8
        d = 4 * math.ceil(size / 4) + 4
        head = bytes([1, 2, 1]) + radix.to_bytes(3, "big") + bytes([10, u % 256]) + struct.pack(">II", n, t)
        for i in range(10):
            data = head + tweak + bytes((-t - size - 1) % 16) + bytes([i]) + to_int(b).to_bytes(size, "big")
            r = bytes(16)
            for at in range(0, len(data), 16):
                r = self.block(bytes(x ^ y for x, y in zip(r, data[at : at + 16])))
            s = r
            for j in range(1, math.ceil(d / 16)):
                s += self.block(bytes(x ^ y for x, y in zip(r, j.to_bytes(16, "big"))))
            m = u if i % 2 == 0 else v
            a, b = b, to_digits((to_int(a) + int.from_bytes(s[:d], "big")) % radix**m, m)
        return a + b

    def apply(self, value, subject=None):
        return getattr(self, "do_" + self.name)(value, subject)

    def do_hash(self, value, _):
        return self.hash("hash", b"", b"\0", canonical(value)).hex()[: self.number("length", 32)]

    def do_pseudonym(self, value, _):
        name = self.settings["list"]
        h = drawn(self.hash("pseudonym", name.encode(), b"\0", canonical(value)))
        entries = lambda list_name: (ROOT.parent / f"crates/core/mask-rules/lists/{list_name}.txt").read_text().splitlines()
        if name == "full_names":
            first, last = entries("first_names"), entries("last_names")
            h %= len(first) * len(last)
            return f"{first[h // len(last)]} {last[h % len(last)]}"
        return entries(name)[h % len(entries(name))]

    def do_email(self, text, _):
        h = self.hash("email", text.lower().encode())
        bits = int.from_bytes(h[2:12], "big")
        local = NAMES[h[0] % 32] + "." + "".join("abcdefghijklmnopqrstuvwxyz234567"[bits >> 5 * i & 31] for i in range(16))
        domain = text.rpartition("@")[2]
        if self.settings.get("keep") != "domain":
            domain = "example." + ["com", "net", "org"][h[1] % 3]
        if text != text.lower():
            g = self.hash("email/case", text.encode())
            local = "".join(c.upper() if g[i // 8] >> i % 8 & 1 or i == 0 else c for i, c in enumerate(local))
        return f"{local}@{domain}"

    def do_fpe(self, value, _):
        if isinstance(value, int):
            digits = [int(c) for c in str(abs(value))]
            while True:
                digits = self.ff1(b"fpe/integer", digits, 10)
                masked = int("".join(map(str, digits)))
                if digits[0] and masked < 2**63:
                    return masked if value >= 0 else -masked
        name = self.settings.get("alphabet", "digits")
        alphabet = ALPHABETS[name]
        sealed = iter(self.ff1(f"fpe/{name}".encode(), [alphabet.index(c) for c in value if c in alphabet], len(alphabet)))
        return "".join(alphabet[next(sealed)] if c in alphabet else c for c in value)

    def replace(self, purpose, digits, start, end, is_right):
        if end - start < 6:
            h = self.hash(purpose, bytes([start, end]), digits.encode())
            new = "".join(str(int.from_bytes(h[4 * i : 4 * i + 4], "big") % 10) for i in range(end - start))
            if new == digits[start:end]:
                new = new[:-1] + str((int(new[-1]) + 1) % 10)
            return digits[:start] + new + digits[end:]
        parts = (purpose.encode(), digits[:start].encode(), digits[end:].encode())
        tweak = b"".join(bytes([len(part)]) + part for part in parts)
        while True:
            new = self.ff1(tweak, [int(c) for c in digits[start:end]], 10)
            digits = digits[:start] + "".join(map(str, new)) + digits[end:]
            if is_right(digits):
                return digits

    def do_phone(self, text, _):
        international = text.startswith("+")
        digits = re.sub(r"\D", "", text)
        start = prefix(international, digits)
        end = len(digits) - self.number("last")
        is_right = lambda digits: prefix(international, digits) == start
        if start >= end:
            start, end, is_right = 0, len(digits), lambda _: True
        purpose = "phone/international" if international else "phone"
        return put_back(self.replace(purpose, digits, start, end, is_right), text)

    def do_card(self, text, _):
        digits = re.sub(r"\D", "", text)
        made = len(digits) - self.number("last", 4) - 1
        with_made = lambda digits, digit: digits[:made] + str(digit) + digits[made + 1 :]
        digits = self.replace("card", with_made(digits, 0), self.number("first"), made, lambda _: True)
        check = next(digit for digit in range(10) if luhn(with_made(digits, digit)) % 10 == 0)
        if self.settings.get("luhn") == "invalid":
            check = (check + 5) % 10
        return put_back(with_made(digits, check), text)

    def do_iban(self, text, _):
        digits = "00" + re.sub(r"\D", "", text)[2:]
        text = put_back(self.replace("iban", digits, 2, len(digits), lambda _: True), text)
        compact = text.replace(" ", "")
        check = 98 - int("".join(str(int(c, 36)) for c in compact[4:] + compact[:4])) % 97
        return f"{text[:2]}{check:02}{text[4:]}"

    def do_mac(self, text, _):
        digits = [int(c, 16) for c in text if c in "0123456789abcdefABCDEF"]
        kind = digits[1] & 3
        while True:
            digits = self.ff1(b"mac", digits, 16)
            if digits[1] & 3 == kind:
                break
        form = "X" if any(c in "ABCDEF" for c in text) else "x"
        made = iter(digits)
        return "".join(c if c in ":-." else format(next(made), form) for c in text)

    def do_postal_code(self, text, _):
        canonical_text = "".join(c for c in text.upper() if c not in " -").encode()
        h = self.hash("postal_code", b"\0", canonical_text) + self.hash("postal_code", b"\1", canonical_text)
        drawn_numbers = iter(int.from_bytes(h[4 * i : 4 * i + 4], "big") for i in range(16))
        alphabets = {True: "0123456789", False: "ABCDEFGHIJKLMNOPQRSTUVWXYZ"}

        def replaced(c, number):
            alphabet = alphabets[c.isdigit()]
            made = alphabet[number % len(alphabet)]
            return made.lower() if c.islower() else made

        made = "".join(c if c in " -" else replaced(c, next(drawn_numbers)) for c in text)
        if made == text:
            at = max(i for i, c in enumerate(text) if c not in " -")
            alphabet = alphabets[text[at].isdigit()]
            made = text[:at] + replaced(text[at], alphabet.index(text[at].upper()) + 1) + text[at + 1 :]
        return made

    def do_date_shift(self, text, subject):
        if text in ("infinity", "-infinity"):
            return text
        is_bc = text.endswith(" BC")
        written, _, rest = re.fullmatch(r"((\d{4,7})-\d\d-\d\d)(.*)", text).groups()
        if "days" in self.settings:
            shift = self.number("days")
        else:
            within = self.number("within")
            within_bytes = struct.pack(">I", within)
            if "subject" in self.settings:
                h = self.hash("date_shift/subject", within_bytes, b"\0", canonical(subject))
            else:
                h = self.hash("date_shift", within_bytes, (written + " BC" * is_bc).encode())
            shift = drawn(h) % (2 * within) - within
            shift += shift >= 0
        year, month, day = map(int, written.split("-"))
        year = 1 - year if is_bc else year
        # Calendars repeat every 400 years.
        cycles = (year - 2000) // 400
        shifted = date(year - 400 * cycles, month, day) + timedelta(days=shift)
        year = shifted.year + 400 * cycles
        year = 1 - year if is_bc else year
        return f"{year:04}-{shifted.month:02}-{shifted.day:02}{rest}"

    def do_noise(self, value, subject):
        if "percent" in self.settings:
            millionths = int(decimal.Decimal(self.settings["percent"]) * 10_000)
            settings = b"\0" + struct.pack(">Q", millionths)
        else:
            settings = b"\1" + struct.pack(">Q", self.number("by"))
        number = decimal.Decimal(value if isinstance(value, str) else repr(value))
        sign, digits, exponent = number.as_tuple()
        d, s = int("".join(map(str, digits))), max(0, -exponent)
        d *= 10 ** max(0, exponent)
        while s and d % 10 == 0:
            d, s = d // 10, s - 1
        sign = sign and d > 0
        plain = d < 10**30 and s < 30
        part = ("-" * sign + point(d, s)).encode() if plain else struct.pack(">d", value)
        if "subject" in self.settings:
            h = self.hash("noise/subject", settings, part, canonical(subject))
        else:
            h = self.hash("noise", settings, part)
        r = int.from_bytes(h[:16], "big")
        least, most = (self.settings.get(name) for name in (("max", "min") if sign else ("min", "max")))
        least, most = (bound and (-int(bound) if sign else int(bound)) for bound in (least, most))

        if not plain:
            v = abs(value)
            reach = v * (millionths / 1e6) if "percent" in self.settings else float(self.number("by"))
            low, high = max(0.0, v - reach, least or 0.0), min(v + reach, sys.float_info.max)
            high = high if most is None else min(high, most)
            masked = or_neighbor(low + (high - low) * ((r >> 75) / 2**53), v, r, lambda f: low <= f <= high)
            return -masked if sign else masked

        decimals = len(value.partition(".")[2]) if isinstance(value, str) else 0

        def window(reach):
            low, high = max(0, d - reach, (least or 0) * 10**s), min(d + reach, 10**31 - 1)
            return low, high if most is None else min(high, most * 10**s)

        shortest = d, s
        while True:
            low, high = window(d * millionths // 10**6 if "percent" in self.settings else self.number("by") * 10**s)
            masked = choose(low, high, d, r)
            if masked is not None:
                break
            finer = s + 1 <= decimals or isinstance(value, float)
            if finer and s + 1 < 30 and 10 * d < 10**30:
                d, s = 10 * d, s + 1
                continue
            d, s = shortest if isinstance(value, float) else (d, s)
            low, high = window(1)
            masked = choose(low, high, d, r)
            if masked is None:
                raise ValueError("no other number")
            break
        if isinstance(value, float):
            as_float = lambda digits: float(point(digits, s))
            in_window = lambda f: low <= decimal.Decimal(repr(f)).scaleb(s) <= high
            fits = lambda f: as_float(low) < f < as_float(high) or in_window(f)
            masked = or_neighbor(as_float(masked), as_float(d), r, fits)
            return -masked if sign and masked else masked
        largest = (10**31 - 1) // 10 ** (decimals - s) if isinstance(value, str) else 2**63 if sign else 2**64 - 1
        if masked > largest:
            masked = choose(low, largest, d, r)
        text = "-" * (sign and masked > 0) + point(masked * 10 ** (decimals - s), decimals)
        return text if isinstance(value, str) else int(text)


def point(digits, scale):
    digits = str(digits).rjust(scale + 1, "0")
    return f"{digits[:-scale]}.{digits[-scale:]}" if scale else digits


def choose(low, high, given, r):
    holds = low <= given <= high
    count = high - low + 1 - holds
    if count <= 0:
        return None
    chosen = low + r % count
    return chosen + (holds and chosen >= given)


def or_neighbor(chosen, given, r, fits):
    near = [math.nextafter(given, 0.0), math.nextafter(given, math.inf)]
    return next(f for f in (chosen, *(near if r % 2 == 0 else reversed(near))) if f != given and f >= 0 and fits(f))


def canonical(value):
    return value.encode() if isinstance(value, str) else str(value).encode()


def drawn(h):
    return int.from_bytes(h[:8], "big")


def code(digits):
    return next((n for n in (1, 2) if digits[:n] in SHORT_CODES), 3)


def prefix(international, digits):
    if international:
        return code(digits)
    if digits.startswith("00"):
        return 2 + code(digits[2:])
    return int(digits.startswith("0"))


def put_back(digits, text):
    digits = iter(digits)
    return "".join(next(digits) if c.isdigit() else c for c in text)


def luhn(digits):
    return sum(int(c) if i % 2 == 0 else sum(map(int, str(2 * int(c)))) for i, c in enumerate(reversed(digits)))


def main():
    held, passed_over = 0, 0
    for line in (ROOT / "vectors/mask.jsonl").read_text().splitlines():
        vector = json.loads(line)
        mask = Mask(bytes.fromhex(vector["secret"]), vector["mask"])
        if not hasattr(mask, "do_" + mask.name):
            # Without a key: docs/masking.md says all of it.
            passed_over += 1
            continue
        masked = mask.apply(vector["value"], vector.get("subject"))
        if masked != vector["masked"] or type(masked) is not type(vector["masked"]):
            sys.exit(f"{vector['mask']} of {vector['value']!r} is {masked!r} here, {vector['masked']!r} in the vectors")
        held += 1
    print(f"mask interop: {held} vectors hold, {passed_over} without a key passed over")


if __name__ == "__main__":
    main()
