"""Seconds and memory until the first batch of a dataset of many shards: one JSON line.

    python scripts/bench/first_batch.py --shards 80000 --blocks 62

The tables are as large as told (80,000 shards of 62 blocks: 5 million blocks, 2.5 billion instances
at length 128); every shard's bytes are those of one small shard, and each request waits
--latency_ms as a store's first byte would. start_mb is what Python and torch take before anything
is opened. With --first_step and --world_size it is the first of so many ranks, which goes on in the
middle of an epoch; tables kept by --tables are then of that place.
"""

import argparse
import dataclasses
import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from pipeline.shards.block import Block, block_instances
from pipeline.shards.block_tables import BlockTables, blocks_table
from pipeline.shards.dataset import Dataset
from pipeline.shards.manifest import (
    BLOCKS_TABLE,
    FORMAT_VERSION,
    SHARDS_TABLE,
    group_totals,
    parse_shards_table,
    root_hash,
    shard_name,
    shards_table,
)
from pipeline.shards.records import BlockTable, Manifest, Shard
from pipeline.shards.seal import NOTHING
from pipeline.shards.shard_file import pack_shard
from pipeline.storage.folder import Folder
from trainer.order.known import KnownPasses
from trainer.order.order import ShardSize, StreamOrder
from trainer.order.share import default_num_lanes, rank_runs
from trainer.order.source import one_dataset
from trainer.reading.settings import Reading
from trainer.stream.step import StepLoader

SEQ_LEN = 128


def make_shard(num_blocks: int) -> tuple[bytes, Shard, BlockTable]:
    """A shard whose blocks are one block of random tokens."""
    rng, size = np.random.default_rng(0), block_instances(SEQ_LEN)
    lengths = rng.integers(60, SEQ_LEN + 1, size)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    block = Block(
        input_ids=rng.integers(5, 30_000, offsets[-1]).astype(np.uint16),
        offsets=offsets,
        segment_a_length=np.full(size, 20, np.uint16),
        masked_lm_positions=np.ones(size, np.uint16),
        masked_lm_ids=np.ones(size, np.uint16),
        masked_offsets=np.arange(size + 1, dtype=np.int32),
        is_random_next=np.zeros(size, np.bool_),
        document_a=np.arange(size, dtype=np.uint64),
        document_b=np.arange(size, dtype=np.uint64),
    )
    return pack_shard(
        [block] * num_blocks, "train", SEQ_LEN, 0, shard_name("train", SEQ_LEN, 0, 0), 4, NOTHING
    )


def write_tables(
    folder: Path, shard: Shard, table: BlockTable, options: argparse.Namespace
) -> None:
    """shards.parquet and blocks.parquet of many shards; those read first are this one, the others random."""
    num_shards = options.shards
    rng = np.random.default_rng(0)
    names = [shard_name("train", SEQ_LEN, 0, number) for number in range(num_shards)]
    hashes = [(rng.bytes(32).hex(), rng.bytes(32).hex()) for _ in names]
    shards = [
        dataclasses.replace(shard, name=name, sha256=sha256, content_hash=content)
        for name, (sha256, content) in zip(names, hashes, strict=True)
    ]
    (folder / SHARDS_TABLE).write_bytes(shards_table(shards))
    passes = (tuple(ShardSize(name, shard.instances) for name in names),)
    batch = options.global_batch
    num_lanes = default_num_lanes(batch, [num_shards * shard.instances], block_instances(SEQ_LEN))
    order = StreamOrder((passes,), (1,), 0, num_lanes)
    read = rank_runs(
        order, options.first_step * batch, batch, 0, options.world_size, num_steps=64
    ).shard
    first = set(read.tolist())
    (folder / BLOCKS_TABLE).write_bytes(
        blocks_table(
            [table if number in first else random_table(rng, table) for number in range(num_shards)]
        )
    )


def random_table(rng: np.random.Generator, like: BlockTable) -> BlockTable:
    """Blocks of a shard that is never read: as many, of other sizes, tokens and checksums."""
    size = like.size + rng.integers(-2000, 2000, len(like))
    offset = 512 + np.cumsum(size + 1024) - (size + 1024)
    crc32 = rng.integers(0, 2**32, len(like)).astype(np.uint32)
    return BlockTable(
        offset, size, like.instances, like.tokens + rng.integers(-500, 500, len(like)), crc32
    )


