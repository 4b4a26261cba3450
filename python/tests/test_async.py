import asyncio
import gc
import os
import threading
import time
import unittest

import sealwire
from support import PATIENCE_S, Peer, client_files, echo, engine, silent


async def heard(queue):
    return await asyncio.to_thread(queue.get, timeout=PATIENCE_S)


class Async(unittest.IsolatedAsyncioTestCase):
    async def test_documents(self):
        document = {"name": "Zoë", "photo": b"\x00\xff", "numbers": [1, 2.5, None]}
        async with sealwire.AsyncClient(**engine().arguments) as client:
            sealed = await client.encrypt("demo", document, context="row 7")
            self.assertEqual((await client.decrypt("demo", sealed.payload, context="row 7")).payload, document)
            tokens = (await client.tokenize("demo", ["Zoë"], collection="people")).payload
            self.assertEqual((await client.detokenize("demo", tokens, collection="people")).payload, ["Zoë"])
            rules = [{"column": "name", "mask": "redact"}]
            masked = (await client.mask("demo", document, rules=rules, unknown="keep")).payload
            self.assertNotEqual(masked["name"], "Zoë")
            again = (await client.rewrap("demo", sealed.payload["name"], context="row 7")).payload
            self.assertEqual((await client.inspect(again))["datatype"], "string")
            self.assertEqual((await client.info())["protocol"], 1)
            self.assertIsNone(await client.health())
            self.assertGreater(client.stats()["attempts"], 0)

    async def test_errors(self):
        async with sealwire.AsyncClient(**engine().arguments) as client:
            with self.assertRaises(sealwire.NotFoundError):
                await client.encrypt("nobody", 1)
            with self.assertRaises(TypeError):
                await client.encrypt("demo", {1, 2})
            with self.assertRaises(TypeError):
                await client.encrypt("demo", 1, colour="red")
        with self.assertRaisesRegex(sealwire.ConfigError, "closed"):
            await client.health()

    async def test_requests_run_at_once_on_one_connection(self):
        together = threading.Barrier(50)

        def answer(*request):
            together.wait(PATIENCE_S)
            return echo(*request)

        peer = Peer(answer)
        async with sealwire.AsyncClient(**peer.arguments) as client:
            documents = await asyncio.gather(*(client.encrypt("demo", number) for number in range(50)))
        self.assertEqual([document.payload for document in documents], list(range(50)))
        peer.close()

    async def test_cancelling_a_task_cancels_its_request(self):
        peer = Peer(silent)
        async with sealwire.AsyncClient(**peer.arguments) as client:
            task = asyncio.create_task(client.encrypt("demo", "x", deadline_ms=600_000))
            msgid, _, _ = await heard(peer.requests)
            task.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await task
            self.assertEqual(await heard(peer.notifications), ("cancel", [msgid]))
        peer.close()

    async def test_an_expired_time_out_cancels_its_request(self):
        peer, loop = Peer(silent), asyncio.get_running_loop()

        async def expire(limit):
            msgid, _, _ = await heard(peer.requests)
            limit.reschedule(loop.time())
            return msgid

        async with sealwire.AsyncClient(**peer.arguments) as client:
            with self.assertRaises(TimeoutError):
                async with asyncio.timeout(None) as limit:
                    expired = loop.create_task(expire(limit))
                    await client.encrypt("demo", "x", deadline_ms=600_000)
            msgid = await expired
            self.assertEqual(await heard(peer.notifications), ("cancel", [msgid]))
        peer.close()

    async def test_a_deadline_passes(self):
        peer = Peer(silent)
        async with sealwire.AsyncClient(**peer.arguments) as client:
            with self.assertRaises(sealwire.DeadlineExceededError):
                await client.encrypt("demo", "x", deadline_ms=200)
        peer.close()

    async def test_a_cancelled_request_leaves_its_connection_to_the_others(self):
        release = threading.Event()

        def answer(peer, method, params):
            if params["payload"] == "slow":
                release.wait(PATIENCE_S)
            return echo(peer, method, params)

        peer = Peer(answer)
        async with sealwire.AsyncClient(**peer.arguments) as client:
            slow = asyncio.create_task(client.encrypt("demo", "slow"))
            await heard(peer.requests)
            slow.cancel()
            self.assertEqual((await client.encrypt("demo", "quick")).payload, "quick")
            release.set()
            # The late response of the cancelled request is dropped.
            self.assertEqual((await client.encrypt("demo", "later")).payload, "later")
            self.assertTrue(slow.cancelled())
        peer.close()

    async def test_closing_ends_what_is_waited_for(self):
        peer = Peer(silent)
        client = sealwire.AsyncClient(**peer.arguments)
        task = asyncio.create_task(client.encrypt("demo", "x"))
        await heard(peer.requests)
        await client.close()
        with self.assertRaisesRegex(sealwire.ConfigError, "closed during the request"):
            await task
        peer.close()


