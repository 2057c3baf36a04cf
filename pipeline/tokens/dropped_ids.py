"""dropped.ids: the documents of token parts that filters over all documents leave out, and why."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from pipeline.storage.folder import Folder
from pipeline.tokens.grouped_rows import NUM_GROUPS, Rows, read_bounds, read_groups, read_rows
from pipeline.tokens.token_parts import id_keys, join_id

DROPPED = "dropped.ids"
EXCLUDED, NEAR_DUPLICATE = "excluded", "near_duplicate"
REASONS = (EXCLUDED, NEAR_DUPLICATE)
"""By their numbers in the file; a document that both would drop counts as the first."""

DROPPED_DTYPE = np.dtype([("high", "<u8"), ("low", "<u8"), ("reason", "u1")])


def read_dropped_ids(folder: Folder, first_id: bytes, last_id: bytes) -> frozenset[bytes]:
    """The ids in [first_id, last_id] that are left out."""
    rows = read_groups(folder, DROPPED, DROPPED_DTYPE, first_id[0], last_id[0])
    ids = (join_id(row["high"], row["low"]) for row in rows)
    return frozenset(each for each in ids if first_id <= each <= last_id)


def iterate_dropped(folder: Folder, *, has_dropped: bool) -> Iterator[Rows]:
    """The rows of each of the 256 groups of ids; none where there is no such file."""
    bounds = read_bounds(folder, DROPPED) if has_dropped else np.zeros(NUM_GROUPS + 1, np.int64)
    for group in range(NUM_GROUPS):
        yield read_rows(folder, DROPPED, DROPPED_DTYPE, int(bounds[group]), int(bounds[group + 1]))


def choose_dropped(rows: Rows, reasons: dict[str, npt.NDArray[np.bytes_]]) -> Rows:
    """Of documents sorted by id those among the keys of a reason, with the first such reason."""
    keys, dropped = id_keys(rows), np.empty(len(rows), DROPPED_DTYPE)
    dropped["high"], dropped["low"], dropped["reason"] = rows["high"], rows["low"], len(REASONS)
    for number, reason in reversed(list(enumerate(REASONS))):
        if reason in reasons:
            dropped["reason"][np.isin(keys, reasons[reason])] = number
    chosen: Rows = dropped[dropped["reason"] < len(REASONS)]
    return chosen


def reason_numbers(rows: Rows, dropped: Rows) -> npt.NDArray[np.uint8]:
    """[D] the number of the reason that each document is dropped for, len(REASONS) for none."""
    numbers = np.full(len(rows), len(REASONS), np.uint8)
    ids, keys = id_keys(rows), id_keys(dropped)
    is_found = np.isin(ids, keys)
    numbers[is_found] = dropped["reason"][np.searchsorted(keys, ids[is_found])]
    return numbers
