"""Teaches Schemathesis MessagePack, and what a schema cannot say about requests to an engine."""

import json
import pathlib
import re

import msgpack
import schemathesis

REQUEST_OBJECTS = ("application/vnd.sealwire.request+json", "application/vnd.sealwire.request+msgpack")
# The collections of the contract's examples, by the beginning of the method.
COLLECTIONS = {"objects": "people", "token": "cards", "detoken": "cards"}
# Sentences of the decoder about a request that does not satisfy the tables of the contract.
SENTENCES = re.compile(r"^(header )?(?P<key>\S+) (is missing|is given twice|must be of type .*|must be (?P<rule>.*))$|has no parameter")
# Descriptions of parameters end with their rules.
DESCRIPTION = (pathlib.Path(__file__).resolve().parents[3] / "docs" / "openapi.json").read_text()
BYTES = re.compile(r"\bbytes\b")


def fitting(value):
    """Returns a value with all numbers within 64 bits, which is all that MessagePack has."""
    if isinstance(value, dict):
        return {key: fitting(item) for key, item in value.items()}
    if isinstance(value, list):
        return [fitting(item) for item in value]
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        return float(value) if abs(value) < 2**1000 else 0
    return value


@schemathesis.serializer("application/msgpack", "application/vnd.sealwire.request+msgpack")
def to_msgpack(context, value):
    return value if isinstance(value, bytes) else msgpack.packb(fitting(value), unicode_errors="surrogatepass")


@schemathesis.deserializer("application/msgpack")
def from_msgpack(context, response):
    return msgpack.unpackb(response.content)


def method_of(case):
    return case.operation.path.rsplit("/", 1)[1]


def collection_of(case):
    return next((name for start, name in COLLECTIONS.items() if method_of(case).startswith(start)), None)


@schemathesis.hook
def before_call(context, case, kwargs):
    """Lets most requests reach an app and a collection. A header carries a parameter only beside a document."""
    app = (case.path_parameters or {}).get("app")
    if isinstance(app, str) and re.fullmatch(r"[A-Za-z0-9._-]{1,64}", app) and not app.startswith(("a", "A")):
        case.path_parameters["app"] = "shop"
    collection = collection_of(case)
    is_object = case.media_type in REQUEST_OBJECTS or case.media_type and not takes_document(case)
    if is_object and isinstance(case.body, dict):
        named = case.body.get("collection")
        if isinstance(named, str) and re.fullmatch(r"[A-Za-z0-9._-]{1,64}", named) and not named.startswith(("a", "A")):
            case.body["collection"] = collection
        for header in list(case.headers or {}):
            if header.lower().startswith("sealwire-") or header.lower().replace("-", "_") in case.body:
                del case.headers[header]
    elif case.media_type and "sealwire-collection" in headers_of(case) and case.headers is not None:
        case.headers.setdefault("sealwire-collection", collection)


def headers_of(case):
    return {parameter.name.lower() for parameter in case.operation.headers}


def takes_document(case):
    return len(headers_of(case)) > 1


def texts_of(value):
    if isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from texts_of(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from texts_of(item)
    elif isinstance(value, str):
        yield value


@schemathesis.check
def decoder_agrees(ctx, response, case):
    """A request that satisfies its schema satisfies the tables of parameters, too."""
    if case.meta is None or not case.meta.generation.mode.is_positive or response.status_code != 400:
        return
    detail = json.loads(response.content).get("detail", "") if response.content else "no problem document"
    found = SENTENCES.search(detail)
    if found is None:
        return
    # No schema compares the lengths of two lists.
    if found["rule"] and "as many as" in found["rule"]:
        return
    # Other rules depend on the app, the collection or other parameters.
    if found["rule"] and json.dumps(f"Must be {found['rule']}.")[1:-1] not in DESCRIPTION:
        return
    # For a schema, 1.0 is an integer.
    value = case.body.get(found["key"]) if isinstance(case.body, dict) else None
    if "integer" in detail and any(isinstance(item, float) for item in (value if isinstance(value, list) else [value])):
        return
    # A schema counts characters, and the contract bytes.
    is_ascii = all(text.isascii() for text in texts_of([case.body, dict(case.headers or {})]))
    if found["rule"] and BYTES.search(found["rule"]) and not is_ascii:
        return
    raise AssertionError(f"the schema is satisfied, but not the decoder: {detail}")
