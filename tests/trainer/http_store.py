"""A store of one folder on HTTP that counts what it is asked for, and may be too busy to answer."""

import contextlib
import re
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


class HttpStore(ThreadingHTTPServer):
    """Serves a folder with ranges; the first `busy` requests for shards are answered by 503.

    Attributes:
        per_second: Of requests for ranges in one second, those above this number are answered by
            503.
        ranges: How often each (name, range) was answered.
        refused: How many were not.
        asked: Requests for ranges by second since the first.
    """

    daemon_threads = True

    def __init__(self, folder, busy=0):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.folder, self.busy = Path(folder), busy
        self.per_second = None
        self.ranges, self.asked, self.refused = Counter(), Counter(), 0
        self._began = None
        self._lock = threading.Lock()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}/data"

    def takes(self, name, wanted):
        with self._lock:
            self._began = self._began or time.monotonic()
            second = int(time.monotonic() - self._began)
            self.asked[second] += wanted is not None
            is_over = self.per_second is not None and self.asked[second] > self.per_second
            if wanted is not None and (
                is_over or (name.endswith(".tar") and self.refused < self.busy)
            ):
                self.refused += 1
                return False
            self.ranges[name, wanted] += wanted is not None
            return True

    def count(self, ending):
        """How often anything of files whose names end so was read."""
        return sum(times for (name, _), times in self.ranges.items() if name.endswith(ending))

    def handle_error(self, request, client_address):
        """Clients that leave in the middle are expected."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self):
        name, wanted = self.path.removeprefix("/data/"), self.headers.get("Range")
        path = self.server.folder / name
        if not path.is_file():
            self.send(404, b"")
        elif self.command == "GET" and not self.server.takes(name, wanted):
            self.send(503, b"SlowDown")
        elif wanted is None:
            self.send(200, path.read_bytes())
        else:
            [(start, stop)] = re.findall(r"bytes=(\d+)-(\d+)", wanted)
            self.send(206, path.read_bytes()[int(start) : int(stop) + 1])

    def send(self, status, data):
        self.send_response_only(status)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Accept-Ranges", "bytes")
        self.end_headers()
        with contextlib.suppress(ConnectionError):
            if self.command == "GET":
                self.wfile.write(data)

    def log_message(self, *_):
        pass

    do_GET = do_HEAD = answer  # noqa: N815


@contextlib.contextmanager
def serving(folder, busy=0):
    """The store while it serves a folder."""
    store = HttpStore(folder, busy)
    thread = threading.Thread(target=store.serve_forever, daemon=True)
    thread.start()
    try:
        yield store
    finally:
        store.shutdown()
        store.server_close()
        thread.join()
