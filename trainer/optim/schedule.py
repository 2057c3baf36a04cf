"""Learning rate as a pure function of the step: nothing to save, nothing to restore."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Schedule:
    """Linear warm-up, then polynomial decay (BERT paper, appendix A.2: linear).

    With power 1 and end_lr 0 it is `get_linear_schedule_with_warmup` of Hugging Face.
    google-research/bert and NVIDIA draw the decay from step 0 instead of from the end of the
    warm-up (`decay_start` 0): 1 % lower at step 10,000 of 1 M in Google's recipe, 15 % lower right
    after the warm-up in NVIDIA's first phase. `end_lr` is reached one step after the last update; a
    power of 0 keeps peak_lr.
    """

    steps: int
    warmup_steps: int
    peak_lr: float
    end_lr: float = 0.0
    power: float = 1.0
    decay_start: int | None = None

    def learning_rate(self, step: float) -> float:
        """The learning rate of the update that turns step `step` into `step + 1`: 0 for the first.

        Between whole steps it is drawn on: a run by time asks for (share of its time) * steps.
        """
        if step < self.warmup_steps:
            return self.peak_lr * step / self.warmup_steps
        start = self.warmup_steps if self.decay_start is None else self.decay_start
        progress = (step - start) / max(1, self.steps - start)
        remaining: float = (1.0 - min(1.0, progress)) ** self.power
        return self.end_lr + (self.peak_lr - self.end_lr) * remaining
