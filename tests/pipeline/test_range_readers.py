"""A range of a local file is what its filesystem reads, of an S3 store what was asked for; others read theirs."""

import contextlib
import os
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import fsspec
import pytest
from botocore.response import StreamingBody
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from pipeline.storage.folder import Folder
from pipeline.storage.range_readers import RangeReader, range_reader, read_local, s3_range_reader


@pytest.fixture
def path(tmp_path: Path) -> str:
    file = tmp_path / "some bytes"
    file.write_bytes(bytes(range(256)) * 40)
    return str(file)


@pytest.mark.parametrize(
    ("start", "stop"), [(0, 10_240), (0, 0), (1, 2), (5000, 10_240), (300, 7001)]
)
def test_local_ranges_are_those_of_the_filesystem(path, start, stop):
    files = fsspec.filesystem("file")
    assert range_reader(files) is read_local
    folder, name = Folder.of_file(path)
    assert folder.read_once(name, start, stop) == files.cat_file(path, start=start, end=stop)


def test_a_system_that_reads_less_at_a_time_is_asked_again(path, monkeypatch):
    pread, asked = os.pread, []

    def slow(file: int, size: int, start: int) -> bytes:
        asked.append(size)
        return pread(file, min(size, 4000), start)

    monkeypatch.setattr(os, "pread", slow)
    assert read_local(path, 100, 9100) == (bytes(range(256)) * 40)[100:9100]
    assert asked == [9000, 5000, 1000]


def open_below(folder: Path) -> list[str]:
    """The folder and files below it that this process has open: other threads open and close their own."""
    found = []
    for descriptor in Path("/proc/self/fd").glob("*"):
        with contextlib.suppress(FileNotFoundError):
            found.append(os.readlink(descriptor))
    return [name for name in found if Path(name).is_relative_to(folder.resolve())]


def test_ranges_past_the_end_and_missing_files_are_errors_and_leave_no_file_open(path):
    folder, name = Folder.of_file(path)
    with pytest.raises(OSError, match=r"asked for bytes 10000-20000, got 240 of 10000"):
        folder.read_once(name, 10_000, 20_000)
    with pytest.raises(FileNotFoundError, match="missing"):
        read_local(f"{path}.missing", 0, 1)
    with pytest.raises(IsADirectoryError):
        read_local(str(Path(path).parent), 0, 1)
    assert open_below(Path(path).parent) == []


def test_what_is_built_on_local_files_reads_them_itself():
    class Own(LocalFileSystem):
        cachable = False

    assert range_reader(Own()) is None
    assert range_reader(fsspec.filesystem("memory")) is None


CONTENT = bytes(range(256)) * 2**18
"""64 MiB, more than what a system holds of a body that nobody reads."""


class Store(ThreadingHTTPServer):
    """An S3 store of one object, CONTENT, in a bucket.

    Attributes:
        knows_ranges: Else it sends the whole object.
        in_chunks: Without a Content-Length.
        num_sent: Bytes of bodies that it could get rid of.
        num_connections: Opened so far.
        left: Released for each client that left in the middle of a body.
        meet: Called before an answer.
    """

    daemon_threads = True
    request_queue_size = 256

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.knows_ranges, self.in_chunks = True, False
        self.num_sent, self.num_connections = 0, 0
        self.left = threading.Semaphore(0)
        self.meet: Callable[[], object] = lambda: None
        self.lock = threading.Lock()

    def handle_error(self, *_) -> None:
        self.left.release()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def setup(self) -> None:
        super().setup()
        with self.server.lock:
            self.server.num_connections += 1

    def do_GET(self) -> None:
        self.server.meet()
        first, last = map(int, re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers["Range"]).groups())
        body = CONTENT[first : last + 1] if self.server.knows_ranges else CONTENT
        self.send_response_only(206 if self.server.knows_ranges else 200)
        self.send_header(
            *(
                ("Transfer-Encoding", "chunked")
                if self.server.in_chunks
                else ("Content-Length", len(body))
            )
        )
        self.end_headers()
        for start in range(0, len(body), 2**16):
            piece = body[start : start + 2**16]
            self.wfile.write(
                b"%x\r\n%b\r\n" % (len(piece), piece) if self.server.in_chunks else piece
            )
            self.server.num_sent += len(piece)
        if self.server.in_chunks:
            self.wfile.write(b"0\r\n\r\n")

    def log_message(self, *_) -> None:
        pass


@pytest.fixture(params=[False, True], ids=["counted", "chunks"])
def store(request) -> Iterator[Store]:
    with Store() as server:
        server.in_chunks = request.param
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def read_s3(store) -> RangeReader:
    options = {
        "key": "key",
        "secret": "secret",
        "endpoint_url": f"http://127.0.0.1:{store.server_address[1]}",
        "client_kwargs": {"region_name": "us-east-1"},
    }
    return s3_range_reader(SimpleNamespace(protocol=("s3", "s3a"), storage_options=options))


def test_ranges_of_a_store_come_over_one_connection(store, read_s3):
    for start, stop in ((0, 1), (5, 70_000), (2**20, 2**21), (len(CONTENT) - 3, len(CONTENT))):
        assert read_s3("bucket/object", start, stop) == CONTENT[start:stop]
    assert store.num_connections == 1


def test_a_store_that_sends_everything_is_not_listened_to(store, read_s3, monkeypatch):
    read_body, bodies = StreamingBody.read, []  # which keeps them: what nobody has is closed anyway
    monkeypatch.setattr(
        StreamingBody, "read", lambda body, size: (bodies.append(body), read_body(body, size))[1]
    )
    store.knows_ranges, bucket = False, Folder.on(MemoryFileSystem(), "bucket")
    bucket.__dict__["_range_reader"] = read_s3
    for number in (1, 2):
        with pytest.raises(OSError, match="asked for bytes 1000-5000, got 4001 of 4000"):
            bucket.read_once("object", 1000, 5000)
        assert store.num_sent < number * len(CONTENT) / 2
        assert store.num_connections == number, "the rest of a body is on the way there"
        assert store.left.acquire(timeout=600)
    store.knows_ranges = True
    assert read_s3("bucket/object", 1000, 5000) == CONTENT[1000:5000]


def test_as_many_connections_are_kept_as_there_are_threads(store, read_s3):
    num_threads = 80
    store.meet = threading.Barrier(num_threads, timeout=600).wait
    with ThreadPoolExecutor(num_threads) as pool:
        for _ in range(3):
            found = [
                *pool.map(
                    lambda number: read_s3("bucket/object", number, number + 9), range(num_threads)
                )
            ]
            assert found == [CONTENT[number : number + 9] for number in range(num_threads)]
    assert store.num_connections == num_threads
