"""Byte-pair merges over counted words, exact and in one order: the loop of `tokenizer.learn`.

1. All words lie end to end in one array of symbols (ids of pieces), a boundary around each; links
   to the next and the previous symbol let a merge take symbols out without moving any.
2. A dict holds the count of every pair of neighbours. A heap holds those at or above a threshold,
   which is lowered and the heap rebuilt when it is empty. An entry may be older than its pair's
   count, and is then put back with the present one.
3. The commonest pair is merged wherever it stands: its neighbours' pairs lose its weight, the pairs
   with the new symbol gain it. Where new pairs stand is kept as one `_Places` a merge; those that a
   later merge has changed are left out when the pair is merged.

Shapes: P positions (symbols and boundaries), K occurrences of one pair, F of them that do not
follow another directly.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenizer.vocab import CONTINUATION

BOUNDARY = -1
_GONE = -2
_HOT_SHARE = 4
"""The heap takes pairs of at least a quarter of the commonest's count; most never get there."""

Array = NDArray[Any]


@dataclass(frozen=True)
class _Places:
    """Where pairs stand: the left symbols of `keys[i]` at `positions[starts[i]:starts[i + 1]]`."""

    keys: Array
    starts: Array
    positions: Array

    def of(self, key: int) -> Array:
        """Positions of one pair, none where it has none."""
        index = int(np.searchsorted(self.keys, key))
        if index == len(self.keys) or self.keys[index] != key:
            return self.positions[:0]
        return self.positions[self.starts[index] : self.starts[index + 1]]


