"""The index over all token parts: distinct documents by id prefix, and each prefix's range in each part.

Read group by group (ids with the same top byte), so memory is the largest group and not the corpus. May import:
stdlib, numpy, pyarrow, pipeline.token_parts, grouped_rows, dropped_ids, buckets and pipeline.shards.storage.
"""

import hashlib
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.buckets import MAX_VALIDATION_TOKENS, NUM_PREFIXES, PREFIX_BITS, Bucket
from pipeline.dropped_ids import DROPPED_DTYPE, REASONS, iterate_dropped, read_dropped_ids, reason_numbers
from pipeline.grouped_rows import HEAD_BYTES, NUM_GROUPS, Rows, read_bounds, read_rows
from pipeline.shards.storage import read_file, read_range
from pipeline.token_parts import ID_BYTES, INDEX_DTYPE, TokenizedDocument, join_id, unpack_documents

INDEX_SCHEMA = pa.schema([("prefix", pa.uint16()), ("part", pa.int32()), ("offset", pa.int64()), ("size", pa.int64())])
_ROWS_PER_GROUP = 1 << 16


@dataclass(frozen=True)
class SourceTotals:
    """Distinct documents of one source: how many, further copies of any, and their text and tokens.

    A document that several sources hold belongs to the first of them; in the others it is a copy. What filters over
    all documents left out is in `dropped` alone, by reason.
    """

    documents: int = 0
    duplicates: int = 0
    cleaned_bytes: int = 0
    tokens: int = 0
    dropped: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Totals:
    """Distinct documents of all parts.

    Attributes:
        documents: How many.
        duplicates: Further copies, dropped by the shards job.
        cleaned_bytes: Their text.
        tokens: Their tokens.
        documents_hash: blake2b-256, in hex, of all ids in order, of several sources each with its source's number:
            what the corpus is, whatever files held it.
        documents_by_prefix: [4096] by the first 12 bits of the id.
        lowest_ids: The lowest ids that hold 1.28 M tokens, or all.
        lowest_tokens: Tokens of each of them.
        sources: Of each source, by its number.
        dropped: Documents that filters over all documents left out, by reason; none where these are off.
    """

    documents: int
    duplicates: int
    cleaned_bytes: int
    tokens: int
    documents_hash: str
    documents_by_prefix: list[int]
    lowest_ids: list[str]
    lowest_tokens: list[int]
    sources: tuple[SourceTotals, ...]
    dropped: dict[str, int] = field(default_factory=dict)


def build_index(
    filesystem: Any, folder: str, names: Sequence[str], num_sources: int = 1, reasons: Sequence[str] = ()
) -> tuple[Totals, bytes]:
    """Reads the parts' index files and returns the totals and the table of ranges (index.parquet, by prefix).

    Args:
        filesystem: Of the folder.
        folder: Of the token parts.
        names: Of the parts.
        num_sources: Of the input.
        reasons: What dropped.ids leaves documents out for; none where there is no such file.
    """
    digest = hashlib.blake2b(digest_size=32)
    counts = np.zeros((num_sources, 4), np.int64)  # documents, rows, bytes, tokens
    drops = np.zeros((num_sources, len(REASONS) + 1), np.int64)
    by_prefix = np.zeros(NUM_PREFIXES, np.int64)
    lowest_ids: list[str] = []
    lowest_tokens: list[int] = []
    sink = io.BytesIO()
    with pq.ParquetWriter(sink, INDEX_SCHEMA, compression="zstd") as writer:
        dropped = _iterate_reasons(filesystem, folder, has_dropped=bool(reasons))
        for rows, parts in iterate_index(filesystem, folder, names):
            _write_ranges(writer, rows, parts)
            distinct = distinct_rows(rows)
            numbers = reason_numbers(distinct, next(dropped))
            np.add.at(drops, (distinct["source"], numbers), 1)
            distinct = distinct[numbers == len(REASONS)]
            digest.update(_pack_ids(distinct, num_sources))
            counts += _count_by_source(rows, distinct, num_sources)
            by_prefix += np.bincount(_prefixes(distinct), minlength=NUM_PREFIXES)
            lowest = _rows_within(distinct, MAX_VALIDATION_TOKENS - sum(lowest_tokens))
            lowest_ids += [join_id(row["high"], row["low"]).hex() for row in lowest]
            lowest_tokens += lowest["tokens"].tolist()
    numbered = [(REASONS.index(reason), reason) for reason in reasons]
    sources = tuple(
        SourceTotals(
            documents=own,
            duplicates=rows - int(drops[source].sum()),
            cleaned_bytes=size,
            tokens=tokens,
            dropped={reason: int(drops[source, number]) for number, reason in numbered},
        )
        for source, (own, rows, size, tokens) in enumerate(counts.tolist())
    )
    totals = Totals(
        documents=sum(source.documents for source in sources),
        duplicates=sum(source.duplicates for source in sources),
        cleaned_bytes=sum(source.cleaned_bytes for source in sources),
        tokens=sum(source.tokens for source in sources),
        documents_hash=digest.hexdigest(),
        documents_by_prefix=by_prefix.tolist(),
        lowest_ids=lowest_ids,
        lowest_tokens=lowest_tokens,
        sources=sources,
        dropped={reason: int(drops[:, number].sum()) for number, reason in numbered},
    )
    return totals, sink.getvalue()


