"""The index over all token parts: distinct documents by id prefix, and each prefix's range in each part.

Read group by group (ids with the same top byte), so memory is the largest group and not the corpus.
"""

import contextlib
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.shards.table_checks import check_range
from pipeline.storage.faults import SizeError
from pipeline.storage.folder import Folder
from pipeline.tokens.buckets import MAX_BUCKETS, PREFIX_BITS, Bucket, num_prefixes, prefix_of
from pipeline.tokens.dropped_ids import (
    REASONS,
    iterate_dropped,
    read_dropped_ids,
    reason_numbers,
)
from pipeline.tokens.grouped_rows import (
    NUM_GROUPS,
    LocalGroups,
    Rows,
    read_bounds,
    read_rows,
    write_groups,
)
from pipeline.tokens.held_out import LowestRows, SourceTotals, is_held_out, split_ids
from pipeline.tokens.index_rows import distinct_rows, iterate_index, pack_ids
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
    """Counts the documents of all parts and writes the table of their ranges (prefixes.rows).

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
    dropped = iterate_dropped(index.folder, has_dropped=bool(reasons))

    def count_groups() -> Iterator[Rows]:
        for group, rows in enumerate(iterate_index(index)):
            distinct = distinct_rows(rows)
            found = reason_numbers(distinct, next(dropped))
            np.add.at(drops, (distinct["source"], found), 1)
            distinct = distinct[found == len(REASONS)]
            digest.update(pack_ids(distinct, num_sources))
            counts[:] += _count_by_source(rows, distinct, num_sources)
            by_prefix[group] = _count_prefixes(distinct)
            lowest.add(distinct)
            yield _find_ranges(rows)

    write_groups(index.folder, INDEX, count_groups())
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
    ranges = _read_ranges(folder, bucket.prefixes, len(names))
    for index in np.unique(ranges["part"]):
        own = ranges[ranges["part"] == index]
        start, stop = int(own["offset"].min()), int((own["offset"] + own["size"]).max())
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
    ranges = _read_ranges(folder, prefixes, len(names))
    for index in np.unique(ranges["part"]):
        own = ranges[ranges["part"] == index]
        ends = int(own["row"].min()), int((own["row"] + own["rows"]).max())
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
    found = _read_ranges(folder, prefixes, len(names))[["part", "row", "rows"]].tolist()
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


def _read_ranges(folder: Folder, prefixes: Sequence[int], num_parts: int) -> Rows:
    """The rows of prefixes.rows of ascending id prefixes; groups next to each other are one read.

    Raises:
        ValueError: It is damaged, or a row points to no part, or before the beginning of one.
    """
    path = folder.locate(INDEX)
    groups = np.unique(np.asarray(prefixes, np.int64) // _PREFIXES_PER_GROUP)
    found = [np.zeros(0, PREFIX_DTYPE)]
    with _named_loss(path):
        bounds = read_bounds(folder, INDEX)
        for run in np.split(groups, np.flatnonzero(np.diff(groups) > 1) + 1):
            first, last = bounds[run[0]], bounds[run[-1] + 1]
            found.append(read_rows(folder, INDEX, PREFIX_DTYPE, int(first), int(last)))
    rows = np.concatenate(found)
    rows = rows[np.isin(rows["prefix"], np.asarray(prefixes))]
    try:
        for name in ("part", "offset", "size", "row", "rows"):
            check_range(name, rows[name], 0, num_parts - 1 if name == "part" else _MOST)
    except ValueError as error:
        raise ValueError(f"{path}: {error}; {_REMEDY}") from error
    return rows


def _find_ranges(rows: Rows) -> Rows:
    """One row for each prefix that a part holds, of all rows of a group."""
    if not len(rows):
        return np.zeros(0, PREFIX_DTYPE)
    keys = _prefixes(rows) << 32 | rows["file"]
    order = np.lexsort((rows["offset"], keys))
    keys, rows = keys[order], rows[order]
    starts = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]]))
    found = np.empty(len(starts), PREFIX_DTYPE)
    found["prefix"], found["part"] = keys[starts] >> 32, keys[starts] & 0xFFFFFFFF
    found["offset"], found["row"] = rows["offset"][starts], rows["number"][starts]
    found["size"] = np.add.reduceat(rows["size"].astype(np.int64), starts)
    found["rows"] = np.diff(starts, append=len(rows))
    return found
