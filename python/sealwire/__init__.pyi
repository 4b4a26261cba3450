"""Python client for Sealwire: documents as Python values, deadlines, cancellation and retries."""

from collections.abc import Iterable, Sequence
from os import PathLike
from types import TracebackType
from typing import Any, Literal, TypedDict, final

from typing_extensions import Self, TypeAlias

from .errors import (
    BadRequestError as BadRequestError,
    CancelledError as CancelledError,
    CannotOpenError as CannotOpenError,
    ConfigError as ConfigError,
    ConflictError as ConflictError,
    ConnectError as ConnectError,
    DeadlineExceededError as DeadlineExceededError,
    DisconnectedError as DisconnectedError,
    Error as Error,
    ForbiddenError as ForbiddenError,
    InternalError as InternalError,
    NotFoundError as NotFoundError,
    OverloadedError as OverloadedError,
    ProtocolError as ProtocolError,
    TooLargeError as TooLargeError,
    UnauthenticatedError as UnauthenticatedError,
    UnavailableError as UnavailableError,
)

__all__ = [
    "AsyncClient",
    "BadRequestError",
    "CancelledError",
    "CannotOpenError",
    "Client",
    "ConfigError",
    "ConflictError",
    "ConnectError",
    "DeadlineExceededError",
    "DisconnectedError",
    "Document",
    "Error",
    "Extension",
    "FieldError",
    "ForbiddenError",
    "InternalError",
    "NotFoundError",
    "OverloadedError",
    "ProtocolError",
    "TooLargeError",
    "UnauthenticatedError",
    "UnavailableError",
]

_Endpoint: TypeAlias = str | tuple[str, str]
_Pem: TypeAlias = str | PathLike[str] | bytes
_Suite: TypeAlias = Literal["p256-psk", "p256", "secp256k1", "xaes", "p256-mlkem768", "secp256k1-psk"]
_KeyScope: TypeAlias = Literal["request", "field", "epoch"]
_Format: TypeAlias = Literal["native", "evervault", "evervault-bare"]
_Encoding: TypeAlias = Literal["text", "binary"]
_Encapsulation: TypeAlias = Literal["inline", "apart"]
_OnError: TypeAlias = Literal["fail", "report"]

@final
class Document:
    """A document in a response."""

    @property
    def payload(self) -> Any:
        """The document, with the structure of the one that was sent."""
    @property
    def generation(self) -> int:
        """The engine's control state generation when it processed the request."""
    @property
    def errors(self) -> list[FieldError]:
        """Fields left unchanged because of errors, with `on_error="report"`; at most 1,000."""
    @property
    def errors_omitted(self) -> int:
        """Number of further field errors that are not listed."""
    @property
    def unmatched(self) -> list[int]:
        """Positions of those paths in `select` that match nothing."""
    @property
    def encapsulations(self) -> list[str]:
        """Keep them with the document: without them its fields do not open."""

@final
class FieldError:
    """A field that a request with `on_error="report"` left as it was."""

    @property
    def path(self) -> str: ...
    @property
    def code(self) -> str: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...

@final
class Extension:
    """A MessagePack extension that has no Python type of its own."""

    def __new__(cls, code: int, data: bytes) -> Self: ...
    @property
    def code(self) -> int: ...
    @property
    def data(self) -> bytes: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...

class _Stats(TypedDict):
    attempts: int
    retries: int
    retries_refused: int
    ejections: int

