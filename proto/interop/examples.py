"""Writes the examples of proto/README.md: a request and its response for every method, as an engine gave it.

    python3 proto/interop/examples.py target/release/sealwire [proto/README.md]

Starts `sealwire dev` in a temporary folder and sends every request to it. Without a page, the examples are
printed.
"""

import os
import re
import socket
import ssl
import subprocess
import sys
import tempfile

import msgpack

BEGIN, END = "<!-- examples: written by interop/examples.py -->\n", "<!-- end of examples -->\n"
WIDTH = 150


def text(value):
    """Diagnostic notation: JSON, with nil and with binary as h'..'."""
    if value is None:
        return "nil"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, bytes):
        return f"h'{value.hex()}'"
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
    if isinstance(value, dict):
        return "{" + ", ".join(f"{text(key)}: {text(item)}" for key, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(text, value)) + "]"
    return repr(value)


def wrapped(line):
    """Breaks a line after commas."""
    lines = []
    while len(line) > WIDTH:
        cut = line.rfind(", ", 0, WIDTH)
        if cut < 20:
            cut = line.find(", ", WIDTH)
        if cut < 0:
            break
        lines.append(line[: cut + 1])
        line = "    " + line[cut + 2 :]
    return "\n".join([*lines, line])


class Engine:
    """A connection that keeps every exchange as text."""

    def __init__(self, folder, port, who):
        tls = ssl.create_default_context(cafile=f"{folder}/ca.pem")
        tls.load_cert_chain(f"{folder}/{who}.pem", f"{folder}/{who}-key.pem")
        self.tls = tls.wrap_socket(socket.create_connection(("127.0.0.1", port)), server_hostname="localhost")
        self.replies, self.msgid, self.shown = msgpack.Unpacker(), 0, []

    def ask(self, method, show=True, **params):
        self.msgid += 1
        request = [0, self.msgid, method, [params]]
        sent = msgpack.packb(request)
        self.tls.sendall(sent)
        received = b""
        while True:
            data = self.tls.recv(1 << 20)
            if not data:
                raise ConnectionError(f"{method}: the engine closed the connection")
            received += data
            self.replies.feed(data)
            message = next(iter(self.replies), None)
            if message is not None:
                break
        if message[2] is not None:
            raise RuntimeError(f"{method}: {message[2]}")
        if show:
            self.shown.append((method, wrapped("-> " + text(request)), wrapped("<- " + text(message)), sent, received))
        return message[3]


def data_methods(engine):
    place = {"app": "shop", "collection": "cards"}
    people = {"app": "shop", "collection": "people"}
    document = {"name": "Zoe", "card": "4242424242424242"}
    sealed = engine.ask("encrypt", app="shop", select=["$.card"], payload=document)["payload"]
    engine.ask("decrypt", app="shop", payload=sealed)
    engine.ask("rewrap", app="shop", encoding="binary", payload=sealed)
    engine.ask("inspect", envelope=sealed["card"])
    tokens = engine.ask("tokenize", **place, tags=["web"], subject="customer-17", select=["$.card"], payload=document)["payload"]
    engine.ask("detokenize", **place, select=["$.card"], payload=tokens)
    engine.ask("mask", app="shop", rules=[{"path": "$.card", "mask": "partial(last=4)"}], unknown="keep", payload=document)
    token = tokens["card"]
    engine.ask("tokens.get", **place, tokens=[token, "4242421111111111"])
    engine.ask("tokens.find", **place, value=document["card"], subject="customer-17")
    engine.ask("tokens.list", **place, tag="web")
    engine.ask("tokens.expire", **place, tokens=[token], expires_s=3600)
    engine.ask("tokens.archive", **place, dry_run=True)
    engine.ask("tokens.prune", **place, dry_run=True)
    engine.ask("tokens.delete", **place, tokens=[token, "4242421111111111"])
    added = engine.ask("objects.add", **people, subjects=["customer-17"], payload=[{"email": "zoe@example.com", "born": "1990-05-17"}])
    identity = added["objects"][0]["id"]
    engine.ask("objects.get", **people, ids=[identity], masked=True)
    engine.ask("objects.update", **people, payload=[{"id": identity, "set": {"born": None}, "if_version": 1}])
    engine.ask("objects.query", **people, payload=[{"property": "email", "eq": "ZOE@example.com"}])
    engine.ask("objects.list", **people, limit=10)
    engine.ask("objects.expire", **people, ids=[identity], expires_s=86400)
    engine.ask("objects.archive", **people, dry_run=True)
    engine.ask("objects.prune", **people, dry_run=True)
    engine.ask("subjects.find", app="shop", subject="customer-17")
    engine.ask("subjects.export", app="shop", subject="customer-17")
    engine.ask("objects.delete", **people, ids=[identity])
    engine.ask("subjects.erase", app="shop", subject="customer-17")
    engine.ask("apps.public_keys", app="shop")
    engine.ask("info")
    engine.ask("health")


