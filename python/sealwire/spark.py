"""Spark: encrypts, decrypts, tokenizes, detokenizes and masks columns of DataFrames, the same in SQL, and discovery.

Executors send the values of the named columns to the engine in batches, several at a time. Other columns do not leave the
JVM. Needs PySpark 4.1 or later with pyarrow, and this package on every executor.

An `Engine` says where executors reach the engines, and where they find their certificate and key: in files, or in
environment variables. It holds none of them, since it is part of plans.
"""

import collections
import concurrent.futures
import hashlib
import json
import os
import re
import typing

import pyspark

if [int(number) for number in re.findall(r"\d+", pyspark.__version__)[:2]] < [4, 1]:
    # Without this the first call fails with an AttributeError: functions over Arrow arrays came with 4.1.
    raise ImportError(f"sealwire.spark needs PySpark 4.1 or later; this is PySpark {pyspark.__version__}")

import pyarrow
from pyspark import TaskContext
from pyspark.accumulators import AccumulatorParam
from pyspark.sql import functions
from pyspark.sql.pandas.types import to_arrow_schema, to_arrow_type
from pyspark.sql.types import ArrayType, BinaryType, DataType, MapType, StringType, StructField, StructType, VariantType

from . import arrow
from ._client import Client
from ._native import check_columns
from .arrow import Discovery, Rules
from .errors import ConfigError

__all__ = [
    "Discovery", "Engine", "Environment", "Metrics", "Rules",
    "decrypt", "detokenize", "discover", "encrypt", "mask", "register", "tokenize",
]  # fmt: skip

# Batches of a task that are at the engine while Spark prepares the next one.
_AHEAD = 2
# Rows that `discover` takes to the driver at most, and the length to which it cuts long values: discovery counts longer ones.
_ROWS_MAX = 100_000
_LENGTH_MAX = 16 * 1024 + 1
# Where a column's metadata notes its type from before `encrypt` and `tokenize`.
_NOTE = "sealwire.type"
_COUNTERS = ("tasks", "batches", "rows", "values", "requests", "repeated", "waited_ms")


class Environment:
    """PEM text in an environment variable of the executors, as Kubernetes sets it from a secret."""

    def __init__(self, name):
        self.name = name

    def __repr__(self):
        return f"Environment({self.name!r})"


class Engine:
    """How executors reach the engines. `ca`, `cert` and `key` are paths on the executors, or `Environment`s. Further
    options are those of `sealwire.Client`."""

    def __init__(
        self, endpoints, *, app, ca, cert, key, retry_timeout_ms=600_000, batch_fields=1000, in_flight=8, reason=None, **options
    ):
        self.app = app
        self._files = {"ca": _location("ca", ca), "cert": _location("cert", cert), "key": _location("key", key)}
        self._endpoints = endpoints if isinstance(endpoints, (str, tuple)) else list(endpoints)
        count = len(self._endpoints) if isinstance(self._endpoints, list) else 1
        # One task runs in a process at a time, and `retry_timeout_ms` covers what an engine could not take.
        self._options = {"connections": 1, "threads": 1, "attempts_max": count, **options}
        self.batching = {"batch_fields": batch_fields, "in_flight": in_flight, "retry_timeout_ms": retry_timeout_ms}
        self.request = {} if reason is None else {"reason": reason}

    def __repr__(self):
        return f"Engine({self._endpoints!r}, app={self.app!r})"

    def client(self):
        """Returns the client of this process."""
        key = repr((self._endpoints, sorted(self._files.items(), key=str), sorted(self._options.items(), key=str)))
        if key not in _clients:
            files = {name: _resolve(name, location) for name, location in self._files.items()}
            _clients[key] = Client(self._endpoints, **files, **self._options)
        return _clients[key]


# Clients of this process by their settings. Spark forks its workers, and a client works in one process only.
_clients = {}
os.register_at_fork(after_in_child=_clients.clear)


def _location(name, value):
    if isinstance(value, Environment):
        return value
    if isinstance(value, (bytes, bytearray)) or "-----BEGIN" in str(value):
        raise ValueError(f"{name} must be a path on the executors or an Environment: PEM text would be part of plans")
    return os.fspath(value)


def _resolve(name, location):
    if not isinstance(location, Environment):
        return location
    text = os.environ.get(location.name)
    if text is None:
        raise ConfigError(f"{name}: this executor has no environment variable {location.name}")
    return text.encode()


