"""Object stores on this machine, started once for all tests, and a small corpus."""

import asyncio
import contextlib
import http.client
import json
import os
import random
import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import fsspec
import pytest
import zstandard

from pipeline.cli import COMMANDS
from pipeline.command_line.program import run_program
from tests.datasets import write_vocab
from tests.ports import free_port

ROOT = Path(__file__).parents[2]
WORDS = [
    "river",
    "mountain",
    "engine",
    "letter",
    "window",
    "garden",
    "silver",
    "winter",
    "market",
    "captain",
]
KEY, SECRET = "test:builder", "open-sesame-4711"
START_SECONDS = 300
# Else gcsfs asks of every bucket what kind it is, for a minute. It looks when it is imported, which
# tests of S3 do too.
os.environ["GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT"] = "false"


def missing_server(name):
    message = f"{name} is not installed: scripts/test-servers installs it, BEAMBERT_TEST_SERVERS=FOLDER says where it is"
    if os.environ.get("BEAMBERT_REQUIRE_SERVERS"):
        pytest.fail(message)
    pytest.skip(message)


def server_program(name):
    folder = os.environ.get("BEAMBERT_TEST_SERVERS") or f"{sys.prefix}-servers"
    path = Path(folder, "bin", name)
    return path if path.exists() else missing_server(name)


@contextlib.contextmanager
def running(command, port, log):
    """A server until the block is left; stopped by its process id."""
    with log.open("wb") as file:
        process = subprocess.Popen(
            [str(word) for word in command], stdout=file, stderr=subprocess.STDOUT
        )
    try:
        began = time.monotonic()
        while not answers(port):
            assert process.poll() is None, f"{command[0]} ended:\n{log.read_text()}"
            assert time.monotonic() - began < START_SECONDS, (
                f"{command[0]} does not answer:\n{log.read_text()}"
            )
            time.sleep(0.1)
        yield
    finally:
        process.kill()
        process.wait()


def answers(port):
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def s3_options(port):
    """Storage options of Swift at a port, without the pauses of the S3 client between its own attempts."""
    return {
        "key": KEY,
        "secret": SECRET,
        "endpoint_url": f"http://127.0.0.1:{port}",
        "client_kwargs": {"region_name": "us-east-1"},
        "config_kwargs": {"retries": {"max_attempts": 0}},
    }


@pytest.fixture(scope="session")
def swift_port(tmp_path_factory):
    """Port of a Swift with its S3 API."""
    python, folder, port = server_program("python"), tmp_path_factory.mktemp("swift"), free_port()
    server_program("swift-proxy-server")
    with running(
        [python, ROOT / "tests/stores/swift_server.py", folder, port], port, folder / "log.txt"
    ):
        fsspec.filesystem("s3", **s3_options(port)).mkdir("corpus")
        yield port


@pytest.fixture(scope="session")
def s3(swift_port):
    """Storage options of a real S3 store that has the bucket `corpus`."""
    return s3_options(swift_port)


@pytest.fixture(scope="session")
def gcs(tmp_path_factory):
    """An emulator of Google's store with the bucket `corpus`, named by the environment; its driver hardly pauses.

    A request of a test that has ended may go on pausing, and must not draw numbers for that where
    others draw theirs.
    """
    import gcsfs.retry

    gcsfs.retry.random = random.Random()
    gcsfs.retry.asyncio = SimpleNamespace(sleep=lambda _: asyncio.sleep(0.01))
    program, folder, port = (
        server_program("gcp-storage-emulator"),
        tmp_path_factory.mktemp("gcs"),
        free_port(),
    )
    command = [
        program,
        "start",
        "--host",
        "127.0.0.1",
        "--port",
        port,
        "-q",
        "-M",
        "--default-bucket",
        "corpus",
    ]
    with running(command, port, folder / "log.txt"), pytest.MonkeyPatch.context() as patch:
        patch.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{port}")
        yield {"token": "anon"}


@pytest.fixture(scope="session")
def texts():
    draws = random.Random(0)
    return [
        " ".join(f"{' '.join(draws.choices(WORDS, k=9)).capitalize()} {row}." for _ in range(12))
        for row in range(80)
    ]


@pytest.fixture(scope="session")
def corpus(tmp_path_factory, texts):
    """A plain and a compressed JSONL file of 80 documents together."""
    folder = tmp_path_factory.mktemp("stores-corpus")
    lines = [json.dumps({"text": text}) + "\n" for text in texts]
    (folder / "a.jsonl").write_text("".join(lines[:50]))
    (folder / "b.jsonl.zst").write_bytes(zstandard.compress("".join(lines[50:]).encode()))
    return folder


@pytest.fixture(scope="session")
def vocab_file(tmp_path_factory):
    return write_vocab(tmp_path_factory.mktemp("stores-vocab") / "vocab.txt", WORDS)


@pytest.fixture(scope="session")
def build_arguments(vocab_file):
    """What every build here is given besides its input and output."""
    return ["--vocab", vocab_file, "--passes", 2, "--seq_lens", 64, "--num_buckets", 2]


@pytest.fixture(scope="session")
def pipeline(build_arguments):
    """pipeline(command, ...) runs `python -m pipeline` in this process and returns its exit code."""

    def run(command, *arguments):
        given = [*build_arguments, "--workers", 1] if command == "build" else []
        return run_program(
            "python -m pipeline", "Tests.", COMMANDS, [command, *map(str, [*arguments, *given])]
        )

    return run


@pytest.fixture(scope="session")
def local(corpus, pipeline, tmp_path_factory):
    """The same corpus built on local disks."""
    output = tmp_path_factory.mktemp("local") / "data"
    assert pipeline("build", "--input", corpus, "--output", output) == 0
    return output


class FaultyProxy(ThreadingHTTPServer):
    """Passes requests on to a store, and answers those that `fails(method, path)` chooses by 503.

    The headers stay as they are, so the S3 signatures do too.
    """

    daemon_threads = True

    def __init__(self, port, fails):
        super().__init__(("127.0.0.1", 0), FaultyHandler)
        self.port, self.fails, self.refused = port, fails, 0


class FaultyHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self):
        if self.headers.get("Expect") == "100-continue":
            self.send_response_only(100)
            self.end_headers()
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.server.fails(self.command, self.path):
            self.server.refused += 1
            text = b"<Error><Code>ServiceUnavailable</Code><Message>storm</Message></Error>"
            self.reply(
                503, {"Content-Type": "application/xml"}, b"" if self.command == "HEAD" else text
            )
            return
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port)
        headers = {name: value for name, value in self.headers.items() if name != "Expect"}
        connection.request(self.command, self.path, body, headers)
        response = connection.getresponse()
        self.reply(response.status, dict(response.getheaders()), response.read())
        connection.close()

    def reply(self, status, headers, body):
        self.send_response_only(status)
        kept = {
            name: value
            for name, value in headers.items()
            if name.lower() not in ("connection", "transfer-encoding")
        }
        if "content-length" not in map(str.lower, kept):
            kept["Content-Length"] = str(len(body))
        for name, value in kept.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = answer  # noqa: N815


@pytest.fixture
def faulty_s3(swift_port):
    """faulty_s3(fails): the proxy before the store, and storage options for it."""
    with contextlib.ExitStack() as stack:

        def start(fails):
            proxy = stack.enter_context(FaultyProxy(swift_port, fails))
            threading.Thread(target=proxy.serve_forever, daemon=True).start()
            stack.callback(proxy.shutdown)
            return proxy, s3_options(proxy.server_address[1])

        yield start
