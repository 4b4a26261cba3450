"""Columns of Arrow data: encrypts, decrypts, tokenizes, detokenizes and masks their values, and finds sensitive ones."""

from collections.abc import Iterable, Mapping
from os import PathLike
from typing import Any, Literal, TypeVar, final

from . import Client

# A table, a record batch or a column: what comes from pyarrow or polars comes back as its own type.
_Data = TypeVar("_Data")

def encrypt(
    client: Client,
    data: _Data,
    *,
    app: str,
    columns: Iterable[str] | None = None,
    batch_fields: int = 1000,
    in_flight: int = 8,
    retry_timeout_ms: int = 0,
    suite: Literal["p256-psk", "p256", "secp256k1", "xaes", "p256-mlkem768", "secp256k1-psk"] | None = None,
    key_scope: Literal["request", "field", "epoch"] | None = None,
    format: Literal["native", "evervault", "evervault-bare"] | None = None,
    role: str | None = None,
    encoding: Literal["text", "binary"] | None = None,
    context: bytes | str | None = None,
    deadline_ms: int | None = None,
    min_generation: int | None = None,
    reason: str | None = None,
    traceparent: str | None = None,
) -> _Data:
    """Replaces the values of columns by envelopes."""

def tokenize(
    client: Client,
    data: _Data,
    *,
    app: str,
    collection: str,
    columns: Iterable[str] | None = None,
    batch_fields: int = 1000,
    in_flight: int = 8,
    retry_timeout_ms: int = 0,
    idempotency_seed: bytes | None = None,
    tags: Iterable[str] | None = None,
    expires_s: int | None = None,
    context: bytes | str | None = None,
    deadline_ms: int | None = None,
    min_generation: int | None = None,
    reason: str | None = None,
    traceparent: str | None = None,
) -> _Data:
    """Replaces the values of columns by tokens."""

def decrypt(
    client: Client,
    data: _Data,
    *,
    app: str,
    columns: Iterable[str] | None = None,
    types: Mapping[str, Any] | Any | None = None,
    batch_fields: int = 1000,
    in_flight: int = 8,
    retry_timeout_ms: int = 0,
    outside: Literal["accept", "refuse"] | None = None,
    context: bytes | str | None = None,
    deadline_ms: int | None = None,
    min_generation: int | None = None,
    reason: str | None = None,
    traceparent: str | None = None,
) -> _Data:
    """Opens the envelopes of columns, and restores their types."""

def detokenize(
    client: Client,
    data: _Data,
    *,
    app: str,
    collection: str,
    columns: Iterable[str] | None = None,
    types: Mapping[str, Any] | Any | None = None,
    batch_fields: int = 1000,
    in_flight: int = 8,
    retry_timeout_ms: int = 0,
    context: bytes | str | None = None,
    deadline_ms: int | None = None,
    min_generation: int | None = None,
    reason: str | None = None,
    traceparent: str | None = None,
) -> _Data:
    """Replaces the tokens of columns by their values, and restores their types."""

def mask(
    client: Client,
    data: _Data,
    *,
    app: str,
    masks: Mapping[str, str] | str | None = None,
    rules: Rules | None = None,
    types: Mapping[str, Any] | Any | None = None,
    batch_fields: int = 1000,
    in_flight: int = 8,
    retry_timeout_ms: int = 0,
    lists: dict[str, list[str]] | None = None,
    deadline_ms: int | None = None,
    min_generation: int | None = None,
    reason: str | None = None,
    traceparent: str | None = None,
) -> _Data:
    """Masks columns: `masks` gives the function of each, or that of a column without a table; `rules` those of a table."""

def discover(
    data: Any,
    *,
    client: Client | None = None,
    app: str | None = None,
    sample: int = 1000,
    min_confidence: float = 0.7,
    seed: int = 1,
    table: str = "",
    retry_timeout_ms: int = 0,
    deadline_ms: int | None = None,
    min_generation: int | None = None,
    reason: str | None = None,
    traceparent: str | None = None,
) -> Discovery:
    """Samples a table, a record batch, or a stream of record batches, which is read to its end, and proposes rules. `table` is
    its name, by which columns such as `name` are judged. With `client` and `app`, the engine tries each function on the sampled
    values. Without them, functions are chosen by type and form alone."""

@final
class DiscoveredField:
    """A column, and the decision on it. Holds no sampled value."""

    @property
    def field(self) -> str:
        """The path of the column in the grammar of rules, `$.address.street`, which is not that of `columns`."""

    @property
    def verdict(self) -> Literal["sensitive", "uncertain", "harmless"]:
        """`sensitive`: a rule masks the column. `uncertain`: a person must decide."""

    @property
    def category(self) -> str | None:
        """The category of data, such as `email`."""

    @property
    def confidence(self) -> float:
        """From 0 to 1."""

    @property
    def evidence(self) -> list[str]:
        """The reasons, without values."""

    @property
    def mask(self) -> str | None:
        """The function of the rule, or the one proposed for an uncertain column."""

    @property
    def values(self) -> int:
        """Number of values that were judged."""

@final
class Discovery:
    """The result of a discovery. Holds no sampled value."""

    @property
    def fields(self) -> list[DiscoveredField]:
        """All columns, in the order of the schema."""

    @property
    def notes(self) -> list[str]:
        """Notes for the reader: keys that hold data, columns that were not read."""

    def to_toml(self) -> str:
        """Returns the rules as TOML, with the evidence as comments. `Rules` takes it."""

@final
class Rules:
    """Rules of masking jobs. Raises a `ValueError` with line and column."""

    def __new__(cls, text: str, files: Mapping[str, str] | None = None) -> Rules:
        """Parses rules. `files` has the content of files that lists name."""

    @staticmethod
    def from_file(path: str | PathLike[str]) -> Rules:
        """Reads a file of rules, and the lists beside it."""

    def targets(self) -> list[tuple[str, str]]:
        """Returns what each rule names: `path`, `column` or `kind`, and the text."""

    def resolve(self, schema: Any) -> list[tuple[str, int, str | None, bool, list[int]]]:
        """Returns for each leaf of an Arrow schema: its path, the position of its column, its function or `None`, whether its
        values are examined for kinds, and the positions of the columns with its subjects."""
