"""Reading a store whose first byte is late: MB/s and CPU per byte beside one boto3 stream, one JSON line a setting.

    python scripts/bench/store.py [--latency_ms 30] [--megabytes 256]

A server on this machine answers ranged GETs as S3 does, after a pause; `stream` is one botocore
request for a whole shard after another, read in pieces of 1 MiB, `window` is the loader's threads
with their checks, by numbers of requests in flight and sizes. CPU seconds are those of the reading
process.
"""

import argparse
import json
import multiprocessing
import sys
import threading
import time
from concurrent.futures import Future
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np

from pipeline.shards.block import checksum
from pipeline.shards.dataset import Dataset
from pipeline.shards.manifest import FORMAT_VERSION
from pipeline.shards.records import BlockTable, Manifest, Shard
from pipeline.shards.seal import NOTHING
from pipeline.storage.folder import Folder
from trainer.process.allocator import keep_freed_memory
from trainer.reading.ranged_read import BlockRange
from trainer.reading.read_threads import Read, ReadThreads
from trainer.reading.settings import ReadSettings

BLOCK_BYTES, SHARD_BYTES = 2**17, 64 * 2**20


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, latency_seconds: float, bytes_per_second: float) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.latency_seconds, self.bytes_per_second = latency_seconds, bytes_per_second
        self.body = make_body()


class _Handler(BaseHTTPRequestHandler):
    """Any object is the same SHARD_BYTES; a connection gets so many bytes a second."""

    protocol_version = "HTTP/1.1"
    server: _Server

    def do_GET(self) -> None:
        first, last = 0, SHARD_BYTES - 1
        if span := self.headers.get("Range"):
            first, last = map(int, span.removeprefix("bytes=").split("-"))
        time.sleep(self.server.latency_seconds)
        self.send_response_only(206 if span else 200)
        self.send_header("Content-Length", str(last + 1 - first))
        self.send_header("Content-Range", f"bytes {first}-{last}/{SHARD_BYTES}")
        self.send_header("ETag", '"one"')
        self.end_headers()
        began, sent = time.monotonic(), 0
        for start in range(first, last + 1, 2**18):
            piece = self.server.body[start : min(start + 2**18, last + 1)]
            self.wfile.write(piece)
            sent += len(piece)
            time.sleep(max(0.0, sent / self.server.bytes_per_second - (time.monotonic() - began)))


def make_body() -> bytes:
    """The bytes of every shard, the same in every process."""
    return np.random.default_rng(0).bytes(SHARD_BYTES)


def serve(latency_seconds: float, bytes_per_second: float, port: Any) -> None:
    """Runs the server in a process of its own."""
    server = _Server(latency_seconds, bytes_per_second)
    port.value = server.server_address[1]
    server.serve_forever()


def read_stream(client: Any, num_shards: int) -> int:
    """One request a shard, one after another."""
    count = 0
    for number in range(num_shards):
        body = client.get_object(Bucket="bucket", Key=f"shard-{number}.tar")["Body"]
        while piece := body.read(2**20):
            count += len(piece)
    return count


def open_store(options: dict[str, Any]) -> Dataset:
    """The store as the loader sees it; clients are made and their first request is over."""
    manifest = Manifest(FORMAT_VERSION, {}, {}, "", "", "", 30_522, {}, (), {}, "", NOTHING)
    dataset = Dataset(Folder("s3://bucket", options), manifest, [])
    dataset.read_bytes("shard-0.tar", 0, 1)
    return dataset


