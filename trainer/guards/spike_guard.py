"""Decides which gradients may update the weights, and when a run must go back to a checkpoint.

A gradient is refused if its norm is not finite, or far above the median of earlier norms. All ranks
see the same norms, so they decide alike. The state is saved in checkpoints, so a continued run
decides like one that was never interrupted.
"""

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Any

from trainer.settings import SafetySettings

FEWEST_NORMS = 16
"""The number of norms that must be known before a finite norm can count as a spike."""
MOST_NORMS = 64
"""The number of newest norms of which the median is taken."""
MOST_SKIPPED = 5
"""The number of refused steps in a row that sends the run back to the checkpoint before them."""
MOST_ROLLBACKS = 3
"""The number of times that the run may go back; the next time it stops with an error."""


@dataclass(frozen=True)
class Streak:
    """Steps in a row whose gradients were refused, with the stream positions of their instances.

    Attributes:
        length: Number of steps.
        first_step: Number of the first of these steps, over the whole run.
        phase: Index of the phase of these steps.
        start: Position in the stream of the first instance of these steps.
        stop: One past the position of the last instance of these steps.
    """

    length: int
    first_step: int
    phase: int
    start: int
    stop: int


class SpikeGuard:
    """Judges the gradient of every step by its norm.

    Attributes:
        streak: The steps in a row up to the last one whose gradients were refused; None if the
            gradient of the last step was taken.
        num_skipped: Number of steps refused in the whole run.
        num_rollbacks: How often the run has gone back to a checkpoint.
        left_out: Ranges of positions that the run leaves out because it has gone back, each as
            (index of the phase, first position, one past the last position).
    """

    def __init__(self, settings: SafetySettings, state: Mapping[str, Any]) -> None:
        """Continues from a saved state.

        Args:
            settings: The settings of the run's guards.
            state: The value of `to_dict` in a checkpoint; empty at the beginning of a run.
        """
        self._settings = settings
        self._norms: deque[float] = deque(state.get("norms", ()), maxlen=MOST_NORMS)
        self.streak = Streak(**state["streak"]) if state.get("streak") else None
        self.num_skipped: int = state.get("num_skipped", 0)
        self.num_rollbacks: int = state.get("num_rollbacks", 0)
        self.left_out = [(phase, start, stop) for phase, start, stop in state.get("left_out", ())]

    @property
    def limit(self) -> float:
        """The bound that a gradient's norm must be below for the gradient to be taken.

        It is `spike_factor` times the median of the newest norms. It is infinite, so that every
        finite norm is below it, if `spike_factor` is 0 or too few norms are known.
        """
        if not self._settings.spike_factor or len(self._norms) < FEWEST_NORMS:
            return math.inf
        return float(self._settings.spike_factor * median(self._norms))

    @property
    def has_enough(self) -> bool:
        """Whether so many steps in a row were refused that the run must go back."""
        return self.streak is not None and self.streak.length >= MOST_SKIPPED

    def note(self, norm: float, step: int, phase: int, positions: tuple[int, int]) -> bool:
        """Records the gradient norm of a step, and returns whether the gradient is taken.

        Args:
            norm: The norm of the whole gradient before clipping.
            step: Number of the step, over the whole run.
            phase: Index of the phase of the step.
            positions: The position in the stream of the step's first instance, and one past that of
                its last instance.
        """
        if norm < self.limit:  # NaN is below no limit
            self._norms.append(norm)
            self.streak = None
            return True
        self.num_skipped += 1
        if self.streak is None or self.streak.phase != phase:
            self.streak = Streak(0, step, phase, *positions)
        self.streak = replace(self.streak, length=self.streak.length + 1, stop=positions[1])
        return False

    def went_back(self, then: "SpikeGuard") -> "SpikeGuard":
        """Returns the guard with which the run continues after going back to a checkpoint.

        Call it on the guard whose `streak` makes the run go back. The result has the norms of the
        checkpoint and the counts of this guard, with one rollback more. It also leaves out the
        positions of the steps in `streak`.

        Args:
            then: The guard as the checkpoint saved it. It is changed in place and returned.
        """
        assert self.streak is not None, "there is a reason to go back"
        then.left_out = [*self.left_out, (self.streak.phase, self.streak.start, self.streak.stop)]
        then.num_rollbacks = self.num_rollbacks + 1
        then.num_skipped = self.num_skipped
        return then

    def skipped(self, *phases: int) -> list[tuple[int, int]]:
        """Returns the ranges of positions that the run leaves out of some phases.

        Args:
            phases: Indices of the phases.

        Returns:
            For each range its first position in the stream, and one past the last.
        """
        return [(start, stop) for index, start, stop in self.left_out if index in phases]

    def to_dict(self) -> dict[str, Any]:
        """Returns the state of the guard as values for the JSON of a checkpoint."""
        return {
            "norms": list(self._norms),
            "streak": asdict(self.streak) if self.streak else None,
            "num_skipped": self.num_skipped,
            "num_rollbacks": self.num_rollbacks,
            "left_out": [list(entry) for entry in self.left_out],
        }
