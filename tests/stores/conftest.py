"""Object stores on this machine, started once for all tests, and a small corpus."""

import asyncio
import contextlib
import json
import os
import random
import socket
import subprocess
import sys
import threading
import time
from itertools import islice
from pathlib import Path
from types import SimpleNamespace

import fsspec
import pytest
import zstandard

from pipeline.cli import COMMANDS
from pipeline.command_line.program import run_program
from pipeline.shards.dataset import open_dataset
from tests.datasets import write_vocab
from tests.ports import free_port
from tests.stores.faulty_proxy import FaultyProxy

ROOT = Path(__file__).parents[2]
CORPUS_WORDS = "river mountain engine letter window garden silver winter market captain"
WORDS = CORPUS_WORDS.split()
NAMES = "input_ids cu_seqlens masked_positions masked_labels is_random_next"
KEY, SECRET = "test:builder", "open-sesame-4711"
START_SECONDS = 300
# Else gcsfs asks of every bucket what kind it is, for a minute. It looks when it is imported, which
# tests of S3 do too.
os.environ["GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT"] = "false"


def missing_server(name):
    message = (
        f"{name} is missing: scripts/test-servers installs it, BEAMBERT_TEST_SERVERS says where"
    )
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
        words = [str(word) for word in command]
        process = subprocess.Popen(words, stdout=file, stderr=subprocess.STDOUT)
    try:
        began = time.monotonic()
        while not answers(port):
            assert process.poll() is None, f"{command[0]} ended:\n{log.read_text()}"
            waited = time.monotonic() - began
            assert waited < START_SECONDS, f"{command[0]} does not answer:\n{log.read_text()}"
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
    """Storage options of Swift at a port, without pauses of the client between attempts."""
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
    command = [python, ROOT / "tests/stores/swift_server.py", folder, port]
    with running(command, port, folder / "log.txt"):
        fsspec.filesystem("s3", **s3_options(port)).mkdir("corpus")
        yield port


@pytest.fixture(scope="session")
def s3(swift_port):
    """Storage options of a real S3 store that has the bucket `corpus`."""
    return s3_options(swift_port)


@pytest.fixture(scope="session")
def moto_port(tmp_path_factory):
    """Port of moto, an emulator of AWS: unlike Swift it sends checksums with what it gives."""
    folder, port = tmp_path_factory.mktemp("moto"), free_port()
    command = [server_program("moto_server"), "-H", "127.0.0.1", "-p", port]
    with running(command, port, folder / "log.txt"):
        store = fsspec.filesystem("s3", **s3_options(port))
        store.call_s3("create_bucket", Bucket="corpus")
        yield port


@pytest.fixture(scope="session")
def moto(moto_port):
    """Storage options of moto, which has the bucket `corpus`."""
    return s3_options(moto_port)


@pytest.fixture(scope="session")
def gcs(tmp_path_factory):
    """An emulator of Google's store with the bucket `corpus`, named by the environment.

    A request of a test that has ended may go on pausing, for a moment, and must not draw numbers
    for that where others draw theirs.
    """
    import gcsfs.retry

    gcsfs.retry.random = random.Random()
    gcsfs.retry.asyncio = SimpleNamespace(sleep=lambda _: asyncio.sleep(0.01))
    folder, port = tmp_path_factory.mktemp("gcs"), free_port()
    words = f"start --host 127.0.0.1 --port {port} -q -M --default-bucket corpus".split()
    command = [server_program("gcp-storage-emulator"), *words]
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
        words = [command, *map(str, [*arguments, *given])]
        return run_program("python -m pipeline", "Tests.", COMMANDS, words)

    return run


@pytest.fixture(scope="session")
def local(corpus, pipeline, tmp_path_factory):
    """The same corpus built on local disks."""
    output = tmp_path_factory.mktemp("local") / "data"
    assert pipeline("build", "--input", corpus, "--output", output) == 0
    return output


def root_hash(*place):
    """Of the dataset at a URL or path, and by options."""
    return open_dataset(*map(str, place[:1]), *place[1:]).manifest.root_hash


def first_batches(dataset, num_steps=3):
    sizes = {"rank": 0, "world_size": 1, "global_batch": 16, "micro_tokens": 512, "seed": 3}
    from tests.trainer.step_loader import load_steps  # the builder's tests have no torch

    with load_steps(dataset, "train", 64, **sizes) as loader:
        return [micro for step in islice(loader, num_steps) for micro in step.micro_batches]


def assert_same_batches(there, here):
    assert_same(first_batches(there), first_batches(here), 4)


def assert_same(found, expected, least):
    assert len(found) == len(expected) >= least
    for one, other in zip(found, expected, strict=True):
        for name in NAMES.split():
            assert getattr(one, name).equal(getattr(other, name)), name


@pytest.fixture
def start_proxy():
    """start_proxy(port, fault, ...): a FaultyProxy that serves until the test has ended."""
    with contextlib.ExitStack() as stack:

        def start(*arguments, **options):
            proxy = stack.enter_context(FaultyProxy(*arguments, **options))
            threading.Thread(target=proxy.serve_forever, daemon=True).start()
            stack.callback(proxy.shutdown)
            return proxy

        yield start
