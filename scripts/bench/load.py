"""Instances per CPU-second that our reader delivers as ready batches: one JSON line a kind.

    python -m scripts.bench.load --data DATASET --seq_len 128

The dataset's shards are read in the order of training with all checks on. `packed` delivers
micro-batches as they go to a device, in the narrowest types; `redrawn` those with masks drawn anew;
`wide` those that models take, int32 and int64, as on a CPU; `padded` the padded view. `blocks` is
what no reader can do without: reading the same bytes, crc32 and decoding. Files are read through
before the clock starts, for the system's memory to hold them. Kinds take turns, each in a process
of its own, so that a ratio compares what ran under the same load. A dataset that a reader could
hold in its own memory is refused: --copies reads it several times over, each copy with own shards.
scripts/bench/conformance.py compares with other loaders.
"""

import argparse
import itertools
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pipeline.shards.block import decode_block
from pipeline.shards.dataset import Dataset, open_dataset
from pipeline.shards.manifest import shard_name
from pipeline.shards.records import Shard
from scripts.bench.made_dataset import write_tables
from scripts.checkout import commit, make_parser
from trainer.stream.batches.pack import pad_micro_batch, to_device
from trainer.stream.pipeline import planned_steps
from trainer.stream.reading.ranged_read import BlockRange, split_blocks
from trainer.stream.reading.settings import Reading

KINDS = ("packed", "redrawn", "wide", "padded", "blocks")
NUM_INSTANCES = 1_500_000