class Metrics:
    """Counts of a job, over all its tasks that succeeded. Not available on Spark Connect, which has no accumulators."""

    def __init__(self, spark):
        self._counters = spark.sparkContext.accumulator(collections.Counter(), _CounterParam())

    def add(self, counts):
        self._counters.add(collections.Counter(counts))

    @property
    def values(self):
        """A dictionary of `tasks`, `batches`, `rows`, `values` (that were sent), `requests` (repeated ones included),
        `repeated` (because the engine was overloaded or away) and `waited_ms` (for the engine, summed over requests)."""
        return {name: self._counters.value[name] for name in _COUNTERS}

    def __repr__(self):
        return f"Metrics({self.values!r})"


class _CounterParam(AccumulatorParam):
    def zero(self, value):
        return collections.Counter()

    def addInPlace(self, value, other):
        value.update(other)
        return value


def encrypt(frame, engine, *, columns, metrics=None, encoding="text", **options):
    sealed = BinaryType() if encoding == "binary" else StringType()
    work = _Work(engine, "encrypt", {"columns": list(columns), "encoding": encoding, **options})
    return _seal(frame, work, columns, sealed, metrics)


def tokenize(frame, engine, *, collection, columns, metrics=None, job=None, **options):
    work = _Work(engine, "tokenize", {"columns": list(columns), "collection": collection, **options})
    work.job = os.urandom(16) if job is None else _job(job)
    return _seal(frame, work, columns, StringType(), metrics)


def decrypt(frame, engine, *, columns, types=None, metrics=None, **options):
    return _open(frame, _Work(engine, "decrypt", {"columns": list(columns), **options}), columns, types, metrics)


def detokenize(frame, engine, *, collection, columns, types=None, metrics=None, **options):
    work = _Work(engine, "detokenize", {"columns": list(columns), "collection": collection, **options})
    return _open(frame, work, columns, types, metrics)


def mask(frame, engine, *, rules=None, masks=None, metrics=None, **options):
    if (masks is None) == (rules is None):
        raise TypeError("mask() needs either masks or rules")
    if masks is not None:
        for path in masks:
            _Path(frame.schema, path)
        work = _Work(engine, "mask", {"masks": dict(masks), **options})
        tops = [_Path(frame.schema, path).top for path in masks]
        return _apply(frame, work, tops, tops, frame.schema, metrics)
    if not isinstance(rules, Rules):
        rules = Rules.from_file(rules)
    schema = to_arrow_schema(frame.schema)
    leaves = rules.resolve(schema)
    _reject_ambiguous(frame, rules)
    _reject_variants(frame.schema, rules, leaves)
    changed = [leaf for leaf in leaves if leaf[2] is not None or leaf[3]]
    names = frame.schema.names
    tops = [names[column] for _, column, *_ in changed]
    subjects = [names[column] for *_, columns in changed for column in columns]
    sent = set(tops) | set(subjects)
    work = _Work(engine, "mask", {"rules": rules, **options})
    work.schema = schema
    return _apply(frame, work, tops, [name for name in names if name in sent], frame.schema, metrics) if tops else frame


def discover(frame, *, rows=10_000, engine=None, seed=1, **options):
    if not isinstance(rows, int) or not 1 <= rows <= _ROWS_MAX:
        raise ValueError(f"rows must be in 1..={_ROWS_MAX}")
    if not isinstance(seed, int) or not 0 <= seed < 2**63:
        raise ValueError("seed must be in 0..2**63")
    if engine is not None:
        options = {**options, **engine.request, "client": engine.client(), "app": engine.app}
        options.setdefault("retry_timeout_ms", engine.batching["retry_timeout_ms"])
    names = frame.schema.names
    if len(set(names)) != len(names):
        raise ValueError("several columns have the same name: rename them")
    variants = [field.name for field in frame.schema.fields if _has_variant(field.dataType)]
    notes = [f"column {name} has a variant and was not read: cast it to a string" for name in variants]
    # Checks the options before the frame is read.
    arrow._discover_with([], pyarrow.table({}), seed=seed, **options)
    # The least of random numbers are a sample of all partitions, and each partition holds as many rows at most.
    number = f"sealwire_{os.urandom(8).hex()}"
    read = [_cut(field).alias(field.name) for field in frame.schema.fields if field.name not in variants]
    sample = frame.select(*read, functions.rand(seed).alias(number)).orderBy(number).limit(rows).drop(number)
    return arrow._discover_with(notes, sample.toArrow(), seed=seed, **options)