class Client:
    """A client of one engine, or of several that serve the same apps. Threads can share it."""

    def __init__(
        self,
        endpoints: _Endpoint | Iterable[_Endpoint],
        *,
        ca: _Pem,
        cert: _Pem,
        key: _Pem,
        server_name: str | None = None,
        threads: int = 2,
        connections: int = 2,
        connection_age_max_ms: int = 1_800_000,
        in_flight_max: int = 64,
        connect_timeout_ms: int = 5_000,
        deadline_ms: int = 30_000,
        backoff_min_ms: int = 50,
        backoff_max_ms: int = 2_000,
        attempts_max: int = 4,
        repeat_sent: bool = True,
        retry_percent: int = 10,
        eject_after: int = 5,
        ejection_min_ms: int = 1_000,
        ejection_max_ms: int = 30_000,
        request_bytes_max: int = 67_108_864,
        response_bytes_max: int = 268_435_456,
    ) -> None:
        """Opens no connection yet. An endpoint is "host:port", or a pair of that and the name in its certificate."""
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None, /
    ) -> None: ...
    def close(self) -> None:
        """Ends the connections once the requests of other threads are done."""
    def stats(self) -> _Stats:
        """Returns the counters of this client."""
    @property
    def renewal_error(self) -> str | None:
        """Why renewed certificate files are not in use, if that is so. It is also logged once, as a warning of `sealwire`."""
    def encrypt(
        self,
        app: str,
        payload: Any,
        *,
        select: Sequence[str] | None = None,
        unmatched: Literal["report", "fail"] | None = None,
        suite: _Suite | None = None,
        key_scope: _KeyScope | None = None,
        format: _Format | None = None,
        role: str | None = None,
        encoding: _Encoding | None = None,
        encapsulation: _Encapsulation | None = None,
        context: bytes | str | None = None,
        contexts: Sequence[bytes | str] | dict[str, str] | None = None,
        on_error: _OnError | None = None,
        deadline_ms: int | None = None,
        min_generation: int | None = None,
        reason: str | None = None,
        traceparent: str | None = None,
    ) -> Document:
        """Replaces values by envelopes."""
    def decrypt(
        self,
        app: str,
        payload: Any,
        *,
        select: Sequence[str] | None = None,
        unmatched: Literal["report", "fail"] | None = None,
        encapsulations: Sequence[str] | None = None,
        outside: Literal["accept", "refuse"] | None = None,
        context: bytes | str | None = None,
        contexts: Sequence[bytes | str] | dict[str, str] | None = None,
        on_error: _OnError | None = None,
        deadline_ms: int | None = None,
        min_generation: int | None = None,
        reason: str | None = None,
        traceparent: str | None = None,
    ) -> Document:
        """Opens envelopes."""
    def rewrap(
        self,
        app: str,
        payload: Any,
        *,
        select: Sequence[str] | None = None,
        unmatched: Literal["report", "fail"] | None = None,
        suite: _Suite | None = None,
        key_scope: _KeyScope | None = None,
        format: _Format | None = None,
        encoding: _Encoding | None = None,
        encapsulation: _Encapsulation | None = None,
        encapsulations: Sequence[str] | None = None,
        unbound: Literal["refuse", "bind"] | None = None,
        outside: Literal["accept", "refuse", "adopt"] | None = None,
        context: bytes | str | None = None,
        contexts: Sequence[bytes | str] | dict[str, str] | None = None,
        on_error: _OnError | None = None,
        deadline_ms: int | None = None,
        min_generation: int | None = None,
        reason: str | None = None,
        traceparent: str | None = None,
    ) -> Document:
        """Seals envelopes again with the app's newest key."""
    def tokenize(
        self,
        app: str,
        payload: Any,
        *,
        collection: str,
        select: Sequence[str] | None = None,
        unmatched: Literal["report", "fail"] | None = None,
        tags: Sequence[str] | None = None,
        expires_s: int | None = None,
        idempotency_key: bytes | str | None = None,
        subject: str | None = None,
        context: bytes | str | None = None,
        contexts: Sequence[bytes | str] | dict[str, str] | None = None,
        on_error: _OnError | None = None,
        deadline_ms: int | None = None,
        min_generation: int | None = None,
        reason: str | None = None,
        traceparent: str | None = None,
    ) -> Document:
        """Replaces values by tokens. `expires_s` counts seconds from now. `subject` names the person whom the document is about, 1 to
        256 bytes of UTF-8; an erasure of the person removes the tokens."""
    def detokenize(
        self,
        app: str,
        payload: Any,
        *,
        collection: str,
        select: Sequence[str] | None = None,
        unmatched: Literal["report", "fail"] | None = None,
        context: bytes | str | None = None,
        contexts: Sequence[bytes | str] | dict[str, str] | None = None,
        on_error: _OnError | None = None,
        deadline_ms: int | None = None,
        min_generation: int | None = None,
        reason: str | None = None,
        traceparent: str | None = None,
    ) -> Document:
        """Replaces tokens by their values."""
    def mask(
        self,
        app: str,
        payload: Any,
        *,
        rules: Sequence[dict[str, str]],
        unknown: Literal["refuse", "keep"] | None = None,
        lists: dict[str, list[str]] | None = None,
        on_error: _OnError | None = None,
        deadline_ms: int | None = None,
        min_generation: int | None = None,
        reason: str | None = None,
        traceparent: str | None = None,
    ) -> Document:
        """Masks fields by rules. A rule has a "mask" and one of "path", "column" and "kind"."""
    def inspect(self, envelope: str | bytes) -> dict[str, Any]:
        """Returns the metadata of an envelope without opening it."""
    def info(self) -> dict[str, Any]:
        """Returns the engine's version, methods, formats and limits."""
    def health(self) -> None:
        """Succeeds if the engine responds."""
