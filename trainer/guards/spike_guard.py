"""Which gradients are taken: not those that are not finite, nor those far above the running median.

All ranks see the same norms, so they decide alike, and a continued run as an undisturbed one.
"""

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Any

from trainer.settings import SafetySettings

FEWEST_NORMS, MOST_NORMS = 16, 64
"""The fewest norms before any counts as a spike, and the most that the median looks back on."""
MOST_SKIPPED = 5
"""Steps in a row not taken that send the run back to the checkpoint before them."""
MOST_ROLLBACKS = 3
"""Times that the run may go back before it stops with an error."""


@dataclass(frozen=True)
class Streak:
    """Steps in a row whose gradient was not taken, with the stream positions of their instances."""

    length: int
    first_step: int
    phase: int
    start: int
    stop: int


class SpikeGuard:
    """Judges the norm of every step's gradient.

    `streak` are the steps just now not taken, `left_out` (phase, start, stop) of positions that no
    step takes since.
    """

    def __init__(self, settings: SafetySettings, state: Mapping[str, Any]) -> None:
        """Goes on from what `to_dict` returned; empty at the beginning of a run."""
        self._settings = settings
        self._norms: deque[float] = deque(state.get("norms", ()), maxlen=MOST_NORMS)
        self.streak = Streak(**state["streak"]) if state.get("streak") else None
        self.num_skipped: int = state.get("num_skipped", 0)
        self.num_rollbacks: int = state.get("num_rollbacks", 0)
        self.left_out = [(phase, start, stop) for phase, start, stop in state.get("left_out", ())]

    @property
    def limit(self) -> float:
        """Norms from here on are not taken."""
        if not self._settings.spike_factor or len(self._norms) < FEWEST_NORMS:
            return math.inf
        return float(self._settings.spike_factor * median(self._norms))

    @property
    def has_enough(self) -> bool:
        """Whether so many steps in a row were not taken that the run must go back."""
        return self.streak is not None and self.streak.length >= MOST_SKIPPED

    def note(self, norm: float, step: int, phase: int, positions: tuple[int, int]) -> bool:
        """Takes in a step's norm before clipping, and its positions; whether it was taken."""
        if norm < self.limit:  # false for NaN
            self._norms.append(norm)
            self.streak = None
            return True
        self.num_skipped += 1
        if self.streak is None or self.streak.phase != phase:
            self.streak = Streak(0, step, phase, *positions)
        self.streak = replace(self.streak, length=self.streak.length + 1, stop=positions[1])
        return False

    def went_back(self, then: "SpikeGuard") -> "SpikeGuard":
        """The guard back where it was `then`, with the streak's positions left out."""
        assert self.streak is not None, "there is a reason to go back"
        then.left_out = [*self.left_out, (self.streak.phase, self.streak.start, self.streak.stop)]
        then.num_rollbacks, then.num_skipped = self.num_rollbacks + 1, self.num_skipped
        return then

    def skipped(self, *phases: int) -> list[tuple[int, int]]:
        """Positions of the stream of these phases that no step takes, one after the other."""
        return [(start, stop) for index, start, stop in self.left_out if index in phases]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for a checkpoint."""
        return {
            "norms": list(self._norms),
            "streak": asdict(self.streak) if self.streak else None,
            "num_skipped": self.num_skipped,
            "num_rollbacks": self.num_rollbacks,
            "left_out": [list(each) for each in self.left_out],
        }
