"""The index over all token parts: distinct documents by id prefix, and each prefix's range in each part.

Read group by group (ids with the same top byte), so memory is the largest group and not the corpus.
"""

import contextlib
import hashlib
import os
import tempfile
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.shards.manifest import named_damage
from pipeline.shards.table_checks import check_range
from pipeline.storage.faults import SizeError
from pipeline.storage.folder import Folder
from pipeline.tokens.buckets import (
    MAX_BUCKETS,
    PREFIX_BITS,
    Bucket,
    num_prefixes,
    prefix_of,
)
from pipeline.tokens.dropped_ids import REASONS, read_dropped_ids, reason_numbers
from pipeline.tokens.grouped_rows import NUM_GROUPS, LocalGroups, Rows, read_rows
from pipeline.tokens.held_out import LowestRows, SourceTotals, is_held_out, split_ids
from pipeline.tokens.index_rows import distinct_rows, iterate_index, iterate_reasons, pack_ids
from pipeline.tokens.limits import VALIDATION_TOKENS
from pipeline.tokens.token_parts import INDEX_DTYPE, TokenizedDocument, join_id, unpack_documents

INDEX = "index.parquet"
INDEX_SCHEMA = pa.schema(
    [
        ("prefix", pa.uint16()),
        ("part", pa.int32()),
        ("offset", pa.int64()),  # bytes of the part's tokens
        ("size", pa.int64()),
        ("row", pa.int64()),  # rows of its index
        ("rows", pa.int32()),
    ]
)
_ROWS_PER_GROUP = 1 << 16
_BOUNDS = (
    b"prefix_bounds"  # first and last prefix of each row group, as JSON in the file's metadata
)
_MOST_THRIFT = 2**31 - 1
_MOST = 1 << 62
_REMEDY = "delete the folder of token parts"


@dataclass(frozen=True)
class Totals:
    """Distinct documents of all parts.

    Attributes:
        documents: How many.
        duplicates: Further copies, dropped by the shards job.
        cleaned_bytes: Their text.
        tokens: Their tokens.
        documents_hash: blake2b-256, in hex, of all ids in order, of several sources each with its
            source's number: what the corpus is, whatever files held it.
        documents_by_prefix: [4096] by the first 12 bits of the id; above 256 GiB of text [65536] by
            the first 16.
        sources: The totals of each source, by its number.
        dropped: Documents that filters over all documents left out, by reason; none where these are
            off.
    """

    documents: int
    duplicates: int
    cleaned_bytes: int
    tokens: int
    documents_hash: str
    documents_by_prefix: list[int]
    sources: tuple[SourceTotals, ...]
    dropped: dict[str, int] = field(default_factory=dict)