def open_copies(folder: Path, tar: bytes, latency_seconds: float) -> Dataset:
    """The dataset, whose every shard is the same tar, behind requests that take a while."""

    def read(start: int, stop: int) -> bytes:
        time.sleep(latency_seconds)
        return os.pread(blocks, stop - start, start)

    def read_copy(_: str, start: int, stop: int) -> bytes:
        time.sleep(latency_seconds)
        return tar[start:stop]

    shards = parse_shards_table((folder / SHARDS_TABLE).read_bytes(), SHARDS_TABLE)
    digest = root_hash(shards)
    manifest = Manifest(
        FORMAT_VERSION, {}, {}, "", "", "", 30_522, {}, group_totals(shards), {}, digest, NOTHING
    )
    blocks = os.open(
        folder / BLOCKS_TABLE, os.O_RDONLY
    )  # not mapped: its pages would count as ours
    dataset = Dataset(Folder(str(folder)), manifest, shards)
    tables = BlockTables(read, lambda: os.fstat(blocks).st_size, shards, BLOCKS_TABLE)
    dataset.__dict__["_tables"] = tables
    dataset.__dict__["read_bytes"] = read_copy
    return dataset


def measure(folder: Path, tar: bytes, options: argparse.Namespace) -> dict[str, float]:
    """Opens the dataset and takes one batch."""
    start_mb = peak_mb()
    began, cpu = time.perf_counter(), time.process_time()
    dataset = open_copies(folder, tar, options.latency_ms / 1000)
    opened = time.perf_counter()
    state = None
    if options.first_step:
        passes = KnownPasses(one_dataset(dataset), "train", SEQ_LEN)
        lanes = default_num_lanes(
            options.global_batch, passes.first_pass_instances, block_instances(SEQ_LEN)
        )
        state = passes.state(options.first_step * options.global_batch, 0, lanes).to_dict()
    with StepLoader(
        dataset,
        "train",
        SEQ_LEN,
        rank=0,
        world_size=options.world_size,
        global_batch=options.global_batch,
        micro_tokens=32_768,
        seed=0,
        state=state,
        reading=Reading(buffer_bytes=options.buffer_mb * 2**20),
    ) as loader:
        next(loader)
        seconds = time.perf_counter() - began
        return {
            "open_seconds": round(opened - began, 2),
            "first_batch_seconds": round(seconds, 2),
            "cpu_seconds": round(time.process_time() - cpu, 2),
            "lanes": loader.num_lanes,
            "start_mb": start_mb,
            "peak_mb": peak_mb(),
        }


def peak_mb() -> int:
    """Most memory this process has had; ru_maxrss would count that of the process which started it, too."""
    [kilobytes] = re.findall(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return round(int(kilobytes) / 1024)


def main(arguments: Sequence[str] | None = None) -> int:
    """Writes the tables, or measures in the process that --tables starts with them at hand."""
    parser = argparse.ArgumentParser(
        allow_abbrev=False, description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--shards", type=int, default=80_000)
    parser.add_argument("--blocks", type=int, default=62)
    parser.add_argument("--latency_ms", type=float, default=30)
    parser.add_argument("--buffer_mb", type=int, default=64)
    parser.add_argument(
        "--world_size", type=int, default=1, help="ranks, of which this is the first"
    )
    parser.add_argument("--global_batch", type=int, default=256)
    parser.add_argument("--first_step", type=int, default=0, help="steps that were taken before")
    parser.add_argument("--tables", type=Path, help="folder that keeps the tables for another run")
    options = parser.parse_args(arguments)
    tar, shard, table = make_shard(options.blocks)
    with tempfile.TemporaryDirectory(prefix="beambert-bench-") as temporary:
        folder = options.tables or Path(temporary)
        if not (folder / BLOCKS_TABLE).exists():
            folder.mkdir(parents=True, exist_ok=True)
            write_tables(folder, shard, table, options)
        config = {
            "shards": options.shards,
            "blocks": options.blocks,
            "latency_ms": options.latency_ms,
        }
        config |= {
            name: getattr(options, name)
            for name in ("buffer_mb", "world_size", "global_batch", "first_step")
        }
        print(json.dumps({"benchmark": "first_batch", **config, **measure(folder, tar, options)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
