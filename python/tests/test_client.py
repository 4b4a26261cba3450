import asyncio
import collections.abc
import datetime
import decimal
import logging
import math
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import uuid
from unittest import mock

import msgpack
import sealwire
from support import PATIENCE_S, Peer, RawPayload, client_files, echo, engine, silent

DOCUMENT = {
    "strings": ["", "x", "Zoë \U0001f511", "a" * 70_000],
    "integers": [0, 1, -1, 127, 128, -128, -129, 2**63 - 1, -(2**63), 2**64 - 1],
    "floats": [0.0, 1.5, 1e308, 5e-324, math.inf],
    "booleans": [True, False],
    "binary": [b"", b"\x00\xff", bytes(300)],
    "nothing": None,
    "moments": [
        datetime.datetime(2026, 3, 14, 9, 26, 53, 589793, datetime.timezone.utc),
        datetime.datetime(1, 1, 1, tzinfo=datetime.timezone.utc),
        datetime.datetime(2600, 1, 1, tzinfo=datetime.timezone.utc),
        datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc),
    ],
    "extension": sealwire.Extension(7, b"\x01\x02"),
    "nested": {"a": [{"b": [{"c": []}, {}]}]},
    3: {b"bytes": -1},
}
SECRET = "4242424242424242"


def types(value):
    if isinstance(value, dict):
        return {key: types(child) for key, child in value.items()}
    if isinstance(value, list):
        return [types(child) for child in value]
    return type(value)


class FineDatetime(datetime.datetime):
    """Finer than a microsecond, as the one of pandas."""

    nanosecond = 123


