"""Columns of Arrow data: encrypts, decrypts, tokenizes, detokenizes and masks their values, and finds sensitive ones.

Data is anything with the Arrow PyCapsule interface: a table, a record batch or a column of pyarrow, polars and others. The
values of the named columns go to the engine in batches, several at a time; their order and nulls stay. Columns that are not
named keep their buffers. What comes from pyarrow or polars comes back as its own type, and all else as an object with the
same interface.

A column is named by its name or by a path: `address.street` is a field of a struct, `tags[*]` are the items of a list.
A column without a table is given without names.

An encrypted or tokenized column is text. Its field notes the original type, so that `decrypt` and `detokenize` restore it;
where a field's metadata is lost, as for a column without a table, `types` names it.
"""

import datetime
import os
import re

from ._native import DiscoveredField, Discovery, Rules, check_columns, mask_by_rules, transform
from ._native import discover as _discover
from .errors import Error

__all__ = ["DiscoveredField", "Discovery", "Rules", "decrypt", "detokenize", "discover", "encrypt", "mask", "tokenize"]

_BATCHING = ("batch_fields", "in_flight", "retry_timeout_ms", "idempotency_seed")


def encrypt(client, data, *, app, columns=None, **options):
    """Replaces the values of columns by envelopes.

    Args:
        client: The `Client`.
        data: A table, a record batch, or a column without a table.
        app: The name of the app.
        columns: Names or paths of the columns. `None` for a column without a table.
        batch_fields: Maximum number of values of a request; default 1,000.
        in_flight: Maximum number of concurrent requests; default 8.
        retry_timeout_ms: Longest time for repeating a request to an overloaded or unreachable engine; default 0.
        options: Further options of the requests, as of the method of `Client`.

    Returns:
        The data with new columns, of the same library if it came from pyarrow or polars.

    Raises:
        sealwire.Error: A request failed. `details` names the column and the row.
        TypeError: A column cannot be sent, or an option has the wrong type.

    Example:
        sealed = sealwire.arrow.encrypt(client, table, app="shop", columns=["email"])
    """
    batching = _batching(options)
    named = [(name, None, options) for name in _names(columns)]
    return _transform(client, "encrypt", app, data, columns, named, batching)


def tokenize(client, data, *, app, collection, columns=None, **options):
    """Replaces the values of columns by tokens.

    Args:
        client: The `Client`.
        data: A table, a record batch, or a column without a table.
        app: The name of the app.
        collection: The name of the collection.
        columns: Names or paths of the columns. `None` for a column without a table.
        idempotency_seed: At least 16 random bytes. A call that is repeated with them gets the same tokens.
        batch_fields: Maximum number of values of a request; default 1,000.
        in_flight: Maximum number of concurrent requests; default 8.
        retry_timeout_ms: Longest time for repeating a request to an overloaded or unreachable engine; default 0.
        options: Further options of the requests, as of the method of `Client`.

    Returns:
        The data with new columns, of the same library if it came from pyarrow or polars.

    Raises:
        sealwire.Error: A request failed. `details` names the column and the row.
        TypeError: A column cannot be sent, or an option has the wrong type.

    Example:
        tokens = sealwire.arrow.tokenize(client, table, app="shop", collection="cards", columns=["card"])
    """
    batching = _batching(options)
    # A request that is repeated because its response was lost gets its tokens again.
    batching.setdefault("idempotency_seed", os.urandom(32))
    options["collection"] = collection
    named = [(name, None, options) for name in _names(columns)]
    return _transform(client, "tokenize", app, data, columns, named, batching)


