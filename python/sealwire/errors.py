"""Exceptions of requests: one class for each code of the wire, and for errors that the client itself finds.

Messages name parameters, limits and methods. They never contain a value of a document.
"""

from __future__ import annotations

from typing import Any


class Error(Exception):
    """The reason why a request has no result, after all retries that the configuration allowed."""

    code: str = "internal"

    def __init__(
        self, message: str, *, retry_after_ms: int | None = None, details: dict[str, Any] | None = None, code: str | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.retry_after_ms = retry_after_ms
        self.details: dict[str, Any] = details or {}
        if code is not None:
            self.code = code


class BadRequestError(Error):
    """Not a valid request. Retrying does not help."""

    code = "bad_request"


class TooLargeError(Error):
    """Beyond a limit on size, depth or count."""

    code = "too_large"


class UnauthenticatedError(Error):
    """The engine no longer accepts the client certificate."""

    code = "unauthenticated"


class ForbiddenError(Error):
    """No role of this client grants the request."""

    code = "forbidden"


class NotFoundError(Error):
    """No such method, app, collection, token or key."""

    code = "not_found"


class ConflictError(Error):
    """At odds with the present state, such as `min_generation`."""

    code = "conflict"


class CannotOpenError(Error):
    """An envelope did not open. The engine does not say why."""

    code = "cannot_open"


class CancelledError(Error):
    """The engine stopped the request because a client cancelled it."""

    code = "cancelled"


class DeadlineExceededError(Error, TimeoutError):
    """The deadline passed. If the request was sent, the engine was told to stop."""

    code = "deadline_exceeded"


class OverloadedError(Error):
    """Too much work is waiting. `retry_after_ms` is the least pause before a retry."""

    code = "overloaded"


class UnavailableError(Error):
    """The engine is shutting down or lacks something that it needs."""

    code = "unavailable"


class InternalError(Error):
    """A bug of the engine, or a code that this version does not know."""

    code = "internal"


class ConnectError(Error, ConnectionError):
    """No connection could be made. Nothing was sent."""

    code = "connect"


class DisconnectedError(Error, ConnectionError):
    """The connection ended after the request was sent and before the response came."""

    code = "disconnected"


class ConfigError(Error, ValueError):
    """A setting, a certificate or a key is not usable, or the client is closed. Nothing was sent."""

    code = "config"


class ProtocolError(Error):
    """A response breaks the protocol."""

    code = "protocol"


_CLASSES: dict[str, type[Error]] = {
    cls.code: cls
    for cls in (
        BadRequestError,
        TooLargeError,
        UnauthenticatedError,
        ForbiddenError,
        NotFoundError,
        ConflictError,
        CannotOpenError,
        CancelledError,
        DeadlineExceededError,
        OverloadedError,
        UnavailableError,
        InternalError,
        ConnectError,
        DisconnectedError,
        ConfigError,
        ProtocolError,
    )
}


def _from_code(code: str, message: str, retry_after_ms: int | None, details: dict[str, Any] | None) -> Error:
    return _CLASSES.get(code, InternalError)(message, retry_after_ms=retry_after_ms, details=details)
