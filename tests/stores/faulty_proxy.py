"""A proxy before an object store that spoils answers in every way that was seen.

A fault takes the handler and the store's whole answer to a ranged GET of a shard, and sends what it
likes instead.
"""

import contextlib
import http.client
import socket
import struct
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

TAR_RECORD = 512
STALL_SECONDS = 1.5


class FaultyProxy(ThreadingHTTPServer):
    """Spoils the first `count` answers to GETs of some files, or to what `chooses(method, path)`.

    Every other request and answer passes as it is, and so do headers: S3 signatures stay right.
    """

    daemon_threads = True

    def __init__(self, port, fault=None, count=0, latency_seconds=0.0, files=".tar", chooses=None):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.port, self.fault, self.left, self.latency_seconds = port, fault, count, latency_seconds
        self.files, self.chooses = files, chooses
        self.spoiled, self.requests = 0, 0
        self.has_spoiled = threading.Event()
        self._lock = threading.Lock()

    def takes_fault(self):
        with self._lock:
            self.requests += 1
            if self.left <= 0:
                return False
            self.left -= 1
            self.spoiled += 1
            self.has_spoiled.set()
            return True

    def handle_error(self, request, client_address):
        """Clients that leave in the middle are expected."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self):
        if self.headers.get("Expect") == "100-continue":
            self.send_response_only(100)
            self.end_headers()
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if (chooses := self.server.chooses) and chooses(self.command, self.path):
            self.server.takes_fault()
            self.server.fault(self, 503, {}, b"")
            return
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port)
        headers = {name: value for name, value in self.headers.items() if name != "Expect"}
        connection.request(self.command, self.path, body, headers)
        response = connection.getresponse()
        data, headers = response.read(), dict(response.getheaders())
        connection.close()
        time.sleep(self.server.latency_seconds)
        is_read = self.command == "GET" and "Range" in self.headers and not self.server.chooses
        if is_read and self.server.files in self.path and self.server.takes_fault():
            self.server.fault(self, response.status, headers, data)
        else:
            self.send(response.status, headers, data)

    def send(self, status, headers, data, length=None):
        """An answer whose Content-Length is `length` where that is given, whatever the data."""
        self.send_response_only(status)
        for name, value in headers.items():
            if name.lower() not in ("connection", "transfer-encoding", "content-length"):
                self.send_header(name, value)
        wanted = headers.get("Content-Length", len(data)) if self.command == "HEAD" else len(data)
        self.send_header("Content-Length", str(wanted if length is None else length))
        self.end_headers()
        with contextlib.suppress(ConnectionError):
            self.wfile.write(data)

    def cut(self, reset):
        """Ends the connection: by a reset, or orderly."""
        self.close_connection = True
        if reset:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()
        else:
            self.connection.shutdown(socket.SHUT_RDWR)

    def log_message(self, *_):
        pass

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = answer  # noqa: N815


def error(status, code, **headers):
    """The fault that answers by an error of the store."""
    body = f"<Error><Code>{code}</Code><Message>told to</Message></Error>".encode()

    def answer(handler, *_):
        sent = {"Content-Type": "application/xml", **headers}
        handler.send(status, sent, b"" if handler.command == "HEAD" else body)

    return answer


def altered(alter):
    """The fault that sends another body, as if it were the whole of it."""
    return lambda handler, status, headers, data: handler.send(status, headers, alter(data))


unavailable = error(503, "ServiceUnavailable")


def broken_off(seconds, reset):
    """The fault that sends half of the body, and later ends the connection."""

    def answer(handler, status, headers, data):
        handler.send(status, headers, data[: len(data) // 2], len(data))
        handler.wfile.flush()
        time.sleep(seconds)
        handler.cut(reset)

    return answer


stall = broken_off(STALL_SECONDS, reset=False)


def short_chunks(handler, status, headers, data):
    """A body in chunks that ends well, but too early: nothing in the answer tells."""
    half = data[: len(data) // 2]
    handler.send_response_only(status)
    for name, value in headers.items():
        if name.lower() not in ("connection", "content-length"):
            handler.send_header(name, value)
    handler.send_header("Transfer-Encoding", "chunked")
    handler.end_headers()
    handler.wfile.write(f"{len(half):x}\r\n".encode() + half + b"\r\n0\r\n\r\n")


def wrong_byte(handler, status, headers, data):
    """In the middle; of a table in a column, and not in the footer."""
    place = 30 if handler.path.endswith(".parquet") else len(data) // 2
    handler.send(status, headers, data[:place] + bytes([data[place] ^ 16]) + data[place + 1 :])


FAULTS = {
    "unavailable": unavailable,
    "throttled": error(503, "SlowDown", **{"Retry-After": "1"}),
    "refused": error(403, "AccessDenied"),
    "reset_before_head": lambda handler, *_: handler.cut(reset=True),
    "reset_in_body": broken_off(0.05, reset=True),
    "end_in_body": broken_off(0, reset=False),
    "short_body": altered(lambda data: data[: len(data) // 2]),
    "cut_at_record": altered(lambda data: data[: (len(data) - 1) // TAR_RECORD * TAR_RECORD]),
    "empty_body": altered(lambda _: b""),
    "short_chunks": short_chunks,
    "long_body": altered(lambda data: data + data[:100]),
    "wrong_byte": wrong_byte,
    "other_object": altered(lambda data: data[::-1]),  # as many bytes, of something else
    "stall": stall,
}