def decrypt(client, data, *, app, columns=None, types=None, **options):
    """Opens the envelopes of columns, and restores their types.

    Args:
        client: The `Client`.
        data: A table, a record batch, or a column without a table.
        app: The name of the app.
        columns: Names or paths of the columns. `None` for a column without a table.
        types: Types of columns whose fields do not note them, by column.
        batch_fields: Maximum number of values of a request; default 1,000.
        in_flight: Maximum number of concurrent requests; default 8.
        retry_timeout_ms: Longest time for repeating a request to an overloaded or unreachable engine; default 0.
        options: Further options of the requests, as of the method of `Client`.

    Returns:
        The data with new columns, of the same library if it came from pyarrow or polars.

    Raises:
        sealwire.Error: A request failed. `details` names the column and the row.
        TypeError: A column cannot be sent, or an option has the wrong type.

    Example:
        opened = sealwire.arrow.decrypt(client, sealed, app="shop", columns=["email"])
    """
    batching = _batching(options)
    named = [(name, _type_of(types, columns, name), options) for name in _names(columns)]
    return _transform(client, "decrypt", app, data, columns, named, batching)


def detokenize(client, data, *, app, collection, columns=None, types=None, **options):
    """Replaces the tokens of columns by their values, and restores their types.

    Args:
        client: The `Client`.
        data: A table, a record batch, or a column without a table.
        app: The name of the app.
        collection: The name of the collection.
        columns: Names or paths of the columns. `None` for a column without a table.
        types: Types of columns whose fields do not note them, by column.
        batch_fields: Maximum number of values of a request; default 1,000.
        in_flight: Maximum number of concurrent requests; default 8.
        retry_timeout_ms: Longest time for repeating a request to an overloaded or unreachable engine; default 0.
        options: Further options of the requests, as of the method of `Client`.

    Returns:
        The data with new columns, of the same library if it came from pyarrow or polars.

    Raises:
        sealwire.Error: A request failed. `details` names the column and the row.
        TypeError: A column cannot be sent, or an option has the wrong type.

    Example:
        values = sealwire.arrow.detokenize(client, tokens, app="shop", collection="cards", columns=["card"])
    """
    batching = _batching(options)
    options["collection"] = collection
    named = [(name, _type_of(types, columns, name), options) for name in _names(columns)]
    return _transform(client, "detokenize", app, data, columns, named, batching)


def mask(client, data, *, app, masks=None, rules=None, types=None, **options):
    """Masks columns, by functions for each or by rules.

    Args:
        client: The `Client`.
        data: A table, a record batch, or a column without a table.
        app: The name of the app.
        masks: The function of each column, by name or path; a single function for a column without a table.
        rules: `Rules` for a table, instead of `masks`.
        types: Types of the masked columns, by column. Only with `masks`.
        batch_fields: Maximum number of values of a request; default 1,000.
        in_flight: Maximum number of concurrent requests; default 8.
        retry_timeout_ms: Longest time for repeating a request to an overloaded or unreachable engine; default 0.
        options: Further options of the requests, as of the method of `Client`.

    Returns:
        The data with new columns, of the same library if it came from pyarrow or polars.

    Raises:
        sealwire.Error: A request failed. `details` names the column and the row.
        TypeError: A column cannot be sent, or an option has the wrong type.

    Example:
        masked = sealwire.arrow.mask(client, table, app="shop", masks={"email": "email"})
    """
    batching = _batching(options)
    if (masks is None) == (rules is None):
        raise TypeError("mask() needs either masks or rules")
    if rules is not None:
        return _mask_by_rules(client, app, data, rules, types, options, batching)
    columns = None if isinstance(masks, str) else list(masks)
    named = []
    for name in _names(columns):
        function = masks if columns is None else masks[name]
        rules = [{"path": "$[*]", "mask": function}]
        named.append((name, _type_of(types, columns, name), {**options, "rules": rules}))
    return _transform(client, "mask", app, data, columns, named, batching)


def discover(data, **options):
    """Samples data and proposes rules for its sensitive columns.

    Args:
        data: A table, a record batch, or a stream of record batches, which is read to its end.
        client: The `Client` that tries the functions on sampled values; together with `app`. Default: none.
        app: The name of the app.
        sample: Maximum number of values of a column to judge by, 10 to 10,000; default 1,000.
        min_confidence: Confidence from which a column gets a rule, 0 to 1; default 0.7.
        seed: Seed of the sample: equal data and seed give equal rules; default 1.
        table: Name of the table, by which columns such as `name` are judged.
        retry_timeout_ms: Longest time for repeating a request to an overloaded or unreachable engine; default 0.

    Returns:
        A `Discovery`, which holds no sampled value.

    Raises:
        sealwire.Error: A request failed.
        TypeError: The data has no columns with names, or an option has the wrong type.

    Example:
        print(sealwire.arrow.discover(table).to_toml())
    """
    return _discover_with([], data, **options)


