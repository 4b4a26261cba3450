"""One call without any code of ours: the `msgpack` package over the standard library's `ssl`.

    python3 proto/interop/call.py [FOLDER [HOST PORT]]

FOLDER is what `sealwire dev` made (default: sealwire-dev).
"""

import socket
import ssl
import sys

import msgpack


def connect(folder, host, port):
    tls = ssl.create_default_context(cafile=f"{folder}/ca.pem")
    tls.load_cert_chain(f"{folder}/client.pem", f"{folder}/client-key.pem")
    return tls.wrap_socket(socket.create_connection((host, port)), server_hostname="localhost")


def call(connection, method, params, msgid=1):
    connection.sendall(msgpack.packb([0, msgid, method, [params]]))
    replies = msgpack.Unpacker()
    while True:
        data = connection.recv(65536)
        if not data:
            raise ConnectionError("the engine closed the connection")
        replies.feed(data)
        for kind, answered, error, result in replies:
            if kind == 1 and answered == msgid:
                if error:
                    raise RuntimeError(error)
                return result


if __name__ == "__main__":
    folder, host, port = (sys.argv[1:] + ["sealwire-dev", "127.0.0.1", "7443"][len(sys.argv) - 1 :])[:3]
    document = {"name": "Zoë", "card": {"number": "4242424242424242"}, "total": 12990}
    with connect(folder, host, int(port)) as engine:
        sealed = call(engine, "encrypt", {"app": "demo", "payload": document, "select": ["$.card.number"]})
        print(sealed["payload"])
        opened = call(engine, "decrypt", {"app": "demo", "payload": sealed["payload"]})
        print(opened["payload"])
        assert opened["payload"] == document