def _cut(field):
    """A column whose long values are cut."""
    column = functions.col("`" + field.name.replace("`", "``") + "`")
    return functions.substring(column, 1, _LENGTH_MAX) if isinstance(field.dataType, (BinaryType, StringType)) else column


def register(spark, engine, *, prefix="sealwire_"):
    """Registers SQL functions for an app of an engine: `PREFIXencrypt(value)`, `PREFIXdecrypt(envelope)`,
    `PREFIXtokenize(value, collection)`, `PREFIXdetokenize(token, collection)` and `PREFIXmask(value, function)`. All take and
    return strings. The second argument must be a constant. In SQL, a repeated task gets other tokens in random collections."""
    for method in ("encrypt", "decrypt"):
        spark.udf.register(prefix + method, _sql_function(_Work(engine, method, {}), None))
    for method, argument in (("tokenize", "collection"), ("detokenize", "collection"), ("mask", "masks")):
        spark.udf.register(prefix + method, _sql_function(_Work(engine, method, {}), argument))


def _names(data_type):
    """The names of all columns and fields in a type."""
    if isinstance(data_type, StructType):
        for field in data_type.fields:
            yield field.name
            yield from _names(field.dataType)
    elif isinstance(data_type, ArrayType):
        yield from _names(data_type.elementType)
    elif isinstance(data_type, MapType):
        yield from _names(data_type.valueType)


def _has_variant(data_type):
    if isinstance(data_type, StructType):
        return any(_has_variant(field.dataType) for field in data_type.fields)
    if isinstance(data_type, ArrayType):
        return _has_variant(data_type.elementType)
    if isinstance(data_type, MapType):
        return _has_variant(data_type.valueType)
    return isinstance(data_type, VariantType)


def _reject_ambiguous(frame, rules):
    """Rejects rules that Spark would take to name a column which they do not name: it ignores case, rules do not."""
    if frame.sparkSession.conf.get("spark.sql.caseSensitive") == "true":
        return
    names = set(_names(frame.schema))
    for kind, text in rules.targets():
        for part in [] if kind == "kind" else re.findall(r"[^.$*\[\]'\"]+", text):
            other = next((name for name in names if name != part and name.casefold() == part.casefold()), None)
            if other is not None:
                raise ValueError(f"the rule of {text} differs from column {other} only in case, and rules do not ignore case")


def _reject_variants(schema, rules, leaves):
    """Rejects variants, whose parts are no values by themselves."""
    examines = any(kind == "kind" for kind, _ in rules.targets())
    for column, field in enumerate(schema.fields):
        is_touched = any(leaf[1] == column and leaf[2] is not None for leaf in leaves)
        if (examines or is_touched) and _has_variant(field.dataType):
            raise ValueError(f"column {field.name} has a variant, which cannot be masked: cast it to a string")


def _job(job):
    text = job.encode() if isinstance(job, str) else bytes(job)
    if len(text) < 16:
        raise ValueError("job must have at least 16 bytes: whoever knows it can test values for the tokens of this job")
    return text


class _Path:
    """A path to a column, as in `sealwire.arrow`, in a Spark schema."""

    def __init__(self, schema, text):
        self.text = text
        name, *steps = [text] if text in schema.names else text.replace("[*]", ".[*]").split(".")
        if schema.names.count(name) != 1:
            count = schema.names.count(name)
            raise ValueError(f"column {text}: {name} does not exist" if count == 0 else f"column {text}: {name} is there {count} times")
        self.top, self._steps = name, steps
        self.field = schema[name]
        for step in steps:
            self.field = self._child(self.field.dataType, step)

    def _child(self, data_type, step):
        if step == "[*]" and isinstance(data_type, ArrayType):
            return StructField("", data_type.elementType, data_type.containsNull)
        if step != "[*]" and isinstance(data_type, StructType) and step in data_type.names:
            return data_type[step]
        raise ValueError(f"column {self.text}: {step} does not exist")

    def note(self):
        """The key of the note in the metadata of the top-level column."""
        return _NOTE if not self._steps else f"{_NOTE}:{'.'.join(self._steps)}"

    def replace(self, data_type, new, steps=None):
        """Returns the type of the top-level column with another type at this path."""
        steps = self._steps if steps is None else steps
        if not steps:
            return new
        if steps[0] == "[*]":
            return ArrayType(self.replace(data_type.elementType, new, steps[1:]), data_type.containsNull)
        return StructType([
            StructField(field.name, self.replace(field.dataType, new, steps[1:]), field.nullable, field.metadata)
            if field.name == steps[0] else field
            for field in data_type.fields
        ])