def iterate_kept_ids(
    filesystem: Any, folder: str, names: Sequence[str], num_sources: int, *, has_dropped: bool
) -> Iterator[bytes]:
    """The bytes that documents_hash covers, in 256 pieces: the ids of all kept documents, as documents.ids has them."""
    dropped = _iterate_reasons(filesystem, folder, has_dropped=has_dropped)
    for rows, _ in iterate_index(filesystem, folder, names):
        distinct = distinct_rows(rows)
        yield _pack_ids(distinct[reason_numbers(distinct, next(dropped)) == len(REASONS)], num_sources)


def read_bucket(
    filesystem: Any,
    folder: str,
    names: Sequence[str],
    bucket: Bucket,
    token_dtype: Any,
    *,
    has_dropped: bool = False,
) -> Iterator[TokenizedDocument]:
    """A bucket's documents out of all parts, duplicates included: one contiguous range of each part is read."""
    ends = bucket.first_id, bucket.last_id
    dropped = read_dropped_ids(filesystem, folder, *ends) if has_dropped else frozenset()
    with filesystem.open(f"{folder}/index.parquet", "rb") as file:
        first, last = bucket.prefixes[0], bucket.prefixes[-1]
        table = pq.read_table(file, filters=[("prefix", ">=", first), ("prefix", "<=", last)])
    part, offset, size = (table.column(name).to_numpy() for name in ("part", "offset", "size"))
    for index in np.unique(part):
        chosen = part == index
        start, stop = int(offset[chosen].min()), int((offset + size)[chosen].max())
        path = f"{folder}/{names[index]}.tokens"
        for document in unpack_documents(read_range(filesystem, path, start, stop), token_dtype, path):
            if bucket.first_id <= document.id <= bucket.last_id and document.id not in dropped:
                yield document


def part_ids(filesystem: Any, path: str) -> tuple[list[bytes], npt.NDArray[np.int64]]:
    """The ids of a part's documents, ascending, from its `.index` file, and their bounds in its `.tokens` file.

    Returns:
        [D] ids, and [D + 1] offsets in bytes.
    """
    rows = np.frombuffer(read_file(filesystem, path)[HEAD_BYTES:], INDEX_DTYPE)
    ids = _id_bytes(rows)
    ends = rows["offset"][-1:].astype(np.int64) + rows["size"][-1:]
    offsets = np.concatenate([rows["offset"].astype(np.int64), ends])
    return [ids[start : start + ID_BYTES] for start in range(0, len(ids), ID_BYTES)], offsets


