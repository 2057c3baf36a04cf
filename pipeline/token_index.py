"""The index over all token parts: distinct documents by id prefix, and each prefix's range in each part.

Read group by group (ids with the same top byte), so memory is the largest group and not the corpus. May import:
stdlib, numpy, pyarrow, pipeline.token_parts, buckets and pipeline.shards.storage.
"""

import hashlib
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.buckets import MAX_VALIDATION_TOKENS, NUM_PREFIXES, PREFIX_BITS, Bucket
from pipeline.shards.storage import read_file, read_range
from pipeline.token_parts import (
    ID_BYTES,
    INDEX_DTYPE,
    INDEX_HEAD_BYTES,
    NUM_INDEX_GROUPS,
    TokenizedDocument,
    index_group_bounds,
    join_id,
    unpack_documents,
)

INDEX_SCHEMA = pa.schema([("prefix", pa.uint16()), ("part", pa.int32()), ("offset", pa.int64()), ("size", pa.int64())])
_ROWS_PER_GROUP = 1 << 16


@dataclass(frozen=True)
class Totals:
    """Distinct documents of all parts.

    Attributes:
        documents: How many.
        duplicates: Further copies, dropped by the shards job.
        cleaned_bytes: Their text.
        tokens: Their tokens.
        documents_hash: blake2b-256, in hex, of all ids in order: what the corpus is, whatever files held it.
        documents_by_prefix: [4096] by the first 12 bits of the id.
        lowest_ids: The lowest ids that hold 1.28 M tokens, or all.
        lowest_tokens: Tokens of each of them.
    """

    documents: int
    duplicates: int
    cleaned_bytes: int
    tokens: int
    documents_hash: str
    documents_by_prefix: list[int]
    lowest_ids: list[str]
    lowest_tokens: list[int]


def build_index(filesystem: Any, folder: str, names: Sequence[str]) -> tuple[Totals, bytes]:
    """Reads the parts' index files and returns the totals and the table of ranges (index.parquet, by prefix)."""
    digest = hashlib.blake2b(digest_size=32)
    counts = dict.fromkeys(("documents", "rows", "cleaned_bytes", "tokens"), 0)
    by_prefix = np.zeros(NUM_PREFIXES, np.int64)
    lowest_ids: list[str] = []
    lowest_tokens: list[int] = []
    sink = io.BytesIO()
    with pq.ParquetWriter(sink, INDEX_SCHEMA, compression="zstd") as writer:
        for rows, parts in _read_groups(filesystem, folder, names):
            _write_ranges(writer, rows, parts)
            distinct = _distinct_rows(rows)
            digest.update(_id_bytes(distinct))
            counts["documents"] += len(distinct)
            counts["rows"] += len(rows)
            counts["cleaned_bytes"] += int(distinct["cleaned_bytes"].sum(dtype=np.int64))
            counts["tokens"] += int(distinct["tokens"].sum(dtype=np.int64))
            by_prefix += np.bincount(_prefixes(distinct), minlength=NUM_PREFIXES)
            lowest = _rows_within(distinct, MAX_VALIDATION_TOKENS - sum(lowest_tokens))
            lowest_ids += [join_id(row["high"], row["low"]).hex() for row in lowest]
            lowest_tokens += lowest["tokens"].tolist()
    totals = Totals(
        documents=counts["documents"],
        duplicates=counts["rows"] - counts["documents"],
        cleaned_bytes=counts["cleaned_bytes"],
        tokens=counts["tokens"],
        documents_hash=digest.hexdigest(),
        documents_by_prefix=by_prefix.tolist(),
        lowest_ids=lowest_ids,
        lowest_tokens=lowest_tokens,
    )
    return totals, sink.getvalue()


def read_bucket(
    filesystem: Any, folder: str, names: Sequence[str], bucket: Bucket, token_dtype: Any
) -> Iterator[TokenizedDocument]:
    """A bucket's documents out of all parts, duplicates included: one contiguous range of each part is read."""
    with filesystem.open(f"{folder}/index.parquet", "rb") as file:
        part, offset, size = _read_ranges(pq.ParquetFile(file), bucket)
    for index in np.unique(part):
        chosen = part == index
        start, stop = int(offset[chosen].min()), int((offset + size)[chosen].max())
        path = f"{folder}/{names[index]}.tokens"
        for document in unpack_documents(read_range(filesystem, path, start, stop), token_dtype, path):
            if bucket.first_id <= document.id <= bucket.last_id:
                yield document


