#!/usr/bin/env python3
"""Holds the relay's reading of messages against that of PHP, Python, Go and Node, on mutated messages.

    check.py VERDICTS GO NODE-FOLDER [--seed N] [--cases N]

VERDICTS is the example `relay_verdicts`, GO the compiled readers.go, and NODE-FOLDER has the packages of Node. A value under a selected
name must be sealed or its message rejected: no reader may find the canary where it looks for a selected value. Forms are read as JSON
too, and JSON as a form. The messages depend on the seed alone. Prints the first messages that a reader reads otherwise, and fails.
"""

import argparse
import base64
import concurrent.futures
import http.client
import json
import os
import pathlib
import random
import socket
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
CANARY = "4242424242424242"
FORM = "application/x-www-form-urlencoded"
# Messages that each reader must understand, and the relay must seal.
PLAIN = {
    "json": ("application/json", f'{{"ssn":"{CANARY}"}}'),
    "form": (FORM, f"a=1&ssn={CANARY}"),
    "query": ("", f"a=1&ssn={CANARY}"),
    "multipart": (
        "multipart/form-data; boundary=waf",
        f'--waf\r\nContent-Disposition: form-data; name="ssn"\r\n\r\n{CANARY}\r\n--waf--\r\n',
    ),
}
# Readers of each kind, of which none may be missing.
READERS = {"json": 5, "form": 9, "query": 9, "multipart": 7}
# Ordinary messages that no rule selects anything in, which the relay must forward as they are.
ORDINARY = [
    ("json", "application/json; charset=utf-8", '{"größe":1,"名前":[{"Kartenſ":"x"}],"url":"https://a.example/?b=1&c=2","session":null}'),
    ("form", FORM, "name=x+y&a%5Bb%5D=%C3%A4&discard=1&empty=&flag&mail=a%40b.example"),
    ("query", "", "name=x+y&a[]=1&b.c=2&%C3%A4=%zz&flag"),
    # A document of MongoDB, and keys beside selected ones.
    ("json", "application/json", '{"_id":"1","Card":{"expiry":"x"},"CARD":"visa","user":{"name":"y"},"items":{"1":2},"username":"z"}'),
    ("form", FORM, "user[name]=x&card=visa&username=y&item=1&ssns=2&_csrf=3"),
    ("query", "", "user[name]=x&card=visa&userssn2=y&sort=-ssn&filter=ssn"),
    # Parts as OkHttp, Spring and Java write them.
    (
        "multipart", "multipart/form-data; boundary=a-b",
        '--a-b\r\nContent-Disposition: form-data; name="b"\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Transfer-Encoding: binary\r\n'
        "Content-Length: 3\r\n\r\nx y\r\n--a-b--\r\n",
    ),
    (
        "multipart", "multipart/form-data; boundary=----WebKitFormBoundaryk3mCXyVLYbTEFzIA",
        '------WebKitFormBoundaryk3mCXyVLYbTEFzIA\r\nContent-Disposition: form-data; name="größe"; filename="C:\\x; \'y\' %22.txt"\r\n'
        "Content-Type: text/plain\r\n\r\nx\r\n------WebKitFormBoundaryk3mCXyVLYbTEFzIA--\r\n",
    ),
]
NAMES = ["ssn", "token", "card_number", "user[ssn]", "items[0]", "card[number]"]
# What readers drop, cut at, fold or decode.
INSERTED = [
    " ", "\t", "\0", "\x0b", "\x0c", "\r", "\n", "\r\n", "\x7f", "\x85", "\xa0", "\u200b", "\ufeff", "\ufffd", "\u2028", "'", '"', "`", "\\",
    "/", ",", ";", ":", "=", "&", "+", "?", "#", "%", "%00", "%20", "%09", "%0b", "%73", "%u0073", "%2573", "%ff", "&amp;", "&#115;", "[", "]",
    "[]", "[0]", "[x]", ".", "..", "_", "-", "$", "@", "*", "(", "{", "}", "<", "|", "~", "\u0307", "\u00ad", "0", "=?utf-8?Q?", "?=",
    "!", "[00]", "[1]", "\U000e0041", "\U000e0100", "\u3164", "\u115f", "\uffa0", "\u180b", "\ufe0f", "\u2800", "\u0301",
]
FOLDED = {"s": "S\u017f\uff53", "k": "K\u212a", "[": ".", "0": "1", "n": "N", "t": "T", "o": "O", "e": "E", "u": "U", "r": "R", "_": ".- [", "c": "C", "a": "A"}
# Pieces of heads of parts and of their content type.
HEADS = [
    "; xname=b", '; name="b"', "; name=b", "; name*=utf-8''ssn", "; name*0=ssn", '; filename="x"', "; filename=x", "; filename*=utf-8''x", ";",
    '; x="; name=ssn"', "; filename='x; name=ssn'", '; filename="x\\"; name=ssn"', "\r\nX: y", "\r\n x", "\nX: y", "\r\nContent-Type: text/plain",
    "\r\nContent-Type: message/rfc822", "\r\nContent-Type: multipart/mixed; boundary=php", "\r\nContent-Transfer-Encoding: base64",
    "\r\nContent-Transfer-Encoding: quoted-printable", "\r\nContent-Transfer-Encoding: binary", "\r\nContent-Transfer-Encoding: 8BIT",
    "\r\nContent-Length: 4", "\r\nContent-Length: 16", "\r\nContent-Length: 016", "\r\nContent-Length: 160", '\r\nContent-Disposition: form-data; name="ssn"',
    "\x0bContent-Disposition: form-data; name=ssn", '\u2028Content-Disposition: form-data; name="ssn"', "form-data", "attachment", "; charset=utf-16",
    "; boundary=php", "; boundary=\"php\"", "; xboundary=php", "; boundary*=utf-8''php", "; boundary*0=php", ",php", "; boundary =php", "php", "--php",
    "; boundary='php'", "\r\n--php\r\n", "\n--php\n", "--php--", "=?utf-8?Q?php?=", "=?utf-8?B?c3Nu?=",
]
# Those from here on are for boundaries.
BOUNDARIES = HEADS.index("; boundary=php")
DISPOSITION = "Content-Disposition: form-data; name="


