"""How long a step waits for a checkpoint that is uploaded in the background, one JSON line.

    BEAMBERT_TEST_SERVERS=FOLDER python -m scripts.bench.checkpoint [--preset small] [--saves 5]

One process saves weights and moments of a preset to S3 (OpenStack Swift on this machine, which
scripts/test-servers installs) through a link with a latency and a bandwidth, and goes on updating
the weights. `stall_seconds` is the time the loop stands in `save`, `total_seconds` from there until
the marker is uploaded; their ratio is the share to watch. `slowdown` is how much longer the updates
beside the upload take than the median of quiet ones: they share the cores.
"""

import argparse
import contextlib
import json
import multiprocessing
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fsspec
import torch

from scripts.bench.measured import print_result, summarize
from trainer.checkpoints.saver import CheckpointSaver
from trainer.checkpoints.settings import CheckpointSettings
from trainer.checkpoints.store import RUN_FILES, CheckpointStore
from trainer.model.bert import build_model
from trainer.model.config import preset
from trainer.optim.adamw import AdamW
from trainer.process.ranks import start_ranks, stop_ranks
from trainer.runs.run_folder import RunFolder

ROOT = Path(__file__).parents[2]
VOCABULARY = 30_522
QUIET_UPDATES = 20
PIECE_BYTES = 2**16


class Link:
    """A TCP link to a port of this machine: each request is `latency` late, all together have one bandwidth."""

    def __init__(self, port: int, latency_seconds: float, bytes_per_second: float) -> None:
        """Listens at `self.port`.

        Args:
            port: Of the server behind it.
            latency_seconds: Added once to every request.
            bytes_per_second: Of all connections together, towards the server.
        """
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port = self._listener.getsockname()[1]
        self._server, self._latency, self._rate = port, latency_seconds, bytes_per_second
        self._lock, self._free_at = threading.Lock(), time.monotonic()

    def serve(self) -> None:
        """For ever, in threads."""
        while True:
            client, _ = self._listener.accept()
            server = socket.create_connection(("127.0.0.1", self._server))
            answered = threading.Event()
            answered.set()
            for source, target, is_request in ((client, server, True), (server, client, False)):
                threading.Thread(
                    target=self._carry, args=(source, target, is_request, answered), daemon=True
                ).start()

    def _carry(
        self,
        source: socket.socket,
        target: socket.socket,
        is_request: bool,
        answered: threading.Event,
    ) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(PIECE_BYTES):
                if is_request:
                    if answered.is_set():
                        answered.clear()
                        time.sleep(self._latency)
                    self._wait_for_link(len(data))
                else:
                    answered.set()
                target.sendall(data)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)

    def _wait_for_link(self, num_bytes: int) -> None:
        with self._lock:
            now = time.monotonic()
            self._free_at = max(now, self._free_at) + num_bytes / self._rate
            pause = self._free_at - now
        time.sleep(pause)


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(
        allow_abbrev=False, description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--preset", default="small")
    parser.add_argument("--saves", type=int, default=5)
    parser.add_argument("--latency_ms", type=float, default=30.0)
    parser.add_argument("--megabytes_per_second", type=float, default=50.0)
    own = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="beambert-bench-") as folder,
        swift(Path(folder)) as port,
    ):
        link_port = start_link(port, own.latency_ms / 1000, own.megabytes_per_second * 1e6)
        options: dict[str, Any] = {"key": "test:builder", "secret": "open-sesame-4711"}
        options |= {
            "endpoint_url": f"http://127.0.0.1:{link_port}",
            "client_kwargs": {"region_name": "us-east-1"},
        }
        fsspec.filesystem("s3", **options).mkdir("bench")
        found = measure(
            Path(folder), own.preset, own.saves, CheckpointStore("s3://bench/run", options)
        )
    print_result(
        "checkpoint", vars(own), ("torch", "safetensors", "s3fs"), cores=os.cpu_count(), **found
    )


def measure(folder: Path, name: str, saves: int, store: CheckpointStore) -> dict[str, Any]:
    """Stalls and totals of several saves with updates between and beside them."""
    ranks = start_ranks()
    model = build_model(preset(name, vocab_size=VOCABULARY), seed=0)
    optimizer = AdamW(model.named_parameters())
    optimizer.set_learning_rate(1e-4)
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    run = RunFolder(folder / "run")
    run.path.mkdir()
    for file in RUN_FILES:
        (run.path / file).write_text("{}")
    saver = CheckpointSaver(run, CheckpointSettings(keep=2), ranks, store, lambda _: None)
    engine = SimpleNamespace(module=model, zero_optimization_stage=lambda: 0)
    quiet = [seconds_of(optimizer.step) for _ in range(QUIET_UPDATES)]
    saver.prepare(engine, optimizer)
    stalls, totals, beside = [], [], []
    for number in range(1, saves + 1):
        began = time.monotonic()
        saver.save({"step": number}, engine, optimizer)
        stalls.append(time.monotonic() - began)
        while saver.is_busy:
            beside.append(seconds_of(optimizer.step))
        totals.append(time.monotonic() - began)
        saver.finish()
    size = sum(path.stat().st_size for path in (run.checkpoints / f"step-{saves:08d}").iterdir())
    stop_ranks()
    return {
        "checkpoint_megabytes": round(size / 1e6, 1),
        "stall_seconds": summarize(stalls, 3),
        "total_seconds": summarize(totals, 2),
        "stall_share": round(sum(stalls) / sum(totals), 4),
        "slowdown": round(statistics.median(beside) / statistics.median(quiet), 3),
    }


def seconds_of(function: Any) -> float:
    """Of one call."""
    began = time.monotonic()
    function()
    return time.monotonic() - began


@contextlib.contextmanager
def swift(folder: Path) -> Iterator[int]:
    """A Swift with its S3 API; its port."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = int(listener.getsockname()[1])
    servers = os.environ.get("BEAMBERT_TEST_SERVERS") or f"{sys.prefix}-servers"
    command = [
        f"{servers}/bin/python",
        str(ROOT / "tests/stores/swift_server.py"),
        str(folder / "swift"),
        str(port),
    ]
    (folder / "swift").mkdir()
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert process.stdout is not None
        if process.stdout.readline().strip() != "ready":
            raise RuntimeError(
                f"{json.dumps(command)} does not start; scripts/test-servers installs it"
            )
        yield port
    finally:
        process.kill()
        process.wait()


def start_link(port: int, latency_seconds: float, bytes_per_second: float) -> int:
    """A link in a process of its own, so that it takes nothing from the one that is measured; its port."""
    context = multiprocessing.get_context("spawn")
    ports = context.Queue()
    arguments = (port, latency_seconds, bytes_per_second, ports)
    context.Process(target=serve_link, args=arguments, daemon=True).start()
    return int(ports.get(timeout=60))


def serve_link(port: int, latency_seconds: float, bytes_per_second: float, ports: Any) -> None:
    """The link's process."""
    link = Link(port, latency_seconds, bytes_per_second)
    ports.put(link.port)
    link.serve()


if __name__ == "__main__":
    main()
