"""Checks docs/openapi.json against an engine: every example, and the description itself.

    python3 proto/interop/openapi/check.py target/release/sealwire

Starts `sealwire dev`, fetches the description and validates it. Sends the example of every operation in each form that the
description has, as JSON and as MessagePack, and validates status, headers and body of the response.
"""

import contextlib
import json
import os
import pathlib
import re
import ssl
import sys
import tempfile
import urllib.error
import urllib.request

import jsonschema
import msgpack
from openapi_spec_validator import OpenAPIV31SpecValidator

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
import examples  # noqa: E402

FILE = HERE.parents[2] / "docs" / "openapi.json"
CONTRACT = HERE.parents[1] / "README.md"
JSON, MSGPACK = "application/json", "application/msgpack"
# A second request of these meets the effect of the first one.
NOT_REPEATABLE = {"objectsAdd": 409, "objectsUpdate": 409, "objectsDelete": 404}


def is_msgpack(media):
    return media.endswith("msgpack")


def encode(media, value):
    return msgpack.packb(value) if is_msgpack(media) else json.dumps(value).encode()


def decode(media, body):
    return msgpack.unpackb(body) if is_msgpack(media) else json.loads(body)


def header_text(value):
    """Returns a value in the style `simple`."""
    if isinstance(value, list):
        return ",".join(map(header_text, value))
    return json.dumps(value) if isinstance(value, bool) else str(value)


class Description:
    """The description, with its references."""

    def __init__(self, document):
        self.document = document

    def resolved(self, value):
        while "$ref" in value:
            found = self.document
            for name in value["$ref"].removeprefix("#/").split("/"):
                found = found[name]
            value = found
        return value

    def validate(self, schema, value):
        root = {"components": self.document["components"], "allOf": [schema]}
        jsonschema.Draft202012Validator(root).validate(value)

    def operations(self):
        """Returns verb, path and operation of each path, in the order of the contract's examples: later ones use results of earlier ones."""
        methods = re.findall(r'^-> \[0, \d+, "([a-z._]+)"', CONTRACT.read_text(), re.MULTILINE)
        found = [(verb.upper(), path, operation) for path, item in self.document["paths"].items() for verb, operation in item.items()]
        names = {method: place for place, method in reversed(list(enumerate(methods)))}
        return sorted(found, key=lambda entry: names.get(entry[1].rsplit("/", 1)[1], -1))


class Engine:
    """An engine of `sealwire dev`, over HTTPS."""

    def __init__(self, folder, port):
        self.base = f"https://localhost:{port}"
        self.tls = ssl.create_default_context(cafile=f"{folder}/ca.pem")
        self.tls.load_cert_chain(f"{folder}/client.pem", f"{folder}/client-key.pem")

    def send(self, verb, path, headers=None, body=None):
        request = urllib.request.Request(self.base + path, method=verb, data=body, headers=headers or {})
        try:
            with urllib.request.urlopen(request, context=self.tls, timeout=60) as response:
                return response.status, response.headers, response.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.headers, error.read()


