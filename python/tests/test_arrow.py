import datetime
import decimal
import importlib
import itertools
import pathlib
import pickle
import sys
import tempfile
import threading
import types
import unittest
import unittest.mock

import polars as pl
import pyarrow as pa
import sealwire
from sealwire import arrow
from support import PATIENCE_S, Peer, echo, engine, silent

UTC = datetime.timezone.utc
SECRET = "4242424242424242"
LONG = "x" * 300_000

# Every type that can be sent, with values at its ends and a null.
COLUMNS = {
    "text": pa.array(["", "Zoë", None, "a" * 3000]),
    "large_text": pa.array(["x", None, "y", "z"], pa.large_string()),
    "text_view": pa.array(["short", None, "longer than twelve bytes", ""], pa.string_view()),
    "binary": pa.array([b"", b"\x00\xff", None, b"x"]),
    "large_binary": pa.array([b"", b"\x00\xff", None, b"x"], pa.large_binary()),
    "binary_view": pa.array([b"", b"\x00\xff", None, b"longer than twelve bytes"], pa.binary_view()),
    "fixed": pa.array([b"abcd", None, b"\x00\x00\x00\x00", b"efgh"], pa.binary(4)),
    "flag": pa.array([True, None, False, True]),
    **{
        f"int{bits}": pa.array([0, None, -(2 ** (bits - 1)), 2 ** (bits - 1) - 1], getattr(pa, f"int{bits}")())
        for bits in (8, 16, 32, 64)
    },
    **{f"uint{bits}": pa.array([0, None, 1, 2**bits - 1], getattr(pa, f"uint{bits}")()) for bits in (8, 16, 32, 64)},
    "float32": pa.array([0.0, None, -1.5, 3.4028234663852886e38], pa.float32()),
    "float64": pa.array([0.1, None, 5e-324, float("inf")]),
    "date": pa.array([datetime.date(2026, 3, 14), None, datetime.date(1, 1, 1), datetime.date(9999, 12, 31)]),
    "far_date": pa.array([0, None, 2**31 - 1, -(2**31)], pa.int32()).cast(pa.date32()),
    "amount": pa.array([decimal.Decimal("12.50"), None, decimal.Decimal("-0.01"), decimal.Decimal(0)], pa.decimal128(12, 2)),
    "digits": pa.array([decimal.Decimal("9" * 38), None, decimal.Decimal("-" + "9" * 38), decimal.Decimal(1)], pa.decimal128(38, 0)),
    **{
        f"moment_{unit}": pa.array([0, None, -1, 1_773_480_413_589_793], pa.timestamp(unit, zone))
        for unit, zone in (("ms", "UTC"), ("us", None), ("ns", "Europe/Zurich"))
    },
    "moment_s": pa.array([0, None, -1, 1_773_480_413], pa.timestamp("s")),
    "moment_end": pa.array([2**63 - 1, None, -(2**63) + 1, 1], pa.timestamp("ns")),
}


def buffers(column):
    return [buffer and buffer.address for chunk in column.chunks for buffer in chunk.buffers()]


class OlderSpark(unittest.TestCase):
    def test_an_older_pyspark_is_named_at_import(self):
        for version in ("3.5.1", "4.0.1", "4.0.0.dev1"):
            pyspark = types.ModuleType("pyspark")
            pyspark.__version__ = version
            with (
                self.subTest(version),
                unittest.mock.patch.dict(sys.modules, {"pyspark": pyspark}),
                self.assertRaisesRegex(ImportError, f"needs PySpark 4.1 or later; this is PySpark {version}"),
            ):
                importlib.import_module("sealwire.spark")


