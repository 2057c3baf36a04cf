"""Makes byte-pair merges over counted words, exactly and in one definite order.

1. All words are laid end to end in one array of symbols, which are ids of pieces, with a boundary
   around each word. Links to the next and the previous symbol let a merge remove symbols without
   moving any.
2. A dict has the count of every pair of neighbouring symbols. A heap has only the pairs whose count
   reaches a threshold. When the heap is empty, the threshold is lowered and the heap is rebuilt.
3. Counts in the heap are not updated when a pair becomes less common. So the count of an entry that
   is taken from the heap is compared with the dict. If it is outdated, the entry is put back with
   the count of the dict, or dropped if this count is below the threshold.
4. The commonest pair is merged wherever it occurs. At each occurrence, the pairs that its two
   symbols made with their neighbours disappear, and the pairs of the new symbol with these
   neighbours appear. The counts of all these pairs change by the weight of the word, which is how
   often the word occurs in the text.
5. The positions at which the new pairs occur are kept, in one `_Places` for each merge. Later
   merges may change the symbols at these positions. So when a pair is merged, each of its positions
   is checked first.

Shapes: P positions (symbols and boundaries), K occurrences of one pair, F of them that do not
directly follow another occurrence.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenizer.vocab import CONTINUATION

BOUNDARY = -1
"""The symbol before, between and after words."""

_GONE = -2  # a position whose symbol was merged into the one before it
_HOT_SHARE = 4
"""The heap takes pairs with at least a quarter of the commonest pair's count.