def part_ids(filesystem: Any, path: str) -> tuple[list[bytes], npt.NDArray[np.int64]]:
    """The ids of a part's documents, ascending, from its `.index` file, and their bounds in its `.tokens` file.

    Returns:
        [D] ids, and [D + 1] offsets in bytes.
    """
    rows = np.frombuffer(read_file(filesystem, path)[INDEX_HEAD_BYTES:], INDEX_DTYPE)
    ids = _id_bytes(rows)
    ends = rows["offset"][-1:].astype(np.int64) + rows["size"][-1:]
    offsets = np.concatenate([rows["offset"].astype(np.int64), ends])
    return [ids[start : start + ID_BYTES] for start in range(0, len(ids), ID_BYTES)], offsets


def _read_groups(
    filesystem: Any, folder: str, names: Sequence[str]
) -> Iterator[tuple[npt.NDArray[np.void], npt.NDArray[np.int32]]]:
    """Index rows of all parts whose ids share their top byte, sorted by id, with the part each is in."""
    paths = [f"{folder}/{name}.index" for name in names]
    bounds = [index_group_bounds(read_range(filesystem, path, 0, INDEX_HEAD_BYTES)) for path in paths]
    for group in range(NUM_INDEX_GROUPS):
        found = [
            _read_rows(filesystem, path, int(bound[group]), int(bound[group + 1]))
            for path, bound in zip(paths, bounds, strict=True)
        ]
        rows = np.concatenate([np.zeros(0, INDEX_DTYPE), *found])
        parts = np.repeat(np.arange(len(names), dtype=np.int32), [len(part) for part in found])
        order = np.lexsort((parts, rows["low"], rows["high"]))
        if len(rows):
            yield rows[order], parts[order]


def _read_rows(filesystem: Any, path: str, first: int, last: int) -> npt.NDArray[np.void]:
    if first == last:
        return np.zeros(0, INDEX_DTYPE)
    start, stop = (INDEX_HEAD_BYTES + row * INDEX_DTYPE.itemsize for row in (first, last))
    return np.frombuffer(read_range(filesystem, path, start, stop), INDEX_DTYPE)


def _distinct_rows(rows: npt.NDArray[np.void]) -> npt.NDArray[np.void]:
    is_copy = (rows["high"][1:] == rows["high"][:-1]) & (rows["low"][1:] == rows["low"][:-1])
    distinct: npt.NDArray[np.void] = rows[np.concatenate([[True], ~is_copy])]
    return distinct


def _rows_within(rows: npt.NDArray[np.void], max_tokens: int) -> npt.NDArray[np.void]:
    """The first rows that hold `max_tokens` and the one that passes it; none where nothing is left to hold."""
    if max_tokens < 0:
        return rows[:0]
    return rows[: int(np.searchsorted(np.cumsum(rows["tokens"], dtype=np.int64), max_tokens, side="right")) + 1]


def _prefixes(rows: npt.NDArray[np.void]) -> npt.NDArray[np.int64]:
    return (rows["high"] >> np.uint64(64 - PREFIX_BITS)).astype(np.int64)


def _id_bytes(rows: npt.NDArray[np.void]) -> bytes:
    return np.stack([rows["high"], rows["low"]], axis=1).astype(">u8").tobytes()


def _read_ranges(table: pq.ParquetFile, bucket: Bucket) -> tuple[npt.NDArray[np.integer], ...]:
    """Part, offset and size of all ranges of a bucket's prefixes, out of the row groups that may hold them."""
    first, last = bucket.prefixes[0], bucket.prefixes[-1]
    # Not pq.read_table, whose filters import pyarrow.dataset: half a second of every worker's start.
    statistics = [table.metadata.row_group(group).column(0).statistics for group in range(table.num_row_groups)]
    groups = [group for group, each in enumerate(statistics) if each.min <= last and each.max >= first]
    found = table.read_row_groups(groups)
    prefix, *columns = (found.column(name).to_numpy() for name in INDEX_SCHEMA.names)
    wanted = (prefix >= first) & (prefix <= last)
    return tuple(column[wanted] for column in columns)


def _write_ranges(writer: pq.ParquetWriter, rows: npt.NDArray[np.void], parts: npt.NDArray[np.int32]) -> None:
    """Appends (prefix, part, offset, size), one row for each prefix that a part holds."""
    keys = _prefixes(rows) << 32 | parts
    order = np.lexsort((rows["offset"], keys))
    keys, rows = keys[order], rows[order]
    starts = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]]))
    sizes = np.add.reduceat(rows["size"].astype(np.int64), starts)
    columns = (keys[starts] >> 32, keys[starts] & 0xFFFFFFFF, rows["offset"][starts], sizes)
    arrays = [pa.array(column).cast(field.type) for column, field in zip(columns, INDEX_SCHEMA, strict=True)]
    writer.write_table(pa.table(arrays, schema=INDEX_SCHEMA), row_group_size=_ROWS_PER_GROUP)
