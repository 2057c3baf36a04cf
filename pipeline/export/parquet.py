"""Parquet files of instances: a row each, without padding, which every reader of tables takes."""

import json
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.export.columns import label_column, list_columns
from pipeline.shards.block import Block

METADATA = b"beambert"
"""Key in a file's metadata of what was exported, as JSON."""
_BLOCKS_PER_ROW_GROUP = 16
"""A million tokens, of which a reader holds a row group at a time."""
_LISTS = ("input_ids", "segment_ids", "masked_lm_positions", "masked_lm_ids")
SCHEMA = pa.schema(
    [
        *(
            pa.field(
                name, pa.list_(pa.field("element", pa.int32(), nullable=False)), nullable=False
            )
            for name in _LISTS
        ),
        pa.field("next_sentence_labels", pa.int32(), nullable=False),
    ]
)


def prepare_parquet(plan: Mapping[str, Any]) -> Callable[[IO[bytes], Iterable[Block], int], None]:
    """What writes a file with a row for each instance; its metadata is the plan without the names of all files."""
    described = {name: value for name, value in plan.items() if name != "files"}
    return partial(
        _write_rows, schema=SCHEMA.with_metadata({METADATA: json.dumps(described, sort_keys=True)})
    )


def _write_rows(
    file: IO[bytes], blocks: Iterable[Block], _num_instances: int, schema: pa.Schema
) -> None:
    options = {
        "compression": "zstd",
        "use_dictionary": False,
        "write_statistics": False,
        "write_page_checksum": True,
    }
    with pq.ParquetWriter(file, schema, **options) as writer:
        waiting: list[pa.Table] = []
        for block in blocks:
            waiting.append(_table(block, schema))
            if len(waiting) == _BLOCKS_PER_ROW_GROUP:
                writer.write_table(pa.concat_tables(waiting))
                waiting = []
        if waiting:
            writer.write_table(pa.concat_tables(waiting))


def _table(block: Block, schema: pa.Schema) -> pa.Table:
    lists = list_columns(block)
    columns = [
        pa.ListArray.from_arrays(pa.array(offsets), pa.array(values), type=schema.field(name).type)
        for name, (values, offsets) in lists.items()
    ]
    return pa.table([*columns, pa.array(label_column(block))], schema=schema)