def disguised(chance, name):
    """A name as some reader could take it for the selected one, or the name itself."""
    for _ in range(chance.choice([0, 1, 1, 1, 2, 3])):
        at = chance.randrange(len(name) + 1)
        match chance.randrange(5):
            case 0 | 1:
                at = chance.choice([0, at, len(name)])
                name = name[:at] + chance.choice(INSERTED) + name[at:]
            case 2 if at < len(name) and name[at].lower() in FOLDED:
                name = name[:at] + chance.choice(FOLDED[name[at].lower()]) + name[at + 1 :]
            case 3:
                name = chance.choice([name.upper(), name.title(), name.swapcase(), name.replace("_", ""), f"[{name}]", f'"{name}"', f"'{name}'"])
            case 4 if at < len(name):
                name = name[:at] + name[at + 1 :]
    return name


def mutated(chance, text, pieces, most):
    """A text with pieces put in, taken out or doubled."""
    for _ in range(chance.randint(0, most)):
        at = chance.randrange(len(text) + 1)
        end = min(len(text), at + chance.randint(1, 6))
        match chance.randrange(5):
            case 0 | 1 | 2:
                text = text[:at] + chance.choice(pieces) + text[at:]
            case 3:
                text = text[:at] + text[end:]
            case 4:
                text = text[:end] + text[at:]
    return text


def encoded(text):
    """Bytes of a text, of half of a surrogate pair too."""
    return text.encode("utf-8", "surrogatepass")


