"""The two clients. Their options are read in Rust; `__init__.pyi` lists them with their types."""

import asyncio
import contextlib
import weakref

from ._native import EventLoop, NativeClient, request

# The end of the docstring of each method that sends a document.
_COMMON = """
        deadline_ms: Longest time of the request, 1 to 3,600,000. Default: that of the client.
        min_generation: An engine whose control state is older rejects the request with `ConflictError`. Default: 0.
        reason: The reason, for the audit log; a role can require it.
        traceparent: The W3C trace context of the request.

    Returns:
        A `Document`, whose `payload` has the structure of the given payload.

    Raises:
        sealwire.Error: The engine rejected the request, or could not be reached. The class tells
            the reason, such as `ForbiddenError`, `OverloadedError` or `DeadlineExceededError`.
        TypeError: A value or an option has a type that cannot be sent.
        ValueError: A value or an option is out of range.
"""

_SELECT = """
        select: Paths of the fields, such as `["$.card.number"]`. Default: all values.
        unmatched: `"fail"` if each path must match; default `"report"`."""

_ON_ERROR = """
        on_error: `"report"` leaves fields that fail unchanged and lists them; default `"fail"`."""

_CONTEXTS = """
        contexts: A context for each item of the document, a list, in order; or `{"path": "$.id"}`, the path of each
            item's context in the item. Excludes `context`."""


def _documented(arguments, example):
    """Completes the docstring of a method, whose first line says what the method does."""

    def complete(method):
        # The interpreter can drop docstrings.
        if method.__doc__:
            head = "\n\n    Args:\n        app: The name of the app.\n        payload: The document."
            method.__doc__ += head + arguments + _COMMON + f"\n    Example:\n        {example}\n    "
        return method

    return complete


