"""Finds near-duplicates of documents, by their signatures alone.

A signature (`pipeline.text.minhash`) is divided into bands, and each band has a key. Documents with
the same key of a band form a group. The documents of a group are sorted by id, and the first
LEADERS of them are its leaders. Each document is compared with the leaders that have a smaller id.
It is a near-duplicate if its estimated similarity to one of them reaches the threshold.

So the result does not depend on the order of the input. A document that has the smallest id in each
of its groups is always kept. The cost per document is bounded, however large a group is.
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

    Two documents are compared only if their signatures agree on a whole band.

    Attributes:
        bands: Number of bands that a signature is divided into.
        rows: Number of places of a signature in each band.
        matches: The least number of places at which the sketches of two near-duplicates are equal.
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
    """Returns the content of a grouped file with a row of BANDED_DTYPE for each document and band.

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
    """Finds the near-duplicates among documents whose bands have the same keys.

    Args:
        banded: Rows of BANDED_DTYPE in any order. If they have one row of a key, they have all.
        min_matches: The least number of places at which the sketches of near-duplicates are equal.

    Returns:
        One row of FOUND_DTYPE for each near-duplicate, sorted by id. If it resembles several
        leaders, the row has the one with the smallest id.
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

    A row has the id of a near-duplicate, and the id of another document that it resembles. If a
    near-duplicate has several rows, the one whose other document has the smallest id is kept.

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
    """Yields pairs of similar documents with the same key.

    All documents are compared with the first leader of their group, then the others with the second
    one, and so on. A document is in at most one pair for each key.

    Args:
        sketches: The sketch of each row.
        order: [D] the numbers of the rows, sorted by key and then by id.
        starts: [D] for each index in `order`, the first index with the same key.
        min_matches: The least number of places at which two similar sketches are equal.

    Yields:
        For each leader three arrays, with one entry per pair: the document's index in `order`, the
        leader's index in `order`, and the number of places at which their sketches are equal.
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