def control_before(engine):
    made = engine.ask("apps.create", app="shop")["app"]
    # Fewer keys make shorter examples.
    engine.ask("apps.set", show=False, app="shop", read_suites=["p256-psk", "p256"])
    for version in made["keys"]:
        if version["suite"] != "p256-psk":
            engine.ask("apps.delete", show=False, app="shop", key=version["id"], delay_s=0)
    key = engine.ask("apps.rotate", app="shop", kind="p256-outside")["key"]
    engine.ask("collections.create", app="shop", collection="cards", kind="deterministic", format="card")
    properties = [{"name": "email", "type": "email", "unique": True}, {"name": "born", "type": "date"}]
    engine.ask("collections.create", show=False, app="shop", collection="people", kind="objects", properties=properties)
    every = "encrypt,decrypt,rewrap,tokenize,detokenize,mask,tokens.*,objects.*,subjects.*,apps.public_keys apps=shop properties=*"
    engine.ask("roles.set", show=False, role="shop", grants=[every])
    engine.ask("principals.grant", show=False, principal="dev-client", role="shop")
    engine.ask("roles.set", role="support", grants=["decrypt apps=shop mask=partial(last=4)"])
    engine.ask("principals.grant", principal="support.example", role="support")
    return key


def control_after(engine, key):
    place = {"app": "shop", "collection": "people"}
    engine.ask("apps.list", after="demo")
    engine.ask("apps.set", app="shop", epoch_ms=1000)
    engine.ask("apps.import", app="shop", suite="p256", private_key="01" * 32)
    engine.ask("apps.disable", app="shop", key=key)
    engine.ask("apps.enable", app="shop", key=key)
    engine.ask("apps.delete", app="shop", key=key)
    engine.ask("apps.restore", app="shop", key=key)
    engine.ask("apps.export", limit=1)
    engine.ask("collections.list", app="shop", limit=1)
    engine.ask("collections.set", app="shop", collection="cards", retention_s=2592000)
    engine.ask("collections.alter", **place, add=[{"name": "note", "type": "string"}])
    engine.ask("collections.migrate", **place, dry_run=True)
    engine.ask("collections.delete", app="shop", collection="cards")
    engine.ask("keys.census", app="shop")
    engine.ask("keys.rewrap", app="shop")
    engine.ask("instances.list")
    engine.ask("roles.list", after="shop")
    engine.ask("principals.list", after="dev-operator")
    engine.ask("principals.check", principal="support.example", operation="decrypt", app="shop")
    engine.ask("principals.revoke", principal="support.example", role="support")
    engine.ask("roles.delete", role="support")
    engine.ask("root.init", providers=["local"])
    engine.ask("root.status")
    engine.ask("kek.add", provider="safe")
    engine.ask("kek.verify")
    slots = engine.ask("kek.rotate")["roots"][0]["slots"]
    engine.ask("kek.remove", slot=slots[0]["number"])
    engine.ask("root.rotate")
    engine.ask("root.seal")
    engine.ask("root.unseal")


def started(program, folder, more=()):
    command = [program, "dev", "--folder", folder, "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--control", "127.0.0.1:0", "--http", "127.0.0.1:0", *more]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


def section(shown):
    listed = [f"{request}\n{response}\n" for _, request, response, _, _ in shown]
    return "```text\n" + "\n".join(listed) + "```\n"


def main():
    program = os.path.abspath(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        with started(program, folder, ["--demo-only"]) as once:
            once.stdout.read()
        with open(f"{folder}/safe.key", "w", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
            file.write("5a" * 32 + "\n")
        with open(f"{folder}/providers.toml", "w", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
            file.write('[safe]\nkind = "file"\npath = "safe.key"\n')
        path = f"{folder}/sealwire.toml"
        with open(path) as file:
            settings = file.read()
        with open(path, "w") as file:
            file.write(settings.replace("[kek]\n", '[kek]\nproviders = "providers.toml"\n'))
        with started(program, folder) as process:
            try:
                first = process.stdout.readline()
                listen, control = map(int, re.findall(r"127\.0\.0\.1:(\d+)", first))
                data, operator = Engine(folder, listen, "client"), Engine(folder, control, "operator")
                key = control_before(operator)
                data_methods(data)
                control_after(operator, key)
            finally:
                process.terminate()
                process.stdout.read()
    for method, _, _, sent, received in data.shown:
        if method in ("encrypt", "health"):
            print(method, sent.hex(), received.hex(), sep="\n", file=sys.stderr)
    examples = f"The data listener:\n\n{section(data.shown)}\nThe control listener:\n\n{section(operator.shown)}".replace(folder, "/etc/sealwire")
    if len(sys.argv) < 3:
        print(examples, end="")
        return
    with open(sys.argv[2]) as file:
        before, rest = file.read().split(BEGIN)
    after = rest.split(END)[1]
    with open(sys.argv[2], "w") as file:
        file.write(before + BEGIN + "\n" + examples + "\n" + END + after)


if __name__ == "__main__":
    main()
