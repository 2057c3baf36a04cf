"""How far a grid of runs is: a bar with ETA over all their steps, or lines in a log."""

import time
from collections.abc import Callable

from trainer.watch.terminal import LOG_SECONDS, Bar, format_seconds


class GridProgress(Bar):
    """The bar on rank 0's terminal; where standard error is none, a line every ten seconds."""

    def __init__(
        self,
        num_steps: int,
        num_runs: int,
        shown: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(num_steps, 0, shown)
        self._writes_lines = shown and not self.is_terminal
        self._num_steps, self._num_runs, self._clock = num_steps, num_runs, clock
        self._started = clock()
        self._next_line = self._started + LOG_SECONDS
        self._step, self._run = 0, 0
        self._name = ""

    def begin(self, name: str) -> None:
        """The next run."""
        self._run, self._name = self._run + 1, name
        self.bar.set_description_str(f"run {self._run}/{self._num_runs} {name}")

    def advance(self, loss: float) -> None:
        """One more step."""
        self._step += 1
        self.bar.set_postfix_str(f"loss {loss:.3f}", refresh=False)
        self.bar.update()
        now = self._clock()
        if self._writes_lines and now >= self._next_line:
            self._next_line = now + LOG_SECONDS
            left = (now - self._started) / self._step * (self._num_steps - self._step)
            self.say(
                f"run {self._run}/{self._num_runs} {self._name}: step {self._step:,}/{self._num_steps:,} of all runs, "
                f"loss {loss:.3f}, ETA {format_seconds(left)}"
            )
