"""The record that a finished shard leaves under _tasks/ until the dataset is published: its row, blocks and settings.

A record counts for a task only where it is of the same settings and of the very documents that the
task must hold.
"""

import dataclasses
import json
from dataclasses import dataclass

import numpy as np

from pipeline.jobs.exchange import ShardTask
from pipeline.shards.growing import RECORDS
from pipeline.shards.manifest import parse_shard_row, shard_row
from pipeline.shards.records import BlockTable, Shard
from pipeline.storage.folder import Folder


@dataclass(frozen=True)
class ShardRecord:
    """What is known of a finished shard."""

    settings_hash: str
    shard: Shard
    blocks: BlockTable

    def is_of(self, task: ShardTask, settings_hash: str) -> bool:
        """Whether it tells of this task's shard, built with these settings from all documents of its bucket."""
        own = self.settings_hash, self.shard.name, self.shard.seal
        return own == (settings_hash, task.name, task.contents.seal)


def record_name(name: str) -> str:
    """Where the record of a shard lies, relative to the dataset."""
    return f"{RECORDS}/{name}.json"


def format_record(record: ShardRecord) -> bytes:
    """A record as JSON."""
    blocks = {
        field.name: getattr(record.blocks, field.name).tolist()
        for field in dataclasses.fields(BlockTable)
    }
    return json.dumps(
        {"settings_hash": record.settings_hash, "shard": shard_row(record.shard), "blocks": blocks}
    ).encode()


def parse_record(data: bytes) -> ShardRecord:
    """What `format_record` formatted."""
    fields = json.loads(data)
    blocks = fields["blocks"]
    offset, size, instances, tokens = (
        np.array(blocks[name], np.int64) for name in list(blocks)[:4]
    )
    table = BlockTable(offset, size, instances, tokens, np.array(blocks["crc32"], np.uint32))
    return ShardRecord(fields["settings_hash"], parse_shard_row(fields["shard"]), table)


def read_record(folder: Folder, task: ShardTask, settings_hash: str) -> ShardRecord | None:
    """The record of a task that is finished; None where there is none that counts, so that its shard is built again."""
    try:
        data = folder.read(record_name(task.name))
    except FileNotFoundError:
        return None
    return accept_record(data, task, settings_hash)


def accept_record(data: bytes, task: ShardTask, settings_hash: str) -> ShardRecord | None:
    """The record that a file holds, if it is whole and of the task."""
    try:
        record = parse_record(data)
    except (ValueError, KeyError, TypeError):  # cut short, or of an earlier version
        return None
    return record if record.is_of(task, settings_hash) else None