class Checker:
    """Sends examples and validates responses."""

    def __init__(self, description, engine):
        self.description, self.engine, self.sent = description, engine, 0
        # Texts of the examples that each engine makes anew, such as envelopes, with those of this engine.
        self.renamed = {}

    def renewed(self, value):
        """Returns an example with the texts of this engine."""
        if isinstance(value, dict):
            return {key: self.renewed(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self.renewed(item) for item in value]
        return self.renamed.get(value, value) if isinstance(value, str) else value

    def learn(self, shown, got):
        """Remembers the texts of a response that differ from those of its example."""
        if isinstance(shown, dict) and isinstance(got, dict):
            for key in shown.keys() & got.keys():
                self.learn(shown[key], got[key])
        elif isinstance(shown, list) and isinstance(got, list):
            for item, other in zip(shown, got):
                self.learn(item, other)
        elif isinstance(shown, str) and isinstance(got, str) and shown != got:
            self.renamed[shown] = got

    def check(self, operation, response):
        """Validates a response. Returns its body."""
        status, headers, body = response
        described = operation["responses"].get(str(status))
        assert described, f"status {status} is not described: {body[:300]}"
        described = self.description.resolved(described)
        media = headers.get_content_type()
        assert media in described["content"], f"{media} is not described for {status}"
        value = decode(media, body)
        self.description.validate(described["content"][media]["schema"], value)
        known = described.get("headers", {})
        for name, header in known.items():
            if headers.get(name) is not None:
                self.check_header(self.description.resolved(header)["schema"], headers.get(name))
        unknown = [name for name in headers if name.lower().startswith("sealwire-") and name.lower() not in known]
        assert not unknown, f"not described: {unknown}"
        return value

    def check_header(self, schema, text):
        parts = [part.strip() for part in text.split(",")] if schema["type"] == "array" else [text]
        kind = schema.get("items", schema)["type"]
        values = [int(part) if kind == "integer" else part for part in parts]
        self.description.validate(schema, values if schema["type"] == "array" else values[0])

    def call(self, verb, path, operation):
        """Sends every example of an operation."""
        name = operation["operationId"]
        if verb == "GET":
            response = self.engine.send(verb, path)
            assert response[0] == 200, response
            self.check(operation, response)
            self.sent += 1
            return
        success = operation["responses"]["200"]["content"][JSON]
        parameters = [self.description.resolved(parameter) for parameter in operation["parameters"]]
        path = path.format(app=next(parameter["example"] for parameter in parameters if parameter["in"] == "path"))
        given = {parameter["name"]: parameter["example"] for parameter in parameters if parameter["in"] == "header" and "example" in parameter}
        content = operation["requestBody"]["content"]
        allowed = {200}
        assert any("examples" in media for media in content.values()), "no example"
        for media, described in content.items():
            # The examples of MessagePack are those of JSON, and a request object has one type beside its own.
            twins = [described, content.get(media.replace("msgpack", "json"), {}), content.get(JSON, {})]
            for form, example in next(twin["examples"] for twin in twins if "examples" in twin).items():
                self.description.validate(described["schema"], example["value"])
                headers = {"content-type": media}
                if form == "document":
                    headers |= {header: header_text(self.renewed(value)) for header, value in given.items()}
                response = self.engine.send(verb, path, headers, encode(media, self.renewed(example["value"])))
                assert response[0] in allowed, f"{media}: {response[0]} {response[2]}"
                value = self.check(operation, response)
                allowed |= {NOT_REPEATABLE.get(name, 200)}
                self.sent += 1
                if response[0] != 200:
                    continue
                if "anyOf" in success["schema"]:
                    # The document, or the result.
                    self.description.validate(success["schema"]["anyOf"][form == "object"], value)
                shown = success.get("examples", {})
                shown = shown.get(form, None if "document" in shown else shown.get("object"))
                if shown:
                    self.learn(shown["value"], value)


@contextlib.contextmanager
def serving(program):
    """Starts an engine with the app, collections and roles of the contract's examples. Yields its folder and its HTTPS port."""
    with tempfile.TemporaryDirectory() as folder, examples.started(program, folder) as process:
        try:
            control = int(re.findall(r"127\.0\.0\.1:(\d+)", process.stdout.readline())[1])
            examples.control_before(examples.Engine(folder, control, "operator"))
            ports = (re.search(r"https://localhost:(\d+)/", line) for line in process.stdout)
            yield folder, int(next(filter(None, ports)).group(1))
        finally:
            process.terminate()
            process.stdout.read()


def main():
    with serving(os.path.abspath(sys.argv[1])) as (folder, port):
        engine = Engine(folder, port)
        status, headers, served = engine.send("GET", "/openapi.json")
        assert (status, headers.get_content_type()) == (200, JSON), (status, headers)
        assert served == FILE.read_bytes(), "the engine serves another description than docs/openapi.json"
        description = Description(json.loads(served))
        OpenAPIV31SpecValidator(description.document).validate()
        checker = Checker(description, engine)
        operations = description.operations()
        for verb, path, operation in operations:
            try:
                checker.call(verb, path, operation)
            except (AssertionError, jsonschema.ValidationError) as error:
                sys.exit(f"{operation['operationId']}: {error}")
    print(f"OpenAPI: {checker.sent} examples of {len(operations)} operations, as the description says")


if __name__ == "__main__":
    main()
