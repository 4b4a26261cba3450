"""DataFrames and SQL, with a real Spark in local mode and a real engine."""

import collections
import concurrent.futures
import os
import pathlib
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

import sealwire
import session
from pyspark import TaskContext
from pyspark.sql import functions as F
from pyspark.sql.types import StringType
from sealwire import arrow
from sealwire import spark as sw
from support import PATIENCE_S, Engine, engine

HERE = pathlib.Path(__file__).parent
ROWS = 2_000
SECRET = "4242424242424242"
IVY = os.environ["SEALWIRE_SPARK_IVY"]

RULES = """
unknown = "keep"
rule = [
    { path = "$.customer.name", mask = "partial(first=1)" },
    { column = "born", mask = "date_shift(within=30, subject=id)" },
    { column = "amount", mask = "keep" },
    { kind = "email", mask = "email" },
]
"""


def people(spark, rows=ROWS):
    """A table with a column of each kind."""
    number = F.col("id")
    return spark.range(rows, numPartitions=2).select(
        "id",
        F.concat(F.lit("user"), number.cast("string"), F.lit("@mail.test")).alias("email"),
        F.struct(F.concat(F.lit("Name "), number.cast("string")).alias("name"), (number % 7).alias("level")).alias("customer"),
        F.when(number % 5 > 0, F.array(number.cast("string"), F.lit(None), F.lit(SECRET))).alias("notes"),
        F.date_add(F.lit("1980-01-01"), (number % 10_000).cast("int")).cast("string").alias("born"),
        F.date_add(F.lit("2020-01-01"), (number % 1_000).cast("int")).alias("day"),
        F.timestamp_seconds(number * 100_000).alias("at"),
        (number % 997).cast("decimal(12,2)").alias("amount"),
        F.when(number % 3 > 0, number / 3).alias("score"),
        F.create_map(F.lit("key"), number).alias("attributes"),
    )


def rows_of(frame):
    return sorted(map(repr, frame.collect()))


class Batches(unittest.TestCase):
    def test_an_error_does_not_wait_for_slower_batches(self):
        # Which futures have ended before the wait, with a result or an error; those of None do not end.
        for ended, expected in [
            ([None, "error"], "error"),
            ([None, None, "error", None], "error"),
            (["result", "error"], "error"),
            (["result", None], "result"),
            (["result", "result", None], "result"),
        ]:
            futures = collections.deque(concurrent.futures.Future() for _ in ended)
            for future, outcome in zip(futures, ended):
                if outcome == "error":
                    future.set_exception(ZeroDivisionError("error"))
                elif outcome is not None:
                    future.set_result(outcome)
            waiting = list(futures)
            threads = concurrent.futures.ThreadPoolExecutor(1)
            first = threads.submit(sw._first_result, futures)
            try:
                if expected == "error":
                    with self.assertRaises(ZeroDivisionError, msg=ended):
                        first.result(PATIENCE_S)
                else:
                    self.assertEqual(first.result(PATIENCE_S), expected)
            finally:
                for future in waiting:
                    if not future.done():
                        future.set_result(None)
                threads.shutdown()


