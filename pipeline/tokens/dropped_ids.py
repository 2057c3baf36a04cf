"""Reads dropped.ids, which lists documents that were encoded and are then left out of the dataset.

Most filters look at one document alone, before it is encoded. Two filters need the ids or the
signatures of all documents, so they come later: they leave out documents that another dataset has
(`EXCLUDED`) and near-duplicates of other documents (`NEAR_DUPLICATE`). dropped.ids holds the ids of
the documents that they drop. Its rows are grouped by the first byte of the ids
(`pipeline.tokens.grouped_rows`).
"""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from pipeline.storage.folder import Folder
from pipeline.tokens.grouped_rows import NUM_GROUPS, Rows, read_bounds, read_groups, read_rows
from pipeline.tokens.token_parts import id_keys, join_id

DROPPED = "dropped.ids"
EXCLUDED = "excluded"
NEAR_DUPLICATE = "near_duplicate"
REASONS = (EXCLUDED, NEAR_DUPLICATE)
"""Reasons by their number in the file. A document to which both apply has the first."""

DROPPED_DTYPE = np.dtype([("high", "<u8"), ("low", "<u8"), ("reason", "u1")])


def read_dropped_ids(folder: Folder, first_id: bytes, last_id: bytes) -> frozenset[bytes]:
    """Reads the ids in dropped.ids that are in a range of ids.

    Args:
        folder: The folder of token parts.
        first_id: The first id of the range, 16 bytes.
        last_id: The last id of the range, inclusive.

    Raises:
        ValueError: The file is missing or damaged.
    """
    rows = read_groups(folder, DROPPED, DROPPED_DTYPE, first_id[0], last_id[0])
    ids = (join_id(row["high"], row["low"]) for row in rows)
    return frozenset(document_id for document_id in ids if first_id <= document_id <= last_id)


def iterate_dropped(folder: Folder, *, has_dropped: bool) -> Iterator[Rows]:
    """Yields the rows of dropped.ids in 256 groups by the first byte of the ids, lazily.

    Args:
        folder: The folder of token parts.
        has_dropped: Whether the build wrote dropped.ids. If not, all groups are empty.

    Raises:
        ValueError: dropped.ids is missing or damaged.
    """
    bounds = read_bounds(folder, DROPPED) if has_dropped else np.zeros(NUM_GROUPS + 1, np.int64)
    for group in range(NUM_GROUPS):
        yield read_rows(folder, DROPPED, DROPPED_DTYPE, int(bounds[group]), int(bounds[group + 1]))


def choose_dropped(rows: Rows, reasons: dict[str, npt.NDArray[np.bytes_]]) -> Rows:
    """Returns the rows that dropped.ids gets for some documents, sorted by id.

    Documents to which no reason applies have no row. If several reasons apply, the row has the
    first of `REASONS`.

    Args:
        rows: [D] rows of the index, sorted by id.
        reasons: For each reason an array of the ids to which it applies, as strings of 16 bytes.
    """
    keys = id_keys(rows)
    dropped = np.empty(len(rows), DROPPED_DTYPE)
    dropped["high"] = rows["high"]
    dropped["low"] = rows["low"]
    dropped["reason"] = len(REASONS)
    # From the last reason to the first, so that the first one that applies stays.
    for number, reason in reversed(list(enumerate(REASONS))):
        if reason in reasons:
            dropped["reason"][np.isin(keys, reasons[reason])] = number
    chosen: Rows = dropped[dropped["reason"] < len(REASONS)]
    return chosen


def reason_numbers(rows: Rows, dropped: Rows) -> npt.NDArray[np.uint8]:
    """Returns for each document why it is dropped, as an index in `REASONS`: [D] uint8.

    The number is len(REASONS) for documents that are kept.

    Args:
        rows: [D] rows of the index.
        dropped: Rows of dropped.ids, sorted by id.
    """
    numbers = np.full(len(rows), len(REASONS), np.uint8)
    ids = id_keys(rows)
    dropped_ids = id_keys(dropped)
    is_dropped = np.isin(ids, dropped_ids)
    numbers[is_dropped] = dropped["reason"][np.searchsorted(dropped_ids, ids[is_dropped])]
    return numbers