Most pairs never become so common.
"""


Array = NDArray[Any]


@dataclass(frozen=True)
class _Places:
    """The positions at which several pairs occur; the position of a pair is its left symbol's.

    Attributes:
        keys: The distinct pairs as numbers (`_pair_keys`), ascending.
        starts: For each pair, the index in `positions` of its first position; and, as one more
            entry at the end, the length of `positions`.
        positions: The positions, grouped by pair: `positions[starts[i]:starts[i + 1]]` are those
            of the pair `keys[i]`.
    """

    keys: Array
    starts: Array
    positions: Array

    def of(self, key: int) -> Array:
        """Returns the positions of a pair; an empty array if it is not one of `keys`."""
        index = int(np.searchsorted(self.keys, key))
        if index == len(self.keys) or self.keys[index] != key:
            return self.positions[:0]
        return self.positions[self.starts[index] : self.starts[index + 1]]


class PairMerger:
    """Merges pairs of neighbouring symbols in words, and keeps the counts of all pairs.

    If several pairs are equally common, the first one by code points is merged.

    Attributes:
        pieces: The pieces by id. Merging appends new ones.
    """

    def __init__(self, symbols_P: Array, weights_P: Array, pieces: Sequence[str]) -> None:
        """Counts the pairs.

        Args:
            symbols_P: int32 ids of pieces, with BOUNDARY first, last and between words. Merging
                changes the array.
            weights_P: int64, how often the word of each position occurs.
            pieces: The pieces that words are cut into.
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
        """Merges pairs until there are `num_pieces` pieces, or every word is one piece."""
        while len(self.pieces) < num_pieces:
            pair = self._pop_commonest()
            if pair is None:
                break
            self._merge(*pair)

    def _pop_commonest(self) -> tuple[int, int] | None:
        """Takes the commonest pair from the heap; None if no pair is left.

        Returns:
            The ids of the left and of the right piece.
        """
        while self._heap or self._rebuild_heap():
            negative_count, left, right = heapq.heappop(self._heap)
            left_id = self._ids[left]
            right_id = self._ids[right]
            count = self._pair_counts.get(left_id << 32 | right_id, 0)
            if count == -negative_count:
                return left_id, right_id
            if count >= self._threshold:
                heapq.heappush(self._heap, (-count, left, right))
        return None

    def _rebuild_heap(self) -> bool:
        """Fills the empty heap with the commonest pairs; returns whether there are pairs."""
        if not self._pair_counts:
            return False
        self._threshold = max(1, max(self._pair_counts.values()) // _HOT_SHARE)
        common = (pair for pair in self._pair_counts.items() if pair[1] >= self._threshold)
        self._heap = [(-count, *self._strings(key)) for key, count in common]
        heapq.heapify(self._heap)
        return True

    def _merge(self, left: int, right: int) -> None:
        """Merges a pair wherever it occurs, and updates the counts of all pairs.

        Args:
            left: The id of the left piece.
            right: The id of the right piece.
        """
        at_K = self._find(left, right)
        second_K = self._next_P[at_K]
        after_K = self._next_P[second_K]
        self._is_merging_P[at_K] = True
        self._is_merging_P[second_K] = True
        # Two occurrences that touch have one pair between them, not two. It is counted as the pair
        # to the right of the first occurrence.
        is_first_K = ~self._is_merging_P[self._previous_P[at_K]]
        self._is_merging_P[at_K] = False
        self._is_merging_P[second_K] = False
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
            count = self._pair_counts.get(key, 0) + weight
            self._pair_counts[key] = count
            if count >= self._threshold:
                heapq.heappush(self._heap, (-count, *self._strings(key)))

    def _find(self, left: int, right: int) -> Array:
        """Finds where a pair occurs now. If two occurrences overlap, only the first is returned.

        Args:
            left: The id of the left piece.
            right: The id of the right piece.

        Returns:
            [K] the positions of its left symbols.
        """
        key = left << 32 | right
        all_places = [self._first_places, *self._places.get(left, ())]
        if right != left:
            all_places += self._places.get(right, ())
        at_K = np.concatenate([places.of(key) for places in all_places])
        next_K = self._next_P[at_K]
        at_K = at_K[(self._symbols_P[at_K] == left) & (self._symbols_P[next_K] == right)]
        return self._drop_overlaps(np.sort(at_K)) if left == right else at_K

    def _drop_overlaps(self, at_K: Array) -> Array:
        """Drops positions so that no two pairs overlap.

        For example, `a a a` has two pairs `a a`, of which only the first can be merged. If several
        positions directly follow one another, the first, third, fifth and so on are kept.

        Args:
            at_K: Ascending positions of a pair of equal symbols.
        """
        follows = np.concatenate([[False], self._next_P[at_K[:-1]] == at_K[1:]])
        indices = np.arange(len(at_K))
        # For each position the index of the first one of those that directly follow each other.
        sequence_starts = np.maximum.accumulate(np.where(follows, 0, indices))
        separate: Array = at_K[(indices - sequence_starts) % 2 == 0]
        return separate

    def _neighbour_pairs(
        self, left: int, right: int, first_F: Array, at_K: Array, after_K: Array
    ) -> tuple[_Places, dict[int, int]]:
        """Finds the pairs that the occurrences of a merged pair make with their neighbours.

        `_merge` calls this twice. Before the merge it finds the pairs that disappear: (symbol
        before, left) and (right, symbol after). After the merge it finds the new pairs: both `left`
        and `right` are then the merged symbol. An occurrence at the beginning of a word makes no
        pair with a symbol before it, and one at the end makes none with a symbol after it.

        If an occurrence directly follows another, the pair between the two is counted only once, as
        the pair (right, symbol after) of the first.

        Args:
            left: The symbol that makes a pair with the symbol before.
            right: The symbol that makes a pair with the symbol after.
            first_F: Positions of the occurrences that do not directly follow another one.
            at_K: Positions of all occurrences.
            after_K: For each occurrence, the position of the symbol or boundary after it.

        Returns:
            The positions of the neighbouring pairs, and the summed weight of each pair.
        """
        before_F = self._previous_P[first_F]
        before_symbols_F = self._symbols_P[before_F]
        after_symbols_K = self._symbols_P[after_K]
        has_before_F = before_symbols_F >= 0
        has_after_K = after_symbols_K >= 0
        left_keys = _pair_keys(before_symbols_F[has_before_F], left)
        right_keys = _pair_keys(right, after_symbols_K[has_after_K])
        keys = np.concatenate([left_keys, right_keys])
        positions = np.concatenate([before_F[has_before_F], at_K[has_after_K]])
        weights = self._weights_P[np.concatenate([first_F[has_before_F], at_K[has_after_K]])]
        return _group(keys, positions, weights)

    def _intern(self, piece: str) -> int:
        """Returns the id of a piece, which is appended to `pieces` if it is not there.

        It may be there, because different pairs can make the same piece.
        """
        index = self._ids.setdefault(piece, len(self.pieces))
        if index == len(self.pieces):
            self.pieces.append(piece)
        return index

    def _strings(self, key: int) -> tuple[str, str]:
        """Returns the left and the right piece of a pair."""
        return self.pieces[key >> 32], self.pieces[key & 0xFFFFFFFF]


def _pair_keys(left: Array | int, right: Array | int) -> Array:
    """Returns one int64 for each pair: the left id in the high half, the right id in the low."""
    return np.asarray(left, np.int64) << 32 | np.asarray(right, np.int64)


def _group(keys: Array, positions: Array, weights: Array) -> tuple[_Places, dict[int, int]]:
    """Groups positions by their pairs, and sums the weights of each pair.

    Args:
        keys: The pair at each position.
        positions: The positions.
        weights: How often the word at each position occurs.

    Returns:
        The positions grouped by pair, and the summed weight of each pair.
    """
    if not len(keys):
        return _Places(keys, np.zeros(1, np.int32), positions), {}
    order = np.argsort(keys, kind="stable")
    sorted_keys = keys[order]
    starts = np.concatenate([[0], np.flatnonzero(sorted_keys[1:] != sorted_keys[:-1]) + 1])
    distinct = sorted_keys[starts]
    sums = np.add.reduceat(weights[order], starts)
    places = _Places(distinct, np.append(starts, len(keys)).astype(np.int32), positions[order])
    return places, dict(zip(distinct.tolist(), sums.tolist(), strict=True))
