"""The shards job: buckets of encoded documents to shards of instances, one a (split, length, pass, bucket).

    ExchangeByBucket | BuildShards

A finished shard leaves, last, a small record under _tasks/; running again skips shards that have both.
"""

import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import apache_beam as beam
import numpy as np

from pipeline import worker_guard
from pipeline.build_bucket import BucketDocuments, InstanceRule, build_bucket, count_source_tokens, gather_documents
from pipeline.exchange import ShardTask
from pipeline.shard_file import pack_shard
from pipeline.shards.growing import RECORDS
from pipeline.shards.manifest import parse_shard_row, shard_row
from pipeline.shards.records import BlockTable, Shard
from pipeline.shards.storage import file_exists, open_filesystem, write_atomic
from pipeline.token_parts import TokenizedDocument

worker_guard.watch_in_workers()


@dataclass(frozen=True)
class ShardBuilder:
    """Builds the shards of one bucket after the other; what a worker needs to know.

    Attributes:
        output: Folder or URL of the dataset.
        rules: How instances are made, by length.
        num_sources: Of the corpus; the tokens of several are counted.
        storage_options: Of the output's filesystem.
    """

    output: str
    rules: Mapping[int, InstanceRule]
    num_sources: int
    storage_options: Mapping[str, Any] | None = None

    def build(self, tasks: Sequence[ShardTask], documents: Iterable[TokenizedDocument]) -> Iterator[str]:
        """Writes those of a bucket's shards that have no record yet; yields the names of their records.

        A runner may hand the same bucket to a worker again: what the first attempt finished is not built twice.
        """
        filesystem, root = open_filesystem(self.output, self.storage_options)
        missing = [each for each in tasks if not file_exists(filesystem, f"{root}/{record_name(each.name)}")]
        if missing:
            gathered = gather_documents(documents)
            for task in missing:
                yield self._write_shard(task, gathered)

    def _write_shard(self, task: ShardTask, documents: BucketDocuments) -> str:
        rule = self.rules[task.seq_len]
        if task.bucket.split == "validation":  # measured on each document once, whatever the mixture
            rule = dataclasses.replace(rule, weights=())
        blocks = build_bucket(documents, rule, task.pass_index, task.bucket.name)
        tokens = np.zeros(self.num_sources, np.int64)
        if self.num_sources > 1:
            blocks = count_source_tokens(blocks, documents, tokens)
        tar, shard, table = pack_shard(
            blocks, task.bucket.split, task.seq_len, task.pass_index, task.name, rule.masking.mask_id
        )
        if self.num_sources > 1:
            shard = dataclasses.replace(shard, source_tokens=tuple(tokens.tolist()))
        filesystem, root = open_filesystem(self.output, self.storage_options)
        write_atomic(filesystem, f"{root}/{task.name}", tar)
        write_atomic(filesystem, f"{root}/{record_name(task.name)}", format_record(shard, table))
        return record_name(task.name)


class BuildShards(beam.PTransform):  # type: ignore[misc]
    """Builds the shards of each (tasks of one bucket, its documents) and yields the names of their records."""

    def __init__(self, builder: ShardBuilder) -> None:
        super().__init__()
        self._builder = builder

    def expand(self, buckets: beam.PCollection) -> beam.PCollection:
        return buckets | beam.FlatMapTuple(self._builder.build)


def record_name(name: str) -> str:
    """Where the record of a shard lies, relative to the dataset."""
    return f"{RECORDS}/{name}.json"


def format_record(shard: Shard, table: BlockTable) -> bytes:
    """A shard's row and block table as JSON."""
    blocks = {field.name: getattr(table, field.name).tolist() for field in dataclasses.fields(BlockTable)}
    return json.dumps({"shard": shard_row(shard), "blocks": blocks}).encode()


def parse_record(data: bytes) -> tuple[Shard, BlockTable]:
    """What `format_record` formatted."""
    fields = json.loads(data)
    blocks = fields["blocks"]
    offset, size, instances, tokens = (np.array(blocks[name], np.int64) for name in list(blocks)[:4])
    table = BlockTable(offset, size, instances, tokens, np.array(blocks["crc32"], np.uint32))
    return parse_shard_row(fields["shard"]), table