class AsyncClient:
    """A client for asyncio with the methods of `Client`. It belongs to the event loop of its first request."""

    def __init__(
        self,
        endpoints: _Endpoint | Iterable[_Endpoint],
        *,
        ca: _Pem,
        cert: _Pem,
        key: _Pem,
        server_name: str | None = None,
        threads: int = 2,
        connections: int = 2,
        connection_age_max_ms: int = 1_800_000,
        in_flight_max: int = 64,
        connect_timeout_ms: int = 5_000,
        deadline_ms: int = 30_000,
        backoff_min_ms: int = 50,
        backoff_max_ms: int = 2_000,
        attempts_max: int = 4,
        repeat_sent: bool = True,
        retry_percent: int = 10,
        eject_after: int = 5,
        ejection_min_ms: int = 1_000,
        ejection_max_ms: int = 30_000,
        request_bytes_max: int = 67_108_864,
        response_bytes_max: int = 268_435_456,
    ) -> None:
        """Opens no connection yet. An endpoint is "host:port", or a pair of that and the name in its certificate."""
    async def __aenter__(self) -> Self: ...
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None, /
    ) -> None: ...
    async def close(self) -> None:
        """Ends the connections and the requests that wait."""
    def stats(self) -> _Stats:
        """Returns the counters of this client."""
    @property
    def renewal_error(self) -> str | None:
        """Why renewed certificate files are not in use, if that is so. It is also logged once, as a warning of `sealwire`."""
    async def encrypt(
        self,
        app: str,
        payload: Any,
        *,
        select: Sequence[str] | None = None,
        unmatched: Literal["report", "fail"] | None = None,
        suite: _Suite | None = None,
        key_scope: _KeyScope | None = None,
        format: _Format | None = None,
        role: str | None = None,
        encoding: _Encoding | None = None,
        encapsulation: _Encapsulation | None = None,
        context: bytes | str | None = None,
        contexts: Sequence[bytes | str] | dict[str, str] | None = None,
        on_error: _OnError | None = None,
        deadline_ms: int | None = None,
        min_generation: int | None = None,
        reason: str | None = None,
        traceparent: str | None = None,
    ) -> Document:
        """Replaces values by envelopes."""
    async def decrypt(
        self,
        app: str,
        payload: Any,
        *,
        select: Sequence[str] | None = None,
        unmatched: Literal["report", "fail"] | None = None,
        encapsulations: Sequence[str] | None = None,
        outside: Literal["accept", "refuse"] | None = None,
        context: bytes | str | None = None,
        contexts: Sequence[bytes | str] | dict[str, str] | None = None,
        on_error: _OnError | None = None,
        deadline_ms: int | None = None,
        min_generation: int | None = None,
        reason: str | None = None,
        traceparent: str | None = None,
    ) -> Document:
        """Opens envelopes."""
    async def rewrap(
        self,
        app: str,
        payload: Any,
        *,
        select: Sequence[str] | None = None,
        unmatched: Literal["report", "fail"] | None = None,
        suite: _Suite | None = None,
        key_scope: _KeyScope | None = None,
        format: _Format | None = None,
        encoding: _Encoding | None = None,
        encapsulation: _Encapsulation | None = None,
        encapsulations: Sequence[str] | None = None,
        unbound: Literal["refuse", "bind"] | None = None,
        outside: Literal["accept", "refuse", "adopt"] | None = None,
        context: bytes | str | None = None,
        contexts: Sequence[bytes | str] | dict[str, str] | None = None,
        on_error: _OnError | None = None,
        deadline_ms: int | None = None,
        min_generation: int | None = None,
        reason: str | None = None,
        traceparent: str | None = None,
    ) -> Document:
        """Seals envelopes again with the app's newest key."""
    async def tokenize(
        self,
        app: str,
        payload: Any,
        *,
        collection: str,
        select: Sequence[str] | None = None,
        unmatched: Literal["report", "fail"] | None = None,
        tags: Sequence[str] | None = None,
        expires_s: int | None = None,
        idempotency_key: bytes | str | None = None,
        subject: str | None = None,
        context: bytes | str | None = None,
        contexts: Sequence[bytes | str] | dict[str, str] | None = None,
        on_error: _OnError | None = None,
        deadline_ms: int | None = None,
        min_generation: int | None = None,
        reason: str | None = None,
        traceparent: str | None = None,
    ) -> Document:
        """Replaces values by tokens. `expires_s` counts seconds from now. `subject` names the person whom the document is about, 1 to
        256 bytes of UTF-8; an erasure of the person removes the tokens."""
    async def detokenize(
        self,
        app: str,
        payload: Any,
        *,
        collection: str,
        select: Sequence[str] | None = None,
        unmatched: Literal["report", "fail"] | None = None,
        context: bytes | str | None = None,
        contexts: Sequence[bytes | str] | dict[str, str] | None = None,
        on_error: _OnError | None = None,
        deadline_ms: int | None = None,
        min_generation: int | None = None,
        reason: str | None = None,
        traceparent: str | None = None,
    ) -> Document:
        """Replaces tokens by their values."""
    async def mask(
        self,
        app: str,
        payload: Any,
        *,
        rules: Sequence[dict[str, str]],
        unknown: Literal["refuse", "keep"] | None = None,
        lists: dict[str, list[str]] | None = None,
        on_error: _OnError | None = None,
        deadline_ms: int | None = None,
        min_generation: int | None = None,
        reason: str | None = None,
        traceparent: str | None = None,
    ) -> Document:
        """Masks fields by rules. A rule has a "mask" and one of "path", "column" and "kind"."""
    async def inspect(self, envelope: str | bytes) -> dict[str, Any]:
        """Returns the metadata of an envelope without opening it."""
    async def info(self) -> dict[str, Any]:
        """Returns the engine's version, methods, formats and limits."""
    async def health(self) -> None:
        """Succeeds if the engine responds."""