def read_window(
    dataset: Dataset, num_shards: int, table: BlockTable, settings: ReadSettings
) -> int:
    """The loader's threads over the same shards, in order and with all checks, at most buffer_bytes ahead."""
    threads = ReadThreads(dataset, settings)
    room = threading.Semaphore(max(1, settings.buffer_bytes // settings.max_read_bytes))
    per_read = settings.max_read_bytes // BLOCK_BYTES
    reads: list[Read] = []
    for number in range(num_shards):
        shard = Shard(
            "train",
            128,
            0,
            f"shard-{number}.tar",
            SHARD_BYTES,
            "",
            "",
            "",
            0,
            0,
            0,
            0,
            0,
            0,
            NOTHING,
        )
        for first in range(0, len(table), per_read):
            blocks = BlockRange(shard, table, first, min(first + per_read, len(table)))
            reads.append(Read(blocks, first, Future()))

    def submit() -> None:
        for read in reads:
            room.acquire()
            threads.submit(read)

    threading.Thread(target=submit, daemon=True).start()
    count = 0
    for read in reads:
        bodies = read.bodies.result()
        count += sum(map(len, bodies))
        bodies.clear()
        room.release()
    threads.close()
    return count


def measure(call: Any) -> dict[str, float]:
    """MB/s and CPU seconds for a GB of one reading."""
    began, cpu = time.perf_counter(), time.process_time()
    count = call()
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    return {
        "mb_per_second": round(count / seconds / 1e6, 1),
        "cpu_seconds_per_gb": round(cpu / count * 1e9, 3),
    }


def main() -> int:
    """Compares the window at several settings with one stream."""
    parser = argparse.ArgumentParser(
        allow_abbrev=False, description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--latency_ms", type=float, default=30)
    parser.add_argument("--connection_mb_per_second", type=float, default=80)
    parser.add_argument("--megabytes", type=int, default=512)
    parser.add_argument("--threads", type=int, nargs="+", default=[4, 8, 16])
    parser.add_argument("--read_mb", type=int, nargs="+", default=[1, 4, 8])
    options = parser.parse_args()
    import botocore.session

    keep_freed_memory()  # as the trainer does, for both readers alike
    port = multiprocessing.Value("i", 0)
    arguments = (options.latency_ms / 1000, options.connection_mb_per_second * 1e6, port)
    server = multiprocessing.Process(target=serve, args=arguments, daemon=True)
    server.start()
    while not port.value:
        time.sleep(0.05)
    url = f"http://127.0.0.1:{port.value}"
    keys = {
        "aws_access_key_id": "key",
        "aws_secret_access_key": "secret",
        "region_name": "us-east-1",
    }
    client = botocore.session.get_session().create_client("s3", endpoint_url=url, **keys)
    num_shards = max(1, options.megabytes * 10**6 // SHARD_BYTES)
    offset = np.arange(SHARD_BYTES // BLOCK_BYTES, dtype=np.int64) * BLOCK_BYTES
    body, size = memoryview(make_body()), np.full(len(offset), BLOCK_BYTES)
    crc32 = np.array([checksum(body[start : start + BLOCK_BYTES]) for start in offset], np.uint32)
    table = BlockTable(offset, size, size, size, crc32)
    s3 = {
        "key": "key",
        "secret": "secret",
        "endpoint_url": url,
        "client_kwargs": {"region_name": "us-east-1"},
    }
    config = {
        "benchmark": "store",
        "latency_ms": options.latency_ms,
        "megabytes": options.megabytes,
    }
    config["connection_mb_per_second"] = options.connection_mb_per_second
    dataset = open_store(s3)
    read_stream(client, 1)
    stream = measure(lambda: read_stream(client, num_shards))
    print(json.dumps(config | {"reader": "stream", **stream}), flush=True)
    for num_threads in options.threads:
        for read_mb in options.read_mb:
            settings = ReadSettings(num_threads=num_threads, max_read_bytes=read_mb * 2**20)
            read_window(dataset, 1, table, settings)  # memory that is new once
            found = measure(
                lambda settings=settings: read_window(dataset, num_shards, table, settings)
            )
            ratios = {
                "speed_over_stream": round(found["mb_per_second"] / stream["mb_per_second"], 2),
                "cpu_over_stream": round(
                    found["cpu_seconds_per_gb"] / stream["cpu_seconds_per_gb"], 2
                ),
            }
            line = {
                "reader": "window",
                "threads": num_threads,
                "read_mb": read_mb,
                **found,
                **ratios,
            }
            print(json.dumps(config | line), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