class PairMerger:
    """Words as symbols, and counts of their pairs; between equal ones code points decide."""

    def __init__(self, symbols_P: Array, weights_P: Array, pieces: Sequence[str]) -> None:
        """Counts the pairs.

        Symbols are int32 indices of `pieces`, with BOUNDARY first, last and between words; merging
        changes them. Weights are int64, how often the symbol's word occurs.
        """
        assert symbols_P[0] == symbols_P[-1] == BOUNDARY, "words lie between boundaries"
        self.pieces = list(pieces)
        self._ids = {piece: index for index, piece in enumerate(pieces)}
        self._symbols_P = symbols_P
        self._weights_P = weights_P
        self._next_P = np.arange(1, len(symbols_P) + 1, dtype=np.int32)
        self._previous_P = np.arange(-1, len(symbols_P) - 1, dtype=np.int32)
        self._is_merging_P = np.zeros(len(symbols_P), bool)
        starts = np.flatnonzero((symbols_P[:-1] >= 0) & (symbols_P[1:] >= 0)).astype(np.int32)
        keys = _pair_keys(symbols_P[starts], symbols_P[starts + 1])
        self._first_places, self._pair_counts = _group(keys, starts, weights_P[starts])
        self._places: dict[int, list[_Places]] = {}
        self._heap: list[tuple[int, str, str]] = []
        self._threshold = 0

    def merge_until(self, num_pieces: int) -> None:
        """Merges until there are so many pieces, or every word is one piece."""
        while len(self.pieces) < num_pieces and (pair := self._pop_commonest()):
            self._merge(*pair)

    def _pop_commonest(self) -> tuple[int, int] | None:
        while self._heap or self._rebuild_heap():
            negative, left, right = heapq.heappop(self._heap)
            pair = self._ids[left], self._ids[right]
            count = self._pair_counts.get(pair[0] << 32 | pair[1], 0)
            if count == -negative:
                return pair
            if count >= self._threshold:
                heapq.heappush(self._heap, (-count, left, right))
        return None

    def _rebuild_heap(self) -> bool:
        """Fills the empty heap with the commonest pairs; False where no pair is left."""
        if not self._pair_counts:
            return False
        self._threshold = max(1, max(self._pair_counts.values()) // _HOT_SHARE)
        common = (pair for pair in self._pair_counts.items() if pair[1] >= self._threshold)
        self._heap = [(-count, *self._strings(key)) for key, count in common]
        heapq.heapify(self._heap)
        return True

    def _merge(self, left: int, right: int) -> None:
        """Makes every `left right` one symbol; K-arrays hold the left one and what is around."""
        at_K = self._find(left, right)
        second_K = self._next_P[at_K]
        after_K = self._next_P[second_K]
        self._is_merging_P[at_K] = self._is_merging_P[second_K] = True
        # Between two occurrences that touch lies one pair, not two: it is counted as the first
        # one's right pair.
        is_first_K = ~self._is_merging_P[self._previous_P[at_K]]
        self._is_merging_P[at_K] = self._is_merging_P[second_K] = False
        first_F = at_K[is_first_K]

        _, lost = self._neighbour_pairs(left, right, first_F, at_K, after_K)
        for key, weight in lost.items():
            self._pair_counts[key] -= weight
            if not self._pair_counts[key]:
                del self._pair_counts[key]
        self._pair_counts.pop(left << 32 | right, None)

        merged = self._intern(self.pieces[left] + self.pieces[right].removeprefix(CONTINUATION))
        self._symbols_P[at_K] = merged
        self._symbols_P[second_K] = _GONE
        self._next_P[at_K] = after_K
        self._previous_P[after_K] = at_K

        places, gained = self._neighbour_pairs(merged, merged, first_F, at_K, after_K)
        self._places.setdefault(merged, []).append(places)
        for key, weight in gained.items():
            count = self._pair_counts[key] = self._pair_counts.get(key, 0) + weight
            if count >= self._threshold:
                heapq.heappush(self._heap, (-count, *self._strings(key)))

    def _find(self, left: int, right: int) -> Array:
        """Positions of a pair as the words are now, without the second of two that overlap."""
        key = left << 32 | right
        kept = [self._first_places, *self._places.get(left, ())]
        kept += self._places.get(right, ()) if right != left else ()
        at_K = np.concatenate([places.of(key) for places in kept])
        next_K = self._next_P[at_K]
        at_K = at_K[(self._symbols_P[at_K] == left) & (self._symbols_P[next_K] == right)]
        return self._drop_overlaps(np.sort(at_K)) if left == right else at_K

    def _drop_overlaps(self, at_K: Array) -> Array:
        """Every other one of positions that follow each other: `a a a` has one pair to merge."""
        goes_on = self._next_P[at_K[:-1]] == at_K[1:]
        indices = np.arange(len(at_K))
        run_starts = np.maximum.accumulate(np.where(np.concatenate([[False], goes_on]), 0, indices))
        kept: Array = at_K[(indices - run_starts) % 2 == 0]
        return kept

    def _neighbour_pairs(
        self, left: int, right: int, first_F: Array, at_K: Array, after_K: Array
    ) -> tuple[_Places, dict[int, int]]:
        """Places and summed weights of pairs (before, left) and (right, after)."""
        before_F = self._previous_P[first_F]
        before_symbols, after_symbols = self._symbols_P[before_F], self._symbols_P[after_K]
        has_before_F, has_after_K = before_symbols >= 0, after_symbols >= 0
        left_keys = _pair_keys(before_symbols[has_before_F], left)
        keys = np.concatenate([left_keys, _pair_keys(right, after_symbols[has_after_K])])
        positions = np.concatenate([before_F[has_before_F], at_K[has_after_K]])
        weights = self._weights_P[np.concatenate([first_F[has_before_F], at_K[has_after_K]])]
        return _group(keys, positions, weights)

    def _intern(self, piece: str) -> int:
        """The piece's id; two different pairs may make the same piece."""
        index = self._ids.setdefault(piece, len(self.pieces))
        if index == len(self.pieces):
            self.pieces.append(piece)
        return index

    def _strings(self, key: int) -> tuple[str, str]:
        return self.pieces[key >> 32], self.pieces[key & 0xFFFFFFFF]


def _pair_keys(left: Array | int, right: Array | int) -> Array:
    return np.asarray(left, np.int64) << 32 | np.asarray(right, np.int64)


def _group(keys: Array, positions: Array, weights: Array) -> tuple[_Places, dict[int, int]]:
    """Positions sorted by their pairs, and each pair's summed weight."""
    if not len(keys):
        return _Places(keys, np.zeros(1, np.int32), positions), {}
    order = np.argsort(keys, kind="stable")
    sorted_keys = keys[order]
    starts = np.concatenate([[0], np.flatnonzero(sorted_keys[1:] != sorted_keys[:-1]) + 1])
    distinct, sums = sorted_keys[starts], np.add.reduceat(weights[order], starts)
    places = _Places(distinct, np.append(starts, len(keys)).astype(np.int32), positions[order])
    return places, dict(zip(distinct.tolist(), sums.tolist(), strict=True))
