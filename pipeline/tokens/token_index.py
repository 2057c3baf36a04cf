"""The index over all token parts: distinct documents, and each id prefix's range in each part.

Read group by group (ids with the same top byte), so memory is the largest group.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.shards.table_checks import check_range
from pipeline.storage.folder import Folder
from pipeline.tokens.buckets import MAX_BUCKETS, PREFIX_BITS, Bucket, num_prefixes, prefix_of
from pipeline.tokens.dropped_ids import REASONS, iterate_dropped, read_dropped_ids, reason_numbers
from pipeline.tokens.grouped_rows import (
    NUM_GROUPS,
    LocalGroups,
    Rows,
    is_first,
    named_loss,
    open_groups,
    parse_rows,
    read_bounds,
    read_rows,
    write_groups,
)
from pipeline.tokens.held_out import SourceTotals, find_lowest, is_held_out, split_ids
from pipeline.tokens.limits import VALIDATION_TOKENS
from pipeline.tokens.token_parts import INDEX_DTYPE, TokenizedDocument, join_id, unpack_documents

INDEX = "prefixes.rows"
PREFIX_DTYPE = np.dtype(
    [
        ("prefix", "<u2"),
        ("part", "<i4"),
        ("offset", "<i8"),  # bytes of the part's tokens
        ("size", "<i8"),
        ("row", "<i8"),  # rows of its index
        ("rows", "<i4"),
    ]
)
_PREFIXES_PER_GROUP = (1 << PREFIX_BITS) // NUM_GROUPS
_BUCKETS_PER_GROUP = MAX_BUCKETS // NUM_GROUPS
_REMEDY = "delete the folder of token parts"


@dataclass(frozen=True)
class Totals:
    """Distinct documents of all parts; fields as of `SourceTotals`."""

    documents: int
    duplicates: int
    cleaned_bytes: int
    tokens: int
    documents_hash: str
    documents_by_prefix: list[int]
    sources: tuple[SourceTotals, ...]
    dropped: dict[str, int] = field(default_factory=dict)


def open_index(folder: Folder, part_names: Sequence[str]) -> AbstractContextManager[LocalGroups]:
    """The rows of all parts' `.index` files, fetched to this machine by one request a part."""
    return open_groups(folder, [f"{part}.index" for part in part_names], INDEX_DTYPE)


def iterate_index(index: LocalGroups) -> Iterator[Rows]:
    """Rows of all parts in 256 groups by the first byte of their ids, by id, source, part."""
    for rows in index:
        yield rows[np.lexsort((rows["source"], rows["low"], rows["high"]))]


def distinct_rows(rows: Rows) -> Rows:
    """The first row of each id, of rows sorted by id: that of its first source."""
    distinct: Rows = rows[is_first(rows["high"], rows["low"])]
    return distinct


def iterate_kept(
    index: LocalGroups, *, has_dropped: bool
) -> Iterator[tuple[Rows, npt.NDArray[np.int64], npt.NDArray[np.uint64]]]:
    """In 256 groups: kept documents, how many rows hold each or a copy, the sum of their crc32."""
    dropped = iterate_dropped(index.folder, has_dropped=has_dropped)
    for rows, left_out in zip(iterate_index(index), dropped, strict=True):
        starts = np.flatnonzero(is_first(rows["high"], rows["low"]))
        documents, num_rows = rows[starts], np.diff(starts, append=len(rows))
        sums = _sum_runs(rows["crc32"].astype(np.uint64), starts)
        is_kept = reason_numbers(documents, left_out) == len(REASONS)
        yield documents[is_kept], num_rows[is_kept], sums[is_kept]


def read_part_rows(folder: Folder, name: str) -> Rows:
    """All rows of a part's `.index` file, in the order of the ids."""
    return parse_rows(folder.read(name), INDEX_DTYPE, folder.locate(name))[0]


def pack_ids(rows: Rows, num_sources: int) -> bytes:
    """What documents_hash covers: ids, of several sources each with its source's number."""
    dtype = [("high", ">u8"), ("low", ">u8"), ("source", "u1")]
    columns = dtype[: 2 if num_sources == 1 else 3]
    return rows[[name for name, _ in columns]].astype(columns).tobytes()


