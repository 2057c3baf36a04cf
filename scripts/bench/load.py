"""Instances per CPU-second that loaders deliver as ready batches, each in one process: one JSON line a loader.

    python -m scripts.bench.load --data DATASET --seq_len 128 [--peers_python VENV/bin/python]

Ours reads the dataset's shards in the order of training with all checks on. `packed` delivers
micro-batches as they go to a device, in the narrowest types; `wide` those that models take, int32
and int64, as on a CPU; `padded` the padded view. `blocks` is what no reader of the format can do
without: reading the same bytes, crc32 and decoding. The others read the same instances,
padded, and make tensors of them that are as narrow (scripts/bench/load_peers.py); `raw` does
nothing but read a file. Theirs are files of some MB that were just written; ours are read through
before the clock starts, for the system's memory to hold them as well: bringing them there is the
machine's work and no loader's. Loaders take turns, so that a ratio compares what ran under the same
load. Peers that cannot be imported are named and left out: mosaicml-streaming, litdata and datasets
may live in an environment of their own. A dataset that a reader could hold in its own memory is
refused, for there blocks would be decoded once for several epochs: --copies reads it several times
over, each copy with shards of its own.
"""

import argparse
import hashlib
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pipeline.shards.block import Block, concatenate_blocks, decode_block
from pipeline.shards.block_tables import blocks_table
from pipeline.shards.dataset import Dataset, open_dataset
from pipeline.shards.manifest import (
    BLOCKS_TABLE,
    MANIFEST,
    SHARDS_TABLE,
    group_totals,
    root_hash,
    shard_name,
    shards_table,
)
from pipeline.shards.records import Shard
from scripts.bench.load_peers import LOADERS, measure
from scripts.checkout import commit
from trainer.batches.pack import pad_micro_batch, to_device
from trainer.batches.rows import COMPILED
from trainer.reading.ranged_read import BlockRange, split_blocks
from trainer.reading.settings import Reading
from trainer.stream.pipeline import planned_steps

OURS = ("packed", "wide", "padded", "blocks")
PEERS_ELSEWHERE = ("mosaicml", "mosaicml-blocks", "litdata", "litdata-blocks", "datasets")
QUICK = 1_500_000
"""Instances of the quick loaders; the others, 20 times slower or more, get fewer."""


