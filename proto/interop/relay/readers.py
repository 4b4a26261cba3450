"""What Python's readers find under the selected names: `python readers.py`, or as a module.

Each line of standard input is a JSON object: `kind`, `type`, `text` (base64). Each answer is a JSON object of the texts that a
reader found, by the reader's name.
"""

import base64
import email
import email.policy
import io
import json
import sys
import urllib.parse

import python_multipart
from werkzeug.formparser import parse_form_data

FIELDS = ("ssn", "token", "card_number", "user[ssn]", "items[0]", "card[number]")


def texts(value):
    """All texts and numbers of a value."""
    if isinstance(value, dict):
        return [text for each in value.values() for text in texts(each)]
    if isinstance(value, (list, tuple)):
        return [text for each in value for text in texts(each)]
    if isinstance(value, bytes):
        return [value.decode("latin-1")]
    return [] if value is None else [str(value)]


def selected(document):
    """Texts at the selected paths of a JSON document."""
    if not isinstance(document, dict):
        return []
    found = [document.get(name) for name in ("ssn", "token", "card_number")]
    for name, key in (("card", "number"), ("user", "ssn"), ("items", "0")):
        inner = document.get(name)
        found.append(inner.get(key) if isinstance(inner, dict) else None)
    items = document.get("items")
    return texts([found, items[:1] if isinstance(items, list) else None])


def folded(value):
    """A document whose keys lost their case, as `str.casefold` has it, and outer blanks."""
    if isinstance(value, dict):
        return {key.strip().casefold(): folded(each) for key, each in value.items()}
    return [folded(each) for each in value] if isinstance(value, list) else value


def read_json(text, _):
    document = json.loads(text)
    return {"json": selected(document), "json, casefold": selected(folded(document))}


def read_form(text, _):
    plain = urllib.parse.parse_qs(text.decode("latin-1"), keep_blank_values=True, encoding="utf-8", errors="replace")
    found = {"parse_qs": texts([plain.get(name) for name in FIELDS])}
    parsed = {}
    python_multipart.parse_form(
        {"Content-Type": b"application/x-www-form-urlencoded"}, io.BytesIO(text),
        lambda field: parsed.setdefault((field.field_name or b"").decode("latin-1"), []).append(field.value), None,
    )
    found["python-multipart"] = texts([parsed.get(urllib.parse.quote(name)) or parsed.get(name) for name in FIELDS])
    return found


def read_multipart(text, content_type):
    environ = {"REQUEST_METHOD": "POST", "CONTENT_TYPE": content_type, "CONTENT_LENGTH": str(len(text)), "wsgi.input": io.BytesIO(text)}
    _, form, files = parse_form_data(environ)
    found = {"werkzeug": texts([form.getlist(name) + [file.read() for file in files.getlist(name)] for name in FIELDS])}
    head = b"Content-Type: " + content_type.encode("latin-1") + b"\r\n\r\n"
    for name, policy in (("email", email.policy.compat32), ("email, decoded", email.policy.default)):
        found[name] = []
        for part in email.message_from_bytes(head + text, policy=policy).walk():
            try:
                field = part.get_param("name", header="content-disposition")
                field = email.utils.collapse_rfc2231_value(field) if isinstance(field, tuple) else field
            except Exception:  # The library itself fails on some heads.
                continue
            if isinstance(field, str) and field.strip() in FIELDS:
                found[name] += texts(part.get_payload(decode=True))
    parsed = []
    python_multipart.parse_form(
        {"Content-Type": content_type.encode("latin-1")}, io.BytesIO(text),
        lambda field: parsed.append((field.field_name, field.value)),
        lambda file: (file.file_object.seek(0), parsed.append((file.field_name, file.file_object.read()))),
    )
    found["python-multipart"] = texts([value for name, value in parsed if (name or b"").decode("latin-1") in FIELDS])
    return found


READ = {"json": read_json, "form": read_form, "query": read_form, "multipart": read_multipart}


def main():
    for line in sys.stdin:
        case = json.loads(line)
        try:
            found = READ[case["kind"]](base64.b64decode(case["text"]), case["type"])
        except Exception:  # A reader that rejects a message finds nothing in it.
            found = {}
        print(json.dumps(found), flush=False)


if __name__ == "__main__":
    main()