def build_index(
    index: LocalGroups,
    num_sources: int = 1,
    reasons: Sequence[str] = (),
    validation_tokens: int = VALIDATION_TOKENS,
) -> Totals:
    """Counts the documents of all parts and writes the table of their ranges (prefixes.rows).

    `reasons` are those of dropped.ids; validation may hold `validation_tokens`.
    """
    digest = hashlib.blake2b(digest_size=32)
    counts = np.zeros((num_sources, 4), np.int64)  # documents, rows, bytes, tokens
    drops = np.zeros((num_sources, len(REASONS) + 1), np.int64)
    by_prefix = np.zeros((NUM_GROUPS, _BUCKETS_PER_GROUP), np.int64)
    dropped = iterate_dropped(index.folder, has_dropped=bool(reasons))

    def count_groups() -> Iterator[Rows]:
        for group, (rows, left_out) in enumerate(zip(iterate_index(index), dropped, strict=True)):
            distinct = distinct_rows(rows)
            found = reason_numbers(distinct, left_out)
            np.add.at(drops, (distinct["source"], found), 1)
            distinct = distinct[found == len(REASONS)]
            digest.update(pack_ids(distinct, num_sources))
            np.add.at(counts[:, 1], rows["source"], 1)
            for column, values in ((0, 1), (2, distinct["cleaned_bytes"]), (3, distinct["tokens"])):
                np.add.at(counts[:, column], distinct["source"], values)
            second_bytes = (distinct["high"] >> np.uint64(48)).astype(np.int64) & 0xFF
            by_prefix[group] = np.bincount(second_bytes, minlength=_BUCKETS_PER_GROUP)
            yield _find_ranges(rows)

    write_groups(index.folder, INDEX, count_groups())
    numbered = [(REASONS.index(reason), reason) for reason in reasons]
    kept = (each for each, *_ in iterate_kept(index, has_dropped=bool(reasons)))
    lowest = find_lowest(kept, counts[:, 3].tolist(), validation_tokens)
    sources = tuple(
        SourceTotals(
            documents=own,
            duplicates=rows - int(drops[source].sum()),
            cleaned_bytes=size,
            tokens=tokens,
            dropped={reason: int(drops[source, number]) for number, reason in numbered},
            lowest_ids=[join_id(row["high"], row["low"]).hex() for row in lowest[source]],
            lowest_tokens=lowest[source]["tokens"].tolist(),
        )
        for source, (own, rows, size, tokens) in enumerate(counts.tolist())
    )
    documents, _, cleaned_bytes, tokens = counts.sum(axis=0).tolist()
    return Totals(
        documents=documents,
        duplicates=sum(source.duplicates for source in sources),
        cleaned_bytes=cleaned_bytes,
        tokens=tokens,
        documents_hash=digest.hexdigest(),
        documents_by_prefix=by_prefix.reshape(num_prefixes(cleaned_bytes), -1).sum(axis=1).tolist(),
        sources=sources,
        dropped={reason: int(drops[:, number].sum()) for number, reason in numbered},
    )


@dataclass(frozen=True)
class TokenParts:
    """Token parts, as a worker reads them."""

    folder: Folder
    token_dtype: str
    has_dropped: bool = False  # whether dropped.ids leaves documents out
    held_out: bytes = b""  # HeldOut.ids


def read_bucket(
    tokens: TokenParts, names: Sequence[str], bucket: Bucket
) -> Iterator[TokenizedDocument]:
    """A bucket's documents, copies included: one contiguous range of each part is read."""
    if bucket.split == "validation":
        yield from _read_held_out(tokens, names)
        return
    ends = bucket.first_id, bucket.last_id
    left_out = frozenset(split_ids(tokens.held_out))
    left_out |= read_dropped_ids(tokens.folder, *ends) if tokens.has_dropped else frozenset()
    for name, own in _ranges_of_parts(tokens.folder, names, bucket.prefixes):
        start, stop = int(own["offset"].min()), int((own["offset"] + own["size"]).max())
        for document in _read_documents(tokens, name, start, stop):
            if bucket.first_id <= document.id <= bucket.last_id and document.id not in left_out:
                yield document