def refuse_small(dataset: Dataset, seq_len: int, copies: int = 1) -> None:
    """Refuses data of which a reader could keep all in its own memory.

    Raises:
        ValueError: It is as small; the message says how many copies are enough.
    """
    found = copies * sum(shard.num_bytes for shard in _train_shards(dataset, seq_len))
    if found <= Reading.buffer_bytes:
        enough = -(-copies * (Reading.buffer_bytes + 1) // max(1, found))
        times = f" in {copies} copies" if copies > 1 else ""
        raise ValueError(
            f"{dataset.url} holds {found / 1e6:,.0f} MB of train L{seq_len}{times}; a reader keeps up to"
            f" {Reading.buffer_bytes / 1e6:,.0f} MB in its own memory and would read from there: give a larger"
            f" dataset, or --copies {enough}"
        )


def copy_shards(dataset: Dataset, seq_len: int, copies: int, folder: Path) -> Dataset:
    """A dataset whose passes of one length are several times those of another, byte for byte."""
    found, num_passes = _train_shards(dataset, seq_len), dataset.num_passes("train", seq_len)
    shards, tables = [], []
    for copy in range(copies):
        for number, shard in enumerate(found):
            pass_index = copy * num_passes + shard.pass_index
            name = shard_name("train", seq_len, pass_index, number)
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(dataset.read_file(shard.name))
            shards.append(replace(shard, name=name, pass_index=pass_index))
            tables.append(dataset.blocks(shard))
    parts = {SHARDS_TABLE: shards_table(shards), BLOCKS_TABLE: blocks_table(tables)}
    for name, data in parts.items():
        (folder / name).write_bytes(data)
    digests = {name: hashlib.sha256(data).hexdigest() for name, data in parts.items()}
    manifest = replace(
        dataset.manifest,
        groups=group_totals(shards),
        root_hash=root_hash(shards),
        tables_sha256=digests,
    )
    (folder / MANIFEST).write_bytes(manifest.to_json())
    return open_dataset(str(folder))


def _train_shards(dataset: Dataset, seq_len: int) -> list[Shard]:
    return [
        shard for shard in dataset.all_shards if (shard.split, shard.seq_len) == ("train", seq_len)
    ]


def read_blocks(dataset: Dataset, seq_len: int) -> Iterator[Any]:
    """A column of blocks whose bytes were read in long requests, checked by crc32 and decoded; no more."""
    for shard in _train_shards(dataset, seq_len):
        table, per_read = dataset.blocks(shard), 64
        for first in range(0, len(table), per_read):
            blocks = BlockRange(dataset, shard, table, first, min(first + per_read, len(table)))
            data = dataset.read_bytes(shard.name, blocks.start_byte, blocks.stop_byte)
            for body in split_blocks(data, blocks):
                yield decode_block(body, shard.name).segment_a_length


def read_through(dataset: Dataset, seq_len: int) -> None:
    """Reads all shards of a length once."""
    for shard in _train_shards(dataset, seq_len):
        for start in range(0, shard.num_bytes, 2**23):
            dataset.read_bytes(shard.name, start, min(start + 2**23, shard.num_bytes))


def read_ours(dataset: Dataset, seq_len: int, batch: int, kind: str) -> Iterator[Any]:
    """Steps of one micro-batch each."""
    size, cpu = batch * seq_len, torch.device("cpu")
    steps = planned_steps(
        dataset,
        "train",
        seq_len,
        rank=0,
        world_size=1,
        global_batch=batch,
        micro_tokens=size,
        seed=0,
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


def write_rows(dataset: Dataset, seq_len: int, num_rows: int, path: Path) -> None:
    """The first instances as rows: padded tokens, lengths, masked positions and labels, label."""
    blocks: list[Block] = []
    for shard in _train_shards(dataset, seq_len):
        data, table = dataset.read_file(shard.name), dataset.blocks(shard)
        for offset, size in zip(table.offset, table.size, strict=True):
            if sum(block.num_instances for block in blocks) < num_rows:
                blocks.append(decode_block(data[offset : offset + size], shard.name))
    block = concatenate_blocks(blocks)
    block = block.slice(0, min(num_rows, block.num_instances))
    most_masked = int(np.diff(block.masked_offsets).max())
    rows = np.zeros((block.num_instances, seq_len + 4 + 2 * most_masked), np.uint16)
    for n, row in enumerate(rows):
        one = block.slice(n, n + 1)
        row[: one.num_tokens] = one.input_ids
        ends = row[seq_len:]
        ends[:4] = (one.num_tokens, one.segment_a_length[0], one.num_masked, one.is_random_next[0])
        ends[4 : 4 + one.num_masked] = one.masked_lm_positions
        ends[4 + most_masked : 4 + most_masked + one.num_masked] = one.masked_lm_ids
    np.save(path, rows)


def run_loader(name: str, batch: int, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """One measurement in a process of its own."""
    instances = QUICK if name in (*OURS, "raw") or name.endswith("-blocks") else QUICK // 20
    if name in OURS:
        command = [
            sys.executable,
            "-m",
            "scripts.bench.load",
            "--data",
            str(options.data),
            "--run",
            name,
        ]
        command += [
            "--seq_len",
            str(options.seq_len),
            "--batches",
            str(batch),
            "--instances",
            str(instances),
        ]
    else:
        python = (
            options.peers_python
            if name in PEERS_ELSEWHERE and options.peers_python
            else sys.executable
        )
        program = Path(__file__).with_name("load_peers.py")
        command = [
            python,
            str(program),
            name,
            str(folder),
            *map(str, (options.seq_len, batch, instances)),
        ]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    if ran.returncode:
        return {"skipped": (ran.stderr.strip().splitlines() or ["no message"])[-1]}
    measured: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return measured


def compare(batch: int, options: argparse.Namespace, folder: Path) -> None:
    """Prints one line for each loader."""
    names = [name for name in (*OURS, *LOADERS) if not options.only or name in options.only]
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for _ in range(options.repeat):
        for name in names:
            if not any("skipped" in run for run in runs[name]):
                runs[name].append(run_loader(name, batch, options, folder))
    medians: dict[str, float] = {}
    for name in names:
        rates = [
            run["instances"] / run["cpu_seconds"] for run in runs[name] if "skipped" not in run
        ]
        line: dict[str, Any] = {
            "benchmark": "load",
            "loader": name,
            "seq_len": options.seq_len,
            "batch": batch,
        }
        if rates:
            medians[name] = float(np.median(rates))
            line |= {"instances_per_cpu_second": round(medians[name]), "n": len(rates)}
            line |= {"spread": [round(min(rates)), round(max(rates))]}
        else:
            line |= runs[name][-1]
        print(json.dumps(line | describe()), flush=True)
    if "packed" in medians:
        ratios = {
            name: round(medians["packed"] / rate, 2)
            for name, rate in medians.items()
            if name != "packed"
        }
        print(
            json.dumps(
                {
                    "benchmark": "load",
                    "seq_len": options.seq_len,
                    "batch": batch,
                    "packed_over": ratios,
                }
            )
        )


def describe() -> dict[str, Any]:
    """What the numbers were measured with."""
    versions = {name: version(name) for name in ("numpy", "pyarrow", "torch", "webdataset")}
    compiled = "trainer.batches._rows" if COMPILED else "none"
    load = round(os.getloadavg()[0], 1)
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "commit": commit(),
        "compiled": compiled,
        "load": load,
        "versions": versions,
        "hardware": platform.machine(),
    }


def main() -> int:
    """Compares all loaders, or measures one of ours for the process that does."""
    parser = argparse.ArgumentParser(
        allow_abbrev=False, description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--data", required=True)
    parser.add_argument("--seq_len", type=int, default=128)
    parser.add_argument("--batches", type=int, nargs="+", default=[256, 4096])
    parser.add_argument(
        "--rows", type=int, default=262_144, help="instances that peers read, again and again"
    )
    parser.add_argument(
        "--copies", type=int, default=1, help="read so many copies of the dataset's shards"
    )
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument(
        "--peers_python", help="interpreter that has mosaicml-streaming, litdata and datasets"
    )
    parser.add_argument("--only", nargs="+", help="loaders to compare")
    parser.add_argument("--run", choices=OURS, help=argparse.SUPPRESS)
    parser.add_argument("--instances", type=int, default=QUICK, help=argparse.SUPPRESS)
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

        print(json.dumps(measure(batches, options.instances)))
        return 0
    with tempfile.TemporaryDirectory(prefix="beambert-bench-") as folder:
        if options.copies > 1:
            dataset = copy_shards(dataset, options.seq_len, options.copies, Path(folder, "copies"))
            options.data = dataset.url
        write_rows(dataset, options.seq_len, options.rows, Path(folder, "rows.npy"))
        for batch in options.batches:
            compare(batch, options, Path(folder))
    return 0


if __name__ == "__main__":
    sys.exit(main())
