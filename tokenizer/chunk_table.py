"""Where the ids of chunks lie that the encoder has met: looked up by numpy, thousands at a time.

A row of the table is one chunk of at most 16 bytes: these bytes, and where its ids lie in one buffer. So equality is
exact, and a chunk costs one visit to memory. It stands in the slot that a hash of it says, or in that slot's
neighbour; chunks that find both taken, and longer ones, are looked up in a dict. C chunks; S slots.
"""

from collections.abc import Callable, Sequence
from itertools import filterfalse

import numpy as np
from numpy.typing import NDArray

MAX_CHUNKS = 1 << 18
MAX_BYTES = 1 << 25
"""With more chunks, or bytes of them and their ids, all is forgotten: new ones never cease, common ones are back."""

PADDING = 16
"""Bytes that the text goes on for after its last chunk."""

_SLOT_BITS = 18
_ROW = np.dtype([("head", "<u8"), ("tail", "<u8"), ("start", "<i8"), ("count", "<i8")])
_WORD_BYTES = 8
_MAX_ROW_BYTES = 2 * _WORD_BYTES
_KEPT_BITS = np.array([(1 << 8 * n) - 1 for n in range(_WORD_BYTES + 1)], np.uint64)
_HEAD_BITS = _KEPT_BITS[np.minimum(np.arange(_MAX_ROW_BYTES + 1), _WORD_BYTES)]
_TAIL_BITS = _KEPT_BITS[np.clip(np.arange(_MAX_ROW_BYTES + 1) - _WORD_BYTES, 0, _WORD_BYTES)]
_HEAD_FACTOR, _TAIL_FACTOR = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9)
_COUNT_BITS = 32

Integers = NDArray[np.int64]
Rows = NDArray[np.void]


class ChunkTable:
    """Ids of chunks; `match` is asked for those of new ones, each as bytes."""

    _table: Rows
    _places: dict[bytes, int]
    _ids: NDArray[np.unsignedinteger]
    _num_ids: int
    _num_bytes: int

    def __init__(self, match: Callable[[Sequence[bytes]], list[bytes]], id_dtype: np.dtype[np.unsignedinteger]) -> None:
        self._match = match
        self._id_dtype = id_dtype
        self._clear()

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, chunk: bytes) -> bool:
        return chunk in self._places

    def look_up(
        self, text: bytes, starts: Integers, stops: Integers
    ) -> tuple[NDArray[np.unsignedinteger], Integers, Integers]:
        """A buffer of ids, and where in it those of each chunk start and how many they are.

        Args:
            text: UTF-8, going on for PADDING bytes after the last chunk.
            starts: [C] first byte of each chunk; no chunk holds a NUL.
            stops: [C] the byte after each.
        """
        if len(self._places) > MAX_CHUNKS or self._num_bytes > MAX_BYTES:
            self._clear()
        lengths = stops - starts
        rows, slots = _make_rows(text, starts, lengths)
        found = self._table.take(slots)
        misses = np.flatnonzero(_differ(found, rows) | (lengths > _MAX_ROW_BYTES))
        if len(misses):
            found[misses] = self._find_elsewhere(text, starts[misses], lengths[misses], rows[misses], slots[misses])
        return self._ids, found["start"], found["count"]

    def _find_elsewhere(self, text: bytes, starts: Integers, lengths: Integers, rows: Rows, slots: Integers) -> Rows:
        """The whole rows of chunks that are not in their slots: from the neighbours, or from the dict."""
        neighbours = self._table.take(slots ^ 1)
        is_short = lengths <= _MAX_ROW_BYTES
        is_missing = _differ(neighbours, rows) | ~is_short
        neighbours[is_missing] = rows[is_missing]
        begin, end = starts[is_missing], (starts + lengths)[is_missing]
        places = np.array(self._find_places(text, begin.tolist(), end.tolist()), np.int64)
        neighbours["start"][is_missing] = places >> _COUNT_BITS
        neighbours["count"][is_missing] = places & ((1 << _COUNT_BITS) - 1)
        is_new = is_missing & is_short
        self._insert(neighbours[is_new], slots[is_new])
        return neighbours

    def _find_places(self, text: bytes, starts: Sequence[int], stops: Sequence[int]) -> list[int]:
        """Of each chunk: where its ids start and, in the lower half, how many they are."""
        chunks = [text[start:stop] for start, stop in zip(starts, stops, strict=True)]
        new = list(filterfalse(self._places.__contains__, dict.fromkeys(chunks)))
        if new:
            ids = self._match(new)
            counts = np.fromiter(map(len, ids), np.int64, len(ids)) // self._ids.itemsize
            places = (self._append(b"".join(ids)) + np.cumsum(counts) - counts) << _COUNT_BITS | counts
            self._places.update(zip(new, places.tolist(), strict=True))
            self._num_bytes += sum(map(len, new))
        return list(map(self._places.__getitem__, chunks))

    def _append(self, data: bytes) -> int:
        """Adds ids to the buffer; the number of those before."""
        start, added = self._num_ids, np.frombuffer(data, self._ids.dtype)
        self._num_ids += len(added)
        if self._num_ids > len(self._ids):
            self._ids = np.concatenate([self._ids[:start], np.empty(self._num_ids, self._ids.dtype)])
        self._ids[start : self._num_ids] = added
        self._num_bytes += len(data)
        return start

    def _insert(self, rows: Rows, slots: Integers) -> None:
        """Puts rows where their slot, or its neighbour, is free."""
        slots = np.where(self._table["head"][slots] == 0, slots, slots ^ 1)
        is_free = self._table["head"][slots] == 0
        self._table[slots[is_free]] = rows[is_free]

    def _clear(self) -> None:
        """Forgets everything."""
        self._table = np.zeros(1 << _SLOT_BITS, _ROW)
        self._places = {}
        self._ids = np.empty(1 << 16, self._id_dtype)
        self._num_ids = self._num_bytes = 0


def _make_rows(text: bytes, starts: Integers, lengths: Integers) -> tuple[Rows, Integers]:
    """[C] rows without places, and [C] slots. Longer chunks than a row holds get one too, which means nothing."""
    words = np.ndarray((len(text) - _WORD_BYTES + 1,), "<u8", text, strides=(1,)).copy()  # from every byte on
    limited = np.minimum(lengths, _MAX_ROW_BYTES)
    heads = words.take(starts) & _HEAD_BITS.take(limited)
    tails = words.take(starts + _WORD_BYTES) & _TAIL_BITS.take(limited)
    hashes = heads * _HEAD_FACTOR ^ tails * _TAIL_FACTOR
    hashes ^= hashes >> np.uint64(29)
    hashes *= _HEAD_FACTOR
    rows = np.empty(len(starts), _ROW)
    rows["head"], rows["tail"] = heads, tails
    return rows, (hashes >> np.uint64(64 - _SLOT_BITS)).astype(np.int64)


def _differ(left: Rows, right: Rows) -> NDArray[np.bool_]:
    is_other: NDArray[np.bool_] = (left["head"] != right["head"]) | (left["tail"] != right["tail"])
    return is_other
