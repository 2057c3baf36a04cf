"""Shards of MosaicML's streaming (MDS, version 2), without that library: byte for byte what its MDSWriter writes.

A shard begins with the number of its samples and where each starts and ends, as uint32, and with a
description as JSON. A sample begins with the sizes of its arrays; columns are in the order of their
names.
"""

import itertools
import json
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import IO, Any

import numpy as np

from pipeline.export.columns import Int32, label_column, list_columns
from pipeline.shards.block import Block

INDEX = "index.json"
_COLUMNS = {
    "input_ids": ("ndarray:int32", None),
    "masked_lm_ids": ("ndarray:int32", None),
    "masked_lm_positions": ("ndarray:int32", None),
    "next_sentence_labels": ("int", 8),
    "segment_ids": ("ndarray:int32", None),
}
_CONFIG = {
    "version": 2,
    "format": "mds",
    "compression": None,
    "hashes": [],
    "size_limit": None,
    "column_names": [*_COLUMNS],
    "column_encodings": [encoding for encoding, _ in _COLUMNS.values()],
    "column_sizes": [size for _, size in _COLUMNS.values()],
}
_CONFIG_BYTES = json.dumps(_CONFIG, sort_keys=True).encode()
_MOST_BYTES = 2**32 - 1


def prepare_mds(_plan: Mapping[str, Any]) -> Callable[[IO[bytes], Iterable[Block], int], None]:
    """What writes a shard with a sample for each instance."""
    return _write_samples


def index_mds(files: Iterable[tuple[str, int, int]]) -> dict[str, bytes]:
    """index.json of shards, given by their names, bytes and samples."""
    shards = [
        {
            **_CONFIG,
            "samples": num_samples,
            "raw_data": {"basename": name, "bytes": num_bytes, "hashes": {}},
            "zip_data": None,
        }
        for name, num_bytes, num_samples in files
    ]
    return {INDEX: json.dumps({"version": 2, "shards": shards}, sort_keys=True).encode()}


def _write_samples(file: IO[bytes], blocks: Iterable[Block], num_instances: int) -> None:
    """Writes the samples behind the room for where they lie, and then where they lie.

    Raises:
        OverflowError: The shard is too large for the format.
    """
    first = 4 + 4 * (num_instances + 1) + len(_CONFIG_BYTES)
    file.seek(first)
    sizes = []
    for block in blocks:
        samples = [*_encode_samples(block)]
        sizes += [len(sample) for sample in samples]
        file.write(b"".join(samples))
    ends = np.cumsum([first, *sizes], dtype=np.int64)
    if ends[-1] > _MOST_BYTES:
        raise OverflowError(f"{ends[-1]:,} bytes, an MDS shard has at most {_MOST_BYTES:,}")
    file.seek(0)
    file.write(struct.pack("<I", num_instances) + ends.astype("<u4").tobytes() + _CONFIG_BYTES)


def _encode_samples(block: Block) -> Iterator[bytes]:
    columns = {name: [*_encode_arrays(*column)] for name, column in list_columns(block).items()}
    columns["next_sentence_labels"] = [
        label.tobytes() for label in label_column(block).astype("<i8")
    ]
    for row in range(block.num_instances):
        values = [columns[name][row] for name in _COLUMNS]
        sizes = [
            len(each)
            for each, (_, size) in zip(values, _COLUMNS.values(), strict=True)
            if size is None
        ]
        yield struct.pack(f"<{len(sizes)}I", *sizes) + b"".join(values)


def _encode_arrays(values: Int32, offsets: Int32) -> Iterator[bytes]:
    data, ends = values.astype("<i4").tobytes(), (4 * offsets).tolist()
    for start, stop in itertools.pairwise(ends):
        yield _shape((stop - start) // 4) + data[start:stop]


@lru_cache(maxsize=4096)
def _shape(length: int) -> bytes:
    """What stands before the values of an array: four times its axes plus the kind of its length, and the length."""
    return struct.pack("<BB", 4, length) if length < 2**8 else struct.pack("<BH", 5, length)
