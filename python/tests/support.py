"""A real engine, and a server that plays one: its answers are the test's, so that no test depends on time."""

import contextlib
import os
import queue
import re
import socket
import ssl
import subprocess
import tempfile
import threading

import msgpack

# Turns a hang into a failure.
PATIENCE_S = 60


def client_files(folder):
    return {"ca": f"{folder}/ca.pem", "cert": f"{folder}/client.pem", "key": f"{folder}/client-key.pem"}


class Engine:
    """The program of `SEALWIRE_PROGRAM` in its development mode."""

    def __init__(self):
        self._folder = tempfile.TemporaryDirectory()
        self.folder = self._folder.name
        self.program = os.environ["SEALWIRE_PROGRAM"]
        self.port = 0
        self.start()

    def start(self):
        """Starts the engine, again on the port that it had."""
        any_port, own_port = "127.0.0.1:0", f"127.0.0.1:{self.port}"
        command = [self.program, "dev", "--folder", self.folder, "--listen", own_port, "--admin", any_port, "--control", any_port, "--http", any_port]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        first = self.process.stdout.readline()
        self.port = int(re.search(r"listens on 127\.0\.0\.1:(\d+)", first).group(1))

    def admin_address(self):
        """Returns the address of the metrics, once after a start."""
        lines = iter(self.process.stdout.readline, "")
        return next(found.group(1) for line in lines if (found := re.search(r"http://([\d.:]+)/ready", line)))

    def kill(self):
        self.process.kill()
        self.process.stdout.read()
        self.process.wait(PATIENCE_S)

    @property
    def arguments(self):
        return {"endpoints": f"127.0.0.1:{self.port}", "server_name": "localhost", **client_files(self.folder)}

    def stop(self):
        self.process.terminate()
        self.process.stdout.read()
        self.process.wait(PATIENCE_S)
        self._folder.cleanup()


_engine = None


def engine():
    """The engine that all tests share."""
    global _engine
    if _engine is None:
        _engine = Engine()
    return _engine


def stop_engine():
    global _engine
    if _engine is not None:
        _engine.stop()
        _engine = None


class RawPayload:
    """A payload of a response as MessagePack, for what msgpack cannot write."""

    def __init__(self, data):
        self.data = data


def packed(reply):
    """Writes a response. Its document can be a `RawPayload`."""
    *head, result = reply
    if isinstance(result, dict) and isinstance(result.get("payload"), RawPayload):
        payload = result["payload"].data
        rest = {name: value for name, value in result.items() if name != "payload"}
        entries = b"".join(msgpack.packb(name) + msgpack.packb(value) for name, value in rest.items())
        entries += msgpack.packb("payload") + payload
        return b"\x94" + b"".join(map(msgpack.packb, head)) + bytes([0x80 + len(rest) + 1]) + entries
    return msgpack.packb(reply)


class Peer:
    """A server with an engine's certificate. `answer(peer, method, params)` returns ("result", value), ("error", map),
    ("close", None) to end the connection, or None for no response. `requests` and `notifications` hold what came."""

    def __init__(self, answer):
        folder = engine().folder
        self._tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=f"{folder}/ca.pem")
        self._tls.verify_mode = ssl.CERT_REQUIRED
        self._tls.load_cert_chain(f"{folder}/server.pem", f"{folder}/server-key.pem")
        self._answer = answer
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.requests = queue.Queue()
        self.notifications = queue.Queue()
        self.arguments = {
            "endpoints": [(f"127.0.0.1:{self._listener.getsockname()[1]}", "localhost")],
            "connections": 1,
            **client_files(folder),
        }
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self):
        self._listener.close()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection):
        with contextlib.suppress(OSError), self._tls.wrap_socket(connection, server_side=True) as stream:
            messages = msgpack.Unpacker(strict_map_key=False)
            lock = threading.Lock()
            while data := stream.recv(65536):
                messages.feed(data)
                for kind, *rest in messages:
                    if kind == 2:
                        self.notifications.put(tuple(rest))
                        continue
                    msgid, method, (params,) = rest
                    self.requests.put((msgid, method, params))
                    # An answer can wait for other requests.
                    threading.Thread(target=self._respond, args=(stream, lock, msgid, method, params), daemon=True).start()

    def _respond(self, stream, lock, msgid, method, params):
        answer = self._answer(self, method, params)
        if answer is not None:
            kind, value = answer
            if kind == "close":
                stream.shutdown(socket.SHUT_RDWR)
                return
            reply = [1, msgid, value, None] if kind == "error" else [1, msgid, None, value]
            with contextlib.suppress(OSError), lock:
                stream.sendall(packed(reply))


def silent(_peer, _method, _params):
    """Never answers."""
    return None


def echo(_peer, _method, params):
    """Answers with the document that was sent."""
    return "result", {"payload": params["payload"], "generation": 1}