def nested_case(chance):
    """A part within a part, which a reader that takes another boundary finds."""
    boundary = chance.choice(["waf", "waf", "waf", "php,waf", "waf,php", "php waf", "'php'", "php=", "=?utf-8?Q?php?=", "=?utf-8?B?cGhw?=", "php;waf"])
    parameters = [chance.choice(["; boundary={}", '; boundary="{}"']).format(boundary)]
    if chance.random() < 0.6:
        parameters.insert(chance.randrange(2), chance.choice(HEADS[BOUNDARIES:]))
    content_type = "multipart/form-data" + mutated(chance, "".join(parameters), INSERTED, chance.choice([0, 0, 1]))
    inner = f'--php\r\n{DISPOSITION}"{chance.choice(NAMES)}"\r\n\r\n{CANARY}\r\n--php--\r\n'
    head = mutated(chance, f'{DISPOSITION}"b"', HEADS + INSERTED, chance.choice([0, 0, 1]))
    return content_type, f"--{boundary}\r\n{head}\r\n\r\na\r\n{inner}\r\n--{boundary}--\r\n"


def multipart_case(chance):
    content_type, body = nested_case(chance) if chance.random() < 0.3 else flat_case(chance)
    if chance.random() < 0.2:
        body = mutated(chance, body, ["\r\n", "\n", "\r", " ", "--", "--waf", "--php", "\0", "\r\n--waf\r\n", "--waf--"], 2)
    if any(c in content_type for c in "\r\n\0") or not content_type.isascii():
        # No server gets such a header.
        content_type = "multipart/form-data; boundary=waf"
    return content_type, encoded(body)


def flat_case(chance):
    name = disguised(chance, chance.choice(NAMES))
    quoted = chance.choice(['"{}"', '"{}"', '"{}"', "{}", "'{}'", '" {} "', '"=?utf-8?Q?{}?="', '"x; name={}"', '"x\\"{}"']).format(name)
    head = mutated(chance, DISPOSITION + quoted, HEADS + INSERTED, 3)
    parts = [f"--waf\r\n{head}\r\n\r\n{CANARY}\r\n"]
    if chance.random() < 0.5:
        parts.insert(chance.randrange(2), f'--waf\r\n{DISPOSITION}"b"\r\n\r\nb\r\n')
    content_type = "multipart/form-data; boundary=waf"
    if chance.random() < 0.2:
        parameters = chance.choice(["; boundary=waf", '; boundary="waf"', "; charset=utf-8; boundary=waf"])
        content_type = "multipart/form-data" + mutated(chance, parameters, HEADS[BOUNDARIES:] + INSERTED, 1)
    return content_type, "".join(parts) + "--waf--\r\n"


def pairs(chance):
    found = []
    for _ in range(chance.randint(1, 3)):
        name = disguised(chance, chance.choice(NAMES))
        if chance.random() < 0.5:
            escape = chance.choice(["%{:02x}", "%{:02X}"])
            name = "".join(escape.format(ord(c)) if ord(c) < 128 and chance.random() < 0.3 else c for c in name)
        if chance.random() < 0.6:
            name = "".join(c if c.isascii() and c > " " else "".join(f"%{byte:02X}" for byte in encoded(c)) for c in name)
        found.append(f"{name}{chance.choice(['=', '=', '=', '==', '%3D', ''])}{CANARY}")
    found.insert(chance.randrange(len(found) + 1), chance.choice(["a=1", "b", "", "=1", "card[expiry]=1", "items[1]=1"]))
    return chance.choice(["", "", "", "?", "&", "\ufeff", " "]) + chance.choice(["&", "&", "&", "&", ";", "&&", "&amp;", ",", "\r\n"]).join(found)


def form_case(chance):
    if chance.random() < 0.15:
        return FORM, json_case(chance)[1]
    return chance.choice([FORM, FORM, FORM + "; charset=utf-8"]), encoded(pairs(chance))


def query_case(chance):
    return "", encoded(pairs(chance))


