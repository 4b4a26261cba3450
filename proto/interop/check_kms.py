"""The reference library of gRPC against a running KMS plugin, as an API server of Kubernetes sees it.

    python3 proto/interop/check_kms.py target/release/sealwire target/release/sealwire-kms

Starts `sealwire dev` and the plugin in a temporary folder. Messages are written by hand from the field numbers of
k8s.io/kms/apis/v2/api.proto, which has strings and bytes alone.
"""

import os
import re
import subprocess
import sys
import tempfile
import time

import grpc

CONFIG = """
[plugin]
socket = "{folder}/run/kms.sock"
app = "demo"
cluster = "{cluster}"

[engine]
endpoints = ["localhost:{port}"]
ca = "{folder}/ca.pem"
certificate = "{folder}/client.pem"
key = "{folder}/client-key.pem"
"""


def encode(**fields):
    """Encodes fields such as `_1=b"..."`, each of less than 128 bytes, as a protobuf message."""
    message = b""
    for name, value in fields.items():
        value = value.encode() if isinstance(value, str) else value
        assert len(value) < 128
        message += bytes([int(name[1:]) << 3 | 2, len(value)]) + value
    return message


def decode(message):
    """Returns the fields of a message as bytes, by their numbers."""
    fields, at = {}, 0
    while at < len(message):
        number, length, at = message[at] >> 3, message[at + 1], at + 2
        assert message[at - 2] & 7 == 2
        if length >= 128:
            length, at = length - 128 + (message[at] << 7), at + 1
        fields[number] = message[at:at + length]
        at += length
    return fields


class Plugin:
    """A plugin for a cluster, with a client."""

    def __init__(self, program, folder, port, cluster):
        config = f"{folder}/kms.toml"
        with open(config, "w") as file:
            file.write(CONFIG.format(folder=folder, port=port, cluster=cluster))
        self.process = subprocess.Popen([program, "--config", config], stderr=subprocess.DEVNULL)
        # As the API server does. Otherwise the library sends the escaped path, which no host name is.
        options = [("grpc.default_authority", "localhost")]
        self.channel = grpc.insecure_channel(f"unix://{folder}/run/kms.sock", options)
        self.waits = {"wait_for_ready": True, "timeout": 60}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.channel.close()
        self.process.terminate()
        assert self.process.wait() == 0

    def call(self, method, message=b""):
        return decode(self.channel.unary_unary(f"/v2.KeyManagementService/{method}")(message, **self.waits))

    def code_of(self, method, message=b""):
        try:
            self.call(method, message)
        except grpc.RpcError as error:
            assert error.details(), method
            return error.code().name
        return "OK"


def check_service(plugin):
    status = plugin.call("Status")
    assert status[1] == b"v2" and status[2] == b"ok", status
    key = bytes(range(32))
    sealed = plugin.call("Encrypt", encode(_1=key, _2="uid-1"))
    assert sealed[2] == status[3] and key not in sealed[1] and 3 not in sealed
    decrypt = {"_1": sealed[1], "_2": "uid-2", "_3": sealed[2]}
    assert plugin.call("Decrypt", encode(**decrypt)) == {1: key}

    changed = sealed[1][:-1] + bytes([sealed[1][-1] ^ 1])
    for expected, method, message in [
        ("INVALID_ARGUMENT", "Decrypt", encode(**{**decrypt, "_1": changed})),
        ("INVALID_ARGUMENT", "Decrypt", encode(**{**decrypt, "_3": "0000000000"})),
        ("INVALID_ARGUMENT", "Decrypt", encode(**{**decrypt, "_1": key})),
        ("INVALID_ARGUMENT", "Encrypt", b""),
        ("UNIMPLEMENTED", "Rotate", b""),
    ]:
        assert plugin.code_of(method, message) == expected, (method, message)
    return decrypt


def main():
    engine_program, plugin_program = (os.path.abspath(path) for path in sys.argv[1:3])
    any_port = "127.0.0.1:0"
    with tempfile.TemporaryDirectory() as folder:
        command = [engine_program, "dev", "--folder", f"{folder}/dev", "--listen", any_port, "--admin", any_port, "--http", any_port]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as engine:
            try:
                first = engine.stdout.readline()
                port = int(re.search(r"listens on 127\.0\.0\.1:(\d+)", first).group(1))
                dev = f"{folder}/dev"
                os.mkdir(f"{dev}/run", 0o700)
                with Plugin(plugin_program, dev, port, "prod") as plugin:
                    decrypt = check_service(plugin)
                    subprocess.run([engine_program, "apps", "rotate", "demo", "--suite", "p256-psk", "--folder", dev], check=True,
                                   stdout=subprocess.DEVNULL)
                    end = time.monotonic() + 60
                    while plugin.call("Status")[3] == decrypt["_3"]:
                        assert time.monotonic() < end, "the rotation did not change the key id"
                        time.sleep(0.05)
                    assert plugin.code_of("Decrypt", encode(**decrypt)) == "OK"
                    check_service(plugin)
                with Plugin(plugin_program, dev, port, "staging") as plugin:
                    assert plugin.code_of("Decrypt", encode(**decrypt)) == "INVALID_ARGUMENT"
                    check_service(plugin)
            finally:
                engine.terminate()
                engine.stdout.read()
        assert engine.returncode == 0, engine.returncode
    print("KMS interop: status, keys, rotation and errors as Kubernetes expects, from Python's gRPC")


if __name__ == "__main__":
    main()
