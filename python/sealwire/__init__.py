"""Python client for Sealwire: documents as Python values, deadlines, cancellation and retries.

`Client` waits for each request; `AsyncClient` has the same methods as coroutines. `sealwire.arrow` works on columns.
"""

from . import _interpreter  # noqa: F401  before the native module
from ._client import AsyncClient, Client
from ._native import Document, Extension, FieldError
from .errors import (
    BadRequestError,
    CancelledError,
    CannotOpenError,
    ConfigError,
    ConflictError,
    ConnectError,
    DeadlineExceededError,
    DisconnectedError,
    Error,
    ForbiddenError,
    InternalError,
    NotFoundError,
    OverloadedError,
    ProtocolError,
    TooLargeError,
    UnauthenticatedError,
    UnavailableError,
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