def _seal(frame, work, columns, sealed, metrics):
    schema, columns = frame.schema, _distinct(columns)
    for text in columns:
        path = _Path(schema, text)
        if isinstance(path.field.dataType, (ArrayType, MapType, StructType)):
            raise ValueError(f"column {text} is a {path.field.dataType.typeName()}: name the values in it")
        if path.note() in schema[path.top].metadata:
            raise ValueError(f"column {text} is encrypted or tokenized already: its original type would be lost")
        if isinstance(path.field.dataType, VariantType):
            raise ValueError(f"column {text} is a variant: cast it to a string")
        note = {path.note(): path.field.dataType.simpleString()}
        schema = _with_type(schema, path, sealed, lambda metadata, note=note: {**metadata, **note})
    check_columns(to_arrow_schema(frame.schema), columns)
    tops = [_Path(frame.schema, text).top for text in columns]
    return _apply(frame, work, tops, tops, schema, metrics)


def _open(frame, work, columns, types, metrics):
    schema, opened = frame.schema, {}
    types = {} if types is None else types
    for text in _distinct(columns):
        path = _Path(schema, text)
        note = path.note()
        noted = schema[path.top].metadata.get(note)
        opened[text] = _data_type(types[text]) if text in types else _noted_type(noted)
        without = lambda metadata, note=note: {key: value for key, value in metadata.items() if key != note}
        schema = _with_type(schema, path, opened[text], without)
    work.types = {text: to_arrow_type(data_type, timestamp_utc=True) for text, data_type in opened.items()}
    tops = [_Path(frame.schema, text).top for text in columns]
    return _apply(frame, work, tops, tops, schema, metrics)


def _distinct(columns):
    if isinstance(columns, str):
        raise TypeError("columns must be a list of names")
    columns = list(columns)
    if not columns or len(set(columns)) != len(columns):
        raise ValueError("columns must be names, each of them once")
    return columns


def _data_type(data_type):
    return data_type if isinstance(data_type, DataType) else DataType.fromDDL(data_type)


def _noted_type(noted):
    # Another writer may have set the note. As DDL it is only a type, while a type's JSON can name a class to import.
    data_type = StringType() if noted is None else DataType.fromDDL(noted)
    if isinstance(data_type, (ArrayType, MapType, StructType)):
        raise ValueError("sealwire.type in the metadata of a column is a nested type: name the type in types")
    return data_type


def _with_type(schema, path, data_type, change_metadata):
    def changed(field):
        if field.name != path.top:
            return field
        return StructField(field.name, path.replace(field.dataType, data_type), field.nullable, change_metadata(field.metadata))

    return StructType([changed(field) for field in schema.fields])


def _apply(frame, work, tops, sent, schema, metrics):
    """Replaces the columns `tops` by the engine's results for the columns `sent`."""
    tops, sent = list(dict.fromkeys(tops)), list(dict.fromkeys(sent))
    result = StructType([StructField(name, schema[name].dataType, True) for name in tops])
    work.results, work.metrics = tops, metrics
    udf = _struct_function(work, result)
    made = f"sealwire_{os.urandom(8).hex()}"
    quoted = lambda name: functions.col("`" + name.replace("`", "``") + "`")
    frame = frame.withColumn(made, udf(functions.struct(*[quoted(name) for name in sent])))
    columns = {name: functions.col(made).getField(name).alias(name, metadata=schema[name].metadata) for name in tops}
    return frame.select([columns.get(name, quoted(name)) for name in frame.columns if name != made])


def _struct_function(work, result):
    def run(batches: typing.Iterator[pyarrow.Array]) -> typing.Iterator[pyarrow.Array]:
        yield from work.structs(batches)

    # The name in plans.
    run.__name__ = f"sealwire_{work.method}"
    # Encryption draws keys, so a second evaluation gives other envelopes. Spark then merges and moves no calls of it.
    return functions.arrow_udf(run, result).asNondeterministic()