def _read_held_out(tokens: TokenParts, names: Sequence[str]) -> Iterator[TokenizedDocument]:
    """The validation documents: runs of documents next to each other in a part."""
    prefixes = sorted({prefix_of(each) for each in split_ids(tokens.held_out)})
    for name, own in _ranges_of_parts(tokens.folder, names, prefixes):
        ends = int(own["row"].min()), int((own["row"] + own["rows"]).max())
        rows = read_rows(tokens.folder, f"{name}.index", INDEX_DTYPE, *ends)
        for start, stop in join_ranges(rows[is_held_out(rows, tokens.held_out)]):
            yield from _read_documents(tokens, name, start, stop)


def _ranges_of_parts(
    folder: Folder, names: Sequence[str], prefixes: Sequence[int]
) -> Iterator[tuple[str, Rows]]:
    ranges = _read_ranges(folder, prefixes, len(names))
    for part in np.unique(ranges["part"]):
        yield names[part], ranges[ranges["part"] == part]


def _read_documents(
    tokens: TokenParts, part: str, start: int, stop: int
) -> Iterable[TokenizedDocument]:
    name = f"{part}.tokens"
    data = read_tokens(tokens.folder, name, start, stop)
    return unpack_documents(data, tokens.token_dtype, tokens.folder.locate(name))


def join_ranges(rows: Rows) -> list[tuple[int, int]]:
    """Byte ranges of documents of one part in its tokens, those next to each other as one."""
    starts = rows["offset"].astype(np.int64)
    stops = starts + rows["size"]
    is_apart = starts[1:] != stops[:-1]
    is_first = np.concatenate([[True], is_apart])[: len(rows)]
    is_last = np.concatenate([is_apart, [True]])[: len(rows)]
    return list(zip(starts[is_first].tolist(), stops[is_last].tolist(), strict=True))


def read_tokens(folder: Folder, name: str, start: int, stop: int) -> bytes:
    """Bytes start to stop - 1 of a part's tokens; ValueError where they are not there."""
    with named_loss(folder.locate(name)):
        return folder.read_range(name, start, stop)


def find_prefix_rows(
    folder: Folder, names: Sequence[str], prefixes: Sequence[int]
) -> list[tuple[str, int, int]]:
    """Documents with these id prefixes: part, first row of its index, one past the last."""
    found = _read_ranges(folder, prefixes, len(names))[["part", "row", "rows"]].tolist()
    return [(names[part], row, row + rows) for part, row, rows in found]


def _read_ranges(folder: Folder, prefixes: Sequence[int], num_parts: int) -> Rows:
    """Rows of prefixes.rows of ascending id prefixes; groups next to each other are one read."""
    path = folder.locate(INDEX)
    groups = np.unique(np.asarray(prefixes, np.int64) // _PREFIXES_PER_GROUP)
    found = [np.zeros(0, PREFIX_DTYPE)]
    bounds = read_bounds(folder, INDEX)
    for run in np.split(groups, np.flatnonzero(np.diff(groups) > 1) + 1):
        first, last = bounds[run[0]], bounds[run[-1] + 1]
        found.append(read_rows(folder, INDEX, PREFIX_DTYPE, int(first), int(last)))
    rows = np.concatenate(found)
    rows = rows[np.isin(rows["prefix"], np.asarray(prefixes))]
    try:
        for name in ("part", "offset", "size", "row", "rows"):
            check_range(name, rows[name], 0, num_parts - 1 if name == "part" else 1 << 62)
    except ValueError as error:
        raise ValueError(f"{path}: {error}; {_REMEDY}") from error
    return rows


def _find_ranges(rows: Rows) -> Rows:
    """One row for each prefix that a part holds, of all rows of a group."""
    keys = (rows["high"] >> np.uint64(64 - PREFIX_BITS)).astype(np.int64) << 32 | rows["file"]
    order = np.lexsort((rows["offset"], keys))
    keys, rows = keys[order], rows[order]
    starts = np.flatnonzero(is_first(keys))
    found = np.empty(len(starts), PREFIX_DTYPE)
    found["prefix"], found["part"] = keys[starts] >> 32, keys[starts] & 0xFFFFFFFF
    found["offset"], found["row"] = rows["offset"][starts], rows["number"][starts]
    found["size"] = _sum_runs(rows["size"].astype(np.int64), starts)
    found["rows"] = np.diff(starts, append=len(rows))
    return found


def _sum_runs(values: npt.NDArray[Any], starts: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
    return np.add.reduceat(values, starts) if len(values) else values
