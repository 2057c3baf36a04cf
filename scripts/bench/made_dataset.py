"""Writes the tables and the manifest of datasets that benchmarks make without a build."""

import dataclasses
import hashlib
from collections.abc import Sequence
from pathlib import Path

from pipeline.shards.block_tables import blocks_table
from pipeline.shards.manifest import (
    BLOCKS_TABLE,
    MANIFEST,
    SHARDS_TABLE,
    group_totals,
    root_hash,
    shards_table,
)
from pipeline.shards.records import BlockTable, Manifest, Shard


def write_tables(
    folder: Path, manifest: Manifest, shards: Sequence[Shard], tables: Sequence[BlockTable]
) -> None:
    """Writes both tables of a dataset and its manifest.

    Args:
        folder: The folder of the dataset.
        manifest: The manifest. Its totals and hashes of shards are replaced by those of `shards`.
        shards: The shards, which are in the folder already.
        tables: The block table of each shard.
    """
    files = {SHARDS_TABLE: shards_table(shards), BLOCKS_TABLE: blocks_table(tables)}
    complete = dataclasses.replace(
        manifest,
        groups=group_totals(shards),
        root_hash=root_hash(shards),
        tables_sha256={name: hashlib.sha256(data).hexdigest() for name, data in files.items()},
    )
    files[MANIFEST] = complete.to_json()
    for name, data in files.items():
        (folder / name).write_bytes(data)