def refuse_small(dataset: Dataset, seq_len: int, copies: int = 1) -> None:
    """Raises ValueError if a reader could keep all data in its own memory.

    The message says how many copies of the data are enough.
    """
    found = copies * sum(shard.num_bytes for shard in _train_shards(dataset, seq_len))
    if found <= Reading.buffer_bytes:
        enough = -(-copies * (Reading.buffer_bytes + 1) // max(1, found))
        times = f" in {copies} copies" if copies > 1 else ""
        raise ValueError(
            f"{dataset.url} holds {found / 1e6:,.0f} MB of train L{seq_len}{times}; a reader keeps"
            f" up to {Reading.buffer_bytes / 1e6:,.0f} MB in its own memory and would read from"
            f" there: give a larger dataset, or --copies {enough}"
        )


def copy_shards(dataset: Dataset, seq_len: int, copies: int, folder: Path) -> Dataset:
    """Writes a dataset with several copies of the train shards of one length, as further passes."""
    found = _train_shards(dataset, seq_len)
    num_passes = dataset.num_passes("train", seq_len)
    shards = []
    tables = []
    for copy in range(copies):
        for number, shard in enumerate(found):
            pass_index = copy * num_passes + shard.pass_index
            name = shard_name("train", seq_len, pass_index, number)
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(dataset.read_file(shard.name))
            shards.append(replace(shard, name=name, pass_index=pass_index))
            tables.append(dataset.blocks(shard))
    (folder / "vocab.txt").write_bytes(dataset.read_file("vocab.txt"))
    write_tables(folder, dataset.manifest, shards, tables)
    return open_dataset(str(folder))


def _train_shards(dataset: Dataset, seq_len: int) -> list[Shard]:
    return [
        shard for shard in dataset.all_shards if (shard.split, shard.seq_len) == ("train", seq_len)
    ]


def read_blocks(dataset: Dataset, seq_len: int) -> Iterator[Any]:
    """Yields a column of each block. Blocks are read in long requests, checked and decoded only."""
    for shard in _train_shards(dataset, seq_len):
        table = dataset.blocks(shard)
        per_read = 64
        for first in range(0, len(table), per_read):
            blocks = BlockRange(dataset, shard, table, first, min(first + per_read, len(table)))
            data = dataset.read_bytes(shard.name, blocks.start_byte, blocks.stop_byte)
            for body in split_blocks(data, blocks):
                yield decode_block(body, shard.name).segment_a_length


def read_through(dataset: Dataset, seq_len: int) -> None:
    """Reads all train shards of a length once."""
    for shard in _train_shards(dataset, seq_len):
        for start in range(0, shard.num_bytes, 2**23):
            dataset.read_bytes(shard.name, start, min(start + 2**23, shard.num_bytes))


def read_ours(dataset: Dataset, seq_len: int, batch: int, kind: str) -> Iterator[Any]:
    """Yields one column of each step of our loader; a step is one micro-batch."""
    size = batch * seq_len
    cpu = torch.device("cpu")
    steps = planned_steps(
        dataset,
        "train",
        seq_len,
        rank=0,
        world_size=1,
        global_batch=batch,
        micro_tokens=size,
        seed=0,
        mask_share=(lambda _: 0.15) if kind == "redrawn" else None,
    )
    with iter(steps) as samples:
        for step in samples:
            [micro_batch] = step.micro_batches
            if kind == "padded":
                yield pad_micro_batch(micro_batch, seq_len)["input_ids"]
            else:
                yield (
                    to_device(micro_batch, cpu) if kind == "wide" else micro_batch
                ).is_random_next


def rest() -> float:
    """Waits until this process uses less than 1 ms of CPU in 50 ms, and returns its CPU seconds."""
    last = time.process_time()
    while True:
        time.sleep(0.05)
        if (now := time.process_time()) - last < 0.001:
            return now
        last = now


def measure(batches: Callable[[], Iterator[Any]], num_instances: int) -> dict[str, float]:
    """Measures how long batches with at least `num_instances` take, over as many epochs as needed.

    The first batch is not counted. The clock starts and stops when the threads that read ahead have
    come to rest, so that as much is read in between as is delivered. Otherwise the filling of the
    read-ahead, which a long run does once, would weigh on a short measurement.

    Args:
        batches: Returns the batches of an epoch.
        num_instances: The least number of instances.

    Returns:
        "instances", "cpu_seconds" and "seconds" (wall time).
    """
    stream = itertools.chain.from_iterable(batches() for _ in itertools.count())
    next(stream)
    began = rest()
    wall = time.perf_counter()
    count = 0
    while count < num_instances:
        count += len(next(stream))
    seconds = time.perf_counter() - wall
    return {"instances": count, "cpu_seconds": rest() - began, "seconds": seconds}


def run_kind(kind: str, batch: int, options: argparse.Namespace) -> float:
    """Returns the instances per CPU-second of one kind, measured in a process of its own."""
    command = [sys.executable, "-m", "scripts.bench.load", "--data", str(options.data)]
    command += ["--run", kind, "--seq_len", str(options.seq_len), "--batches", str(batch)]
    ran = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    measured = json.loads(ran.stdout.splitlines()[-1])
    return float(measured["instances"] / measured["cpu_seconds"])


def compare(batch: int, options: argparse.Namespace) -> None:
    """Prints one line for each kind."""
    rates: dict[str, list[float]] = {kind: [] for kind in options.only or KINDS}
    for _ in range(options.repeat):
        for kind, found in rates.items():
            found.append(run_kind(kind, batch, options))
    for kind, found in rates.items():
        line = {"benchmark": "load", "kind": kind, "seq_len": options.seq_len, "batch": batch}
        line |= {"instances_per_cpu_second": round(float(np.median(found))), "n": len(found)}
        line |= {"spread": [round(min(found)), round(max(found))]}
        print(json.dumps(line | describe()), flush=True)


def describe() -> dict[str, Any]:
    """Returns what the numbers were measured with: date, commit, load, versions and hardware."""
    versions = {name: version(name) for name in ("numpy", "pyarrow", "torch", "webdataset")}
    load = round(os.getloadavg()[0], 1)
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "commit": commit(),
        "load": load,
        "versions": versions,
        "hardware": platform.machine(),
    }


def main() -> int:
    """Compares all kinds, or measures one of ours for the process that does."""
    parser = make_parser(__doc__)
    parser.add_argument("--data", required=True)
    parser.add_argument("--seq_len", type=int, default=128)
    parser.add_argument("--batches", type=int, nargs="+", default=[256, 4096])
    parser.add_argument(
        "--copies", type=int, default=1, help="read so many copies of the dataset's shards"
    )
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=KINDS, help="kinds to compare")
    parser.add_argument("--run", choices=KINDS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    dataset = open_dataset(options.data)
    try:
        refuse_small(dataset, options.seq_len, options.copies)
    except ValueError as error:
        parser.error(str(error))
    if options.run:
        torch.set_num_threads(1)
        [batch] = options.batches
        read_through(dataset, options.seq_len)

        def batches() -> Iterator[Any]:
            if options.run == "blocks":
                return read_blocks(dataset, options.seq_len)
            return read_ours(dataset, options.seq_len, batch, options.run)

        print(json.dumps(measure(batches, NUM_INSTANCES)))
        return 0
    with tempfile.TemporaryDirectory(prefix="beambert-bench-") as folder:
        if options.copies > 1:
            dataset = copy_shards(dataset, options.seq_len, options.copies, Path(folder, "copies"))
            options.data = dataset.url
        for batch in options.batches:
            compare(batch, options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
