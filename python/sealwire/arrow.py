"""Columns of Arrow data: encrypts, decrypts, tokenizes, detokenizes and masks their values.

Data is anything with the Arrow PyCapsule interface: a table, a record batch or a column of pyarrow, polars and others. The
values of the named columns go to the engine in batches, several at a time; their order and nulls stay. Columns that are not
named keep their buffers. What comes from pyarrow or polars comes back as its own type, and all else as an object with the
same interface.

A column is named by its name or by a path: `address.street` is a field of a struct, `tags[*]` are the items of a list.
A column without a table is given without names.

An encrypted or tokenized column is text. Its field notes the original type, so that `decrypt` and `detokenize` restore it;
where a field's metadata is lost, as for a column without a table, `types` names it.
"""

from ._native import transform

# Larger requests gain little, and smaller ones share a key agreement among fewer values. In flight, more gain nothing.
BATCH_FIELDS = 1000
IN_FLIGHT = 8


def encrypt(client, data, *, app, columns=None, batch_fields=BATCH_FIELDS, in_flight=IN_FLIGHT, **options):
    named = [(name, None, options) for name in _names(columns)]
    return _transform(client, "encrypt", app, data, columns, named, (batch_fields, in_flight))


def tokenize(client, data, *, app, collection, columns=None, batch_fields=BATCH_FIELDS, in_flight=IN_FLIGHT, **options):
    options["collection"] = collection
    named = [(name, None, options) for name in _names(columns)]
    return _transform(client, "tokenize", app, data, columns, named, (batch_fields, in_flight))


def decrypt(client, data, *, app, columns=None, types=None, batch_fields=BATCH_FIELDS, in_flight=IN_FLIGHT, **options):
    named = [(name, _type_of(types, columns, name), options) for name in _names(columns)]
    return _transform(client, "decrypt", app, data, columns, named, (batch_fields, in_flight))


def detokenize(
    client, data, *, app, collection, columns=None, types=None, batch_fields=BATCH_FIELDS, in_flight=IN_FLIGHT, **options
):
    options["collection"] = collection
    named = [(name, _type_of(types, columns, name), options) for name in _names(columns)]
    return _transform(client, "detokenize", app, data, columns, named, (batch_fields, in_flight))


def mask(client, data, *, app, masks, types=None, batch_fields=BATCH_FIELDS, in_flight=IN_FLIGHT, **options):
    columns = None if isinstance(masks, str) else list(masks)
    named = []
    for name in _names(columns):
        function = masks if columns is None else masks[name]
        rules = [{"path": "$[*]", "mask": function}]
        named.append((name, _type_of(types, columns, name), {**options, "rules": rules}))
    return _transform(client, "mask", app, data, columns, named, (batch_fields, in_flight))


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
    raise TypeError("a type must be one of pyarrow, polars, or another with the Arrow PyCapsule interface")


def _transform(client, method, app, data, columns, named, batching):
    wrap, unwrap = _conversions(data)
    data = wrap(data)
    if columns is None and not hasattr(data, "__arrow_c_array__") and wrap is _same:
        raise TypeError("columns must be named for a table")
    if columns is not None and wrap is not _same:
        raise TypeError("a column without a table has no names")
    return unwrap(transform(client._native, method, app, data, named, batching))


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