def _discover_with(
    notes, data, *, client=None, app=None, sample=1000, min_confidence=0.7, seed=1, table="", retry_timeout_ms=0, **options
):
    if (client is None) != (app is None):
        raise TypeError("discover() needs client and app together, or neither")
    if client is None and options:
        raise TypeError(f"discover() got '{next(iter(options))}', which is an option of requests, without a client")
    if _is_column(data):
        raise TypeError("discovery needs a table: a column by itself has no name")
    settings = {
        "sample": sample,
        "min_confidence": min_confidence,
        "seed": seed,
        "table": table,
        "retry_timeout_ms": retry_timeout_ms,
        "notes": notes,
        "this_year": datetime.date.today().year,
    }
    engine = None if client is None else (client._native, app)
    return _with_column_name(data, lambda: _discover(data, settings, engine, options))


def _is_column(data):
    return _conversions(data)[0] is not _same or (hasattr(data, "__arrow_c_array__") and not _is_batch(data))


def _mask_by_rules(client, app, data, rules, types, options, batching):
    if types is not None:
        raise TypeError("types go with masks; a column that rules mask keeps its type")
    if _is_column(data):
        raise TypeError("rules need a table: a column by itself has no name")
    unwrap = _conversions(data)[1]
    return unwrap(_with_column_name(data, lambda: mask_by_rules(client._native, app, data, rules, options, batching)))


def _is_batch(data):
    return hasattr(data, "schema")


def _batching(options):
    """Takes the settings that are not of a request."""
    return {name: options.pop(name) for name in _BATCHING if name in options}


def _names(columns):
    """A column without a table has no name."""
    if columns is None:
        return [""]
    if isinstance(columns, str):
        raise TypeError("columns must be a list of names")
    names = list(columns)
    if not names or len(set(names)) != len(names):
        raise ValueError("columns must be names, each of them once")
    return names


def _type_of(types, columns, name):
    data_type = types if types is None or columns is None else types.get(name)
    if data_type is None or hasattr(data_type, "__arrow_c_schema__"):
        return data_type
    if getattr(data_type, "__module__", "").partition(".")[0] == "polars":
        import polars

        return polars.Schema({"": data_type})
    if isinstance(data_type, str):
        return _named_type(data_type)
    raise TypeError("a type must be one of pyarrow, polars, or another with the Arrow PyCapsule interface, or the name that pyarrow prints")


def _named_type(name):
    """Returns the type that pyarrow prints as `name`, such as `int64` or `timestamp[us, tz=UTC]`."""
    import pyarrow

    for form, made in (
        (r"decimal128\((\d+), ?(-?\d+)\)", lambda digits, scale: pyarrow.decimal128(int(digits), int(scale))),
        (r"timestamp\[(s|ms|us|ns), ?tz=([^\]]+)\]", pyarrow.timestamp),
        (r"fixed_size_binary\[(\d+)\]", lambda width: pyarrow.binary(int(width))),
        (r"date32\[day\]", pyarrow.date32),
    ):
        if match := re.fullmatch(form, name):
            return made(*match.groups())
    try:
        return pyarrow.type_for_alias(name)
    except ValueError:
        raise ValueError(f"{name!r} is no type's name as pyarrow prints it, such as 'int64' or 'timestamp[us, tz=UTC]'") from None


def _transform(client, method, app, data, columns, named, batching):
    wrap, unwrap = _conversions(data)
    if columns is not None and wrap is not _same:
        raise TypeError("a column without a table has no names")
    data = wrap(data)
    if columns is None and not hasattr(data, "__arrow_c_array__") and wrap is _same:
        raise TypeError("columns must be named for a table")
    sent, put_back = (data, unwrap) if columns is None else _set_aside(data, columns, unwrap)
    return put_back(_with_column_name(sent, lambda: transform(client._native, method, app, sent, named, batching)))


