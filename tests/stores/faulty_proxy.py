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


def send_error(handler, status, code, headers=()):
    body = f"<Error><Code>{code}</Code><Message>told to</Message></Error>".encode()
    body = b"" if handler.command == "HEAD" else body
    handler.send(status, {"Content-Type": "application/xml", **dict(headers)}, body)


def unavailable(handler, status, headers, data):
    send_error(handler, 503, "ServiceUnavailable")


def throttled(handler, status, headers, data):
    send_error(handler, 503, "SlowDown", {"Retry-After": "1"})


def refused(handler, status, headers, data):
    send_error(handler, 403, "AccessDenied")


def reset_before_head(handler, status, headers, data):
    handler.cut(reset=True)


def reset_in_body(handler, status, headers, data):
    handler.send(status, headers, data[: len(data) // 2], len(data))
    handler.wfile.flush()
    time.sleep(0.05)
    handler.cut(reset=True)


def end_in_body(handler, status, headers, data):
    handler.send(status, headers, data[: len(data) // 2], len(data))
    handler.cut(reset=False)


def short_body(handler, status, headers, data):
    handler.send(status, headers, data[: len(data) // 2])


def cut_at_record(handler, status, headers, data):
    handler.send(status, headers, data[: (len(data) - 1) // TAR_RECORD * TAR_RECORD])


def empty_body(handler, status, headers, data):
    handler.send(status, headers, b"")


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


def long_body(handler, status, headers, data):
    handler.send(status, headers, data + data[:100])


def wrong_byte(handler, status, headers, data):
    middle = len(data) // 2
    handler.send(status, headers, data[:middle] + bytes([data[middle] ^ 16]) + data[middle + 1 :])


def other_object(handler, status, headers, data):
    """As many bytes, of something else."""
    handler.send(status, headers, data[::-1])


def stall(handler, status, headers, data):
    handler.send(status, headers, data[:100], len(data))
    handler.wfile.flush()
    time.sleep(STALL_SECONDS)
    handler.cut(reset=False)


FAULTS = [
    unavailable, throttled, refused, reset_before_head, reset_in_body, end_in_body, short_body,
    cut_at_record, empty_body, short_chunks, long_body, wrong_byte, other_object, stall,
]  # fmt: skip