class Logging(unittest.IsolatedAsyncioTestCase):
    async def test_a_logger_that_fails_replaces_no_result_and_no_error(self):
        class Native:
            def log_renewal(self):
                raise ValueError("logger")

        class Requests:
            def start(self, native, built, future):
                if isinstance(outcome, Exception):
                    future.set_exception(outcome)
                else:
                    future.set_result(outcome)

            def close(self):
                pass

        told = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: told.append(str(context["exception"])))
        for outcome in ("result", sealwire.NotFoundError("true")):
            client = sealwire.AsyncClient.__new__(sealwire.AsyncClient)
            client._native, client._loop, client._requests, client._release = Native(), loop, Requests(), None
            if isinstance(outcome, Exception):
                with self.assertRaises(sealwire.NotFoundError):
                    await client.health()
            else:
                self.assertEqual(await client.health(), "result")
        self.assertEqual(told, ["logger", "logger"])


class Loops(unittest.TestCase):
    def test_a_client_moves_to_a_new_loop_once_its_own_is_closed(self):
        client = sealwire.AsyncClient(**engine().arguments)
        for number in range(2):
            sealed = asyncio.run(client.encrypt("demo", number))
            self.assertTrue(sealed.payload.startswith("sw1:"))
        asyncio.run(client.close())

    def test_two_loops_cannot_share_a_client(self):
        async def other(client):
            with self.assertRaisesRegex(RuntimeError, "different event loop"):
                await client.health()

        async def first():
            async with sealwire.AsyncClient(**engine().arguments) as client:
                await client.health()
                await asyncio.to_thread(asyncio.run, other(client))
                await client.health()

        asyncio.run(first())

    def test_a_loop_that_ends_leaves_no_request(self):
        peer = Peer(silent)
        client = sealwire.AsyncClient(**peer.arguments)

        async def abandon():
            asyncio.ensure_future(client.encrypt("demo", "x", deadline_ms=600_000))
            return await heard(peer.requests)

        # `asyncio.run` cancels the tasks that are left.
        msgid, _, _ = asyncio.run(abandon())
        self.assertEqual(peer.notifications.get(timeout=PATIENCE_S), ("cancel", [msgid]))
        asyncio.run(client.close())
        peer.close()

    def test_clients_that_nobody_closes_leave_no_descriptors(self):
        async def use(count):
            for _ in range(count):
                client = sealwire.AsyncClient(**engine().arguments)
                await client.health()
                del client
            gc.collect()
            # The threads of a client end after it.
            end = time.monotonic() + PATIENCE_S
            while len(os.listdir("/proc/self/fd")) > before + 10 and time.monotonic() < end:
                await asyncio.sleep(0.05)
            return len(os.listdir("/proc/self/fd"))

        before = len(os.listdir("/proc/self/fd"))
        self.assertLessEqual(asyncio.run(use(30)), before + 10)

        client = sealwire.AsyncClient(**engine().arguments)
        for _ in range(30):
            asyncio.run(client.health())
        gc.collect()
        self.assertLessEqual(len(os.listdir("/proc/self/fd")), before + 20)
        asyncio.run(client.close())

    def test_nothing_is_connected_before_the_first_request(self):
        client = sealwire.AsyncClient("127.0.0.1:1", **client_files(engine().folder), attempts_max=1)
        with self.assertRaises(sealwire.ConnectError):
            asyncio.run(client.health())
        asyncio.run(client.close())


if __name__ == "__main__":
    unittest.main()