def json_key(chance, name):
    """A key with some characters escaped, and disguised before or after."""
    out = []
    for c in disguised(chance, name):
        if chance.random() < 0.15 or c in '"\\' or c < " ":
            units = c.encode("utf-16-be", "surrogatepass")
            escape = chance.choice(["\\u{:02x}{:02x}", "\\u{:02X}{:02X}"])
            c = "".join(escape.format(units[at], units[at + 1]) for at in range(0, len(units), 2))
        out.append(c)
    if chance.random() < 0.1:
        out.insert(chance.randrange(len(out) + 1), chance.choice(["\\u0000", "\\ud800", "\\udfff", "\\n", "\\/", "\\x73", "\\ufeff", "\\u017f"]))
    return "".join(out)


def json_case(chance):
    value = chance.choice([f'"{CANARY}"', f'"{CANARY}"', CANARY, f"{CANARY}.0", f"[{CANARY}]", f'{{"a":"{CANARY}"}}', f"'{CANARY}'"])
    members = []
    for _ in range(chance.randint(1, 3)):
        name, inner = chance.choice([("ssn", ""), ("token", ""), ("card", "number"), ("card_number", ""), ("user", "ssn"), ("items", "0")])
        member = f'{{"{json_key(chance, inner)}":{value}}}' if inner else value
        if name == "items" and chance.random() < 0.5:
            member = chance.choice(["[{}]", "[1,{}]", "[[{}]]"]).format(value)
        if inner and chance.random() < 0.1:
            name, member = f"{name}{chance.choice('.[_')}{inner}", value
        members.append(f'"{json_key(chance, name)}":{member}')
    if chance.random() < 0.2:
        members.append(f'"x":"&{disguised(chance, chance.choice(NAMES))}={CANARY}&"'.replace("\n", "").replace("\r", "").replace("\0", ""))
    members.insert(chance.randrange(len(members) + 1), '"a":null')
    text = "{" + ",".join(members) + "}"
    if chance.random() < 0.3:
        text = mutated(chance, text, [",", "//x\n", "/*x*/", "\0", "\ufeff", "{", "}", "[", "]", "\\", "'", '"', " ", "\x0b", "NaN", "1", "\n", "#"], 2)
    text = chance.choice(["", "", "", "", "\ufeff", " ", "&a=1", "\0", "[", '"']) + text + chance.choice(["", "", "", "", "{}", "x", f'{{"ssn":"{CANARY}"}}', "\0"])
    if chance.random() < 0.02:
        return "application/json", text.encode(chance.choice(["utf-16", "utf-16-le", "utf-32"]), "surrogatepass")
    return chance.choice(["application/json", "application/json; charset=utf-8", "application/x+json"]), encoded(text)


CASES = {"multipart": multipart_case, "form": form_case, "query": query_case, "json": json_case}


class Case:
    """A message, and what the relay forwards of it."""

    def __init__(self, kind, content_type, text):
        self.kind, self.type, self.text, self.forwarded = kind, content_type, text, None

    def line(self, kind, text):
        return json.dumps({"kind": kind, "type": self.type, "text": base64.b64encode(text).decode()})


def answers(command, lines):
    """One answer of a program for each line."""
    done = subprocess.run(command, input="".join(line + "\n" for line in lines), capture_output=True, text=True, check=False)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    if done.returncode != 0 or len(found) != len(lines):
        sys.exit(f"{command}: status {done.returncode}, {len(found)} of {len(lines)} answers\n{done.stderr[-2000:]}")
    return found


class Php:
    """PHP's own server, which reads multipart bodies."""

    def __enter__(self):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        script = str(HERE / "readers.php")
        command = ["php", "-d", "display_errors=0", "-d", "log_errors=0", "-q", "-S", f"127.0.0.1:{self.port}", script]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 60
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port)).close()
                return self
            except OSError:
                if self.process.poll() is not None or time.monotonic() > deadline:
                    sys.exit("php -S does not start")
                time.sleep(0.05)

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()

    def read(self, content_type, text):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request("POST", "/", body=text, headers={"Content-Type": content_type})
        answer = connection.getresponse().read()
        connection.close()
        return {"php": json.loads(answer)}