def _set_aside(data, paths, unwrap):
    """Returns the columns of a table that paths name, and a function that puts results in their place. The other columns stay
    here as they are, so they can have any type and metadata."""
    tops = {*paths, *(re.split(r"\.|\[\*\]", path)[0] for path in paths)}
    library = type(data).__module__.partition(".")[0]
    if library == "polars" and hasattr(data, "get_columns"):
        # `select` takes names such as ^a.*$ for patterns.
        sent = type(data)([column for column in data.get_columns() if column.name in tops])
        return sent, lambda result: data.with_columns(unwrap(result).get_columns())
    # A stream of batches can be read only once, and as a whole.
    if library != "pyarrow" or not hasattr(data, "select"):
        return data, unwrap
    places = [place for place, name in enumerate(data.schema.names) if name in tops]
    sent = data.select(places).replace_schema_metadata(None)

    def put_back(result):
        made = unwrap(result)
        fields, arrays = list(data.schema), list(data.columns)
        for place, field, array in zip(places, made.schema, made.columns):
            fields[place], arrays[place] = field, array
        import pyarrow

        return type(data).from_arrays(arrays, schema=pyarrow.schema(fields, metadata=data.schema.metadata))

    return sent, put_back


def _with_column_name(data, work):
    """Does work on Arrow data. An error in the type or metadata of a column says which column it is."""
    schemas = list(_column_schemas(data))
    for name, schema in schemas:
        if schema is None:
            raise TypeError(f"column {name} holds Python objects: cast it, or leave it out")
    try:
        return work()
    except (Error, MemoryError):
        raise
    except Exception as failure:
        for name, schema in schemas or _foreign_column_schemas(data):
            try:
                check_columns(schema, [])
            except MemoryError:
                raise
            except Exception as error:
                raise TypeError(f"column {name}: its type or metadata cannot be read: {error}") from failure
        raise


def _column_schemas(data):
    """Yields each column of a table with a schema of it alone, or None for Python objects, which Arrow does not have."""
    library = type(data).__module__.partition(".")[0]
    if library == "polars" and hasattr(data, "schema"):
        import polars

        for name, data_type in data.schema.items():
            yield name, None if data_type == polars.Object else polars.Schema({name: data_type})
    elif library == "pyarrow" and hasattr(data, "schema"):
        import pyarrow

        for field in data.schema:
            yield field.name, pyarrow.schema([field])


def _foreign_column_schemas(data):
    """Returns the columns of data of another library in the same way, as far as pyarrow is there and can tell."""
    try:
        import pyarrow

        # A stream is not asked for: it can run a query again to word an error.
        if not hasattr(data, "__arrow_c_schema__"):
            return []
        schema = pyarrow.schema(data)
        return [(field.name, pyarrow.schema([field])) for field in schema]
    except MemoryError:
        raise
    except Exception:
        # A stream that was read has no schema any more, for one. The error for which it is asked says enough.
        return []


def _same(data):
    return data


def _conversions(data):
    """Functions that make data ready, and that turn the result into the type that came."""
    library = type(data).__module__.partition(".")[0]
    if library == "pyarrow":
        return _pyarrow_conversions(data)
    if library == "polars":
        return _polars_conversions(data)
    return _same, _same


def _pyarrow_conversions(data):
    import pyarrow

    if isinstance(data, pyarrow.ChunkedArray):
        return (lambda data: pyarrow.table({"": data})), (lambda result: pyarrow.table(result).column(0))
    if isinstance(data, pyarrow.RecordBatch):
        return _same, pyarrow.record_batch
    if isinstance(data, pyarrow.Array):
        return _same, pyarrow.array
    return _same, pyarrow.table


def _polars_conversions(data):
    import polars

    if isinstance(data, polars.Series):
        return (lambda data: data.to_frame("")), (lambda result: polars.DataFrame(result).to_series().rename(data.name))
    return _same, polars.DataFrame
