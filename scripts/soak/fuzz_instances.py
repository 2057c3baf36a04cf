"""Calls the compiled loops of pairs and masks with arrays that fit and arrays that do not, under gcc's sanitizers.

    python -m scripts.soak.fuzz_instances --seconds 60 --output
    scripts/soak/results/DATE-fuzz-instances.json

Random arrays that fit each other are changed now and then: cut, lengthened, single values replaced
by extremes. A call must return or raise a ValueError; the first access outside an array, overflow
or misaligned read ends the run.
"""

import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from scripts.soak.sanitized import run_sanitized

CHANGED_SHARE = 0.06
Array = npt.NDArray[Any]


class Draws:
    """Arguments of the loops, from one seed."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)

    def pairs(self) -> tuple[Any, ...]:
        """Of make_pairs."""
        num_sentences = self.below(2, 60)
        num_documents = self.below(2, min(num_sentences, 9) + 1)
        longest = self._rng.choice([3, 50, 900])
        bounds = _offsets(self._rng.integers(1, longest, num_sentences))
        inner = self._rng.choice(np.arange(1, num_sentences), num_documents - 1, replace=False)
        firsts = np.array([0, *sorted(inner), num_sentences], np.int64)
        rows = self._rng.integers(0, num_documents, self.below(0, 12))
        digits = self.below(1, 7)
        seeds = self._rng.integers(0, 2**32, len(rows) * digits, np.uint32)
        room = int(np.diff(firsts)[rows].sum()) + self.below(0, 2)
        columns: list[Array] = [
            np.empty(room, dtype) for dtype in (*[np.int64] * 4, np.int32, np.int32, np.bool_)
        ]
        lengths = self._number([2, 3, 5, 20, 125, 509, 65_535], [-1, 0, 1, 65_536])
        chance, balanced = (
            self._rng.choice([0.0, 0.1, 1.0, np.nan]),
            self._rng.choice([-1, 0, 5, 10**6]),
        )
        changed = self._change_some(bounds, firsts, rows, seeds)
        digits = self._number([digits], [-1, 0, 9])
        return (
            *changed,
            digits,
            lengths,
            float(chance),
            int(balanced),
            *self._change_some(*columns),
        )

    def gather(self) -> tuple[Any, ...]:
        """Of gather_pairs."""
        dtype = (np.uint16, np.uint32)[self.below(0, 2)]
        tokens = self._rng.integers(0, 9, self.below(0, 300)).astype(dtype)
        spans = np.sort(self._rng.integers(0, len(tokens) + 1, (self.below(0, 20), 2, 2)), axis=2)
        offsets = _offsets(np.diff(spans, axis=2).sum(axis=(1, 2)) + 3)
        columns = [
            self._change(np.ascontiguousarray(spans[:, a, b])) for a in (0, 1) for b in (0, 1)
        ]
        size, out = self._number([tokens.itemsize], [-2, 0, 1, 3, 8]), np.empty(offsets[-1], dtype)
        return self._change(tokens), size, *columns, 1, 2, self._change(offsets), self._change(out)

    def masks(self) -> tuple[Any, ...]:
        """Of mask_instances."""
        dtype, vocab_size = (np.uint16, np.uint32)[self.below(0, 2)], self.below(1, 50)
        lengths = self._rng.integers(4, self._rng.choice([6, 140, 5000]), self.below(0, 40))
        if len(lengths) and self._rng.random() < 0.01:
            lengths[0] = 65_535
        offsets = _offsets(lengths)
        ids = self._rng.integers(0, vocab_size, offsets[-1]).astype(dtype)
        a_length = self._rng.integers(2, lengths).astype(np.uint16)
        counts = self._rng.integers(1, lengths - 2)
        grid_rows, whole_words = self.below(1, 12), self._rng.random() < 0.4
        num_bases = 2 if whole_words else -(-len(lengths) // grid_rows) + 1
        bases = self._rng.integers(0, 2**64, num_bases, np.uint64)
        continues = self._rng.integers(0, 2, vocab_size if whole_words else 0).astype(np.bool_)
        total = int(counts.sum())
        outs = (
            np.empty(len(offsets), np.int64),
            np.empty(total + 1, np.uint16),
            np.empty(total, dtype),
        )
        size, rows = (
            self._number([ids.itemsize], [-2, 0, 1, 3, 8]),
            self._number([grid_rows], [-1, 0, 7]),
        )
        inputs, others = (
            self._change_some(offsets, a_length, counts),
            self._change_some(bases, continues),
        )
        return (
            self._change(ids),
            size,
            *inputs,
            rows,
            *others,
            3,
            vocab_size,
            *self._change_some(*outs),
        )

    def below(self, low: int, high: int) -> int:
        """An integer in [low, high)."""
        return int(self._rng.integers(low, high))

    def _number(self, sound: list[int], unsound: list[int]) -> int:
        return int(self._rng.choice(unsound if self._rng.random() < 0.03 else sound))

    def _change_some(self, *arrays: Array) -> list[Array]:
        return [self._change(values) for values in arrays]

    def _change(self, values: Array) -> Array:
        if self._rng.random() >= CHANGED_SHARE:
            return values
        kind = self.below(0, 4)
        if kind == 0:
            return values[:-1]
        if kind == 1 or not values.size or values.dtype.kind == "b":
            return np.concatenate([values, values[-1:]])
        values, place = values.copy(), self.below(0, len(values))
        limits = np.iinfo(values.dtype)
        extremes = np.array([limits.min, limits.max, limits.max // 2, 0, 1, 2, 3], values.dtype)
        with np.errstate(over="ignore"):
            near = values[place] + extremes[self.below(4, 7)]
        values[place] = self._rng.choice(extremes) if kind == 2 else near
        return values


def fuzz(modules: Mapping[str, Any], seconds: float, seed: int) -> dict[str, int]:
    """Calls, by loop and by whether the arrays were taken."""
    loops = modules["pipeline.instances._instances"]
    draws, calls = Draws(seed), Counter[str]()
    targets: list[tuple[Callable[[], tuple[Any, ...]], Any]] = [
        (draws.pairs, loops.make_pairs), (draws.gather, loops.gather_pairs), (draws.masks, loops.mask_instances)
    ]  # fmt: skip
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        draw, call = targets[draws.below(0, len(targets))]
        arguments = draw()
        try:
            call(*arguments)
            calls[f"{call.__name__} returned"] += 1
        except ValueError:
            calls[f"{call.__name__} refused"] += 1
    return dict(sorted(calls.items()))


def _offsets(lengths: Array) -> npt.NDArray[np.int64]:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])


if __name__ == "__main__":
    sys.exit(run_sanitized(__file__, __doc__ or "", ["pipeline.instances._instances"], fuzz))
