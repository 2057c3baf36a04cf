"""Reads and writes the record of a finished shard, which stays until the dataset is published.

It is a JSON file under _tasks/, written after the shard. Later launches of the build take a shard
as finished if its record is there.
"""

import json
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipeline.shards.growing import RECORDS
from pipeline.shards.manifest import parse_shard_row, shard_row
from pipeline.shards.records import BlockTable, Shard
from pipeline.shards.seal import Seal
from pipeline.storage.folder import Folder


@dataclass(frozen=True)
class ShardRecord:
    """The content of a finished shard's record.

    Attributes:
        settings_hash: Hash of the settings that the shard was built with.
        shard: The shard's row of the table of shards.
        blocks: Where the shard's blocks are.
    """

    settings_hash: str
    shard: Shard
    blocks: BlockTable


def record_name(name: str) -> str:
    """Returns the path of a shard's record, relative to the dataset."""
    return f"{RECORDS}/{name}.json"


def format_record(record: ShardRecord) -> bytes:
    """Returns a record as JSON."""
    blocks = {name: column.tolist() for name, column in vars(record.blocks).items()}
    row = shard_row(record.shard)
    content = {"settings_hash": record.settings_hash, "shard": row, "blocks": blocks}
    return json.dumps(content).encode()


def parse_record(data: bytes) -> ShardRecord:
    """Returns the record that `format_record` formatted.

    Raises:
        ValueError: The bytes are not JSON.
        KeyError: A field is missing.
        TypeError: A field has another type, or is unknown.
    """
    fields = json.loads(data)
    blocks: dict[str, Any] = {
        name: np.array(column, np.uint32 if name == "crc32" else np.int64)
        for name, column in fields["blocks"].items()
    }
    shard = parse_shard_row(fields["shard"])
    return ShardRecord(fields["settings_hash"], shard, BlockTable(**blocks))


def read_record(folder: Folder, name: str, seal: Seal, settings_hash: str) -> ShardRecord | None:
    """Reads the record of a shard; returns None if it is missing or not valid.

    Args:
        folder: The folder of the dataset.
        name: The name of the shard.
        seal: The expected seal of the shard's documents.
        settings_hash: The expected hash of the dataset's settings.
    """
    try:
        data = folder.read(record_name(name))
    except FileNotFoundError:
        return None
    return accept_record(data, name, seal, settings_hash)


def accept_record(data: bytes, name: str, seal: Seal, settings_hash: str) -> ShardRecord | None:
    """Returns the record that a file holds, or None if it is not valid for a shard.

    A record is valid if it can be parsed, and if its shard's name, the seal of the shard's
    documents and the hash of the settings are the expected ones.

    Args:
        data: The bytes of the file.
        name: The expected name of the shard.
        seal: The expected seal of the shard's documents.
        settings_hash: The expected hash of the dataset's settings.
    """
    try:
        record = parse_record(data)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None  # cut short, or of an earlier version
    identity = (record.settings_hash, record.shard.name, record.shard.seal)
    expected = (settings_hash, name, seal)
    return record if identity == expected else None
