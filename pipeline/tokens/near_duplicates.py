"""Which documents are near-duplicates of others, from their signatures alone.

Documents that agree on a band of their signatures (pipeline.text.minhash) come together under the
band's key. Of those under one key, sorted by id, each is compared with the first LEADERS others; it
is dropped if its estimated similarity to one before it reaches the threshold. So nothing depends on
order, the smallest id of a cluster always stays, and a key of many documents costs little each.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pipeline.text.minhash import (
    NUM_HASHES,
    SIGNATURE_DTYPE,
    SKETCH_BYTES,
    band_keys,
    choose_bands,
    count_matches,
    matches_for,
    sketch_signatures,
)
from pipeline.tokens.grouped_rows import Rows, is_first, pack_rows
from pipeline.tokens.token_parts import TokenizedDocument, split_id

LEADERS = 8
SIGNED_DTYPE = np.dtype(
    [("high", "<u8"), ("low", "<u8"), ("signature", SIGNATURE_DTYPE, NUM_HASHES)]
)
BANDED_DTYPE = np.dtype(
    [("key", "<u8"), ("high", "<u8"), ("low", "<u8"), ("sketch", "u1", SKETCH_BYTES)]
)
_FOUND = ("high", "low", "other_high", "other_low")
FOUND_DTYPE = np.dtype([*((name, "<u8") for name in _FOUND), ("matches", "u1")])
_PAIRS_AT_ONCE = 1 << 16


@dataclass(frozen=True)
class SimilarityRule:
    """Bands of a signature, rows of a band, and the least equal places of two near-duplicates."""

    bands: int
    rows: int
    matches: int


def similarity_rule(threshold: float) -> SimilarityRule:
    """The rule for a Jaccard similarity of at least `threshold`."""
    return SimilarityRule(*choose_bands(threshold), matches_for(threshold))


def pack_signatures(documents: Sequence[TokenizedDocument]) -> bytes:
    """The `.signatures` file of a token part: one row a document, sorted by id."""
    ordered = sorted(documents, key=lambda document: document.id)
    rows = np.zeros(len(ordered), SIGNED_DTYPE)
    ids = np.array([split_id(document.id) for document in ordered], np.uint64).reshape(-1, 2)
    signatures = b"".join(document.signature for document in ordered)
    rows["high"], rows["low"] = ids[:, 0], ids[:, 1]
    rows["signature"] = np.frombuffer(signatures, SIGNATURE_DTYPE).reshape(-1, NUM_HASHES)
    return rows.tobytes()


def pack_bands(signed: Rows, rule: SimilarityRule) -> bytes:
    """Rows of `.signatures` as a file of one row a band, grouped by the first byte of its key."""
    keys = band_keys(signed["signature"], rule.bands, rule.rows).reshape(-1)
    order = np.argsort(keys >> np.uint64(56), kind="stable")
    owners = order // rule.bands
    banded = np.empty(len(keys), BANDED_DTYPE)
    banded["key"] = keys[order]
    banded["high"], banded["low"] = signed["high"][owners], signed["low"][owners]
    banded["sketch"] = sketch_signatures(signed["signature"])[owners]
    return pack_rows(banded, banded["key"] >> np.uint64(56))


def find_near_duplicates(banded: Rows, min_matches: int) -> Rows:
    """Documents among rows of some keys with a like one of smaller id, and the smallest such id."""
    order = np.lexsort((banded["low"], banded["high"], banded["key"]))
    order = order[is_first(*(banded[name][order] for name in ("key", "high", "low")))]
    keys = banded["key"][order]
    found = [np.zeros(0, FOUND_DTYPE)]
    pairs = _similar_pairs(banded["sketch"], order, np.searchsorted(keys, keys), min_matches)
    for later, earlier, matches in pairs:
        found.append(np.empty(len(later), FOUND_DTYPE))
        for name in ("high", "low"):
            found[-1][name] = banded[name][order[later]]
            found[-1][f"other_{name}"] = banded[name][order[earlier]]
        found[-1]["matches"] = matches
    return keep_smallest(np.concatenate(found))


def keep_smallest(found: Rows) -> Rows:
    """One row for each document that was found, sorted by id: that of the smallest other."""
    names = ("matches", "other_low", "other_high", "low", "high")
    found = found[np.lexsort([found[name] for name in names])]
    kept: Rows = found[is_first(found["high"], found["low"])]
    return kept


def _similar_pairs(
    sketches: npt.NDArray[np.uint8],
    order: npt.NDArray[np.int64],
    starts: npt.NDArray[np.int64],
    min_matches: int,
) -> Iterator[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
    """Places in `order` of pairs under one key that are alike, and the number of their matches."""
    places = np.arange(len(order)) - starts
    waiting = np.flatnonzero(places > 0)
    for leader in range(LEADERS):
        waiting = waiting[places[waiting] > leader]
        matches = np.zeros(len(waiting), np.int64)
        for first in range(0, len(waiting), _PAIRS_AT_ONCE):
            some = waiting[first : first + _PAIRS_AT_ONCE]
            pairs = sketches[order[some]], sketches[order[starts[some] + leader]]
            matches[first : first + _PAIRS_AT_ONCE] = count_matches(*pairs)
        alike = matches >= min_matches
        yield waiting[alike], starts[waiting[alike]] + leader, matches[alike]
        waiting = waiting[~alike]
