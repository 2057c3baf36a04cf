"""dropped.ids: the documents of a folder of token parts that filters over all documents leave out, and why.

Rows sorted by id, read a range at a time.
"""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from pipeline.storage.folder import Folder
from pipeline.tokens.grouped_rows import NUM_GROUPS, Rows, read_bounds, read_groups, read_rows
from pipeline.tokens.token_parts import join_id

DROPPED = "dropped.ids"
EXCLUDED, NEAR_DUPLICATE = "excluded", "near_duplicate"
REASONS = (EXCLUDED, NEAR_DUPLICATE)
"""In the order of their numbers in the file; a document that both would drop counts as the first."""

DROPPED_DTYPE = np.dtype([("high", "<u8"), ("low", "<u8"), ("reason", "u1")])


def read_dropped_ids(folder: Folder, first_id: bytes, last_id: bytes) -> frozenset[bytes]:
    """The ids in [first_id, last_id] that are left out."""
    rows = read_groups(folder, DROPPED, DROPPED_DTYPE, first_id[0], last_id[0])
    ids = (join_id(row["high"], row["low"]) for row in rows)
    return frozenset(each for each in ids if first_id <= each <= last_id)


def iterate_dropped(folder: Folder, *, has_dropped: bool) -> Iterator[Rows]:
    """The rows of each of the 256 groups of ids, one after the other; none where there is no such file."""
    bounds = read_bounds(folder, DROPPED) if has_dropped else np.zeros(NUM_GROUPS + 1, np.int64)
    for group in range(NUM_GROUPS):
        yield read_rows(folder, DROPPED, DROPPED_DTYPE, int(bounds[group]), int(bounds[group + 1]))


def choose_dropped(rows: Rows, reasons: dict[str, npt.NDArray[np.bytes_]]) -> Rows:
    """Those of some documents, sorted by id, that one of the reasons holds for, with the first that does.

    `reasons` has the keys (`id_keys`) of all documents that each drops, also of others.
    """
    keys = id_keys(rows)
    numbers = np.full(len(rows), len(REASONS), np.uint8)
    for number, reason in reversed(list(enumerate(REASONS))):
        if reason in reasons:
            numbers[np.isin(keys, reasons[reason])] = number
    chosen = numbers < len(REASONS)
    dropped = np.empty(int(np.count_nonzero(chosen)), DROPPED_DTYPE)
    dropped["high"], dropped["low"] = rows["high"][chosen], rows["low"][chosen]
    dropped["reason"] = numbers[chosen]
    return dropped


def reason_numbers(rows: Rows, dropped: Rows) -> npt.NDArray[np.uint8]:
    """[D] of documents sorted by id: the number of the reason they are dropped for, len(REASONS) for those kept."""
    numbers = np.full(len(rows), len(REASONS), np.uint8)
    if len(dropped):
        keys, wanted = id_keys(dropped), id_keys(rows)
        places = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
        found = keys[places] == wanted
        numbers[found] = dropped["reason"][places[found]]
    return numbers


def id_keys(rows: Rows) -> npt.NDArray[np.bytes_]:
    """[D] ids as fixed strings of 16 bytes, which sort as ids do."""
    pairs = np.stack([rows["high"], rows["low"]], axis=1).astype(">u8")
    keys: npt.NDArray[np.bytes_] = pairs.view("S16").reshape(len(rows))
    return keys