class Spark(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.path = pathlib.Path(cls.folder.name)
        os.environ["SEALWIRE_TEST_KEY"] = pathlib.Path(engine().folder, "client-key.pem").read_text()
        cls.spark = session.create(IVY, cls.path)
        cls.engine = sw.Engine(**engine().arguments, app="demo")
        cls.people = people(cls.spark)

    @classmethod
    def tearDownClass(cls):
        cls.spark.stop()
        cls.folder.cleanup()

    def test_every_type_comes_back_from_parquet(self):
        columns = ["id", "email", "customer.name", "notes[*]", "day", "at", "amount", "score"]
        metrics = sw.Metrics(self.spark)
        sealed = sw.encrypt(self.people, self.engine, columns=columns, metrics=metrics)
        path = str(self.path / "sealed")
        sealed.write.parquet(path)
        values = ROWS * 6 + ROWS * 4 // 5 * 2 + ROWS * 2 // 3
        counts = metrics.values
        self.assertEqual((counts["rows"], counts["repeated"], counts["tasks"]), (ROWS, 0, 2))
        self.assertAlmostEqual(counts["values"], values, delta=2)
        stored = self.spark.read.parquet(path)
        for row in stored.limit(5).collect():
            for value in (row.id, row.email, row.customer.name, row.day, row.at, row.amount):
                self.assertTrue(value.startswith("sw1:"), value)
        self.assertEqual(rows_of(stored.select("customer.level", "born", "attributes")), rows_of(self.people.select("customer.level", "born", "attributes")))
        opened = sw.decrypt(stored, self.engine, columns=columns)
        self.assertEqual(opened.dtypes, self.people.dtypes)
        self.assertEqual([field.metadata for field in opened.schema], [{}] * len(opened.columns))
        self.assertEqual(rows_of(opened), rows_of(self.people))

    def test_rules_give_the_masks_of_arrow(self):
        rules = sw.Rules(RULES)
        masked = sw.mask(self.people, self.engine, rules=rules)
        self.assertEqual(masked.dtypes, self.people.dtypes)
        # Only columns that rules name or examine, and their subjects, go to Python.
        plan = masked._jdf.queryExecution().analyzed().toString()
        sent = plan.split("sealwire_mask(struct(")[1].split("))#")[0]
        self.assertEqual(sent.split(", ")[::2], ["id", "email", "customer", "notes", "born"])
        with sealwire.Client(**engine().arguments) as client:
            table = self.people.drop("attributes").toArrow()
            expected = arrow.mask(client, table, app="demo", rules=rules)
        found = masked.drop("attributes").toArrow()
        self.assertEqual(found.sort_by("id").to_pylist(), expected.sort_by("id").to_pylist())

    def test_a_task_that_is_killed_twice_gives_the_same(self):
        folder = str(self.path / "killed")
        os.mkdir(folder)
        job = os.urandom(16)

        @F.udf(StringType())
        def passes(value):
            # Kills the worker in the middle of partition 1, in two attempts.
            context = TaskContext.get()
            if context.partitionId() == 1 and value.endswith("1700") and context.attemptNumber() < 2:
                with open(f"{folder}/{context.attemptNumber()}", "w"):
                    os.kill(os.getpid(), signal.SIGKILL)
            return value

        # The function sees a value of each row behind the tokens.
        plain = self.people.withColumn("born", F.concat(F.lit("x"), F.col("id").cast("string")))
        rules = RULES.replace('{ column = "born", mask = "date_shift(within=30, subject=id)" },', "")

        def work(frame, kills):
            masked = sw.mask(frame, self.engine, rules=sw.Rules(rules))
            tokens = sw.tokenize(masked, self.engine, collection="people", columns=["customer.name", "score"], job=job)
            return tokens.withColumn("born", passes(F.col("born"))) if kills else tokens

        for name, kills in (("whole", False), ("killed-out", True)):
            work(plain, kills).write.parquet(str(self.path / name))
        self.assertEqual(sorted(os.listdir(folder)), ["0", "1"], "two attempts were killed")

        def files(name):
            parts = sorted((self.path / name).glob("part-*.parquet"))
            return [part.read_bytes() for part in parts]

        self.assertEqual(files("killed-out"), files("whole"))

    def test_attempts_at_once_give_the_same(self):
        # As speculative execution makes them, which needs executors on two hosts.
        job = os.urandom(16)
        frame = self.people.select("id", "email")
        folders = [self.path / f"attempt{number}" for number in range(3)]

        def attempt(folder):
            sw.tokenize(frame, self.engine, collection="people", columns=["email"], job=job).write.parquet(str(folder))

        threads = [threading.Thread(target=attempt, args=[folder]) for folder in folders]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        tokens = [rows_of(self.spark.read.parquet(str(folder))) for folder in folders]
        self.assertEqual(tokens[1:], tokens[:1] * 2)
        self.assertEqual(len(set(tokens[0])), ROWS)

    def test_an_engine_that_is_away_fails_no_job(self):
        own = Engine()
        self.addCleanup(own.stop)
        metrics = sw.Metrics(self.spark)
        reached = self.path / "reached"

        @F.udf(StringType())
        def wait(value):
            # The job is in the middle when the engine is killed.
            reached.touch()
            while not (reached.parent / "is-away").exists():
                time.sleep(0.01)
            return value

        def kill():
            while not reached.exists():
                time.sleep(0.01)
            own.kill()
            (self.path / "is-away").touch()
            time.sleep(10)
            own.start()

        killer = threading.Thread(target=kill)
        killer.start()
        remote = sw.Engine(**own.arguments, app="demo")
        frame = self.people.withColumn("email", wait(F.col("email")))
        masked = sw.mask(frame, remote, masks={"email": "email", "customer.name": "hash"}, metrics=metrics)
        self.assertEqual(masked.select("email").distinct().count(), ROWS)
        killer.join()
        self.assertGreater(metrics.values["repeated"], 0)
        self.assertGreater(metrics.values["waited_ms"], 0)

    def test_sql(self):
        sw.register(self.spark, self.engine)
        self.people.createOrReplaceTempView("people")
        query = """SELECT id, sealwire_mask(email, 'email') AS masked, sealwire_decrypt(sealwire_encrypt(email)) AS opened,
            sealwire_detokenize(sealwire_tokenize(email, 'people'), 'people') AS found, email FROM people"""
        rows = self.spark.sql(query).collect()
        masked = sw.mask(self.people, self.engine, masks={"email": "email"}).select("id", "email").collect()
        self.assertEqual({row.id: row.masked for row in rows}, {row.id: row.email for row in masked})
        for row in rows:
            self.assertEqual((row.opened, row.found), (row.email, row.email))
        with self.assertRaisesRegex(Exception, "must be a constant"):
            self.spark.sql("SELECT sealwire_mask(email, born) FROM people").collect()

    def test_delta_and_iceberg_tables(self):
        job = os.urandom(16)
        frame = self.people.drop("attributes")

        def work(frame):
            masked = sw.mask(frame, self.engine, rules=sw.Rules(RULES))
            return sw.tokenize(masked, self.engine, collection="people", columns=["email", "score"], job=job)

        work(frame).write.parquet(str(self.path / "plain"))
        plain = self.spark.read.parquet(str(self.path / "plain"))
        for name, read, write in (
            ("delta", lambda path: self.spark.read.format("delta").load(path), lambda frame, path: frame.write.format("delta").save(path)),
            ("iceberg", lambda path: self.spark.table(f"ice.{path}"), lambda frame, path: frame.writeTo(f"ice.{path}").using("iceberg").create()),
        ):
            with self.subTest(name):
                source, target = (f"{self.path}/{name}-{end}" if name == "delta" else f"db.{end}" for end in ("source", "target"))
                write(frame, source)
                # Files in the order of the rows, so that partitions are those of the Parquet table.
                write(work(read(source).repartitionByRange(2, "id").sortWithinPartitions("id")), target)
                made = read(target)
                untouched = ["id", "customer.level", "notes", "day", "at", "amount"]
                self.assertEqual(rows_of(made.select(untouched)), rows_of(frame.select(untouched)))
                self.assertEqual(rows_of(made.select("id", "customer", "born")), rows_of(plain.select("id", "customer", "born")))
                types = {"score": "double", "email": "string"}
                opened = sw.detokenize(made, self.engine, collection="people", columns=list(types), types=types)
                self.assertEqual(rows_of(opened.select("id", "score")), rows_of(frame.select("id", "score")))
                # Delta keeps the metadata of columns, Iceberg does not.
                if name == "delta":
                    noted = sw.detokenize(made, self.engine, collection="people", columns=["score"])
                    self.assertEqual(dict(noted.dtypes)["score"], "double")

    def test_columns_that_rules_would_miss_are_rejected(self):
        frame = self.spark.sql("SELECT 'a@mail.test' AS email, named_struct('Email', 'b@mail.test') AS person, parse_json('{}') AS data")
        rule = 'unknown = "keep"\nrule = [{ %s, mask = "redact" }]'
        for target, message in (
            ('column = "Email"', "only in case"),
            ('path = "$.person.email"', "which does not exist"),
            ('column = "data"', "variant"),
            ('kind = "email"', "variant"),
        ):
            with self.subTest(target), self.assertRaisesRegex(ValueError, message):
                sw.mask(frame, self.engine, rules=sw.Rules(rule % target))
        masked = sw.mask(frame.drop("person"), self.engine, rules=sw.Rules(rule % 'column = "email"'))
        self.assertEqual(masked.first().email, "[redacted]")
        with self.assertRaisesRegex(ValueError, "encrypted or tokenized already"):
            sw.encrypt(sw.encrypt(frame, self.engine, columns=["email"]), self.engine, columns=["email"])

    def test_equal_values_have_tokens_of_their_own(self):
        job = os.urandom(16)
        self.spark.sql("SELECT 1").collect()
        frame = self.spark.createDataFrame([("same", "same", n) for n in range(40)], "a string, b string, n int").repartition(4, "n")
        options = {"collection": "people", "job": job}
        made = sw.tokenize(frame, self.engine, columns=["a", "b"], **options)
        apart = sw.tokenize(sw.tokenize(frame, self.engine, columns=["a"], **options), self.engine, columns=["b"], **options)
        for tokens in (made, apart):
            rows = tokens.collect()
            self.assertEqual(len({value for row in rows for value in (row.a, row.b)}), 80)

    def test_stubs_have_the_signatures_of_the_module(self):
        command = [sys.executable, "-m", "mypy.stubtest", "sealwire.spark", "--concise", "--mypy-config-file", HERE.parent / "mypy.ini"]
        checked = subprocess.run(command, cwd=self.path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.assertEqual((checked.returncode, checked.stdout), (0, ""))

    def test_names_that_spark_takes_for_one(self):
        frame = self.spark.createDataFrame([("a", "b")], "`Sealwire_Result` string, `x.y` string")
        masked = sw.mask(frame, self.engine, masks={"x.y": "redact"})
        self.assertEqual([tuple(row) for row in masked.collect()], [("a", "[redacted]")])
        with self.assertRaisesRegex(ValueError, "sealwire_result does not exist"):
            sw.mask(frame, self.engine, masks={"sealwire_result": "redact"})

    def test_a_noted_type_is_only_a_type(self):
        envelope = sw.encrypt(self.people.limit(1), self.engine, columns=["day"]).select("day")
        for note in ('{"type":"udt","class":"x","pyClass":"os.path","sqlType":"string"}', "struct<a: int>"):
            noted = envelope.withMetadata("day", {"sealwire.type": note})
            with self.subTest(note), self.assertRaises(Exception) as raised:
                sw.decrypt(noted, self.engine, columns=["day"])
            self.assertRegex(str(raised.exception), "PARSE_SYNTAX_ERROR|is a nested type")

    def test_keys_are_in_no_plan_and_no_log(self):
        key = os.environ["SEALWIRE_TEST_KEY"]
        with self.assertRaisesRegex(ValueError, "key must be a path"):
            sw.Engine(**{**engine().arguments, "key": key}, app="demo")
        with self.assertRaisesRegex(ValueError, "key must be a path"):
            sw.Engine(**{**engine().arguments, "key": key.encode()}, app="demo")
        remote = sw.Engine(**{**engine().arguments, "key": sw.Environment("SEALWIRE_TEST_KEY")}, app="demo")
        sealed = sw.encrypt(self.people, remote, columns=["email"])
        self.assertEqual(sealed.select("email").distinct().count(), ROWS)
        missing = sw.Engine(**{**engine().arguments, "key": sw.Environment("SEALWIRE_NOT_SET")}, app="demo")
        with self.assertRaisesRegex(Exception, "no environment variable SEALWIRE_NOT_SET"):
            sw.encrypt(self.people, missing, columns=["email"]).collect()
        line = key.splitlines()[1]
        for text in (sealed._jdf.queryExecution().toString(), repr(remote), str(pickle.dumps(remote))):
            self.assertNotIn(line, text)
        logs = [path.read_text() for path in (self.path / "events").rglob("*") if path.is_file()]
        self.assertTrue(any("sealwire_encrypt" in log for log in logs), "plans are in the event log")
        for log in logs:
            self.assertNotIn(line, log)

    def test_errors_name_columns_and_no_values(self):
        def rejects(message, call):
            with self.subTest(message), self.assertRaisesRegex(Exception, message) as raised:
                call().collect()
            self.assertNotIn("@mail.test", str(raised.exception))

        # One task, since each failure is repeated three times.
        frame, remote = self.people.coalesce(1), self.engine
        rejects("nothing does not exist", lambda: sw.encrypt(frame, remote, columns=["nothing"]))
        rejects("street does not exist", lambda: sw.encrypt(frame, remote, columns=["customer.street"]))
        rejects("customer is a struct", lambda: sw.encrypt(frame, remote, columns=["customer"]))
        rejects("each of them once", lambda: sw.encrypt(frame, remote, columns=["email", "email"]))
        rejects("list of names", lambda: sw.encrypt(frame, remote, columns="email"))
        rejects("either masks or rules", lambda: sw.mask(frame, remote))
        rejects("column attributes is a map", lambda: sw.encrypt(frame, remote, columns=["attributes"]))
        rejects("nothing", lambda: sw.mask(frame, remote, rules=sw.Rules('unknown = "keep"\nrule = [{ column = "nothing", mask = "hash" }]')))
        rejects("no collection", lambda: sw.tokenize(frame, remote, collection="nothing", columns=["email"]))
        rejects("BadRequestError", lambda: sw.mask(frame, remote, masks={"email": "card"}))
        rejects("16 bytes", lambda: sw.tokenize(frame, remote, collection="people", columns=["email"], job="short"))
        absent = sw.Engine("127.0.0.1:1", server_name="localhost", app="demo", retry_timeout_ms=0, **{
            name: engine().arguments[name] for name in ("ca", "cert", "key")
        })
        rejects("ConnectError", lambda: sw.encrypt(frame, absent, columns=["email"]))

    def test_discovery_samples_all_partitions(self):
        frame = self.people.drop("attributes")
        with self.assertNoLogs(level="WARNING"):
            found = sw.discover(frame, rows=500, table="people", engine=self.engine)
        fields = {field.field: field for field in found.fields}
        for name, verdict, mask in (
            ("$.id", "harmless", None),
            ("$.email", "sensitive", "email"),
            ("$.born", "sensitive", "date_shift(within=365)"),
            ("$.customer.level", "harmless", None),
        ):
            self.assertEqual((fields[name].verdict, fields[name].mask), (verdict, mask), found.to_toml())
        self.assertEqual(fields["$.id"].values, 500)
        # The rules mask the frame that they were found in, and equal seeds give equal rules.
        masked = sw.mask(frame, self.engine, rules=sw.Rules(found.to_toml()))
        self.assertEqual(masked.filter(masked.email.contains("user")).count(), 0)
        self.assertEqual(sw.discover(frame, rows=500, table="people", engine=self.engine).to_toml(), found.to_toml())
        # Without an engine, the driver needs none.
        untried = sw.discover(frame, rows=500, table="people", sample=100)
        self.assertEqual({field.field: field.values for field in untried.fields}["$.id"], 100)
        self.assertIsInstance(untried, sw.Discovery)
        for text in (repr(found), repr(found.fields), found.to_toml(), str(found.notes), repr(untried), untried.to_toml()):
            self.assertNotIn("mail.test", text)
            self.assertNotIn(SECRET, text)
        # No value is in a plan: the rows are made by expressions.
        logs = [path.read_text() for path in (self.path / "events").rglob("*") if path.is_file()]
        for log in logs:
            self.assertNotIn("user17@mail.test", log)

    def test_discovery_of_odd_columns(self):
        frame = self.people.select(
            F.parse_json(F.lit('{"a": 1}')).alias("variant"),
            F.repeat(F.lit("x"), 20_000).alias("long"),
            F.col("email").cast("binary").alias("x.email"),
            F.lit(None).alias("nothing"),
        ).limit(50)
        found = sw.discover(frame)
        self.assertEqual([field.field for field in found.fields], ["$.long", "$['x.email']", "$.nothing"])
        self.assertEqual((found.fields[1].verdict, found.fields[1].mask), ("sensitive", "redact"))
        self.assertIn("column variant has a variant and was not read: cast it to a string", found.notes)
        # Options are checked before the frame is read.
        unread = frame.withColumn("broken", F.raise_error(F.lit("it was read")).cast("string"))
        for options, message in (
            ({"rows": 0}, "rows must be in"),
            ({"rows": 1_000_000}, "rows must be in"),
            ({"sample": 1}, "sample must be in"),
            ({"seed": -1}, "seed must be in"),
            ({"seed": 2**63}, "seed must be in"),
            ({"reason": "x"}, "without a client"),
        ):
            with self.subTest(message), self.assertRaisesRegex((TypeError, ValueError), message):
                sw.discover(unread, **options)
        twice = frame.select("long", "long")
        with self.assertRaisesRegex(ValueError, "same name"):
            sw.discover(twice)


if __name__ == "__main__":
    unittest.main()
