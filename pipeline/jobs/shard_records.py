"""The record that a finished shard leaves under _tasks/ until the dataset is published."""

import json
from dataclasses import dataclass
from typing import Any

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


def record_name(name: str) -> str:
    """Where the record of a shard lies, relative to the dataset."""
    return f"{RECORDS}/{name}.json"


def format_record(record: ShardRecord) -> bytes:
    """A record as JSON."""
    blocks = {name: column.tolist() for name, column in vars(record.blocks).items()}
    row = shard_row(record.shard)
    told = {"settings_hash": record.settings_hash, "shard": row, "blocks": blocks}
    return json.dumps(told).encode()


def parse_record(data: bytes) -> ShardRecord:
    """What `format_record` formatted."""
    fields = json.loads(data)
    blocks: dict[str, Any] = {
        name: np.array(column, np.uint32 if name == "crc32" else np.int64)
        for name, column in fields["blocks"].items()
    }
    shard = parse_shard_row(fields["shard"])
    return ShardRecord(fields["settings_hash"], shard, BlockTable(**blocks))


def read_record(folder: Folder, task: ShardTask, settings_hash: str) -> ShardRecord | None:
    """The record of a finished task; None where there is none that counts (`accept_record`)."""
    try:
        data = folder.read(record_name(task.name))
    except FileNotFoundError:
        return None
    return accept_record(data, task, settings_hash)


def accept_record(data: bytes, task: ShardTask, settings_hash: str) -> ShardRecord | None:
    """The record that a file holds, if whole and of the task's shard, documents and settings."""
    try:
        record = parse_record(data)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None  # cut short, or of an earlier version
    own = record.settings_hash, record.shard.name, record.shard.seal
    return record if own == (settings_hash, task.name, task.contents.seal) else None
