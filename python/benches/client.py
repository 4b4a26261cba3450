"""Compares the package with a stock client: the `msgpack` package over the standard library's `ssl`.

    python python/benches/client.py PROGRAM [ROUNDS]

All ways are measured in one process against one engine, in turn, round after round. A figure is the median of the rounds, and
a ratio the median of the rounds' ratios to the stock client. PROGRAM and the package should be release builds.
"""

import asyncio
import pathlib
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time

import pyarrow as pa
import sealwire
from sealwire import arrow

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "proto/interop"))
from call import call, connect  # noqa: E402

DOCUMENT = {"name": "Zoë Example", "card": "4242424242424242", "email": "zoe@example.com", "city": "Zürich", "total": 12990}
DOCUMENTS = 320
ASYNC_IN_FLIGHT = 64
VALUES = 40_000
BATCH = arrow.BATCH_FIELDS


def documents(clients, options):
    """Small documents, one after the other and several at a time."""

    def stock():
        for _ in range(DOCUMENTS):
            call(clients.stock, "encrypt", {"app": "demo", "payload": DOCUMENT, **options})

    def package():
        for _ in range(DOCUMENTS):
            clients.sync.encrypt("demo", DOCUMENT, **options)

    async def several():
        free = asyncio.Semaphore(ASYNC_IN_FLIGHT)

        async def one():
            async with free:
                await clients.asynchronous.encrypt("demo", DOCUMENT, **options)

        await asyncio.gather(*(one() for _ in range(DOCUMENTS)))

    yield "stock client, one caller", stock
    yield "`Client`, one caller", package
    yield f"`AsyncClient`, {ASYNC_IN_FLIGHT} in flight", lambda: clients.loop.run_until_complete(several())


def columns(clients, options):
    """A column of text, in requests of equal size."""
    column = pa.array([f"customer-{number}@example.com" for number in range(VALUES)])

    def pieces():
        return (column.slice(start, BATCH).to_pylist() for start in range(0, VALUES, BATCH))

    def stock():
        results = [call(clients.stock, "encrypt", {"app": "demo", "payload": piece, **options}) for piece in pieces()]
        pa.chunked_array([result["payload"] for result in results])

    def package():
        pa.chunked_array([clients.sync.encrypt("demo", piece, **options).payload for piece in pieces()])

    yield "stock client, lists", stock
    yield "`Client`, lists", package
    yield "`sealwire.arrow`", lambda: arrow.encrypt(clients.sync, column, app="demo", **options)


class Clients:
    def __init__(self, folder, port):
        files = {"ca": f"{folder}/ca.pem", "cert": f"{folder}/client.pem", "key": f"{folder}/client-key.pem"}
        settings = {"endpoints": (f"127.0.0.1:{port}", "localhost"), **files}
        self.stock = connect(folder, "127.0.0.1", port)
        # As the package's client does: otherwise long requests wait for delayed acknowledgements.
        self.stock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sync = sealwire.Client(**settings)
        self.asynchronous = sealwire.AsyncClient(**settings)
        self.loop = asyncio.new_event_loop()

    def close(self):
        self.loop.run_until_complete(self.asynchronous.close())
        self.loop.close()
        self.sync.close()
        self.stock.close()


def measure(ways, fields, rounds):
    """Yields each way's name, its fields per second, and its ratio to the first way."""
    ways = list(ways)
    rates = {name: [] for name, _ in ways}
    for name, way in ways:
        way()
    for _ in range(rounds):
        for name, way in ways:
            started = time.perf_counter()
            way()
            rates[name].append(fields / (time.perf_counter() - started))
    first = rates[ways[0][0]]
    for name, _ in ways:
        yield name, statistics.median(rates[name]), statistics.median(own / stock for own, stock in zip(rates[name], first))


def main():
    program, rounds = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 7
    with tempfile.TemporaryDirectory() as folder:
        any_port = "127.0.0.1:0"
        command = [program, "dev", "--folder", folder, "--listen", any_port, "--admin", any_port, "--control", any_port, "--http", any_port]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as engine:
            try:
                port = int(re.search(r"listens on 127\.0\.0\.1:(\d+)", engine.stdout.readline()).group(1))
                clients = Clients(folder, port)
                print("| `encrypt` | suite | way | fields/s | to the stock client |")
                print("| --- | --- | --- | ---: | ---: |")
                for what, ways, fields in (
                    (f"documents of {len(DOCUMENT)} fields", documents, DOCUMENTS * len(DOCUMENT)),
                    (f"a column, {BATCH} values a request", columns, VALUES),
                ):
                    for suite in ("xaes", "p256"):
                        for name, rate, ratio in measure(ways(clients, {"suite": suite}), fields, rounds):
                            print(f"| {what} | {suite} | {name} | {rate:,.0f} | {ratio:.2f} |", flush=True)
                clients.close()
            finally:
                engine.terminate()
                engine.stdout.read()


if __name__ == "__main__":
    main()