def iterate_index(filesystem: Any, folder: str, names: Sequence[str]) -> Iterator[tuple[Rows, npt.NDArray[np.int32]]]:
    """Index rows of all parts in 256 groups by the first byte of their ids, with the part that each is in.

    The rows of a group, which may have none, are sorted by id, then by source.
    """
    paths = [f"{folder}/{name}.index" for name in names]
    bounds = [read_bounds(filesystem, path) for path in paths]
    for group in range(NUM_GROUPS):
        found = [
            read_rows(filesystem, path, INDEX_DTYPE, int(bound[group]), int(bound[group + 1]))
            for path, bound in zip(paths, bounds, strict=True)
        ]
        rows = np.concatenate([np.zeros(0, INDEX_DTYPE), *found])
        parts = np.repeat(np.arange(len(names), dtype=np.int32), [len(part) for part in found])
        order = np.lexsort((parts, rows["source"], rows["low"], rows["high"]))
        yield rows[order], parts[order]


def distinct_rows(rows: Rows) -> Rows:
    """The first row of each id, of rows sorted by id: that of its first source."""
    is_copy = (rows["high"][1:] == rows["high"][:-1]) & (rows["low"][1:] == rows["low"][:-1])
    distinct: Rows = rows[np.concatenate([[True], ~is_copy])[: len(rows)]]
    return distinct


def _iterate_reasons(filesystem: Any, folder: str, *, has_dropped: bool) -> Iterator[Rows]:
    """The rows of dropped.ids in 256 groups; empty ones where there is no such file."""
    return iterate_dropped(filesystem, folder) if has_dropped else iter([np.zeros(0, DROPPED_DTYPE)] * NUM_GROUPS)


def _count_by_source(rows: Rows, distinct: Rows, num_sources: int) -> npt.NDArray[np.int64]:
    """[num_sources, 4]: distinct documents, rows, and the distinct ones' bytes and tokens."""
    counts = np.zeros((num_sources, 4), np.int64)
    counts[:, 1] = np.bincount(rows["source"], minlength=num_sources)
    for source in range(num_sources):
        own = distinct[distinct["source"] == source]
        sums = (int(own[name].sum(dtype=np.int64)) for name in ("cleaned_bytes", "tokens"))
        counts[source, [0, 2, 3]] = len(own), *sums
    return counts


def _rows_within(rows: Rows, max_tokens: int) -> Rows:
    """The first rows that hold `max_tokens` and the one that passes it; none where nothing is left to hold."""
    if max_tokens < 0:
        return rows[:0]
    return rows[: int(np.searchsorted(np.cumsum(rows["tokens"], dtype=np.int64), max_tokens, side="right")) + 1]


def _prefixes(rows: Rows) -> npt.NDArray[np.int64]:
    return (rows["high"] >> np.uint64(64 - PREFIX_BITS)).astype(np.int64)


def _pack_ids(rows: Rows, num_sources: int) -> bytes:
    return _id_bytes(rows) if num_sources == 1 else _labelled_id_bytes(rows)


def _id_bytes(rows: Rows) -> bytes:
    return np.stack([rows["high"], rows["low"]], axis=1).astype(">u8").tobytes()


def _labelled_id_bytes(rows: Rows) -> bytes:
    labelled = np.empty(len(rows), [("id", ">u8", 2), ("source", "u1")])
    labelled["id"] = np.stack([rows["high"], rows["low"]], axis=1)
    labelled["source"] = rows["source"]
    return labelled.tobytes()


def _write_ranges(writer: pq.ParquetWriter, rows: Rows, parts: npt.NDArray[np.int32]) -> None:
    """Appends (prefix, part, offset, size), one row for each prefix that a part holds."""
    if not len(rows):
        return
    keys = _prefixes(rows) << 32 | parts
    order = np.lexsort((rows["offset"], keys))
    keys, rows = keys[order], rows[order]
    starts = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]]))
    sizes = np.add.reduceat(rows["size"].astype(np.int64), starts)
    columns = (keys[starts] >> 32, keys[starts] & 0xFFFFFFFF, rows["offset"][starts], sizes)
    arrays = [pa.array(column).cast(field.type) for column, field in zip(columns, INDEX_SCHEMA, strict=True)]
    writer.write_table(pa.table(arrays, schema=INDEX_SCHEMA), row_group_size=_ROWS_PER_GROUP)
