"""When a phase begins, where its learning rate stands and when it ends: by steps or by time.

A run by time has its seconds in the checkpoint's position; those between the last checkpoint and an
accident are not counted. Ranks agree on the time as they agree on a step's counts.
"""

import dataclasses
import time
from dataclasses import dataclass, field

from trainer.optim.sharded import ShardedOptimizer
from trainer.pretrain.run import Position
from trainer.settings import Phase, PretrainSettings


@dataclass(frozen=True)
class PhaseClock:
    """One phase's clock: `budget_seconds` is None where its steps decide."""

    phase: Phase
    budget_seconds: float | None
    spent_seconds: float
    _began: float = field(default_factory=time.monotonic)

    @property
    def elapsed_seconds(self) -> float:
        """Seconds of the phase so far, validation and saving included; 0 where steps decide."""
        if self.budget_seconds is None:
            return 0.0
        return self.spent_seconds + time.monotonic() - self._began

    def learning_rate(self, step: int, elapsed_seconds: float) -> float:
        """The rate of the next step; by time, of the step that is as far as the time is."""
        if self.budget_seconds is None:
            return self.phase.schedule.learning_rate(step)
        share = min(1.0, elapsed_seconds / self.budget_seconds)
        return self.phase.schedule.learning_rate(share * self.phase.steps)

    def ends(self, steps_made: int, elapsed_seconds: float) -> bool:
        """Whether the step that began after so many seconds was the last."""
        if self.budget_seconds is None:
            return steps_made == self.phase.steps
        return elapsed_seconds >= self.budget_seconds


def seconds_left(
    settings: PretrainSettings, phase: int, elapsed_seconds: float
) -> dict[str, float]:
    """Columns of metrics.jsonl that a run by time has in place of an estimate."""
    phases = range(phase, len(settings.phases))
    left = sum(settings.budget_seconds(index) or 0.0 for index in phases) - elapsed_seconds
    if settings.budget_hours is None:
        return {}
    return {"phase_seconds": elapsed_seconds, "eta_seconds": max(0.0, left)}


def begin_phase(optimizer: ShardedOptimizer, phase: Phase) -> None:
    """Does with the optimizer's state what the phase asks for."""
    if phase.optimizer_state == "reset":
        optimizer.reset()
    elif phase.optimizer_state == "zero_step":
        optimizer.num_updates = 0


def finish_at_accuracy(
    position: Position, mlm_accuracy: float, settings: PretrainSettings
) -> Position:
    """The position behind the last phase once a measurement has reached the accuracy asked for."""
    target = settings.validation.stop_at_mlm_accuracy
    if target is None or mlm_accuracy < target:
        return position
    end = len(settings.phases)
    return dataclasses.replace(position, phase=end, phase_step=0, phase_seconds=0.0)
