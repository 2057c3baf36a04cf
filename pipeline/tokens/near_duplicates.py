"""Finds near-duplicates of documents, by their signatures alone.

Documents whose signatures (pipeline.text.minhash) agree on a band are grouped under the band's key.
In a group, sorted by id, each document is compared with the first LEADERS documents. It is dropped
if its estimated similarity to one of these, with a smaller id, reaches the threshold. So the result
does not depend on the order of the input, the smallest id of a cluster always stays, and the cost
per document is bounded however large a group is.
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
"""How many documents of a group the others are compared with."""

SIGNED_DTYPE = np.dtype(
    [("high", "<u8"), ("low", "<u8"), ("signature", SIGNATURE_DTYPE, NUM_HASHES)]
)
"""A row of a `.signatures` file: a document's id in two halves, and its signature."""

BANDED_DTYPE = np.dtype(
    [("key", "<u8"), ("high", "<u8"), ("low", "<u8"), ("sketch", "u1", SKETCH_BYTES)]
)
"""A row for a document and one of its bands: the band's key, the id, and the sketch."""

_FOUND = ("high", "low", "other_high", "other_low")
FOUND_DTYPE = np.dtype([*((name, "<u8") for name in _FOUND), ("matches", "u1")])
"""A row for a near-duplicate: its id, the id of the document that it resembles, and matches."""

_PAIRS_AT_ONCE = 1 << 16


@dataclass(frozen=True)
class SimilarityRule:
    """The rule by which two documents are near-duplicates.

    Attributes:
        bands: Number of bands that a signature is cut into.
        rows: Number of places of a signature in a band.
        matches: Number of places in which the signatures of two near-duplicates agree, at least.
    """

    bands: int
    rows: int
    matches: int


def similarity_rule(threshold: float) -> SimilarityRule:
    """Returns the rule for documents with a Jaccard similarity of at least `threshold`."""
    return SimilarityRule(*choose_bands(threshold), matches_for(threshold))


def pack_signatures(documents: Sequence[TokenizedDocument]) -> bytes:
    """Returns the content of a part's `.signatures` file: one row per document, sorted by id."""
    ordered = sorted(documents, key=lambda document: document.id)
    rows = np.zeros(len(ordered), SIGNED_DTYPE)
    ids = np.array([split_id(document.id) for document in ordered], np.uint64).reshape(-1, 2)
    signatures = b"".join(document.signature for document in ordered)
    rows["high"] = ids[:, 0]
    rows["low"] = ids[:, 1]
    rows["signature"] = np.frombuffer(signatures, SIGNATURE_DTYPE).reshape(-1, NUM_HASHES)
    return rows.tobytes()


def pack_bands(signed: Rows, rule: SimilarityRule) -> bytes:
    """Returns a grouped file with one row per document and band.

    Rows are grouped by the first byte of the band's key (`pipeline.tokens.grouped_rows`).

    Args:
        signed: Rows of `.signatures` files.
        rule: The rule of the build.
    """
    keys = band_keys(signed["signature"], rule.bands, rule.rows).reshape(-1)
    order = np.argsort(keys >> np.uint64(56), kind="stable")
    documents = order // rule.bands
    banded = np.empty(len(keys), BANDED_DTYPE)
    banded["key"] = keys[order]
    banded["high"] = signed["high"][documents]
    banded["low"] = signed["low"][documents]
    banded["sketch"] = sketch_signatures(signed["signature"])[documents]
    return pack_rows(banded, banded["key"] >> np.uint64(56))


def find_near_duplicates(banded: Rows, min_matches: int) -> Rows:
    """Finds the near-duplicates among documents that share keys.

    Args:
        banded: All rows of some keys, in any order.
        min_matches: In how many places the signatures of near-duplicates agree, at least.

    Returns:
        One row for each document that resembles a document with a smaller id, sorted by id: its
        id, the smallest id of such other documents, and the number of matches with that one.
    """
    order = np.lexsort((banded["low"], banded["high"], banded["key"]))
    order = order[is_first(*(banded[name][order] for name in ("key", "high", "low")))]
    keys = banded["key"][order]
    duplicates = [np.zeros(0, FOUND_DTYPE)]
    pairs = _similar_pairs(banded["sketch"], order, np.searchsorted(keys, keys), min_matches)
    for later, earlier, matches in pairs:
        rows = np.empty(len(later), FOUND_DTYPE)
        for name in ("high", "low"):
            rows[name] = banded[name][order[later]]
            rows[f"other_{name}"] = banded[name][order[earlier]]
        rows["matches"] = matches
        duplicates.append(rows)
    return keep_smallest(np.concatenate(duplicates))


def keep_smallest(found: Rows) -> Rows:
    """Keeps one row for each near-duplicate, and sorts the rows by its id.

    A row has the id of a near-duplicate, and the id of another document that it resembles. Among
    the rows of one near-duplicate, the row with the smallest id of the other document is kept.

    Args:
        found: Rows of FOUND_DTYPE, in any order.
    """
    names = ("matches", "other_low", "other_high", "low", "high")
    found = found[np.lexsort([found[name] for name in names])]
    smallest: Rows = found[is_first(found["high"], found["low"])]
    return smallest


def _similar_pairs(
    sketches: npt.NDArray[np.uint8],
    order: npt.NDArray[np.int64],
    starts: npt.NDArray[np.int64],
    min_matches: int,
) -> Iterator[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
    """Yields pairs of similar documents with the same key, leader by leader.

    Args:
        sketches: The sketch of each row.
        order: [D] rows sorted by key and id.
        starts: [D] for each place in `order`, the first place with the same key.
        min_matches: In how many places the signatures of near-duplicates agree, at least.

    Yields:
        The later document of each pair and its leader, both as places in `order`, and the number
        of their matches.
    """
    place_in_group = np.arange(len(order)) - starts
    unmatched = np.flatnonzero(place_in_group > 0)
    for leader in range(LEADERS):
        unmatched = unmatched[place_in_group[unmatched] > leader]
        matches = np.zeros(len(unmatched), np.int64)
        for first in range(0, len(unmatched), _PAIRS_AT_ONCE):
            chunk = unmatched[first : first + _PAIRS_AT_ONCE]
            matches[first : first + _PAIRS_AT_ONCE] = count_matches(
                sketches[order[chunk]], sketches[order[starts[chunk] + leader]]
            )
        is_similar = matches >= min_matches
        similar = unmatched[is_similar]
        yield similar, starts[similar] + leader, matches[is_similar]
        unmatched = unmatched[~is_similar]
