"""Posts a document twice with a client of Python, with a length and in chunks, and prints both responses.

    client.py requests|httpx|httpx-http2 DOCUMENT URL
"""

import sys

HEADERS = {"content-type": "application/json"}


def with_requests(url, body):
    import requests

    response = requests.post(url, data=body, headers=HEADERS, timeout=250)
    response.raise_for_status()
    return response.text


def with_httpx(url, body, **versions):
    import httpx

    with httpx.Client(timeout=250, **versions) as client:
        response = client.post(url, content=body, headers=HEADERS)
        response.raise_for_status()
        return response.text


CLIENTS = {
    "requests": with_requests,
    "httpx": with_httpx,
    "httpx-http2": lambda url, body: with_httpx(url, body, http1=False, http2=True),
}

name, document, url = sys.argv[1:]
halves = [document[:9].encode(), document[9:].encode()]
for body in (document.encode(), iter(halves)):
    print(CLIENTS[name](url, body))