class Columns(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.client = sealwire.Client(**engine().arguments)

    @classmethod
    def tearDownClass(cls):
        cls.client.close()

    def test_every_type_comes_back(self):
        table = pa.table(COLUMNS)
        for options in ({}, {"encoding": "binary"}, {"context": b"here"}):
            sealed = arrow.encrypt(self.client, table, app="demo", columns=table.column_names, **options)
            for name in table.column_names:
                is_binary = options.get("encoding") == "binary"
                expected = (pa.binary(), pa.large_binary()) if is_binary else (pa.string(), pa.large_string())
                self.assertIn(sealed.schema.field(name).type, expected)
                self.assertEqual(sealed[name].is_null(), table[name].is_null(), name)
            context = {key: options[key] for key in options if key == "context"}
            opened = arrow.decrypt(self.client, sealed, app="demo", columns=table.column_names, **context)
            for name in table.column_names:
                self.assertEqual(opened[name], table[name], name)
            self.assertTrue(opened.schema.equals(table.schema, check_metadata=True))

    def test_other_clients_read_the_values(self):
        table = pa.table({name: COLUMNS[name] for name in ("text", "int64", "date", "amount", "moment_us", "flag")})
        sealed = arrow.encrypt(self.client, table, app="demo", columns=table.column_names)
        row = self.client.decrypt("demo", sealed.to_pylist()[3]).payload
        moment = datetime.datetime(1970, 1, 1, tzinfo=UTC) + datetime.timedelta(microseconds=1_773_480_413_589_793)
        self.assertEqual(
            row,
            {"text": "a" * 3000, "int64": 2**63 - 1, "date": "9999-12-31", "amount": "0.00", "moment_us": moment, "flag": True},
        )

    def test_columns_that_are_not_named_keep_their_buffers(self):
        table = pa.table({"name": ["Zoë", None, "Ada"] * 100, "other": list(range(300)), "more": ["x"] * 300})
        table = table.replace_schema_metadata({"key": "value"})
        sealed = arrow.encrypt(self.client, table, app="demo", columns=["name"])
        for name in ("other", "more"):
            self.assertEqual(buffers(sealed[name]), buffers(table[name]))
        self.assertEqual(sealed.schema.metadata, {b"key": b"value"})
        self.assertEqual(sealed.column_names, table.column_names)

    def test_columns_that_are_not_named_can_have_any_type_and_metadata(self):
        odd = pa.field("odd", pa.int8(), metadata={b"k": b"\xff\xfe"})
        odd = pa.schema([odd, pa.field("n", pa.string())], metadata={b"whole": b"\xff"})
        tables = [
            pa.table({"n": ["x", "y"], "odd": pa.nulls(2)}),
            pa.table({"n": ["x", "y"], "odd": pa.array([decimal.Decimal(10) ** 60, None], pa.decimal256(70, 0))}),
            pa.table({"n": ["x", "y"], "odd": pa.array([decimal.Decimal("12345.67"), None], pa.decimal128(38, 2))}),
            pa.table({"odd": pa.array([1, 2], pa.int8()), "n": ["x", "y"]}, schema=odd),
            pa.table({"n": ["x", "y"], "odd": pa.array([[1], None], pa.list_view(pa.int8()))}),
            pa.table({"n": ["x", "y"], "odd": pa.array(["a", None]).dictionary_encode()}),
        ]
        for table in tables:
            sealed = arrow.encrypt(self.client, table, app="demo", columns=["n"])
            self.assertEqual(buffers(sealed["odd"]), buffers(table["odd"]))
            self.assertEqual(sealed.column_names, table.column_names)
            opened = arrow.decrypt(self.client, sealed, app="demo", columns=["n"])
            self.assertTrue(opened.equals(table, check_metadata=True), table.schema)
            batch = table.to_batches()[0]
            opened = arrow.decrypt(self.client, arrow.encrypt(self.client, batch, app="demo", columns=["n"]), app="demo", columns=["n"])
            self.assertEqual((type(opened), opened), (pa.RecordBatch, batch))

    def test_columns_that_cannot_be_read_are_named(self):
        secret = pa.field("secret", pa.int8(), metadata={b"k": b"\xff\xfe"})
        table = pa.table({"n": ["x"], "secret": pa.array([1], pa.int8())}, schema=pa.schema([("n", pa.string()), secret]))
        rules = arrow.Rules('unknown = "keep"\n[[rule]]\ncolumn = "n"\nmask = "keep"\n')
        frame = pl.DataFrame({"n": ["x"], "secret": [object()]}, schema={"n": pl.String, "secret": pl.Object})
        wide = pl.DataFrame({"n": ["x"], "secret": [1]}, schema={"n": pl.String, "secret": pl.Int128})
        for data in (table, frame, wide):
            for call in [
                lambda data=data: arrow.encrypt(self.client, data, app="demo", columns=["secret"]),
                lambda data=data: arrow.mask(self.client, data, app="demo", rules=rules),
            ]:
                with self.assertRaisesRegex(TypeError, "column secret"):
                    call()
            sealed = arrow.encrypt(self.client, data, app="demo", columns=["n"])
            opened = arrow.decrypt(self.client, sealed, app="demo", columns=["n"])
            self.assertEqual(type(opened), type(data))
            self.assertEqual(opened.schema, data.schema)
            self.assertEqual(list(opened["secret"]), list(data["secret"]))
            self.assertEqual(list(opened["n"]), list(data["n"]))

    def test_nested_columns_by_path(self):
        rows = [
            {"a": {"street": "Elm", "no": 7, "tags": ["x", None, "y"]}, "people": [{"mail": "a@x", "n": 1}, {"mail": None, "n": 2}], "a.b": "dot"},
            {"a": None, "people": None, "a.b": None},
            {"a": {"street": None, "no": None, "tags": None}, "people": [], "a.b": ""},
            {"a": {"street": "Oak", "no": 1, "tags": []}, "people": [None, {"mail": "b@x", "n": 3}], "a.b": "z"},
        ]
        paths = ["a.street", "a.tags[*]", "people[*].mail", "a.b", "a.no"]
        table = pa.Table.from_pylist(rows)
        for part in (table, table.slice(1, 3), table.slice(3), table.slice(0, 0)):
            sealed = arrow.encrypt(self.client, part, app="demo", columns=paths)
            self.assertEqual(arrow.decrypt(self.client, sealed, app="demo", columns=paths), part)
            self.assertEqual(sealed.num_rows, part.num_rows)
        sealed = arrow.encrypt(self.client, table, app="demo", columns=paths).to_pylist()
        self.assertEqual(sealed[1], {"a": None, "people": None, "a.b": None})
        self.assertEqual([person and person["n"] for person in sealed[0]["people"] + sealed[3]["people"]], [1, 2, None, 3])
        for value in (sealed[0]["a"]["street"], sealed[0]["a"]["tags"][2], sealed[3]["people"][1]["mail"], sealed[0]["a.b"], sealed[3]["a"]["no"]):
            self.assertTrue(value.startswith("sw1:"))

    def test_lists_of_lists_and_large_lists(self):
        values = [[["a", None], []], None, [None, ["b"]]]
        for inner, outer in itertools.product((pa.list_, pa.large_list), repeat=2):
            table = pa.table({"x": pa.array(values, outer(inner(pa.string())))})
            sealed = arrow.encrypt(self.client, table, app="demo", columns=["x[*][*]"])
            self.assertEqual(arrow.decrypt(self.client, sealed, app="demo", columns=["x[*][*]"]), table)

    def test_what_a_null_hides_is_not_sent(self):
        sent = []

        def answer(peer, method, params):
            sent.extend(params["payload"])
            return echo(peer, method, params)

        peer = Peer(answer)
        hidden = pa.array([SECRET, "seen"])
        struct = pa.StructArray.from_arrays([hidden], ["card"], mask=pa.array([True, False]))
        offsets = pa.array([0, 1, 2], pa.int32())
        lists = pa.ListArray.from_arrays(offsets, hidden, mask=pa.array([True, False]))
        with sealwire.Client(**peer.arguments) as client:
            table = pa.table({"struct": struct, "list": lists})
            result = arrow.mask(client, table, app="demo", masks={"struct.card": "redact", "list[*]": "redact"})
        self.assertEqual(sent, ["seen", "seen"])
        self.assertEqual(result.to_pylist(), table.to_pylist())
        peer.close()

    def test_batches_columns_and_chunks(self):
        values = pa.array(["Zoë", None, "Ada"])
        batch = pa.record_batch({"name": values, "n": [1, 2, 3]})
        sealed = arrow.encrypt(self.client, batch, app="demo", columns=["name"])
        self.assertIsInstance(sealed, pa.RecordBatch)
        self.assertEqual(arrow.decrypt(self.client, sealed, app="demo", columns=["name"]), batch)
        numbers = pa.array([1, None, 3], pa.int16())
        sealed = arrow.encrypt(self.client, numbers, app="demo")
        self.assertIsInstance(sealed, pa.Array)
        self.assertEqual(arrow.decrypt(self.client, sealed, app="demo", types=pa.int16()), numbers)
        structs = pa.array([{"name": "Zoë", "n": 1}, {"name": None, "n": 2}])
        sealed = arrow.encrypt(self.client, structs, app="demo", columns=["name"])
        self.assertEqual(arrow.decrypt(self.client, sealed, app="demo", columns=["name"]), structs)
        chunks = pa.chunked_array([["a"], [], [None, "b"]])
        sealed = arrow.encrypt(self.client, chunks, app="demo")
        self.assertEqual(arrow.decrypt(self.client, sealed, app="demo"), chunks)
        self.assertEqual(sealed.num_chunks, 3)
        reader = pa.RecordBatchReader.from_batches(batch.schema, [batch, batch])
        table = pa.Table.from_batches([batch, batch])
        sealed = arrow.encrypt(self.client, reader, app="demo", columns=["name"])
        self.assertEqual(arrow.decrypt(self.client, sealed, app="demo", columns=["name"]), table)

    def test_types_are_named_as_pyarrow_prints_them(self):
        for values in (
            pa.array([1, None], pa.int16()),
            pa.array([decimal.Decimal("1.50"), None], pa.decimal128(10, 2)),
            pa.array([1, None], pa.timestamp("us", "Europe/Zurich")),
            pa.array([1, None], pa.timestamp("ns")),
            pa.array([b"abcd", None], pa.binary(4)),
            pa.array([1, None], pa.int32()).cast(pa.date32()),
            pa.array([True, None]),
            pa.array(["a", None], pa.large_string()),
        ):
            with self.subTest(values.type):
                sealed = arrow.encrypt(self.client, values, app="demo")
                self.assertEqual(arrow.decrypt(self.client, sealed, app="demo", types=str(values.type)), values)
        sealed = arrow.encrypt(self.client, pa.array(["a"]), app="demo")
        for name in ("decimal(10,2)", "no type", "timestamp[us, tz=]", ""):
            with self.subTest(name), self.assertRaisesRegex(ValueError, "is no type's name as pyarrow prints it"):
                arrow.decrypt(self.client, sealed, app="demo", types=name)

    def test_any_object_with_the_interface(self):
        class Foreign:
            def __init__(self, table):
                self._table = table

            def __arrow_c_stream__(self, requested_schema=None):
                return self._table.__arrow_c_stream__(requested_schema)

        table = pa.table({"n": [1, None]})
        sealed = arrow.encrypt(self.client, Foreign(table), app="demo", columns=["n"])
        self.assertNotIsInstance(sealed, pa.Table)
        self.assertTrue(pa.table(sealed)["n"][0].as_py().startswith("sw1:"))
        self.assertEqual(pa.table(arrow.decrypt(self.client, sealed, app="demo", columns=["n"])), table)

    def test_polars(self):
        frame = pl.DataFrame(
            {
                "text": ["x", None, "longer than twelve bytes"],
                "n": [1, None, 3],
                "list": [["p", "q"], None, []],
                "struct": [{"x": 1.5}, {"x": None}, {"x": 2.0}],
                "day": [datetime.date(2026, 1, 1), None, datetime.date(2025, 1, 1)],
                "other": [1, 2, 3],
            }
        )
        columns = ["text", "n", "list[*]", "struct.x", "day"]
        sealed = arrow.encrypt(self.client, frame, app="demo", columns=columns)
        self.assertIsInstance(sealed, pl.DataFrame)
        self.assertTrue(sealed["list"][0][0].startswith("sw1:"))
        # polars keeps no metadata of fields.
        types = {"n": pl.Int64, "struct.x": pl.Float64(), "day": pl.Date}
        opened = arrow.decrypt(self.client, sealed, app="demo", columns=columns, types=types)
        self.assertEqual(opened.schema, frame.schema)
        self.assertTrue(opened.equals(frame))
        series = arrow.encrypt(self.client, frame["n"], app="demo")
        self.assertEqual((type(series), series.name), (pl.Series, "n"))
        self.assertTrue(arrow.decrypt(self.client, series, app="demo", types=pl.Int64).equals(frame["n"]))

    def test_tokens(self):
        table = pa.table({"name": ["Zoë", None, "Ada"], "n": pa.array([1, 2, None], pa.int32())})
        options = {"app": "demo", "collection": "people", "columns": ["name", "n"]}
        made = arrow.tokenize(self.client, table, **options, tags=["import"])
        self.assertEqual(made["name"].is_null(), table["name"].is_null())
        self.assertNotIn("Zoë", made["name"].to_pylist())
        self.assertEqual(arrow.detokenize(self.client, made, **options), table)
        plain = made.cast(pa.schema([("name", pa.string()), ("n", pa.string())]))
        self.assertEqual(arrow.detokenize(self.client, plain, **options, types={"n": pa.int32()}), table)

    def test_masks(self):
        table = pa.table({"card": [SECRET, None], "age": [31, 57], "name": ["Zoë", "Ada"]})
        masked = arrow.mask(self.client, table, app="demo", masks={"card": "partial(last=4)", "name": "keep"})
        self.assertEqual(masked, pa.table({"card": ["*" * 12 + "4242", None], "age": [31, 57], "name": ["Zoë", "Ada"]}))
        column = arrow.mask(self.client, table["card"], app="demo", masks="partial(last=4)")
        self.assertEqual(column.to_pylist(), ["*" * 12 + "4242", None])

    def test_extension_types_are_put_aside_and_restored(self):
        table = pa.table({"id": pa.array([bytes(16), None], pa.uuid())})
        sealed = arrow.encrypt(self.client, table, app="demo", columns=["id"])
        self.assertEqual(sealed.schema.field("id").type, pa.string())
        self.assertEqual(arrow.decrypt(self.client, sealed, app="demo", columns=["id"]), table)

    def test_errors_name_column_and_row(self):
        table = pa.table({"n": ["x"] * 7})
        sealed = arrow.encrypt(self.client, table, app="demo", columns=["n"], context="here")
        values = sealed["n"].to_pylist()
        mixed = pa.chunked_array([[None] + values[:3], values[3:]])
        other = arrow.encrypt(self.client, pa.array([SECRET]), app="demo", context="there")[0].as_py()
        for row in (1, 3, 5):
            broken = mixed.to_pylist()
            broken[row] = other
            chunks = pa.chunked_array([broken[:4], broken[4:]])
            with self.assertRaises(sealwire.CannotOpenError) as raised:
                arrow.decrypt(self.client, pa.table({"n": chunks}), app="demo", columns=["n"], context="here", batch_fields=2)
            self.assertEqual(raised.exception.details, {"column": "n", "row": row})

    def test_what_is_rejected(self):
        table = pa.table({"s": [{"x": SECRET}], "l": [[SECRET]], "d": pa.array([SECRET]).dictionary_encode(), "t": [SECRET], "v": pa.array([1], pa.duration("s"))})
        call = lambda *columns, **options: arrow.encrypt(self.client, table, app="demo", columns=columns, **options)  # noqa: E731
        column = pa.array([SECRET])
        twice = pa.Table.from_arrays([column, column], names=["t", "t"])
        members = pa.table({"s": pa.StructArray.from_arrays([column, column], names=["x", "x"])})
        no_text = pa.table({"t": pa.array([b"\xff"]).view(pa.string())})
        for attempt, error, expected in [
            (lambda: call("s"), TypeError, "column s is a struct: name a field of it, such as .x"),
            (lambda: call("l"), TypeError, "column l is a list: name its items with"),
            (lambda: call("d"), TypeError, "column d is a dictionary: cast it"),
            (lambda: call("v"), TypeError, "column v has type Duration"),
            (lambda: call("absent"), TypeError, "there is no column or field \"absent\""),
            (lambda: call("s.absent"), TypeError, "there is no column or field \"absent\""),
            (lambda: call("t[*]"), TypeError, "neither a list nor a map"),
            (lambda: call("l.x"), TypeError, "follows a value that is no struct"),
            (lambda: call("t", "t"), ValueError, "each of them once"),
            (lambda: arrow.encrypt(self.client, twice, app="demo", columns=["t"]), TypeError, "columns or fields have the name t"),
            (lambda: arrow.encrypt(self.client, members, app="demo", columns=["s.x"]), TypeError, "columns or fields have the name x"),
            (lambda: arrow.encrypt(self.client, no_text, app="demo", columns=["t"]), ValueError, "the stream failed or is not valid Arrow data"),
            (lambda: call(), ValueError, "columns must be names"),
            (lambda: call("t", select=["$"]), TypeError, "unexpected keyword argument 'select'"),
            (lambda: call("t", batch_fields=0), ValueError, "batch_fields must be in"),
            (lambda: call("t", in_flight=0), ValueError, "in_flight must be in"),
            (lambda: arrow.encrypt(self.client, table, app="demo", columns="t"), TypeError, "list of names"),
            (lambda: arrow.encrypt(self.client, table, app="demo"), TypeError, "must be named"),
            (lambda: arrow.encrypt(self.client, [1], app="demo", columns=["t"]), TypeError, "PyCapsule interface"),
            (lambda: arrow.encrypt(self.client, table["t"], app="demo", columns=["t"]), TypeError, "has no names"),
            (lambda: arrow.encrypt(self.client, pa.array([{"x": SECRET}, None]), app="demo", columns=["x"]), TypeError, "must be within a table"),
            (lambda: arrow.decrypt(self.client, table["t"], app="demo", types=int), TypeError, "a type must be one of"),
            (lambda: arrow.mask(self.client, table, app="demo", masks={"t": "keep"}, types={"t": pa.int64()}), TypeError, "column t: value 0 is a string that type Int64 does not hold"),
        ]:
            with self.assertRaisesRegex(error, expected) as raised:
                attempt()
            self.assertNotIn(SECRET, str(raised.exception))
        # Another type than the values have is found after they were opened.
        sealed = call("t")
        with self.assertRaisesRegex(TypeError, "value 0 is a string that type Int64 does not hold") as raised:
            arrow.decrypt(self.client, sealed, app="demo", columns=["t"], types={"t": pa.int64()})
        self.assertNotIn(SECRET, str(raised.exception))

    def test_a_noted_type_of_another_hand(self):
        sealed = arrow.encrypt(self.client, pa.table({"n": [SECRET]}), app="demo", columns=["n"])
        for noted in ("w:-1", "w:2147483647", "+s", "tiD", "no type"):
            field = sealed.schema.field("n").with_metadata({"sealwire:type": noted})
            altered = pa.Table.from_arrays(sealed.columns, schema=pa.schema([field]))
            with self.assertRaises((TypeError, ValueError), msg=noted):
                arrow.decrypt(self.client, altered, app="demo", columns=["n"])

    def test_a_stream_that_fails_shows_no_value(self):
        def batches():
            yield pa.record_batch({"n": [SECRET]})
            raise ValueError(SECRET)

        stream = pa.RecordBatchReader.from_batches(pa.schema({"n": pa.string()}), batches())
        with self.assertRaisesRegex(ValueError, "the stream failed") as raised:
            arrow.encrypt(self.client, stream, app="demo", columns=["n"])
        self.assertNotIn(SECRET, str(raised.exception))

    def test_without_rows_or_values(self):
        empty = pa.table({"n": pa.array([], pa.int8())})
        nothing = pa.table({"n": pa.array([None, None], pa.int8())})
        for table in (empty, nothing, pa.Table.from_batches([], empty.schema)):
            sealed = arrow.encrypt(self.client, table, app="demo", columns=["n"])
            self.assertEqual(arrow.decrypt(self.client, sealed, app="demo", columns=["n"]), table)


class Helpers(unittest.TestCase):
    """What surrounds the call of the native module."""

    def test_the_true_error_stays(self):
        unreadable = pa.field("odd", pa.int8(), metadata={b"k": b"\xff\xfe"})
        readable = pa.table({"n": ["x"]})
        odd = pa.table({"odd": pa.array([1], pa.int8())}, schema=pa.schema([unreadable]))
        for data, error, raised, cause in [
            (readable, ValueError("true"), ValueError, None),
            (odd, ValueError("true"), TypeError, ValueError),
            (odd, MemoryError("true"), MemoryError, None),
            (odd, sealwire.DisconnectedError("true"), sealwire.DisconnectedError, None),
            (odd, KeyboardInterrupt("true"), KeyboardInterrupt, None),
        ]:
            def work(error=error):
                raise error

            with self.assertRaises(raised) as caught:
                arrow._with_column_name(data, work)
            self.assertEqual(type(caught.exception.__cause__), type(None) if cause is None else cause)
        # The look for the column can fail by itself.
        for error, raised in [(MemoryError("check"), MemoryError), (ValueError("check"), TypeError)]:
            def fails(*_, error=error):
                raise error

            def work():
                raise ValueError("true")

            with unittest.mock.patch.object(arrow, "check_columns", fails), self.assertRaises(raised) as caught:
                arrow._with_column_name(readable, work)
            self.assertEqual(str(caught.exception.__cause__ or caught.exception.__context__), "true")

    def test_columns_of_other_libraries_are_named(self):
        odd = pa.field("odd", pa.int8(), metadata={b"k": b"\xff\xfe"})
        table = pa.table({"n": ["x"], "odd": pa.array([1], pa.int8())}, schema=pa.schema([("n", pa.string()), odd]))

        class Stream:
            def __arrow_c_stream__(self, requested_schema=None):
                return table.__arrow_c_stream__(requested_schema)

        class Table(Stream):
            def __arrow_c_schema__(self):
                return table.schema.__arrow_c_schema__()

        class Broken(Stream):
            def __arrow_c_schema__(self):
                raise OSError("schema")

        def work():
            raise ValueError("true")

        for data in (table, Table()):
            with self.assertRaisesRegex(TypeError, "column odd: its type or metadata") as caught:
                arrow._with_column_name(data, work)
            self.assertEqual(str(caught.exception.__cause__), "true")
        for data in (Broken(), Stream(), object()):
            with self.assertRaisesRegex(ValueError, "^true$"):
                arrow._with_column_name(data, work)

    def test_names_that_polars_takes_for_patterns(self):
        columns = ["^a.*$", "ab", "*", "a", "^.*$"]
        frame = pl.DataFrame({name: [name] for name in columns})
        for paths, expected in [
            (["^a.*$"], ["^a.*$"]),
            (["*"], ["*"]),
            (["a", "^.*$"], ["a", "^.*$"]),
            (["ab"], ["ab"]),
            (["absent"], []),
        ]:
            sent, put_back = arrow._set_aside(frame, paths, pl.DataFrame)
            self.assertEqual(sent.columns, expected)
            back = put_back(pl.DataFrame([pl.Series(name, ["new"]) for name in expected]))
            self.assertEqual(back.columns, columns)
            self.assertEqual([name for name in columns if back[name].to_list() == ["new"]], [name for name in columns if name in expected])


class Requests(unittest.TestCase):
    """How a column becomes requests: seen from a server whose answers are the test's."""

    def test_pieces_overlap_and_keep_their_order(self):
        # Each of these answers waits for the others, and the earliest is the last to be sent.
        lock, started, four = threading.Lock(), [], threading.Barrier(4)
        turns = [threading.Event() for _ in range(4)]
        turns[3].set()

        def answer(peer, method, params):
            with lock:
                started.append(len(params["payload"]))
            four.wait(PATIENCE_S)
            place = params["payload"][0] // 10
            turns[place].wait(PATIENCE_S)
            if place > 0:
                turns[place - 1].set()
            return echo(peer, method, params)

        peer = Peer(answer)
        numbers = pa.array(range(40))
        with sealwire.Client(**peer.arguments) as client:
            masked = arrow.mask(client, numbers, app="demo", masks="keep", batch_fields=10, in_flight=4)
        self.assertEqual(masked, numbers)
        self.assertEqual(started, [10] * 4)
        peer.close()

    def test_the_first_error_does_not_wait_for_slower_requests(self):
        release = threading.Event()

        def answer(peer, method, params):
            first = params["payload"][0]
            first = first[0] if isinstance(first, list) else first
            if first == 0:
                release.wait(PATIENCE_S)
            if first == 30:
                return "error", {"code": "forbidden", "message": "no"}
            return echo(peer, method, params)

        peer = Peer(answer)
        self.addCleanup(release.set)
        with sealwire.Client(**peer.arguments) as client:
            for masks in ({"masks": {"n": "keep"}}, {"rules": arrow.Rules('unknown = "keep"\n[[rule]]\ncolumn = "n"\nmask = "fixed(1)"\n')}):
                table = pa.table({"n": [0] * 10 + [10] * 10 + [20] * 10 + [30] * 10})
                with self.assertRaises(sealwire.ForbiddenError):
                    arrow.mask(client, table, app="demo", batch_fields=10, in_flight=4, **masks)

    def test_results_that_shift_rows_are_an_error(self):
        # One value moves from the second request to the first, so the sum is right.
        def shifts(_peer, _method, params):
            values = params["payload"]
            return "result", {"payload": values + [10] if values[0] == 0 else values[1:], "generation": 1}

        def drops(_peer, _method, params):
            values = params["payload"]
            return "result", {"payload": values[:-1], "generation": 1}

        def adds(_peer, _method, params):
            return "result", {"payload": params["payload"] + [1], "generation": 1}

        for answer in (shifts, drops, adds):
            peer = Peer(answer)
            numbers = pa.table({"n": range(20)})
            with sealwire.Client(**peer.arguments) as client:
                with self.assertRaises(sealwire.ProtocolError):
                    arrow.mask(client, numbers, app="demo", masks={"n": "keep"}, batch_fields=10)

    def test_nil_in_place_of_an_envelope_is_an_error(self):
        peer = Peer(lambda _peer, _method, params: ("result", {"payload": [None for _ in params["payload"]], "generation": 1}))
        with sealwire.Client(**peer.arguments) as client:
            with self.assertRaisesRegex(TypeError, "column n: value 0 is nil"):
                arrow.encrypt(client, pa.table({"n": ["x"]}), app="demo", columns=["n"])
            with self.assertRaisesRegex(TypeError, "column n: value 0 is nil"):
                arrow.tokenize(client, pa.table({"n": ["x"]}), app="demo", columns=["n"], collection="people")
            # The mask of a role can remove a value.
            opened = arrow.decrypt(client, pa.table({"n": ["sw1:x"]}), app="demo", columns=["n"])
            self.assertEqual(opened["n"].to_pylist(), [None])

    def test_a_seed_does_not_depend_on_chunks(self):
        values = [None if number % 7 == 3 else f"value {number}" for number in range(50)]
        table = pa.table({"n": values, "list": [[value, value] for value in values]})
        keys = []
        for sizes in ([50], [1] * 50, [0, 13, 0, 30, 7], [25, 25]):
            peer = Peer(echo)
            starts = itertools.accumulate([0, *sizes[:-1]])
            chunks = pa.concat_tables([table.slice(start, size) for start, size in zip(starts, sizes)])
            with sealwire.Client(**peer.arguments) as client:
                options = {"app": "demo", "collection": "people", "idempotency_seed": bytes(16), "batch_fields": 8}
                made = arrow.tokenize(client, chunks, columns=["n", "list[*]"], **options)
            self.assertEqual(made["n"].to_pylist(), values)
            self.assertEqual(made["list"].to_pylist(), table["list"].to_pylist())
            requests = [peer.requests.get_nowait()[2] for _ in range(peer.requests.qsize())]
            keys.append(sorted((params["idempotency_key"], params["payload"]) for params in requests))
            self.assertEqual(len({key for key, _ in keys[-1]}), len(keys[-1]))
        self.assertEqual(keys[1:], keys[:1] * 3)

    def test_bounds(self):
        lock, together = threading.Lock(), threading.Barrier(3)
        running, most, sizes = 0, 0, []

        def answer(peer, method, params):
            nonlocal running, most
            with lock:
                running += 1
                most = max(most, running)
                sizes.append(len(params["payload"]))
            if params["payload"][0] != LONG:
                together.wait(PATIENCE_S)
            with lock:
                running -= 1
            return echo(peer, method, params)

        peer = Peer(answer)
        numbers = pa.array([None if number % 5 == 0 else number for number in range(100)])
        with sealwire.Client(**peer.arguments) as client:
            masked = arrow.mask(client, numbers, app="demo", masks="keep", batch_fields=7, in_flight=3)
            self.assertEqual(masked, numbers)
            self.assertEqual((sum(sizes), max(sizes), len(sizes)), (80, 7, 12))
            self.assertEqual(most, 3)
            # Long values make requests of fewer fields.
            sizes.clear()
            arrow.mask(client, pa.array([LONG] * 8), app="demo", masks="keep")
            self.assertEqual(sizes, [4, 4])
        peer.close()

    def test_the_first_error_cancels_the_rest(self):
        together = threading.Barrier(3)

        def answer(peer, method, params):
            together.wait(PATIENCE_S)
            if 0 in params["payload"]:
                return "error", {"code": "forbidden", "message": "why", "details": {"path": "$[1]"}}
            return None

        peer = Peer(answer)
        with sealwire.Client(**peer.arguments) as client:
            with self.assertRaises(sealwire.ForbiddenError) as raised:
                arrow.mask(client, pa.array([None, 5, 0, 1, 2, 3, 4]), app="demo", masks="keep", batch_fields=2, in_flight=3)
            self.assertEqual(raised.exception.details, {"row": 2})
            cancelled = sorted(peer.notifications.get(timeout=PATIENCE_S) for _ in range(2))
        sent = sorted((msgid, params["payload"]) for msgid, _, params in (peer.requests.get() for _ in range(3)))
        self.assertEqual(cancelled, [("cancel", [msgid]) for msgid, payload in sent if 0 not in payload])
        peer.close()

    def test_a_deadline_passes(self):
        peer = Peer(silent)
        with sealwire.Client(**peer.arguments) as client, self.assertRaises(sealwire.DeadlineExceededError):
            arrow.mask(client, pa.array([1]), app="demo", masks="keep", deadline_ms=200)
        peer.close()

    def test_an_engine_that_is_away_is_waited_for(self):
        away = {"code": "overloaded", "message": "why", "retry_after_ms": 1}
        answers = itertools.chain([("error", away)] * 3 + [("close", None)] * 2, itertools.repeat(None))

        def answer(peer, method, params):
            return next(answers) or echo(peer, method, params)

        for retry_timeout_ms in (60_000, 0):
            peer = Peer(answer)
            with sealwire.Client(**peer.arguments, attempts_max=1) as client:
                if retry_timeout_ms:
                    numbers = pa.array(range(40))
                    masked = arrow.mask(client, numbers, app="demo", masks="keep", retry_timeout_ms=retry_timeout_ms, batch_fields=10)
                    self.assertEqual(masked, numbers)
                    self.assertEqual((client.stats()["repeated"] >= 4, client.stats()["values"]), (True, 40))
                else:
                    answers = itertools.repeat(("error", away))
                    with self.assertRaises(sealwire.OverloadedError):
                        arrow.mask(client, pa.array([1]), app="demo", masks="keep")
                    self.assertEqual(client.stats()["attempts"], 1)
            peer.close()


RULES = """
unknown = "refuse"
rule = [
    { path = "$.customer.name", mask = "partial(first=1)" },
    { column = "email", mask = "email" },
    { column = "born", mask = "date_shift(within=30, subject=id)" },
    { column = "city", mask = 'pseudonym(list=places)' },
    { column = "id", mask = "keep" },
    { kind = "card", mask = "card" },
]
[lists]
places = "places.txt"
"""


class Rules(unittest.TestCase):
    """Masking of tables by the rules of masking jobs."""

    @classmethod
    def setUpClass(cls):
        cls.client = sealwire.Client(**engine().arguments)
        cls.rules = arrow.Rules(RULES, {"places.txt": "Lund\nGent\n"})
        cls.table = pa.table({
            "id": [1, 1, 2, None],
            "customer": [{"name": "Zoë", "email": "zoe@mail.test"}, {"name": None, "email": None}, None, {"name": "Al", "email": "al@mail.test"}],
            "born": pa.array(["2000-01-15", "2000-02-15", "2000-01-15", None]),
            "city": ["Paris", "Rome", "Paris", None],
            "notes": pa.array([[SECRET, None], [], None, ["4111111111111111"]], pa.list_(pa.string())),
        })

    @classmethod
    def tearDownClass(cls):
        cls.client.close()

    def test_each_value_gets_the_mask_of_a_document(self):
        masked = arrow.mask(self.client, self.table, app="demo", rules=self.rules)
        self.assertEqual(masked.schema, self.table.schema)
        self.assertEqual(buffers(masked["id"]), buffers(self.table["id"]))
        rules = [
            {"path": "$.customer.name", "mask": "partial(first=1)"},
            {"column": "email", "mask": "email"},
            {"column": "born", "mask": "date_shift(within=30, subject=id)"},
            {"column": "city", "mask": "pseudonym(list=places)"},
            {"column": "id", "mask": "keep"},
            {"kind": "card", "mask": "card"},
        ]
        lists = {"places": ["Lund", "Gent"]}
        rows = [self.client.mask("demo", row, rules=rules, lists=lists).payload for row in self.table.to_pylist()]
        self.assertEqual(masked.to_pylist(), rows)
        # In small requests and as batches, too.
        batches = [arrow.mask(self.client, batch, app="demo", rules=self.rules, batch_fields=1) for batch in self.table.to_batches(2)]
        self.assertEqual(pa.Table.from_batches(batches).to_pylist(), rows)

    def test_values_that_no_rule_names_are_not_sent(self):
        peer = Peer(lambda peer, method, params: ("result", {"payload": params["payload"], "generation": 1}))
        rules = arrow.Rules('unknown = "keep"\nrule = [{ column = "city", mask = "hash" }, { kind = "card", mask = "card" }]')
        with sealwire.Client(**peer.arguments) as client:
            self.assertEqual(arrow.mask(client, self.table, app="demo", rules=rules), self.table)
        sent = [params["payload"] for _, _, params in (peer.requests.get() for _ in range(peer.requests.qsize()))]
        self.assertEqual(sorted(sent), [[["4242424242424242", "4111111111111111"]], [["Paris", "Rome", "Paris"]]])
        peer.close()

    def test_rules_can_be_pickled(self):
        again = pickle.loads(pickle.dumps(self.rules))
        masked = [arrow.mask(self.client, self.table, app="demo", rules=rules) for rules in (self.rules, again)]
        self.assertEqual(masked[0], masked[1])

    def test_rules_of_files(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "rules.toml"
            path.write_text(RULES)
            with self.assertRaisesRegex(ValueError, "places.txt"):
                arrow.Rules.from_file(path)
            (path.parent / "places.txt").write_text("Lund\nGent\n")
            masked = arrow.mask(self.client, self.table, app="demo", rules=arrow.Rules.from_file(path))
        self.assertEqual(masked, arrow.mask(self.client, self.table, app="demo", rules=self.rules))

    def test_what_is_rejected(self):
        column = 'unknown = "keep"\nrule = [{ column = "%s", mask = "%s" }]'
        for text, message in (
            (column % ("nothing", "hash"), "nothing"),
            ('unknown = "refuse"\nrule = [{ column = "city", mask = "hash" }]', "born"),
            ('unknown = "keep"\nrule = [{ path = "$.notes[0]", mask = "hash" }]', "index"),
        ):
            with self.subTest(text), self.assertRaisesRegex((ValueError, sealwire.Error), message) as raised:
                arrow.mask(self.client, self.table, app="demo", rules=arrow.Rules(text))
            self.assertNotIn("Paris", str(raised.exception))
        with self.assertRaisesRegex(ValueError, "line 1, column 1"):
            arrow.Rules("rules = 7")
        with self.assertRaisesRegex(ValueError, "places.txt"):
            arrow.Rules(RULES)
        for arguments in ({}, {"masks": {"city": "hash"}, "rules": self.rules}, {"rules": self.rules, "types": {}}):
            with self.subTest(arguments), self.assertRaises(TypeError):
                arrow.mask(self.client, self.table, app="demo", **arguments)

    def test_an_error_names_column_and_row(self):
        born = pa.array(["2000-01-15", None, "2000-01-16", "yesterday"])
        table = pa.table({"id": [1, 2, 3, 4], "born": born})
        rules = arrow.Rules('unknown = "keep"\nrule = [{ column = "born", mask = "date_shift(days=3)" }]')
        for batch_fields in (1, 2, 1000):
            with self.assertRaises(sealwire.BadRequestError) as raised:
                arrow.mask(self.client, table, app="demo", rules=rules, batch_fields=batch_fields)
            self.assertEqual(raised.exception.details, {"column": "born", "row": 3})
            self.assertNotIn("yesterday", str(raised.exception))

    def test_a_seed_gives_the_same_tokens_again(self):
        options = {"app": "demo", "collection": "people", "columns": ["city"]}
        seeds = [bytes(16), bytes(16), b"x" * 48, None]
        made = [arrow.tokenize(self.client, self.table, idempotency_seed=seed, batch_fields=2, **options)["city"] for seed in seeds]
        self.assertEqual(made[0], made[1])
        self.assertEqual(len({column[1].as_py() for column in made}), 3)
        for seed in (b"short", bytes(65)):
            with self.assertRaises(ValueError):
                arrow.tokenize(self.client, self.table, idempotency_seed=seed, **options)



def patients(count=300, last="+49 30 1234567"):
    """A table with labelled columns. Each value has the word canary, or is a number or a date."""
    mails = [f"canary{number}@mail.test" for number in range(count)]
    number = pa.array(range(count), pa.int64())
    return pa.table({
        "id": number,
        "email": pa.array([None if at % 7 == 0 else mail for at, mail in enumerate(mails)]),
        "patient": pa.StructArray.from_arrays(
            [pa.array(["canary" + "abc"[at % 3] * (at % 40) for at in range(count)]), pa.array([f"+49 30 {at * 7:07}" for at in range(count - 1)] + [last])],
            names=["last_name", "phone"],
        ),
        "emails": pa.array([[mail] for mail in mails]),
        "visits": pa.array([[(mail, at)] for at, mail in enumerate(mails)], pa.map_(pa.string(), pa.int64())),
        "birth_date": pa.array([at * 70 for at in range(count)], pa.int32()).cast(pa.date32()),
        "postal_code": pa.array([f"{10_000 + at * 37}" for at in range(count)]),
        "salary": pa.array([decimal.Decimal(at * 100) for at in range(count)], pa.decimal128(12, 2)),
        "user_email": pa.array(mails).dictionary_encode(),
        "password": pa.array([at for at in range(count)], pa.time64("us")),
        "quantity": number,
    })


class Discovery(unittest.TestCase):
    """Discovery of sensitive columns."""

    @classmethod
    def setUpClass(cls):
        cls.client = sealwire.Client(**engine().arguments)
        cls.table = patients()

    @classmethod
    def tearDownClass(cls):
        cls.client.close()

    def found(self, *arguments, **options):
        discovery = arrow.discover(*arguments, table="patients", **options)
        said = [repr(discovery), repr(discovery.fields), str(discovery.notes), discovery.to_toml()]
        said += [str((field.field, field.evidence, field.mask)) for field in discovery.fields]
        for text in said:
            self.assertNotIn("canary", text)
            self.assertNotIn("mail.test", text)
        return discovery, {field.field: (field.verdict, field.mask) for field in discovery.fields}

    def test_labelled_columns_get_rules_that_mask(self):
        expected = {
            "$.id": ("harmless", None),
            "$.email": ("sensitive", "email"),
            "$.patient.last_name": ("sensitive", "pseudonym(list=last_names)"),
            "$.patient.phone": ("sensitive", "phone"),
            "$.emails[*]": ("sensitive", "email"),
            "$.visits[*]": ("harmless", None),
            "$.birth_date": ("sensitive", "date_shift(within=365)"),
            "$.postal_code": ("sensitive", "postal_code"),
            "$.salary": ("sensitive", "noise(percent=10)"),
            "$.user_email": ("uncertain", None),
            "$.password": ("uncertain", None),
            "$.quantity": ("harmless", None),
        }
        before = self.client.stats()["values"]
        tried, fields = self.found(self.table, client=self.client, app="demo", reason="discovery")
        self.assertEqual(fields, expected)
        self.assertGreater(self.client.stats()["values"], before)
        rules = arrow.Rules(tried.to_toml())
        masked = arrow.mask(self.client, self.table, app="demo", rules=rules)
        self.assertEqual(masked.schema, self.table.schema)
        for name in ("email", "patient", "emails", "birth_date", "postal_code", "salary"):
            self.assertNotEqual(masked[name], self.table[name], name)
        self.assertIn("keys of the map $.visits have the form of personal data, and masking never changes keys", tried.notes)
        by_name = {field.field: field for field in tried.fields}
        self.assertEqual((by_name["$.email"].category, by_name["$.email"].values), ("email", 257))
        self.assertGreater(by_name["$.email"].confidence, 0.9)
        self.assertIn("cast it to the type of its values", str(by_name["$.user_email"].evidence))
        self.assertIn("which cannot be masked", str(by_name["$.password"].evidence))
        # Without an engine, functions come from type and form, and a note says so.
        untried, fields = self.found(self.table)
        self.assertEqual(fields, {**expected, "$.postal_code": ("sensitive", "redact")})
        self.assertIn("type and form", str(untried.notes))
        arrow.mask(self.client, self.table, app="demo", rules=arrow.Rules(untried.to_toml()))

    def test_functions_that_do_not_fit_a_value_are_not_proposed(self):
        for options in ({}, {"client": self.client, "app": "demo"}):
            _, fields = self.found(patients(last="canary"), **options)
            self.assertEqual(fields["$.patient.phone"], ("sensitive", "hash"))

    def test_batches_and_streams_are_read_alike(self):
        whole, _ = self.found(self.table)
        (batch,) = self.table.combine_chunks().to_batches()
        reader = pa.RecordBatchReader.from_batches(self.table.schema, iter(self.table.to_batches(max_chunksize=7)))
        for data in (batch, reader, pl.from_arrow(self.table.drop(["visits", "user_email"]))):
            discovery, fields = self.found(data)
            if not isinstance(data, pl.DataFrame):
                self.assertEqual(discovery.to_toml(), whole.to_toml())
            self.assertEqual(fields["$.email"], ("sensitive", "email"))
        self.assertEqual(self.found(self.table, seed=2)[1], self.found(self.table, seed=2)[1])
        self.assertEqual(self.found(self.table, sample=10)[0].fields[0].values, 10)
        strict, _ = self.found(self.table, min_confidence=1.0)
        self.assertEqual({field.verdict for field in strict.fields}, {"uncertain", "harmless"})
        arrow.Rules(strict.to_toml())
        self.assertEqual(arrow.discover(pa.table({})).fields, [])

    def test_threads_run_while_a_stream_is_read(self):
        started, seen = threading.Event(), threading.Event()

        def batches():
            for at, batch in enumerate(self.table.to_batches(max_chunksize=50)):
                if at == 2:
                    started.set()
                    # Returns only if the other thread gets the interpreter.
                    self.assertTrue(seen.wait(PATIENCE_S))
                yield batch

        def other():
            started.wait(PATIENCE_S)
            seen.set()

        thread = threading.Thread(target=other)
        thread.start()
        self.found(pa.RecordBatchReader.from_batches(self.table.schema, batches()))
        thread.join()

    def test_what_is_rejected(self):
        def fails():
            yield self.table.to_batches()[0]
            raise ValueError("canary")

        broken = pa.RecordBatchReader.from_batches(self.table.schema, fails())
        for data, options, message in (
            (self.table, {"client": self.client}, "client and app together"),
            (self.table, {"app": "demo"}, "client and app together"),
            (self.table, {"reason": "x"}, "without a client"),
            (self.table, {"client": self.client, "app": "demo", "colour": 1}, "colour"),
            (self.table, {"client": self.client, "app": "demo", "select": ["$"]}, "select"),
            (self.table, {"sample": 9}, "sample must be in"),
            (self.table, {"sample": "many"}, "must be an integer"),
            (self.table, {"min_confidence": 1.5}, "from 0 to 1"),
            (self.table, {"seed": -1}, "must be an integer"),
            (self.table["email"], {}, "needs a table"),
            (pa.array(["canary"]), {}, "needs a table"),
            ({"email": ["canary"]}, {}, "Arrow PyCapsule interface"),
            (broken, {}, "the stream failed"),
        ):
            with self.subTest(message), self.assertRaisesRegex((TypeError, ValueError), message) as raised:
                arrow.discover(data, **options)
            self.assertNotIn("canary", str(raised.exception))
        with self.assertRaises(sealwire.Error) as raised:
            arrow.discover(self.table, client=self.client, app="nothing")
        self.assertNotIn("canary", str(raised.exception))
        with self.assertRaisesRegex(TypeError, "cannot|No constructor"):
            arrow.Discovery()


if __name__ == "__main__":
    unittest.main()
