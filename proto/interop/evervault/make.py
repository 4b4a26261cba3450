"""Encrypts with the published Python client, as told on stdin; make.mjs describes the lines.

    EV_API_URL=http://127.0.0.1:1234/ python make.py
"""

import json
import sys

import evervault

CURVES = {"r1": "SECP256R1", "k1": "SECP256K1"}


def step(given):
    try:
        if "file" in given:
            return {"file": evervault.encrypt(bytes.fromhex(given["file"]), given["role"]).hex()}
        return {"value": evervault.encrypt(given["value"], given["role"])}
    except Exception as error:  # Whatever the client refuses with is an answer here.
        return {"error": repr(error)}


for line in sys.stdin:
    job = json.loads(line)
    evervault.ev_client = None  # A new client, as a new process would have.
    evervault.init("app_0123456789ab", job["key"], curve=CURVES[job["curve"]])
    print(json.dumps({"results": [step(each) for each in job["steps"]]}), flush=True)
