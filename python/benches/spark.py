"""Rates of `sealwire.spark` over a Parquet table, beside the engine's own rate for the same columns.

    python python/benches/spark.py SEALWIRE [ROWS [ROUNDS]]      in an environment with pyspark, pyarrow and the package

An engine and a Spark in local mode share the machine. Each round masks and tokenizes the same columns by the ways below. Each
way has an engine of its own that begins without tokens, since a store with more tokens is slower:

    engine      sealwire.arrow over the table in memory, by two threads: as fast as the engine takes these columns here
    spark       the table from Parquet to Parquet by Spark
    copy        the same without Sealwire: what Spark itself needs
    per row     a Python function that sends a request for each value, over a thousandth of the table

Prints fields per second of each, and ratios of medians, with the peak memory of Spark's processes.
"""

import concurrent.futures
import os
import pathlib
import statistics
import sys
import tempfile
import time

import pyarrow.parquet
import sealwire

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tests"))
os.environ["SEALWIRE_PROGRAM"] = sys.argv[1]
os.environ["PYSPARK_PYTHON"] = sys.executable

from pyspark.sql import SparkSession  # noqa: E402
from pyspark.sql import functions as F  # noqa: E402
from pyspark.sql.types import StringType  # noqa: E402
from sealwire import arrow  # noqa: E402
from sealwire import spark as sw  # noqa: E402
from support import Engine  # noqa: E402

ROWS = int(sys.argv[2]) if len(sys.argv) > 2 else 10_000_000
ROUNDS = int(sys.argv[3]) if len(sys.argv) > 3 else 3
MASKS = {"email": "email", "card": "card", "name": "pseudonym(list=full_names)"}
TOKENS = ["customer"]


def memory_peak():
    """The peak memory of the JVM and all Python workers, in MiB, summed over processes that still live."""
    children = {}
    for status in pathlib.Path("/proc").glob("[0-9]*/status"):
        try:
            fields = dict(line.split(":", 1) for line in status.read_text().splitlines())
        except OSError:
            continue
        children.setdefault(int(fields["PPid"]), []).append((int(fields["Pid"]), int(fields.get("VmHWM", "0 kB").split()[0]), fields["Name"].strip()))
    found, todo = {}, [os.getpid()]
    while todo:
        for pid, size, name in children.get(todo.pop(), []):
            todo.append(pid)
            if not name.startswith("sealwire"):
                found[name] = found.get(name, 0) + size // 1024
    return found


def main():
    with tempfile.TemporaryDirectory() as folder:
        spark = (
            SparkSession.builder.master("local[2]")
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.driver.memory", "4g")
            .config("spark.local.dir", folder)
            .getOrCreate()
        )
        spark.sparkContext.setLogLevel("OFF")
        try:
            measure(spark, folder)
        finally:
            spark.stop()


def measure(spark, folder):
    number = F.col("id")
    source = f"{folder}/source"
    spark.range(ROWS, numPartitions=8).select(
        "id",
        F.concat(F.lit("user"), number, F.lit("@mail.test")).alias("email"),
        F.concat(F.lit("4"), F.lpad(number.cast("string"), 15, "0")).alias("card"),
        F.concat(F.lit("Name "), number % 100_000).alias("name"),
        F.concat(F.lit("c"), number % 1_000_000).alias("customer"),
        (number * 7 % 1_000_003).alias("amount"),
        F.date_add(F.lit("2020-01-01"), (number % 1_000).cast("int")).alias("day"),
    ).write.parquet(source)
    frame = spark.read.parquet(source)
    fields = ROWS * (len(MASKS) + len(TOKENS))
    metrics = sw.Metrics(spark)

    def through_spark(number, arguments):
        remote = sw.Engine(**arguments, app="demo")
        masked = sw.mask(frame, remote, masks=MASKS, metrics=metrics)
        sw.tokenize(masked, remote, collection="people", columns=TOKENS, metrics=metrics).write.parquet(f"{folder}/made{number}")
        return fields

    def copy(number, _):
        frame.write.parquet(f"{folder}/copy{number}")
        return fields

    table = pyarrow.parquet.read_table(source, columns=[*MASKS, *TOKENS])

    def from_memory(_, arguments):
        def one(batch):
            masked = arrow.mask(client, batch, app="demo", masks=MASKS, retry_timeout_ms=600_000)
            arrow.tokenize(client, masked, app="demo", collection="people", columns=TOKENS, retry_timeout_ms=600_000)

        with sealwire.Client(**arguments) as client, concurrent.futures.ThreadPoolExecutor(2) as threads:
            list(threads.map(one, table.to_batches(100_000)))
        return fields

    def per_row(number, arguments):
        @F.udf(StringType())
        def per_row_mask(value, mask):
            return sw.Engine(**arguments, app="demo").client().mask("demo", value, rules=[{"path": "$", "mask": mask}]).payload

        part = frame.limit(ROWS // 1_000).repartition(2)
        for name, mask in MASKS.items():
            part = part.withColumn(name, per_row_mask(F.col(name), F.lit(mask)))
        part.write.parquet(f"{folder}/row{number}")
        return ROWS // 1_000 * len(MASKS)

    ways = {"engine": from_memory, "spark": through_spark, "copy": copy, "per row": per_row}
    rates = {name: [] for name in ways}
    for round_number in range(ROUNDS):
        for name, way in ways.items():
            engine = Engine()
            try:
                began = time.monotonic()
                done = way(round_number, engine.arguments)
                rates[name].append(done / (time.monotonic() - began))
            finally:
                engine.stop()
            print(f"{name:8} {rates[name][-1]:12,.0f} fields/s", flush=True)
    middle = {name: statistics.median(values) for name, values in rates.items()}
    print(f"spark / engine {middle['spark'] / middle['engine']:.2f}, spark / per row {middle['spark'] / middle['per row']:.0f}")
    print(f"peak memory in MiB: {memory_peak()}")
    print(metrics)


main()