def php_multipart(cases):
    with Php() as php:
        return [php.read(case.type, text) for case, _, text in cases]


def read_all(readers, reads):
    """What all readers find in each message of `reads`: case, kind and text."""
    lines = [case.line(kind, text) for case, kind, text in reads]
    parts = [read for read in reads if read[1] == "multipart"]
    with concurrent.futures.ThreadPoolExecutor() as pool:
        of_php = pool.submit(php_multipart, parts)
        found = list(pool.map(lambda command: answers(command, lines), readers))
        of_parts = iter(of_php.result())
    merged = [{name: texts for answer in each for name, texts in (answer or {}).items()} for each in zip(*found)]
    for (_, kind, _), each in zip(reads, merged):
        if kind == "multipart":
            each.update(next(of_parts))
    return merged


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verdicts")
    parser.add_argument("go")
    parser.add_argument("node")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cases", type=int, default=10_000, help="messages of each kind [10000]")
    arguments = parser.parse_args()
    readers = [
        [sys.executable, str(HERE / "readers.py")], ["php", "-d", "display_errors=0", str(HERE / "readers.php")],
        [arguments.go], ["node", str(HERE / "readers.mjs"), os.path.abspath(arguments.node)],
    ]

    # The readers understand plain messages, so that they could find what passed.
    plain = [Case(kind, content_type, text.encode()) for kind, (content_type, text) in PLAIN.items()]
    names = set()
    for case, found in zip(plain, read_all(readers, [(case, case.kind, case.text) for case in plain])):
        blind = [name for name, texts in found.items() if not any(CANARY in text for text in texts)]
        if blind or len(found) != READERS[case.kind]:
            sys.exit(f"readers of {case.kind} that do not find a plain value: {blind}, of {sorted(found)}")
        names |= set(found)

    ordinary = [Case(kind, content_type, text.encode()) for kind, content_type, text in ORDINARY]
    cases = [*plain, *ordinary]
    for kind, make in CASES.items():
        chance = random.Random(f"{arguments.seed} {kind}")
        cases += [Case(kind, *make(chance)) for _ in range(arguments.cases)]
    verdicts = answers([arguments.verdicts], [case.line(case.kind, case.text) for case in cases])
    for case, verdict in zip(cases, verdicts):
        case.forwarded = None if verdict is None else base64.b64decode(verdict)
    for case in plain:
        if case.forwarded is None or CANARY.encode() in case.forwarded:
            sys.exit(f"a plain {case.kind} is not sealed")
    for case in ordinary:
        if case.forwarded != case.text:
            sys.exit(f"an ordinary {case.kind} is not forwarded as it is: {case.text}")

    # A message without a canary has nothing to find. Some upstreams read JSON from forms, and forms from JSON.
    others = {"form": ["form", "json"], "json": ["json", "form"], "query": ["query"], "multipart": ["multipart"]}
    passed = [case for case in cases if case.forwarded is not None]
    reads = [(case, kind, case.forwarded) for case in passed if CANARY.encode() in case.forwarded for kind in others[case.kind]]
    bad = 0
    for (case, kind, text), found in zip(reads, read_all(readers, reads)):
        misled = [name for name, texts in found.items() if any(CANARY in each for each in texts or [])]
        if misled:
            bad += 1
            if bad <= 20:
                print(f"{', '.join(misled)} read a selected value as {kind} in a {case.kind} that passed\n  {case.type}\n  {text}")
    counts = ", ".join(f"{sum(case.kind == kind for case in passed)} {kind}" for kind in CASES)
    sealed = sum(CANARY.encode() not in case.forwarded for case in passed)
    print(f"readers: {', '.join(sorted(names))}")
    print(f"{arguments.cases} of each kind: {counts} passed, {sealed} of them sealed; {bad} were read otherwise by one of {len(names)} readers")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
