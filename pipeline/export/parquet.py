"""Writes instances as Parquet files: one row per instance, without padding."""

import json
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import IO, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.shards.block import Block

METADATA = b"beambert"
"""Key of a file's metadata under which a JSON object says what was exported."""
_BLOCKS_PER_ROW_GROUP = 16
"""Blocks in a row group, some million tokens: as much as a reader holds in memory at a time."""
_LISTS = ("input_ids", "segment_ids", "masked_lm_positions", "masked_lm_ids")
_LIST = pa.list_(pa.field("element", pa.int32(), nullable=False))
SCHEMA = pa.schema(
    [
        *(pa.field(name, _LIST, nullable=False) for name in _LISTS),
        pa.field("next_sentence_labels", pa.int32(), nullable=False),
    ]
)
_OFF = dict.fromkeys(("use_dictionary", "write_statistics"), False)
_OPTIONS = {"compression": "zstd", "write_page_checksum": True, **_OFF}


def write_rows(file: IO[bytes], blocks: Iterable[Block], plan: Mapping[str, Any]) -> None:
    """Writes a Parquet file with one row for each instance.

    Args:
        file: Where to write.
        blocks: The instances, which are taken lazily.
        plan: The result of `plan_export`. The file's metadata hold it as JSON, without `files`.
    """
    described = {name: value for name, value in plan.items() if name != "files"}
    schema = SCHEMA.with_metadata({METADATA: json.dumps(described, sort_keys=True)})
    tables = (_table(block, schema) for block in blocks)
    with pq.ParquetWriter(file, schema, **_OPTIONS) as writer:
        while group := [*islice(tables, _BLOCKS_PER_ROW_GROUP)]:
            writer.write_table(pa.concat_tables(group))


def _table(block: Block, schema: pa.Schema) -> pa.Table:
    """Returns a table with one row for each instance of a block.

    The columns are named like the features that run_pretraining.py of google-research/bert reads,
    such as `input_ids`.

    Args:
        block: The instances.
        schema: SCHEMA with the metadata of the file.
    """
    lists = (
        (block.input_ids, block.offsets),
        (_segment_ids(block), block.offsets),
        (block.masked_lm_positions, block.masked_offsets),
        (block.masked_lm_ids, block.masked_offsets),
    )
    columns = [
        pa.ListArray.from_arrays(offsets.astype(np.int32), values.astype(np.int32), type=_LIST)
        for values, offsets in lists
    ]
    return pa.table([*columns, pa.array(block.is_random_next.astype(np.int32))], schema=schema)


def _segment_ids(block: Block) -> npt.NDArray[np.bool_]:
    """Returns a [T] array that says of each of the T tokens of a block if it is in segment B.

    The final [SEP] of an instance counts as a token of segment B.
    """
    lengths = np.diff(block.offsets)
    first_of_b = np.repeat(block.offsets[:-1] + block.segment_a_length, lengths)
    return np.arange(block.num_tokens) >= first_of_b