def _sql_function(work, argument):
    if argument is None:
        def run(batches: typing.Iterator[pyarrow.Array]) -> typing.Iterator[pyarrow.Array]:
            yield from work.columns((values, None) for values in batches)
    else:
        def run(
            batches: typing.Iterator[typing.Tuple[pyarrow.Array, pyarrow.Array]],
        ) -> typing.Iterator[pyarrow.Array]:
            yield from work.columns(batches, argument)

    return functions.arrow_udf(run, StringType()).asNondeterministic()


class _Work:
    """A call of `sealwire.arrow` for each batch of a task. Part of plans."""

    def __init__(self, engine, method, options):
        self.engine, self.method, self.options = engine, method, options
        self.types = self.job = self.metrics = self.results = self.schema = self.partition = None

    def structs(self, batches):
        """Works on columns of structs, which have a table's columns as their fields."""

        def call(client, number, batch):
            table = self._whole(pyarrow.RecordBatch.from_struct_array(batch))
            made = self._call(client, number, table, self.options)
            return made.select(self.results).to_struct_array()

        return self._run(call, batches)

    def _whole(self, table):
        """Returns the table with nulls in place of columns that were not sent, so that rules find all that they name."""
        if self.schema is None:
            return table
        sent = set(table.schema.names)
        columns = [
            table.column(field.name) if field.name in sent else pyarrow.nulls(table.num_rows, field.type) for field in self.schema
        ]
        fields = [table.schema.field(field.name) if field.name in sent else field.with_nullable(True) for field in self.schema]
        return pyarrow.RecordBatch.from_arrays(columns, schema=pyarrow.schema(fields))

    def columns(self, batches, argument=None):
        """Works on columns by themselves. `argument` is the setting that the second column of a batch has."""

        def call(client, number, batch):
            values, setting = batch
            if not pyarrow.types.is_string(values.type):
                values = values.cast(pyarrow.string())
            options = self.options if argument is None else {**self.options, argument: _constant(setting)}
            return self._call(client, number, values, options)

        return self._run(call, batches)

    def _call(self, client, number, data, options):
        options = {**options, **self.engine.batching, **self.engine.request}
        if self.types is not None:
            options["types"] = self.types
        if self.job is not None:
            # Every attempt of a task has this seed, so a repeated batch gets the same tokens.
            place = json.dumps([options["collection"], self.partition, number]).encode()
            options["idempotency_seed"] = hashlib.sha256(self.job + place).digest()
        return getattr(arrow, self.method)(client, data, app=self.engine.app, **options)

    def _run(self, call, batches):
        client = self.engine.client()
        # Threads of the pool have no task.
        self.partition = TaskContext.get().partitionId()
        before = client.stats()
        rows = count = 0
        threads, pending = concurrent.futures.ThreadPoolExecutor(_AHEAD), collections.deque()
        try:
            for batch in batches:
                _raise_error(pending)
                pending.append(threads.submit(call, client, count, batch))
                rows += len(batch if isinstance(batch, pyarrow.Array) else batch[0])
                count += 1
                if len(pending) > _AHEAD:
                    yield _first_result(pending)
            while pending:
                yield _first_result(pending)
        finally:
            # After an error or in a cancelled task, batches that have not begun are not sent, and others not waited for.
            threads.shutdown(wait=False, cancel_futures=True)
            if self.metrics is not None:
                after = client.stats()
                counts = {name: after[name] - before[name] for name in ("values", "repeated", "waited_ms")}
                requests = after["attempts"] - before["attempts"]
                self.metrics.add({"tasks": 1, "batches": count, "rows": rows, "requests": requests, **counts})


def _first_result(pending):
    """Waits for the result of the first future, or for the error of any: a task that fails does not wait for a slow batch."""
    while True:
        _raise_error(pending)
        if pending[0].done():
            return pending.popleft().result()
        running = [future for future in pending if not future.done()]
        concurrent.futures.wait(running, return_when=concurrent.futures.FIRST_COMPLETED)


def _raise_error(pending):
    """Raises the error of the first future that has failed, if any has."""
    for future in pending:
        if future.done() and future.exception() is not None:
            future.result()


def _constant(column):
    settings = set(column.to_pylist())
    if len(settings) != 1 or None in settings:
        raise ValueError("the second argument must be a constant")
    return settings.pop()
