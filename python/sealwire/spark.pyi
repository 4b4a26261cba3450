"""Spark: encrypts, decrypts, tokenizes, detokenizes and masks columns of DataFrames, the same in SQL, and discovery."""

from collections.abc import Iterable, Mapping
from os import PathLike
from typing import Any, Literal

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import DataType

from . import Client
from .arrow import Discovery as Discovery, Rules as Rules

__all__ = [
    "Discovery", "Engine", "Environment", "Metrics", "Rules",
    "decrypt", "detokenize", "discover", "encrypt", "mask", "register", "tokenize",
]  # fmt: skip

class Environment:
    """PEM text in an environment variable of the executors, as Kubernetes sets it from a secret."""

    name: str
    def __init__(self, name: str) -> None: ...

class Engine:
    """How executors reach the engines. `ca`, `cert` and `key` are paths on the executors, or `Environment`s. Further
    options are those of `sealwire.Client`; `connections` and `threads` are 1. A request that an engine cannot take is
    repeated for `retry_timeout_ms`."""

    app: str
    batching: dict[str, int]
    request: dict[str, str]
    def __init__(
        self,
        endpoints: str | tuple[str, str] | Iterable[str | tuple[str, str]],
        *,
        app: str,
        ca: str | PathLike[str] | Environment,
        cert: str | PathLike[str] | Environment,
        key: str | PathLike[str] | Environment,
        retry_timeout_ms: int = 600_000,
        batch_fields: int = 1000,
        in_flight: int = 8,
        reason: str | None = None,
        **options: Any,
    ) -> None: ...
    def client(self) -> Client:
        """Returns the client of this process."""

class Metrics:
    """Counts of a job, over all its tasks that succeeded. Not available on Spark Connect, which has no accumulators."""

    def __init__(self, spark: SparkSession) -> None: ...
    def add(self, counts: Mapping[str, int]) -> None:
        """Adds the counts of a task."""

    @property
    def values(self) -> dict[str, int]:
        """A dictionary of `tasks`, `batches`, `rows`, `values` (that were sent), `requests` (repeated ones included),
        `repeated` (because the engine was overloaded or away) and `waited_ms` (for the engine, summed over requests)."""

def encrypt(
    frame: DataFrame,
    engine: Engine,
    *,
    columns: Iterable[str],
    metrics: Metrics | None = None,
    encoding: Literal["text", "binary"] = "text",
    **options: Any,
) -> DataFrame:
    """Replaces the values of columns by envelopes. `options` are those of `sealwire.arrow.encrypt`."""

def tokenize(
    frame: DataFrame,
    engine: Engine,
    *,
    collection: str,
    columns: Iterable[str],
    metrics: Metrics | None = None,
    job: str | bytes | None = None,
    **options: Any,
) -> DataFrame:
    """Replaces the values of columns by tokens. Attempts of one task get the same tokens, also in random collections. With
    the same `job`, at least 16 bytes that nobody can guess, a later run over the same partitions gets them, too."""

def decrypt(
    frame: DataFrame,
    engine: Engine,
    *,
    columns: Iterable[str],
    types: Mapping[str, DataType | str] | None = None,
    metrics: Metrics | None = None,
    **options: Any,
) -> DataFrame:
    """Opens the envelopes of columns. The metadata of a column notes its type; `types` names it where a table lost them."""

def detokenize(
    frame: DataFrame,
    engine: Engine,
    *,
    collection: str,
    columns: Iterable[str],
    types: Mapping[str, DataType | str] | None = None,
    metrics: Metrics | None = None,
    **options: Any,
) -> DataFrame:
    """Replaces the tokens of columns by their values, and restores their types as `decrypt` does."""

def mask(
    frame: DataFrame,
    engine: Engine,
    *,
    rules: Rules | str | PathLike[str] | None = None,
    masks: Mapping[str, str] | None = None,
    metrics: Metrics | None = None,
    **options: Any,
) -> DataFrame:
    """Masks columns: by the rules of masking jobs, or by functions for each. Their types stay."""

def discover(
    frame: DataFrame,
    *,
    rows: int = 10_000,
    engine: Engine | None = None,
    seed: int = 1,
    sample: int = 1000,
    min_confidence: float = 0.7,
    table: str = "",
    retry_timeout_ms: int = ...,
    deadline_ms: int | None = None,
    min_generation: int | None = None,
    reason: str | None = None,
    traceparent: str | None = None,
) -> Discovery:
    """Samples rows of all partitions, of which the driver gets at most `rows`, and proposes rules as `sealwire.arrow.discover`
    does. With an `engine`, which the driver must reach, functions are tried on the sampled values."""

def register(spark: SparkSession, engine: Engine, *, prefix: str = "sealwire_") -> None:
    """Registers SQL functions for an app of an engine: `PREFIXencrypt(value)`, `PREFIXdecrypt(envelope)`,
    `PREFIXtokenize(value, collection)`, `PREFIXdetokenize(token, collection)` and `PREFIXmask(value, function)`. All take and
    return strings. The second argument must be a constant. In SQL, a repeated task gets other tokens in random collections."""
