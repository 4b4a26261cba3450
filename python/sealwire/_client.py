"""The two clients. Their options are read in Rust; `__init__.pyi` lists them with their types."""

import asyncio
import contextlib
import weakref

from ._native import EventLoop, NativeClient, request


class Client:
    """A client of one engine, or of several that serve the same apps. Threads can share it."""

    def __init__(self, endpoints, **options):
        self._native = NativeClient(endpoints, options)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self._native.close()

    def stats(self):
        return self._native.stats()

    @property
    def renewal_error(self):
        return self._native.renewal_error()

    def encrypt(self, app, payload, **options):
        return self._native.run(request("encrypt", [app, payload], options))

    def decrypt(self, app, payload, **options):
        return self._native.run(request("decrypt", [app, payload], options))

    def rewrap(self, app, payload, **options):
        return self._native.run(request("rewrap", [app, payload], options))

    def tokenize(self, app, payload, **options):
        return self._native.run(request("tokenize", [app, payload], options))

    def detokenize(self, app, payload, **options):
        return self._native.run(request("detokenize", [app, payload], options))

    def mask(self, app, payload, **options):
        return self._native.run(request("mask", [app, payload], options))

    def inspect(self, envelope):
        return self._native.run(request("inspect", [envelope], {}))

    def info(self):
        return self._native.run(request("info", [], {}))

    def health(self):
        return self._native.run(request("health", [], {}))


class AsyncClient:
    """A client for asyncio with the methods of `Client`. It belongs to the event loop of its first request."""

    def __init__(self, endpoints, **options):
        self._native = NativeClient(endpoints, options)
        self._loop = None
        self._requests = None
        self._release = None

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        await self.close()

    async def close(self):
        self._unbind()
        self._native.close()

    def stats(self):
        return self._native.stats()

    @property
    def renewal_error(self):
        return self._native.renewal_error()

    def _bind(self, loop):
        if self._loop is not None and not self._loop.is_closed():
            raise RuntimeError("the client is bound to a different event loop")
        self._detach()
        self._loop, self._requests = loop, EventLoop()
        loop.add_reader(self._requests.fileno(), self._requests.complete)
        # The loop holds the reader, also of a client that nobody has closed.
        self._release = weakref.finalize(self, _release, loop, self._requests)
        self._release.atexit = False

    def _detach(self):
        if self._release is not None:
            self._release.detach()
            self._release = None

    def _unbind(self):
        self._detach()
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(self._requests.fileno())
            self._requests.close()
        self._loop = self._requests = None

    async def _run(self, method, positional, options):
        loop = asyncio.get_running_loop()
        built = request(method, positional, options)
        if loop is not self._loop:
            self._bind(loop)
        requests = self._requests
        future = loop.create_future()
        number = requests.start(self._native, built, future)
        try:
            return await future
        finally:
            # Cancelled, or the coroutine was closed.
            if future.cancelled() or not future.done():
                requests.cancel(number)
            self._log_renewal(loop)

    def _log_renewal(self, loop):
        """Tells of renewed certificates that are not in use. A logger that fails replaces no result and no error."""
        try:
            self._native.log_renewal()
        except Exception as error:
            loop.call_exception_handler({"message": "a handler of the logger sealwire failed", "exception": error})

    async def encrypt(self, app, payload, **options):
        return await self._run("encrypt", [app, payload], options)

    async def decrypt(self, app, payload, **options):
        return await self._run("decrypt", [app, payload], options)

    async def rewrap(self, app, payload, **options):
        return await self._run("rewrap", [app, payload], options)

    async def tokenize(self, app, payload, **options):
        return await self._run("tokenize", [app, payload], options)

    async def detokenize(self, app, payload, **options):
        return await self._run("detokenize", [app, payload], options)

    async def mask(self, app, payload, **options):
        return await self._run("mask", [app, payload], options)

    async def inspect(self, envelope):
        return await self._run("inspect", [envelope], {})

    async def info(self):
        return await self._run("info", [], {})

    async def health(self):
        return await self._run("health", [], {})


def _release(loop, requests):
    """Takes the reader of a client that is gone from its loop. The last reference can end in any thread."""
    # A loop that was closed has no readers.
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(_remove_reader, loop, requests)


def _remove_reader(loop, requests):
    loop.remove_reader(requests.fileno())
    requests.close()