class Documents(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.client = sealwire.Client(**engine().arguments)

    @classmethod
    def tearDownClass(cls):
        cls.client.close()

    def test_values_come_back_with_their_types(self):
        for options in ({}, {"suite": "xaes"}, {"key_scope": "field"}, {"encoding": "binary"}, {"context": b"row 7"}):
            sealed = self.client.encrypt("demo", DOCUMENT, **options)
            self.assertNotEqual(sealed.payload, DOCUMENT)
            context = {key: options[key] for key in options if key == "context"}
            opened = self.client.decrypt("demo", sealed.payload, **context).payload
            self.assertEqual(opened, DOCUMENT, options)
            self.assertEqual(types(opened), types(DOCUMENT), options)
        self.assertGreater(sealed.generation, 0)

    def test_rows_have_contexts_of_their_own(self):
        rows = [{"id": "row 7", "card": SECRET}, {"id": 8, "card": [1, None]}]
        for contexts in ({"path": "$.id"}, ["row 7", b"8"], ("row 7", "8")):
            sealed = self.client.encrypt("demo", rows, select=["$[*].card"], contexts=contexts).payload
            for row, plain, context in zip(sealed, rows, ["row 7", "8"]):
                self.assertEqual(self.client.decrypt("demo", row, context=context).payload, plain)
                with self.assertRaises(sealwire.CannotOpenError):
                    self.client.decrypt("demo", row, context="other")
            self.assertEqual(self.client.decrypt("demo", sealed, contexts=contexts).payload, rows)
            again = self.client.rewrap("demo", sealed, suite="xaes", contexts=contexts).payload
            self.assertEqual(self.client.decrypt("demo", again, contexts=contexts).payload, rows)
        for wrong in (["one"], {"path": "$..id"}, {"path": "id"}):
            with self.assertRaises(sealwire.BadRequestError):
                self.client.encrypt("demo", rows, contexts=wrong)
        for wrong in ("row 7", [7], {"paths": "$.id"}, {"path": "$.id", "more": 1}, {"path": 7}, {}, 7):
            with self.assertRaisesRegex(TypeError, "'contexts' must be a list of bytes or strings, or a dictionary"):
                self.client.encrypt("demo", rows, contexts=wrong)
        with self.assertRaises(TypeError):
            self.client.mask("demo", rows, rules=[], contexts=["a"])

    def test_what_python_has_besides_is_sent_as_its_nearest(self):
        east = datetime.timezone(datetime.timedelta(hours=2))
        for sent, expected in [
            ((1, "x"), [1, "x"]),
            (bytearray(b"ab"), b"ab"),
            (memoryview(b"abcd")[::2], b"ac"),
            (datetime.datetime(2026, 1, 1, 2, tzinfo=east), datetime.datetime(2026, 1, 1, tzinfo=datetime.timezone.utc)),
        ]:
            sealed = self.client.encrypt("demo", [sent])
            opened = self.client.decrypt("demo", sealed.payload).payload
            self.assertEqual(opened, [expected])

    def test_select_leaves_the_rest(self):
        document = {"name": "Zoë", "card": {"number": SECRET}, "total": 12990}
        sealed = self.client.encrypt("demo", document, select=["$.card.number", "$.absent"])
        self.assertEqual(sealed.unmatched, [1])
        self.assertTrue(sealed.payload["card"]["number"].startswith("sw1:"))
        self.assertEqual((sealed.payload["name"], sealed.payload["total"]), ("Zoë", 12990))
        self.assertEqual(self.client.decrypt("demo", sealed.payload).payload, document)

    def test_rewrap_and_inspect(self):
        envelope = self.client.encrypt("demo", "text").payload
        again = self.client.rewrap("demo", envelope, suite="xaes").payload
        self.assertNotEqual(again, envelope)
        self.assertEqual(self.client.decrypt("demo", again).payload, "text")
        described = self.client.inspect(again)
        self.assertEqual((described["suite"], described["datatype"], described["plaintext_bytes"]), ("xaes", "string", 4))

    def test_tokens(self):
        people = {"names": ["Zoë", "Ada", None, "Zoë"]}
        made = self.client.tokenize("demo", people, collection="people", tags=["import"], expires_s=3600)
        self.assertIsNone(made.payload["names"][2])
        self.assertNotIn("Zoë", made.payload["names"])
        self.assertEqual(self.client.detokenize("demo", made.payload, collection="people").payload, people)

    def test_mask(self):
        document = {"card": SECRET, "name": "Zoë"}
        rules = [{"column": "card", "mask": "partial(last=4)"}, {"path": "$.name", "mask": "keep"}]
        masked = self.client.mask("demo", document, rules=rules).payload
        self.assertEqual(masked, {"card": "*" * 12 + "4242", "name": "Zoë"})
        with self.assertRaises(sealwire.BadRequestError):
            self.client.mask("demo", document, rules=rules[:1])
        self.assertEqual(self.client.mask("demo", document, rules=rules[:1], unknown="keep").payload, masked)

    def test_reported_errors_name_their_fields(self):
        sealed = self.client.encrypt("demo", {"a": "x", "b": "y"}, context="here").payload
        reported = self.client.decrypt("demo", sealed, context="there", on_error="report")
        self.assertEqual(reported.payload, sealed)
        expected = [("$.a", "cannot_open"), ("$.b", "cannot_open")]
        self.assertEqual([(error.path, error.code) for error in reported.errors], expected)

    def test_the_server_describes_itself(self):
        info = self.client.info()
        self.assertEqual((info["name"], info["protocol"]), ("sealwire", 1))
        self.assertIn("encrypt", info["methods"])
        self.assertGreater(info["limits"]["message_bytes_max"], 0)
        self.assertIsNone(self.client.health())
        self.assertGreater(self.client.stats()["attempts"], 0)

    def test_nothing_prints_a_value(self):
        sealed = self.client.encrypt("demo", {"card": SECRET})
        opened = self.client.decrypt("demo", sealed.payload)
        for printed in (repr(opened), str(opened), repr(self.client), repr(sealwire.Extension(1, SECRET.encode()))):
            self.assertNotIn(SECRET, printed)


class Raises(datetime.tzinfo):
    """A time zone whose code raises an exception, or does something else."""

    def __init__(self, act):
        self._act = act

    def utcoffset(self, _):
        self._act()
        return datetime.timedelta(0)


class RaisesAsList(collections.abc.Sequence):
    """A sequence whose code raises an exception."""

    def __init__(self, raised):
        self._raised = raised

    def __len__(self):
        return 1

    def __getitem__(self, _):
        raise self._raised


def moment(act):
    return datetime.datetime(2026, 1, 1, tzinfo=Raises(act))


class Conversions(unittest.TestCase):
    """What happens while values are converted."""

    def setUp(self):
        self.sent = None
        self.peer = Peer(lambda _peer, _method, params: ("result", {"payload": self.sent, "generation": 1}))
        self.client = sealwire.Client(**self.peer.arguments)
        self.addCleanup(self.peer.close)
        self.addCleanup(self.client.close)

    def test_maps_whose_keys_are_equal_in_python_are_an_error(self):
        for keys in [(1, True), (1, 1.0), (0, False), (True, 1.0), ("a", "a"), (b"a", b"a"), (-1, -1.0)]:
            pairs = b"".join(msgpack.packb(key) + msgpack.packb(SECRET) for key in keys)
            for before, after in [(b"", b""), (b"\x91", b""), (b"\x81\xa1k", b"")]:
                self.sent = RawPayload(before + b"\x82" + pairs + after)
                with self.assertRaisesRegex(sealwire.ProtocolError, "equal in Python") as raised:
                    self.client.decrypt("demo", 1)
                self.assertNotIn(SECRET, str(raised.exception))
        self.sent = RawPayload(b"\x83\x01\x01\xa1\x31\x01\xc4\x01\x31\x01")
        self.assertEqual(self.client.decrypt("demo", 1).payload, {1: 1, "1": 1, b"1": 1})

    def test_a_document_that_changes_meanwhile_is_sent_as_it_was(self):
        for make in (lambda: {"a": 1, "b": 2}, lambda: [1, 2, 3]):
            for change in (lambda document: document.clear(), lambda document: grow(document)):
                document = make()
                acts = moment(lambda change=change, document=document: change(document))
                if isinstance(document, dict):
                    document["first"] = acts
                    document["last"] = 3
                else:
                    document.insert(1, acts)
                self.sent = 1
                count = len(document)
                self.client.encrypt("demo", document)
                _, _, params = self.peer.requests.get(timeout=PATIENCE_S)
                self.assertEqual(len(params["payload"]), count)

    def test_threads_that_change_a_document_raise_nothing_else(self):
        document, ends = {}, threading.Event()

        def change():
            while not ends.is_set():
                for number in range(100):
                    document[number] = moment(lambda: None)
                document.clear()

        thread = threading.Thread(target=change)
        thread.start()
        try:
            for _ in range(300):
                self.sent = 1
                self.client.encrypt("demo", {"a": document})
        finally:
            ends.set()
            thread.join()

    def test_exceptions_that_are_not_about_a_value_pass(self):
        for raised in (KeyboardInterrupt(), MemoryError(), SystemExit(3), asyncio.CancelledError()):
            def act(raised=raised):
                raise raised

            for call in [
                lambda: self.client.encrypt("demo", [moment(act)]),
                lambda: self.client.encrypt("demo", {"a": moment(act)}),
                lambda: self.client.encrypt("demo", 1, select=RaisesAsList(raised)),
                lambda: self.client.mask("demo", 1, rules=RaisesAsList(raised)),
                lambda: self.client.tokenize("demo", 1, collection="people", tags=RaisesAsList(raised)),
                lambda: sealwire.Client(RaisesAsList(raised), **client_files(engine().folder)),
            ]:
                with self.assertRaises(type(raised)) as caught:
                    call()
                self.assertIs(caught.exception, raised)

        def fails():
            raise RuntimeError(SECRET)

        with self.assertRaisesRegex(ValueError, "a datetime that cannot be read") as raised:
            self.client.encrypt("demo", [moment(fails)])
        self.assertNotIn(SECRET, str(raised.exception))


class Certificates(unittest.TestCase):
    """Certificates that are renewed under a client, and those that an engine rejects."""

    def test_a_renewal_that_fails_is_told(self):
        with tempfile.TemporaryDirectory() as folder:
            files = {name: shutil.copy(path, folder) for name, path in client_files(engine().folder).items()}
            with sealwire.Client(**{**engine().arguments, **files, "connection_age_max_ms": 10_000}) as client:
                client.health()
                self.assertIsNone(client.renewal_error)
                key = pathlib.Path(files["key"]).read_text()
                pathlib.Path(files["key"]).write_text("no key")
                with self.assertLogs("sealwire", "WARNING") as logs:
                    self.wait_for(client, lambda: client.renewal_error is not None)
                    client.health()
                self.assertIn("do not load", client.renewal_error)
                self.assertEqual(len(logs.output), 1)
                self.assertNotIn(key.splitlines()[1], logs.output[0])
                pathlib.Path(files["key"]).write_text(key)
                self.wait_for(client, lambda: client.renewal_error is None)

    def test_a_logger_that_fails_replaces_no_result_and_no_error(self):
        def fails(_):
            raise raised

        logger = logging.getLogger("sealwire")
        for raised, passes in [(ValueError("logger"), False), (KeyboardInterrupt("logger"), True)]:
            with tempfile.TemporaryDirectory() as folder:
                files = {name: shutil.copy(path, folder) for name, path in client_files(engine().folder).items()}
                with sealwire.Client(**{**engine().arguments, **files, "connection_age_max_ms": 10_000}) as client:
                    client.health()
                    pathlib.Path(files["key"]).write_text("no key")
                    logger.addFilter(fails)
                    try:
                        with mock.patch.object(sys, "unraisablehook") as told:
                            if passes:
                                with self.assertRaises(KeyboardInterrupt):
                                    self.wait_for(client, lambda: client.renewal_error is not None)
                                    client.health()
                            else:
                                self.wait_for(client, lambda: client.renewal_error is not None)
                                self.assertIsNone(client.health())
                            self.assertEqual(told.called, not passes)
                    finally:
                        logger.removeFilter(fails)

    def wait_for(self, client, is_so):
        end = time.monotonic() + PATIENCE_S
        while not is_so() and time.monotonic() < end:
            # Files are looked at while requests are made.
            client.health()
            time.sleep(0.1)
        self.assertTrue(is_so())

    def test_a_rejected_certificate_is_named(self):
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run([os.environ["SEALWIRE_PROGRAM"], "dev", "--folder", f"{folder}/other", "--demo-only",
                            "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--control", "127.0.0.1:0", "--http", "127.0.0.1:0"],
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
            other = client_files(f"{folder}/other")
            with sealwire.Client(**{**engine().arguments, "cert": other["cert"], "key": other["key"]}) as client:
                with self.assertRaisesRegex(sealwire.ConfigError, "does not trust the issuer of this client's certificate"):
                    client.health()
                # None, if the alert came before the request was placed.
                self.assertLessEqual(client.stats()["attempts"], 1)


def grow(document):
    for number in range(1000):
        if isinstance(document, dict):
            document[number] = number
        else:
            document.append(number)


class Unfit(unittest.TestCase):
    """Values that cannot be sent are rejected by place and type, before anything is sent."""

    def test_values(self):
        looped = []
        looped.append(looped)
        for value, error, expected in [
            (decimal.Decimal(SECRET), TypeError, "$.cards[1].number: a value of type Decimal cannot be sent"),
            ({SECRET}, TypeError, "$.cards[1].number: a value of type set cannot be sent"),
            (uuid.UUID(int=int(SECRET)), TypeError, "$.cards[1].number: a value of type UUID cannot be sent"),
            (datetime.date(2026, 1, 1), TypeError, "$.cards[1].number: a value of type date cannot be sent"),
            (datetime.datetime(2026, 1, 1), TypeError, "$.cards[1].number: a datetime without a time zone cannot be sent"),
            (FineDatetime(2026, 1, 1, tzinfo=datetime.timezone.utc), ValueError, "$.cards[1].number: a datetime with nanoseconds"),
            (int(SECRET) << 64, ValueError, "$.cards[1].number: an integer outside -2**63 to 2**64-1 cannot be sent"),
            (SECRET + "\udc80", ValueError, "$.cards[1].number: a string with lone surrogates cannot be sent"),
            ({None: SECRET}, TypeError, "$.cards[1].number: a key of type NoneType cannot be sent"),
            ({(1, SECRET): 1}, TypeError, "$.cards[1].number: a key of type tuple cannot be sent"),
        ]:
            document = {"cards": ["x", {"number": value}]}
            with sealwire.Client("127.0.0.1:1", **client_files(engine().folder)) as client:
                with self.assertRaises(error) as raised:
                    client.encrypt("demo", document)
            self.assertEqual(str(raised.exception), expected)
        with sealwire.Client("127.0.0.1:1", **client_files(engine().folder)) as client:
            with self.assertRaisesRegex(ValueError, "more than 256 nested containers"):
                client.encrypt("demo", looped)

    def test_options(self):
        with sealwire.Client("127.0.0.1:1", **client_files(engine().folder)) as client:
            for call, error, expected in [
                (lambda: client.encrypt("demo", 1, colour="red"), TypeError, "encrypt\\(\\) got an unexpected .* 'colour'"),
                (lambda: client.decrypt("demo", 1, suite="xaes"), TypeError, "unexpected keyword argument 'suite'"),
                (lambda: client.mask("demo", 1, rules=[], select=["$"]), TypeError, "unexpected keyword argument 'select'"),
                (lambda: client.encrypt("demo", 1, select="$.a"), TypeError, "'select' must be a list of strings"),
                (lambda: client.encrypt("demo", 1, deadline_ms="soon"), TypeError, "'deadline_ms' must be an integer"),
                (lambda: client.encrypt("demo", 1, suite="p521"), ValueError, "'suite' must be one of 'p256-psk', "),
                (lambda: client.tokenize("demo", 1), TypeError, "missing required keyword argument 'collection'"),
                (lambda: client.encrypt(7, 1), TypeError, "'app' must be a string"),
                (lambda: client.mask("demo", 1, rules=[{"mask": "keep"}]), TypeError, "'rules' at 0 must have"),
                (lambda: client.inspect(7), TypeError, "'envelope' must be a string or bytes"),
            ]:
                with self.assertRaisesRegex(error, expected):
                    call()

    def test_settings(self):
        files = client_files(engine().folder)
        for endpoints, settings, error, expected in [
            ("127.0.0.1:1", {"colour": "red"}, TypeError, "unexpected keyword argument 'colour'"),
            ("127.0.0.1:1", {"ca": "/nonexistent"}, sealwire.ConfigError, "nonexistent"),
            ("127.0.0.1:1", {"key": b"text"}, sealwire.ConfigError, "contains no unencrypted PEM private key"),
            ("127.0.0.1:1", {"attempts_max": 0}, sealwire.ConfigError, "attempts_max must be in 1..=100"),
            ("127.0.0.1:1", {"threads": 0}, ValueError, "threads must be in 1..=64"),
            ([7], {}, TypeError, "an endpoint must be"),
        ]:
            with self.assertRaisesRegex(error, expected):
                sealwire.Client(endpoints, **{**files, **settings})
        text = pathlib.Path(files["key"]).read_text()
        for key in (text, text.strip(), "".join(text.splitlines()[1:-1]), pathlib.Path(text)):
            with self.assertRaisesRegex(sealwire.ConfigError, "or the text as bytes") as raised:
                sealwire.Client("127.0.0.1:1", **{**files, "key": key})
            self.assertNotIn(text.splitlines()[1][:20], str(raised.exception))
        folder = pathlib.Path(engine().folder)
        pem = {name: pathlib.Path(path).read_bytes() for name, path in files.items()}
        with sealwire.Client(**{**engine().arguments, **pem}) as client:
            client.health()
        with sealwire.Client(**{**engine().arguments, "ca": folder / "ca.pem"}) as client:
            client.health()


class Errors(unittest.TestCase):
    def test_each_code_of_an_engine_has_its_class(self):
        with sealwire.Client(**engine().arguments) as client:
            sealed = client.encrypt("demo", {"card": SECRET}, context="here").payload
            for call, error, code in [
                (lambda: client.decrypt("demo", sealed, context="there"), sealwire.CannotOpenError, "cannot_open"),
                (lambda: client.encrypt("nobody", SECRET), sealwire.NotFoundError, "not_found"),
                (lambda: client.encrypt("demo", SECRET, select=[]), sealwire.BadRequestError, "bad_request"),
                (lambda: client.encrypt("demo", SECRET, min_generation=2**40), sealwire.ConflictError, "conflict"),
                (lambda: client.inspect(SECRET), sealwire.BadRequestError, "bad_request"),
            ]:
                with self.assertRaises(error) as raised:
                    call()
                self.assertIsInstance(raised.exception, sealwire.Error)
                self.assertEqual(raised.exception.code, code)
                self.assertNotIn(SECRET, f"{raised.exception!r} {raised.exception} {raised.exception.details}")
            with self.assertRaises(sealwire.CannotOpenError) as raised:
                client.decrypt("demo", sealed)
            self.assertEqual(raised.exception.details, {"path": "$.card"})

    def test_every_code_of_the_contract(self):
        contract = (pathlib.Path(__file__).parents[2] / "proto/README.md").read_text()
        table = contract.split("| code | meaning | retry |\n| --- | --- | --- |\n")[1].split("\n\n")[0]
        codes = [row.split("`")[1] for row in table.splitlines()]
        self.assertEqual(len(codes), 12)
        for code in codes:
            answer = {"code": code, "message": "why", "retry_after_ms": 7, "details": {"max": 3, "limit": "x"}}
            peer = Peer(lambda *_, answer=answer: ("error", answer))
            with sealwire.Client(**peer.arguments, attempts_max=1) as client, self.assertRaises(sealwire.Error) as raised:
                client.encrypt("demo", 1)
            peer.close()
            self.assertIsNot(type(raised.exception), sealwire.Error)
            self.assertEqual(raised.exception.code, code)
            if code != "deadline_exceeded":
                self.assertEqual((raised.exception.message, raised.exception.retry_after_ms), ("why", 7))
                self.assertEqual(raised.exception.details, {"max": 3, "limit": "x"})

    def test_no_connection(self):
        with sealwire.Client("127.0.0.1:1", **client_files(engine().folder), attempts_max=1) as client:
            with self.assertRaises(sealwire.ConnectError) as raised:
                client.health()
        self.assertIsInstance(raised.exception, ConnectionError)

    def test_a_server_of_another_name(self):
        arguments = {**engine().arguments, "server_name": "elsewhere.example"}
        with sealwire.Client(**arguments) as client, self.assertRaisesRegex(sealwire.ConnectError, "certificate"):
            client.health()

    def test_a_closed_client(self):
        client = sealwire.Client(**engine().arguments)
        client.close()
        client.close()
        with self.assertRaisesRegex(sealwire.ConfigError, "closed"):
            client.health()

    def test_a_forked_process_is_told(self):
        with sealwire.Client(**engine().arguments) as client:
            client.health()
            child = os.fork()
            if child == 0:
                signal.alarm(PATIENCE_S)
                status = 1
                try:
                    client.health()
                except sealwire.ConfigError as error:
                    status = 0 if "fork" in str(error) else 2
                    client.close()
                os._exit(status)
            self.assertEqual(os.waitpid(child, 0)[1], 0)
            client.health()


class Lifecycle(unittest.TestCase):
    """Deadlines, cancellation, retries: against a server whose answers are the test's."""

    def test_a_deadline_passes_and_the_server_is_told(self):
        peer = Peer(silent)
        with sealwire.Client(**peer.arguments) as client:
            # On a slow machine a short deadline passes before the request is sent.
            for deadline_ms in (300, 3_000, 30_000):
                with self.assertRaises(sealwire.DeadlineExceededError) as raised:
                    client.encrypt("demo", SECRET, deadline_ms=deadline_ms)
                if not peer.requests.empty():
                    break
            self.assertIsInstance(raised.exception, TimeoutError)
            msgid, _, params = peer.requests.get(timeout=PATIENCE_S)
            self.assertLessEqual(params["deadline_ms"], deadline_ms)
            self.assertEqual(peer.notifications.get(timeout=PATIENCE_S), ("cancel", [msgid]))
        with sealwire.Client(**peer.arguments, deadline_ms=200) as client, self.assertRaises(TimeoutError):
            client.encrypt("demo", SECRET)
        peer.close()

    def test_an_overloaded_server_is_asked_again(self):
        overloaded = {"code": "overloaded", "message": "later", "retry_after_ms": 1, "details": {"reason": "backlog"}}
        answers = iter([("error", overloaded), ("error", overloaded)])
        peer = Peer(lambda *request: next(answers, None) or echo(*request))
        with sealwire.Client(**peer.arguments) as client:
            self.assertEqual(client.encrypt("demo", "x").payload, "x")
            self.assertEqual((client.stats()["attempts"], client.stats()["retries"]), (3, 2))
        peer.close()

    def test_a_connection_that_ends_is_replaced(self):
        def answer(peer, method, params):
            if peer.requests.qsize() == 1:
                return "close", None
            return echo(peer, method, params)

        peer = Peer(answer)
        with sealwire.Client(**peer.arguments) as client:
            self.assertEqual(client.encrypt("demo", ["x"]).payload, ["x"])
        peer.close()

    def test_an_interrupt_ends_a_waiting_request(self):
        def interrupt(*_):
            os.kill(os.getpid(), signal.SIGINT)

        # A shell that starts the tests in the background has them ignore the signal.
        previous = signal.signal(signal.SIGINT, signal.default_int_handler)
        self.addCleanup(signal.signal, signal.SIGINT, previous)
        peer = Peer(interrupt)
        with sealwire.Client(**peer.arguments) as client:
            with self.assertRaises(KeyboardInterrupt):
                client.encrypt("demo", SECRET, deadline_ms=1_000 * PATIENCE_S)
            msgid, _, _ = peer.requests.get(timeout=PATIENCE_S)
            self.assertEqual(peer.notifications.get(timeout=PATIENCE_S), ("cancel", [msgid]))
        peer.close()

    def test_threads_share_a_client_and_its_connection(self):
        together = threading.Barrier(8)

        def answer(*request):
            together.wait(PATIENCE_S)
            return echo(*request)

        peer, results = Peer(answer), {}
        with sealwire.Client(**peer.arguments) as client:
            def ask(number):
                results[number] = client.encrypt("demo", number).payload

            threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(PATIENCE_S)
        self.assertEqual(results, {number: number for number in range(8)})
        peer.close()


if __name__ == "__main__":
    unittest.main()
