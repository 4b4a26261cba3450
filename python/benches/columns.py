"""Rate of processes that mask and tokenize columns at the same time, beside what the engine rejected meanwhile.

    python python/benches/columns.py SEALWIRE [ROWS [ROUNDS [PROCESSES]]]

One engine and the processes share the machine, as with the tasks of a Spark job: each works on its part of the rows, two
batches at a time, with a client of its own that has `sealwire.spark`'s settings. Prints for each round the fields per second,
the requests, those that were sent again, how long requests waited for that, and the engine's rejections by reason. SEALWIRE
and the package should be release builds.
"""

import concurrent.futures
import multiprocessing
import os
import pathlib
import re
import sys
import time
import urllib.request

import pyarrow as pa
import sealwire
from sealwire import arrow

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "tests"))

MASKS = {"email": "email", "card": "card", "name": "pseudonym(list=full_names)"}
TOKENS = ["customer"]
# As Spark gives them to Python.
BATCH_ROWS = 10_000


def table(rows):
    return pa.table(
        {
            "email": [f"user{row}@mail.test" for row in rows],
            "card": [f"4{row:015}" for row in rows],
            "name": [f"Name {row % 100_000}" for row in rows],
            "customer": [f"c{row % 1_000_000}" for row in rows],
        }
    )


def work(arguments, rows, start, results):
    batches = [table(rows[begin : begin + BATCH_ROWS]) for begin in range(0, len(rows), BATCH_ROWS)]
    client = sealwire.Client(**arguments, connections=1, threads=1, attempts_max=1)

    def one(batch):
        masked = arrow.mask(client, batch, app="demo", masks=MASKS, retry_timeout_ms=600_000)
        arrow.tokenize(client, masked, app="demo", collection="people", columns=TOKENS, retry_timeout_ms=600_000)

    start.wait()
    with concurrent.futures.ThreadPoolExecutor(2) as threads:
        list(threads.map(one, batches))
    results.put(client.stats())


def rejections(admin):
    """Counts of rejections by reason."""
    with urllib.request.urlopen(f"http://{admin}/metrics") as response:
        found = re.findall(r'^sealwire_rejections_total\{reason="(\w+)"\} (\d+)', response.read().decode(), re.MULTILINE)
    return {reason: int(count) for reason, count in found}


def main():
    os.environ["SEALWIRE_PROGRAM"] = sys.argv[1]
    from support import Engine

    rows, rounds, processes = [int(given) for given in sys.argv[2:]] + [2_000_000, 3, 2][len(sys.argv) - 2 :]
    engine = Engine()
    try:
        admin = engine.admin_address()
        for _ in range(rounds):
            measure(engine, admin, rows, processes)
    finally:
        engine.stop()


def measure(engine, admin, rows, processes):
    spawn = multiprocessing.get_context("spawn")
    share = -(-rows // processes)
    parts = [range(begin, min(begin + share, rows)) for begin in range(0, rows, share)]
    start, results = spawn.Barrier(len(parts) + 1), spawn.Queue()
    running = [spawn.Process(target=work, args=(engine.arguments, part, start, results)) for part in parts]
    for process in running:
        process.start()
    before = rejections(admin)
    start.wait()
    began = time.monotonic()
    stats = [results.get() for _ in running]
    seconds = time.monotonic() - began
    for process in running:
        process.join()
    rejected = {reason: count - before.get(reason, 0) for reason, count in rejections(admin).items()}
    sums = {name: sum(one[name] for one in stats) for name in ("attempts", "repeated", "waited_ms")}
    rejected = {reason: count for reason, count in rejected.items() if count}
    print(f"{rows * (len(MASKS) + len(TOKENS)) / seconds:12,.0f} fields/s, {sums}, rejected {rejected}", flush=True)


if __name__ == "__main__":
    main()