class Client:
    """A client of one engine, or of several that serve the same apps. Threads can share it.

    Args:
        endpoints: `"host:port"`, or a pair of that and the name in the engine's certificate, or a list of these.
        ca: The authorities of the engine's certificate: a path, or PEM text as bytes.
        cert: The client certificate: a path, or PEM text as bytes.
        key: The private key of the client certificate: a path, or PEM text as bytes.
        options: Further settings, such as `server_name`, `deadline_ms` and `connections`. The typed stubs list them.

    Raises:
        ConfigError: A setting or a certificate is invalid. No connection is opened yet.

    Example:
        client = sealwire.Client("engine:7443", ca="ca.pem", cert="client.pem", key="client-key.pem")
    """

    def __init__(self, endpoints, **options):
        self._native = NativeClient(endpoints, options)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        """Ends the connections once the requests of other threads are done. Can be repeated.

        Example:
            client.close()
        """
        self._native.close()

    def stats(self):
        """Returns the counters of this client, such as `attempts` and `retries`, as a dictionary.

        Raises:
            ConfigError: The client is closed.

        Example:
            print(client.stats()["retries"])
        """
        return self._native.stats()

    @property
    def renewal_error(self):
        """The reason why renewed certificate files are not in use, or `None`. Also logged once as a warning of `sealwire`."""
        return self._native.renewal_error()

    @_documented(
        _SELECT
        + """
        suite: The cipher suite. Default: the app's.
        key_scope: `"request"`, `"field"` or `"epoch"`: the values that share an ephemeral key.
        format: `"native"`, `"evervault"` or `"evervault-bare"`. Default: the app's.
        role: The Evervault data role of the envelopes.
        encoding: `"text"` or `"binary"` envelopes; default `"text"`.
        encapsulation: `"apart"` returns the encapsulations separately; default `"inline"`.
        context: Bytes or text that decryption must repeat."""
        + _CONTEXTS
        + _ON_ERROR,
        'sealed = client.encrypt("shop", {"card": "4242424242424242"})',
    )
    def encrypt(self, app, payload, **options):
        """Replaces values of a document by envelopes."""
        return self._native.run(request("encrypt", [app, payload], options))

    @_documented(
        _SELECT
        + """
        encapsulations: The encapsulations that `encrypt` returned separately.
        outside: `"refuse"` rejects values that were sealed outside the engine, and Evervault values; default `"accept"`.
        context: The context that was given to `encrypt`."""
        + _CONTEXTS
        + _ON_ERROR,
        'opened = client.decrypt("shop", sealed.payload)',
    )
    def decrypt(self, app, payload, **options):
        """Opens the envelopes of a document."""
        return self._native.run(request("decrypt", [app, payload], options))

    @_documented(
        _SELECT
        + """
        suite: The cipher suite of the new envelopes. Default: the app's.
        key_scope: `"request"`, `"field"` or `"epoch"`: the values that share an ephemeral key.
        format: The format of the new envelopes. Default: the app's.
        encoding: `"text"` or `"binary"` envelopes; default `"text"`.
        encapsulation: `"apart"` returns the encapsulations separately; default `"inline"`.
        encapsulations: The encapsulations of the given envelopes, if they are stored separately.
        unbound: `"bind"` opens Evervault values under a `context` and binds them to it; default `"refuse"`.
        outside: The treatment of values sealed outside the engine: `"accept"`, `"refuse"` or `"adopt"`; default `"accept"`.
        context: The context that was given to `encrypt`."""
        + _CONTEXTS
        + _ON_ERROR,
        'renewed = client.rewrap("shop", sealed.payload)',
    )
    def rewrap(self, app, payload, **options):
        """Seals the envelopes of a document again with the app's newest key."""
        return self._native.run(request("rewrap", [app, payload], options))

    @_documented(
        """
        collection: The name of the collection. Required."""
        + _SELECT
        + """
        tags: Tags of the tokens.
        expires_s: Time to live of the tokens in seconds.
        idempotency_key: A request that is repeated with this key gets the same tokens.
        subject: The person whom the document is about, 1 to 256 bytes of UTF-8. An erasure of the person removes the tokens.
        context: Bytes or text that `detokenize` must repeat."""
        + _CONTEXTS
        + _ON_ERROR,
        'tokens = client.tokenize("shop", {"card": "4242424242424242"}, collection="cards")',
    )
    def tokenize(self, app, payload, **options):
        """Replaces values of a document by tokens."""
        return self._native.run(request("tokenize", [app, payload], options))

    @_documented(
        """
        collection: The name of the collection. Required."""
        + _SELECT
        + """
        context: The context that was given to `tokenize`."""
        + _CONTEXTS
        + _ON_ERROR,
        'values = client.detokenize("shop", tokens.payload, collection="cards")',
    )
    def detokenize(self, app, payload, **options):
        """Replaces the tokens of a document by their values."""
        return self._native.run(request("detokenize", [app, payload], options))

    @_documented(
        """
        rules: Dictionaries, each with a `"mask"` and one of `"path"`, `"column"` and `"kind"`. Required.
        unknown: `"refuse"` fails for fields that no rule names; `"keep"` keeps them.
        lists: Custom lists of pseudonyms, by name."""
        + _ON_ERROR,
        'masked = client.mask("shop", {"email": "a@b.example"}, rules=[{"path": "$.email", "mask": "email"}])',
    )
    def mask(self, app, payload, **options):
        """Masks fields of a document by rules."""
        return self._native.run(request("mask", [app, payload], options))

    def inspect(self, envelope):
        """Returns the metadata of an envelope without opening it.

        Args:
            envelope: The envelope, as text or bytes.

        Returns:
            A dictionary, such as `{"key_id": ..., "suite": ...}`.

        Raises:
            sealwire.Error: The value is not an envelope, or the engine could not be reached.

        Example:
            metadata = client.inspect(sealed.payload["card"])
        """
        return self._native.run(request("inspect", [envelope], {}))

    def info(self):
        """Returns the engine's version, methods, formats and limits as a dictionary.

        Raises:
            sealwire.Error: The engine could not be reached.

        Example:
            info = client.info()
        """
        return self._native.run(request("info", [], {}))

    def health(self):
        """Returns `None` if the engine responds.

        Raises:
            sealwire.Error: The engine could not be reached, or is not ready.

        Example:
            client.health()
        """
        return self._native.run(request("health", [], {}))


class AsyncClient:
    """A client for asyncio with the methods of `Client`. The client belongs to the event loop of its first request.

    Takes the arguments of `Client`.

    Example:
        client = sealwire.AsyncClient("engine:7443", ca="ca.pem", cert="client.pem", key="client-key.pem")
    """

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
        """Ends the connections and the requests that wait. Can be repeated.

        Example:
            await client.close()
        """
        self._unbind()
        self._native.close()

    def stats(self):
        return self._native.stats()

    @property
    def renewal_error(self):
        """The reason why renewed certificate files are not in use, or `None`. Also logged once as a warning of `sealwire`."""
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
        """Logs that renewed certificates are not in use. A logger that fails replaces neither a result nor an error."""
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


# The coroutines have the arguments, results and errors of the methods of `Client`.
for _name in ("encrypt", "decrypt", "rewrap", "tokenize", "detokenize", "mask", "inspect", "info", "health"):
    _doc = getattr(Client, _name).__doc__
    getattr(AsyncClient, _name).__doc__ = _doc and _doc.replace(f"client.{_name}(", f"await client.{_name}(")
AsyncClient.stats.__doc__ = Client.stats.__doc__


def _release(loop, requests):
    """Removes the reader of a dropped client from its loop. The last reference can end in any thread."""
    # A loop that was closed has no readers.
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(_remove_reader, loop, requests)


def _remove_reader(loop, requests):
    loop.remove_reader(requests.fileno())
    requests.close()
