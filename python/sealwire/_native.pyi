"""The native part. Its names are for this package alone."""

from typing import Any

from . import Document as Document, Extension as Extension, FieldError as FieldError

def __getattr__(name: str) -> Any: ...