def build_index(
    index: LocalGroups,
    num_sources: int = 1,
    reasons: Sequence[str] = (),
    validation_tokens: int = VALIDATION_TOKENS,
) -> Totals:
    """Counts the documents of all parts and writes the table of their ranges (index.parquet, by prefix).

    Args:
        index: What `open_index` fetched.
        num_sources: How many sources the input has.
        reasons: What dropped.ids leaves documents out for; none where there is no such file.
        validation_tokens: What the validation split may hold.
    """
    digest = hashlib.blake2b(digest_size=32)
    counts = np.zeros((num_sources, 4), np.int64)  # documents, rows, bytes, tokens
    drops = np.zeros((num_sources, len(REASONS) + 1), np.int64)
    by_prefix = np.zeros((NUM_GROUPS, MAX_BUCKETS // NUM_GROUPS), np.int64)
    lowest = LowestRows(num_sources, validation_tokens)
    ranges: list[pa.Table] = []
    with _table_writer(index.folder) as write:
        dropped = iterate_reasons(index.folder, has_dropped=bool(reasons))
        for group, rows in enumerate(iterate_index(index)):
            ranges.append(_find_ranges(rows))
            if sum(map(len, ranges)) >= _ROWS_PER_GROUP:
                write(pa.concat_tables(ranges))
                ranges.clear()
            distinct = distinct_rows(rows)
            found = reason_numbers(distinct, next(dropped))
            np.add.at(drops, (distinct["source"], found), 1)
            distinct = distinct[found == len(REASONS)]
            digest.update(pack_ids(distinct, num_sources))
            counts += _count_by_source(rows, distinct, num_sources)
            by_prefix[group] = _count_prefixes(distinct)
            lowest.add(distinct)
        if ranges:
            write(pa.concat_tables(ranges))
    numbered = [(REASONS.index(reason), reason) for reason in reasons]
    found_lowest = lowest.finish(counts[:, 3].tolist())
    sources = tuple(
        SourceTotals(
            documents=own,
            duplicates=rows - int(drops[source].sum()),
            cleaned_bytes=size,
            tokens=tokens,
            dropped={reason: int(drops[source, number]) for number, reason in numbered},
            lowest_ids=[join_id(row["high"], row["low"]).hex() for row in found_lowest[source]],
            lowest_tokens=found_lowest[source]["tokens"].tolist(),
        )
        for source, (own, rows, size, tokens) in enumerate(counts.tolist())
    )
    cleaned_bytes = sum(source.cleaned_bytes for source in sources)
    return Totals(
        documents=sum(source.documents for source in sources),
        duplicates=sum(source.duplicates for source in sources),
        cleaned_bytes=cleaned_bytes,
        tokens=sum(source.tokens for source in sources),
        documents_hash=digest.hexdigest(),
        documents_by_prefix=by_prefix.reshape(num_prefixes(cleaned_bytes), -1).sum(axis=1).tolist(),
        sources=sources,
        dropped={reason: int(drops[:, number].sum()) for number, reason in numbered},
    )


@contextlib.contextmanager
def _table_writer(folder: Folder) -> Iterator[Callable[[pa.Table], None]]:
    """Writes index.parquet through a local file: 8 bytes for a part and prefix are a GB for 30,000 parts."""
    bounds: list[str] = []

    def write(table: pa.Table) -> None:
        for start in range(0, len(table), _ROWS_PER_GROUP):
            group = table.slice(start, _ROWS_PER_GROUP)
            bounds.extend(str(group["prefix"][row]) for row in (0, -1))
            writer.write_table(group)

    with tempfile.NamedTemporaryFile(prefix="beambert-index-") as file:
        with pq.ParquetWriter(file, INDEX_SCHEMA, compression="zstd") as writer:
            yield write
            writer.add_key_value_metadata({_BOUNDS: " ".join(bounds)})
        file.flush()
        folder.write(INDEX, Path(file.name))


def read_bucket(
    folder: Folder,
    names: Sequence[str],
    bucket: Bucket,
    token_dtype: Any,
    *,
    has_dropped: bool = False,
    held_out: bytes = b"",
) -> Iterator[TokenizedDocument]:
    """A bucket's documents out of all parts, duplicates included: one contiguous range of each part is read.

    Args:
        folder: The folder of the token parts.
        names: Names of the parts.
        bucket: A bucket of train or validation.
        token_dtype: uint16 or uint32.
        has_dropped: Whether dropped.ids says which documents are left out.
        held_out: Ids of the validation documents (`pipeline.tokens.held_out.HeldOut`).
    """
    if bucket.split == "validation":
        yield from _read_held_out(folder, names, held_out, token_dtype)
        return
    ends = bucket.first_id, bucket.last_id
    left_out = frozenset(split_ids(held_out))
    left_out |= read_dropped_ids(folder, *ends) if has_dropped else frozenset()
    part, offset, size = _read_ranges(
        folder, bucket.prefixes, ("part", "offset", "size"), len(names)
    )
    for index in np.unique(part):
        chosen = part == index
        start, stop = int(offset[chosen].min()), int((offset + size)[chosen].max())
        name = f"{names[index]}.tokens"
        for document in unpack_documents(
            read_tokens(folder, name, start, stop), token_dtype, folder.locate(name)
        ):
            if bucket.first_id <= document.id <= bucket.last_id and document.id not in left_out:
                yield document


def _read_held_out(
    folder: Folder, names: Sequence[str], held_out: bytes, token_dtype: Any
) -> Iterator[TokenizedDocument]:
    """The validation documents: runs of documents next to each other in a part, found by its index."""
    prefixes = sorted({prefix_of(each) for each in split_ids(held_out)})
    part, row, num_rows = _read_ranges(folder, prefixes, ("part", "row", "rows"), len(names))
    for index in np.unique(part):
        chosen = part == index
        ends = int(row[chosen].min()), int((row + num_rows)[chosen].max())
        rows = read_rows(folder, f"{names[index]}.index", INDEX_DTYPE, *ends)
        name = f"{names[index]}.tokens"
        for start, stop in join_ranges(rows[is_held_out(rows, held_out)]):
            yield from unpack_documents(
                read_tokens(folder, name, start, stop), token_dtype, folder.locate(name)
            )


def join_ranges(rows: Rows) -> list[tuple[int, int]]:
    """Byte ranges of documents of one part in its tokens, those next to each other as one."""
    starts = rows["offset"].astype(np.int64)
    stops = starts + rows["size"]
    breaks = np.flatnonzero(starts[1:] != stops[:-1]) + 1
    firsts, lasts = (
        np.concatenate([[0], breaks])[: len(rows)],
        np.concatenate([breaks, [len(rows)]]) - 1,
    )
    return list(zip(starts[firsts].tolist(), stops[lasts[: len(rows)]].tolist(), strict=True))


def read_tokens(folder: Folder, name: str, start: int, stop: int) -> bytes:
    """Bytes start to stop - 1 of a part's tokens.

    Raises:
        ValueError: The file ends before them, or is not there.
    """
    with _named_loss(folder.locate(name)):
        return folder.read_range(name, start, stop)


@contextlib.contextmanager
def _named_loss(path: str) -> Iterator[None]:
    """Says what to do where a token part's file is lost or cut: as a ValueError, which runners pass on."""
    try:
        yield
    except SizeError as error:
        raise ValueError(
            f"{error}: shorter than its index says; delete the folder of token parts, run again"
        ) from error
    except FileNotFoundError as error:
        raise ValueError(
            f"{path} is missing; delete the folder of token parts, run again"
        ) from error


def find_prefix_rows(
    folder: Folder, names: Sequence[str], prefixes: Sequence[int]
) -> list[tuple[str, int, int]]:
    """Where documents with these id prefixes are in the parts' index files: part name, first row, one past the last."""
    columns = _read_ranges(folder, prefixes, ("part", "row", "rows"), len(names))
    found = zip(*(column.tolist() for column in columns), strict=True)
    return [(names[part], row, row + rows) for part, row, rows in found]


def _count_prefixes(distinct: Rows) -> npt.NDArray[np.int64]:
    """[256] documents of a group by the second byte of their ids."""
    return np.bincount(
        (distinct["high"] >> np.uint64(48)).astype(np.int64) & 0xFF,
        minlength=MAX_BUCKETS // NUM_GROUPS,
    )


def _count_by_source(rows: Rows, distinct: Rows, num_sources: int) -> npt.NDArray[np.int64]:
    """[num_sources, 4]: distinct documents, rows, and the distinct ones' bytes and tokens."""
    columns = [np.bincount(each["source"], minlength=num_sources) for each in (distinct, rows)]
    columns += [
        np.bincount(distinct["source"], distinct[name], num_sources)
        for name in ("cleaned_bytes", "tokens")
    ]
    return np.stack(columns, axis=1).astype(np.int64)  # sums of a group, so exact in floats


def _prefixes(rows: Rows) -> npt.NDArray[np.int64]:
    return (rows["high"] >> np.uint64(64 - PREFIX_BITS)).astype(np.int64)


def _read_ranges(
    folder: Folder, prefixes: Sequence[int], names: Sequence[str], num_parts: int
) -> list[npt.NDArray[np.integer]]:
    """Columns of index.parquet for ascending id prefixes, out of the row groups that may hold them.

    Raises:
        ValueError: It is damaged, or a row points to no part, or before the beginning of one.
    """
    path = folder.locate(INDEX)
    with _named_loss(path), folder.open(INDEX) as file, named_damage(path, _REMEDY):
        # Not pq.read_table, whose filters import pyarrow.dataset: half a second of every worker's
        # start.
        most = max(1, min(file.seek(0, os.SEEK_END), _MOST_THRIFT))
        table = pq.ParquetFile(
            file, thrift_string_size_limit=most, thrift_container_size_limit=most
        )
        if not table.schema_arrow.equals(INDEX_SCHEMA):
            raise ValueError(f"its columns are {table.schema_arrow.names}")
        groups = _find_groups(table.metadata, prefixes)
        found = table.read_row_groups(groups, columns=["prefix", *names], use_threads=False)
    wanted = np.isin(found.column("prefix").to_numpy(), np.asarray(prefixes))
    columns = [found.column(name).to_numpy()[wanted] for name in names]
    try:
        for name, values in zip(names, columns, strict=True):
            check_range(name, values, 0, num_parts - 1 if name == "part" else _MOST)
    except ValueError as error:
        raise ValueError(f"{path}: {error}; {_REMEDY}") from error
    return columns


def _find_groups(metadata: pq.FileMetaData, prefixes: Sequence[int]) -> list[int]:
    """Row groups of the index that may have rows of one of some ascending prefixes.

    Arrow is not asked for statistics, as its answer ends the process where a column's description
    is damaged.
    """
    told = (metadata.metadata or {}).get(_BOUNDS)
    if told is None:
        raise ValueError("it does not say its row groups' prefixes: made by an earlier version")
    bounds = [int(each) for each in told.split()]
    if len(bounds) != 2 * metadata.num_row_groups:
        raise ValueError(f"{len(bounds)} bounds of {metadata.num_row_groups} row groups")
    return [
        number
        for number, (first, last) in enumerate(zip(bounds[::2], bounds[1::2], strict=True))
        if bisect_left(prefixes, first) < bisect_right(prefixes, last)
    ]


def _find_ranges(rows: Rows) -> pa.Table:
    """(prefix, part, offset, size, row, rows), one row for each prefix that a part holds."""
    if not len(rows):
        return INDEX_SCHEMA.empty_table()
    keys = _prefixes(rows) << 32 | rows["file"]
    order = np.lexsort((rows["offset"], keys))
    keys, rows = keys[order], rows[order]
    starts = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]]))
    sizes = np.add.reduceat(rows["size"].astype(np.int64), starts)
    num_rows = np.diff(starts, append=len(rows))
    columns = (
        keys[starts] >> 32,
        keys[starts] & 0xFFFFFFFF,
        rows["offset"][starts],
        sizes,
        rows["number"][starts],
        num_rows,
    )
    arrays = [
        pa.array(column).cast(field.type)
        for column, field in zip(columns, INDEX_SCHEMA, strict=True)
    ]
    return pa.table(arrays, schema=INDEX_SCHEMA)
