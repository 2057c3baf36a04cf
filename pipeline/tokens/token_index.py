"""Builds and reads prefixes.rows, by which the documents of a bucket are found in the token parts.

A token part is a file `NAME.tokens` of encoded documents, together with its index `NAME.index`. The
index is sorted by the ids of the documents. A prefix is the first PREFIX_BITS (12) bits of an id.
For each part, prefixes.rows has one row for each prefix that occurs in it. The row says which rows
of the part's index and which bytes of its `.tokens` file hold the documents whose ids begin with
the prefix. A bucket is a range of ids, so a task finds its documents by their prefixes, and does
not read all the indexes.

To build it, the indexes of all parts are copied to this machine, and are then read in 256 groups of
ids with the same first byte. No more than the largest group is in memory at a time.
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
        ("prefix", "<u2"),  # the first PREFIX_BITS bits of the documents' ids
        ("part", "<i4"),  # number of the part
        ("offset", "<i8"),  # first byte of the documents in the part's tokens
        ("size", "<i8"),  # bytes of the documents
        ("row", "<i8"),  # their first row in the part's index
        ("rows", "<i4"),  # number of rows
    ]
)
"""A row of prefixes.rows: the range of documents with one id prefix in one part."""

_PREFIXES_PER_GROUP = (1 << PREFIX_BITS) // NUM_GROUPS
_BUCKETS_PER_GROUP = MAX_BUCKETS // NUM_GROUPS
_REMEDY = "delete the folder of token parts"


@dataclass(frozen=True)
class Totals:
    """Counts of the distinct documents of all parts.

    Attributes:
        documents: Number of distinct documents that are kept, because dropped.ids does not list
            them.
        duplicates: Number of further copies of any document, whether it is kept or dropped.
        cleaned_bytes: Bytes of the cleaned text of the kept documents.
        tokens: Number of tokens of the kept documents.
        documents_hash: Hash of the ids of the kept documents (docs/format.md, section 4).
        documents_by_prefix: Number of kept documents for each prefix of ids. `num_prefixes` says
            how many prefixes there are.
        sources: The counts of each source, by its number.
        dropped: Number of distinct documents that dropped.ids lists, by reason.
    """

    documents: int
    duplicates: int
    cleaned_bytes: int
    tokens: int
    documents_hash: str
    documents_by_prefix: list[int]
    sources: tuple[SourceTotals, ...]
    dropped: dict[str, int] = field(default_factory=dict)


def open_index(folder: Folder, part_names: Sequence[str]) -> AbstractContextManager[LocalGroups]:
    """Fetches the `.index` files of all parts to this machine, by one request per part.

    The result is a context manager, which deletes the local copy at its end.

    Args:
        folder: The folder of token parts.
        part_names: Names of the parts.
    """
    return open_groups(folder, [f"{part}.index" for part in part_names], INDEX_DTYPE)


def iterate_index(index: LocalGroups) -> Iterator[Rows]:
    """Yields the rows of all parts in 256 groups, by the first byte of their ids.

    Rows of a group are sorted by id, then by source, then by part.
    """
    for rows in index:
        yield rows[np.lexsort((rows["source"], rows["low"], rows["high"]))]


def distinct_rows(rows: Rows) -> Rows:
    """Returns one row for each id: the first one, which is that of the first source.

    Args:
        rows: Rows of indexes, sorted by id and then by source.
    """
    distinct: Rows = rows[is_first(rows["high"], rows["low"])]
    return distinct


def iterate_kept(
    index: LocalGroups, *, has_dropped: bool
) -> Iterator[tuple[Rows, npt.NDArray[np.int64], npt.NDArray[np.uint64]]]:
    """Yields the distinct documents that are kept, lazily, in 256 groups by first byte of the id.

    Args:
        index: The index of all parts.
        has_dropped: Whether there is a file dropped.ids, whose documents are then left out.

    Yields:
        For each group three arrays with an entry per document, sorted by id: the document's first
        row, the number of its rows in all parts, copies included, and the sum of the crc32 of these
        rows.
    """
    dropped = iterate_dropped(index.folder, has_dropped=has_dropped)
    for rows, dropped_rows in zip(iterate_index(index), dropped, strict=True):
        starts = np.flatnonzero(is_first(rows["high"], rows["low"]))
        documents = rows[starts]
        num_rows = np.diff(starts, append=len(rows))
        crc32_sums = _sum_ranges(rows["crc32"].astype(np.uint64), starts)
        is_kept = reason_numbers(documents, dropped_rows) == len(REASONS)
        yield documents[is_kept], num_rows[is_kept], crc32_sums[is_kept]


def read_part_rows(folder: Folder, name: str) -> Rows:
    """Returns all rows of a part's `.index` file, in the order of the ids.

    Args:
        folder: The folder of token parts.
        name: The name of the file.

    Raises:
        FileNotFoundError: The file is missing.
        ValueError: The file is damaged.
    """
    return parse_rows(folder.read(name), INDEX_DTYPE, folder.locate(name))[0]


def pack_ids(rows: Rows, num_sources: int) -> bytes:
    """Returns the bytes that documents_hash covers (docs/format.md, section 4).

    They are the ids of the documents, 16 bytes each. If there are several sources, the number of
    the document's source follows each id as one byte.
    """
    columns = [("high", ">u8"), ("low", ">u8")]
    if num_sources > 1:
        columns.append(("source", "u1"))
    return rows[[name for name, _ in columns]].astype(columns).tobytes()


def build_index(
    index: LocalGroups,
    num_sources: int = 1,
    reasons: Sequence[str] = (),
    validation_tokens: int = VALIDATION_TOKENS,
) -> Totals:
    """Counts the documents of all parts, and writes prefixes.rows into their folder.

    The index is read twice. The second time, the documents that may be held out for validation are
    listed. How many they are depends on the tokens of all sources, which are known only then.

    Args:
        index: The index of all parts.
        num_sources: The number of sources.
        reasons: The reasons that dropped.ids may have; empty if there is no such file.
        validation_tokens: The most tokens that may be held out for validation.
    """
    counts = _DocumentCounts(num_sources)
    has_dropped = bool(reasons)
    dropped = iterate_dropped(index.folder, has_dropped=has_dropped)

    def count_groups() -> Iterator[Rows]:
        groups = zip(iterate_index(index), dropped, strict=True)
        for first_byte, (rows, dropped_rows) in enumerate(groups):
            counts.add(first_byte, rows, dropped_rows)
            yield _find_ranges(rows)

    write_groups(index.folder, INDEX, count_groups())
    kept = (documents for documents, *_ in iterate_kept(index, has_dropped=has_dropped))
    lowest = find_lowest(kept, counts.tokens.tolist(), validation_tokens)
    return counts.total(reasons, lowest)


class _DocumentCounts:
    """Counts the documents of all parts, group after group.

    Attributes:
        tokens: [sources] int64, the tokens of each source's distinct documents that are kept.
    """

    def __init__(self, num_sources: int) -> None:
        """Starts with no documents."""
        self._num_sources = num_sources
        self._digest = hashlib.blake2b(digest_size=32)
        self._rows = np.zeros(num_sources, np.int64)
        self._documents = np.zeros(num_sources, np.int64)
        self._cleaned_bytes = np.zeros(num_sources, np.int64)
        self.tokens = np.zeros(num_sources, np.int64)
        # Documents by the number of their reason; those that are kept have number len(REASONS).
        self._by_reason = np.zeros((num_sources, len(REASONS) + 1), np.int64)
        # Kept documents by the first 16 bits of their ids: first byte, then second byte.
        self._by_prefix = np.zeros((NUM_GROUPS, _BUCKETS_PER_GROUP), np.int64)

    def add(self, first_byte: int, rows: Rows, dropped_rows: Rows) -> None:
        """Counts the documents of a group. Groups must be added in the order of their bytes.

        Args:
            first_byte: The first byte of the ids of the group.
            rows: All rows of the group, sorted by id and source.
            dropped_rows: The rows of dropped.ids in the group.
        """
        np.add.at(self._rows, rows["source"], 1)
        distinct = distinct_rows(rows)
        reasons = reason_numbers(distinct, dropped_rows)
        np.add.at(self._by_reason, (distinct["source"], reasons), 1)

        kept = distinct[reasons == len(REASONS)]
        self._digest.update(pack_ids(kept, self._num_sources))
        np.add.at(self._documents, kept["source"], 1)
        np.add.at(self._cleaned_bytes, kept["source"], kept["cleaned_bytes"])
        np.add.at(self.tokens, kept["source"], kept["tokens"])
        second_bytes = (kept["high"] >> np.uint64(48)).astype(np.int64) & 0xFF
        self._by_prefix[first_byte] = np.bincount(second_bytes, minlength=_BUCKETS_PER_GROUP)

    def total(self, reasons: Sequence[str], lowest: Sequence[Rows]) -> Totals:
        """Returns the counts of all groups.

        Args:
            reasons: The reasons for which documents may have been dropped.
            lowest: For each source, the rows of documents that may be held out for validation.
        """
        sources = tuple(
            self._total_of_source(source, reasons, lowest[source])
            for source in range(self._num_sources)
        )
        cleaned_bytes = int(self._cleaned_bytes.sum())
        by_prefix = self._by_prefix.reshape(num_prefixes(cleaned_bytes), -1).sum(axis=1)
        return Totals(
            documents=int(self._documents.sum()),
            duplicates=sum(source.duplicates for source in sources),
            cleaned_bytes=cleaned_bytes,
            tokens=int(self.tokens.sum()),
            documents_hash=self._digest.hexdigest(),
            documents_by_prefix=by_prefix.tolist(),
            sources=sources,
            dropped=_by_name(self._by_reason.sum(axis=0), reasons),
        )

    def _total_of_source(self, source: int, reasons: Sequence[str], lowest: Rows) -> SourceTotals:
        """Returns the counts of one source.

        Args:
            source: The number of the source.
            reasons: The reasons for which documents are dropped.
            lowest: The source's documents with the lowest ids, from which the validation split is
                chosen.
        """
        num_distinct = int(self._by_reason[source].sum())
        return SourceTotals(
            documents=int(self._documents[source]),
            duplicates=int(self._rows[source]) - num_distinct,
            cleaned_bytes=int(self._cleaned_bytes[source]),
            tokens=int(self.tokens[source]),
            dropped=_by_name(self._by_reason[source], reasons),
            lowest_ids=[join_id(row["high"], row["low"]).hex() for row in lowest],
            lowest_tokens=lowest["tokens"].tolist(),
        )


def _by_name(by_reason: npt.NDArray[np.int64], reasons: Sequence[str]) -> dict[str, int]:
    """Returns the numbers of dropped documents by the name of the reason.

    Args:
        by_reason: The numbers of documents, by the index of the reason in REASONS.
        reasons: The reasons that the result has.
    """
    return {reason: int(by_reason[REASONS.index(reason)]) for reason in reasons}


@dataclass(frozen=True)
class TokenParts:
    """The token parts that workers read buckets from.

    Attributes:
        folder: The folder of token parts.
        token_dtype: The dtype of token ids: "uint16" or "uint32".
        has_dropped: Whether there is a file dropped.ids, whose documents are then left out.
        held_out: The ids of the validation documents (`HeldOut.ids`).
    """

    folder: Folder
    token_dtype: str
    has_dropped: bool = False
    held_out: bytes = b""


def read_bucket(
    tokens: TokenParts, names: Sequence[str], bucket: Bucket
) -> Iterator[TokenizedDocument]:
    """Yields the documents of a bucket, copies included.

    For a train bucket, one range of bytes is read of each part. Validation documents are not next
    to each other, so several ranges of a part may be read for the validation bucket.

    Args:
        tokens: The token parts.
        names: Names of the parts.
        bucket: The bucket.

    Raises:
        ValueError: A file is missing or damaged.
    """
    if bucket.split == "validation":
        yield from _read_held_out(tokens, names)
        return
    left_out = frozenset(split_ids(tokens.held_out))
    if tokens.has_dropped:
        left_out |= read_dropped_ids(tokens.folder, bucket.first_id, bucket.last_id)
    for name, ranges in _ranges_of_parts(tokens.folder, names, bucket.prefixes):
        start = int(ranges["offset"].min())
        stop = int((ranges["offset"] + ranges["size"]).max())
        for document in _read_documents(tokens, name, start, stop):
            if bucket.first_id <= document.id <= bucket.last_id and document.id not in left_out:
                yield document


def _read_held_out(tokens: TokenParts, names: Sequence[str]) -> Iterator[TokenizedDocument]:
    """Yields the validation documents, copies included.

    The index of each part is read first. Then neighbouring documents are read together.
    """
    prefixes = sorted({prefix_of(document_id) for document_id in split_ids(tokens.held_out)})
    for name, ranges in _ranges_of_parts(tokens.folder, names, prefixes):
        first_row = int(ranges["row"].min())
        last_row = int((ranges["row"] + ranges["rows"]).max())
        rows = read_rows(tokens.folder, f"{name}.index", INDEX_DTYPE, first_row, last_row)
        for start, stop in join_ranges(rows[is_held_out(rows, tokens.held_out)]):
            yield from _read_documents(tokens, name, start, stop)


def _ranges_of_parts(
    folder: Folder, names: Sequence[str], prefixes: Sequence[int]
) -> Iterator[tuple[str, Rows]]:
    """Yields the parts that have documents whose ids begin with one of some prefixes.

    Args:
        folder: The folder of token parts.
        names: Names of all parts, by their numbers.
        prefixes: Ascending id prefixes of PREFIX_BITS bits.

    Yields:
        The name of a part, and its rows of prefixes.rows for these prefixes.
    """
    ranges = _read_ranges(folder, prefixes, len(names))
    for part in np.unique(ranges["part"]):
        yield names[part], ranges[ranges["part"] == part]


def _read_documents(
    tokens: TokenParts, part: str, start: int, stop: int
) -> Iterable[TokenizedDocument]:
    """Reads documents of a part by one request.

    Args:
        tokens: The token parts.
        part: The name of the part.
        start: The offset in the part's `.tokens` file at which the first document begins.
        stop: The offset at which the last document ends.
    """
    name = f"{part}.tokens"
    data = read_tokens(tokens.folder, name, start, stop)
    return unpack_documents(data, tokens.token_dtype, tokens.folder.locate(name))


def join_ranges(rows: Rows) -> list[tuple[int, int]]:
    """Returns the ranges of bytes (start, stop) that documents have in a part's `.tokens` file.

    Documents that follow each other without a gap are one range.

    Args:
        rows: Rows of the part's index, in its order.
    """
    starts = rows["offset"].astype(np.int64)
    stops = starts + rows["size"]
    is_apart = starts[1:] != stops[:-1]
    is_first = np.concatenate([[True], is_apart])[: len(rows)]
    is_last = np.concatenate([is_apart, [True]])[: len(rows)]
    return list(zip(starts[is_first].tolist(), stops[is_last].tolist(), strict=True))


def read_tokens(folder: Folder, name: str, start: int, stop: int) -> bytes:
    """Returns bytes start to stop - 1 of a part's `.tokens` file.

    Raises:
        ValueError: The file is missing, or has fewer than `stop` bytes.
    """
    with named_loss(folder.locate(name)):
        return folder.read_range(name, start, stop)


def find_prefix_rows(
    folder: Folder, names: Sequence[str], prefixes: Sequence[int]
) -> list[tuple[str, int, int]]:
    """Finds the documents whose ids begin with given prefixes, in the indexes of all parts.

    Args:
        folder: The folder of token parts.
        names: The names of all parts. The number of a part is its position in this list.
        prefixes: Prefixes of ids, of PREFIX_BITS bits each, in ascending order.

    Returns:
        Ranges of rows that hold these documents: for each range the name of the part, the first row
        of the part's index, and one past the last row.
    """
    ranges = _read_ranges(folder, prefixes, len(names))[["part", "row", "rows"]].tolist()
    return [(names[part], row, row + rows) for part, row, rows in ranges]


def _read_ranges(folder: Folder, prefixes: Sequence[int], num_parts: int) -> Rows:
    """Reads the rows of prefixes.rows for some id prefixes, and checks their numbers.

    Groups of ids that follow each other are read by one request.

    Args:
        folder: The folder of token parts.
        prefixes: Ascending id prefixes of PREFIX_BITS bits.
        num_parts: The number of parts.

    Raises:
        ValueError: The file is missing or damaged, or names a part that does not exist.
    """
    path = folder.locate(INDEX)
    groups = np.unique(np.asarray(prefixes, np.int64) // _PREFIXES_PER_GROUP)
    rows_of_ranges = [np.zeros(0, PREFIX_DTYPE)]
    bounds = read_bounds(folder, INDEX)
    for neighbours in np.split(groups, np.flatnonzero(np.diff(groups) > 1) + 1):
        first = int(bounds[neighbours[0]])
        last = int(bounds[neighbours[-1] + 1])
        rows_of_ranges.append(read_rows(folder, INDEX, PREFIX_DTYPE, first, last))
    rows = np.concatenate(rows_of_ranges)
    rows = rows[np.isin(rows["prefix"], np.asarray(prefixes))]
    try:
        check_range("part", rows["part"], 0, num_parts - 1)
        for name in ("offset", "size", "row", "rows"):
            check_range(name, rows[name], 0, 1 << 62)
    except ValueError as error:
        raise ValueError(f"{path}: {error}; {_REMEDY}") from error
    return rows


def _find_ranges(rows: Rows) -> Rows:
    """Returns the rows that prefixes.rows gets for a group of ids with the same first byte.

    There is one row for each prefix and each part that has documents with the prefix.

    Args:
        rows: The rows of all parts in the group, with the columns of `LocalGroups`.
    """
    keys = (rows["high"] >> np.uint64(64 - PREFIX_BITS)).astype(np.int64) << 32 | rows["file"]
    order = np.lexsort((rows["offset"], keys))
    keys = keys[order]
    rows = rows[order]

    starts = np.flatnonzero(is_first(keys))
    ranges = np.empty(len(starts), PREFIX_DTYPE)
    ranges["prefix"] = keys[starts] >> 32
    ranges["part"] = keys[starts] & 0xFFFFFFFF
    ranges["offset"] = rows["offset"][starts]
    ranges["row"] = rows["number"][starts]
    ranges["size"] = _sum_ranges(rows["size"].astype(np.int64), starts)
    ranges["rows"] = np.diff(starts, append=len(rows))
    return ranges


def _sum_ranges(values: npt.NDArray[Any], starts: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
    """Sums ranges of values.

    Args:
        values: [D] the values.
        starts: [R] the index at which each range starts. It ends where the next one starts.

    Returns:
        [R] the sum of each range.
    """
    if not len(values):
        return values
    return np.add.reduceat(values, starts)
