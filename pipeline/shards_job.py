"""The shards job: buckets of token parts to shards of instances, one task a (split, length, pass, bucket).

    ShardTask | BuildShards

A finished task leaves its shard and, last, a small record under _tasks/; running again skips tasks that have both.
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import apache_beam as beam
import numpy as np

from pipeline.buckets import Bucket
from pipeline.build_bucket import InstanceRule, build_bucket
from pipeline.shard_file import pack_shard
from pipeline.shards.manifest import BlockTable, Shard, shard_name
from pipeline.shards.storage import open_filesystem, write_atomic
from pipeline.token_index import read_bucket

RECORDS = "_tasks"


@dataclass(frozen=True)
class ShardTask:
    """One shard to build."""

    seq_len: int
    pass_index: int
    bucket: Bucket

    @property
    def name(self) -> str:
        """The shard's path relative to the dataset."""
        return shard_name(self.bucket.split, self.seq_len, self.pass_index, self.bucket.number)


@dataclass(frozen=True)
class ShardBuilder:
    """Builds one shard after the other; what a worker needs to know.

    Attributes:
        output: Folder or URL of the dataset.
        tokens: Folder or URL of the token parts.
        part_names: Of the token parts to read; no other file there is looked at.
        token_dtype: uint16 or uint32.
        rules: How instances are made, by length.
        storage_options: Of the filesystems.
    """

    output: str
    tokens: str
    part_names: tuple[str, ...]
    token_dtype: str
    rules: Mapping[int, InstanceRule]
    storage_options: Mapping[str, Any] | None = None

    def build(self, task: ShardTask) -> str:
        """Writes one shard, then the record that says it is whole; returns the record's name."""
        source, folder = open_filesystem(self.tokens, self.storage_options)
        documents = read_bucket(source, folder, self.part_names, task.bucket, np.dtype(self.token_dtype))
        blocks = build_bucket(documents, self.rules[task.seq_len], task.pass_index, task.bucket.name)
        tar, shard, table = pack_shard(blocks, task.bucket.split, task.seq_len, task.pass_index, task.name)
        filesystem, root = open_filesystem(self.output, self.storage_options)
        write_atomic(filesystem, f"{root}/{task.name}", tar)
        write_atomic(filesystem, f"{root}/{record_name(task.name)}", format_record(shard, table))
        return record_name(task.name)


class BuildShards(beam.PTransform):  # type: ignore[misc]
    """Builds the shard of each ShardTask and yields the name of its record."""

    def __init__(self, builder: ShardBuilder) -> None:
        super().__init__()
        self._builder = builder

    def expand(self, tasks: beam.PCollection) -> beam.PCollection:
        return tasks | beam.Map(self._builder.build)


def plan_tasks(buckets: Sequence[Bucket], seq_lens: Sequence[int], passes: int) -> list[ShardTask]:
    """Every shard of the dataset, passes in order; validation has pass 0 only."""
    return [
        ShardTask(seq_len, pass_index, bucket)
        for pass_index in range(passes)
        for seq_len in seq_lens
        for bucket in buckets
        if bucket.split == "train" or pass_index == 0
    ]


def record_name(name: str) -> str:
    """Where the record of a shard lies, relative to the dataset."""
    return f"{RECORDS}/{name}.json"


def format_record(shard: Shard, table: BlockTable) -> bytes:
    """A shard's row and block table as JSON."""
    blocks = {field.name: getattr(table, field.name).tolist() for field in dataclasses.fields(BlockTable)}
    return json.dumps({"shard": dataclasses.asdict(shard), "blocks": blocks}).encode()


def parse_record(data: bytes) -> tuple[Shard, BlockTable]:
    """What `format_record` formatted."""
    fields = json.loads(data)
    blocks = fields["blocks"]
    offset, size, instances, tokens = (np.array(blocks[name], np.int64) for name in list(blocks)[:4])
    table = BlockTable(offset, size, instances, tokens, np.array(blocks["crc32"], np.uint32))
    return Shard(**fields["shard"]), table
