"""How far a search is: a bar over the steps of all runs, or a line every ten seconds in a log."""

import time
from collections.abc import Callable

from trainer.watch.terminal import LOG_SECONDS, Bar, format_seconds


class SearchProgress(Bar):
    """The bar on rank 0's terminal; where standard error is none, lines."""

    def __init__(
        self,
        num_steps: int,
        num_runs: int,
        shown: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(num_steps, 0, shown)
        self._num_steps, self._num_runs, self._clock = num_steps, num_runs, clock
        self._first_step = self._next_line = clock()
        self._step, self._run = 0, ""
        self._run_number = 0

    def begin(self, name: str) -> None:
        """The next run."""
        self._run_number += 1
        self._run = f"run {self._run_number}/{self._num_runs} {name}"
        self.bar.set_description_str(self._run)

    def advance(self, loss: float) -> None:
        """One more step; the first one, in which libraries load, counts for no speed."""
        self._step += 1
        self.bar.set_postfix_str(f"loss {loss:.3f}", refresh=False)
        self.bar.update()
        now = self._clock()
        if self._step == 1:
            self._first_step, self._next_line = now, now + LOG_SECONDS
        elif not self.is_terminal and now >= self._next_line:
            self._next_line = now + LOG_SECONDS
            seconds = (now - self._first_step) / (self._step - 1)
            left = format_seconds(seconds * (self._num_steps - self._step))
            self.say(
                f"{self._run}: step {self._step:,}/{self._num_steps:,} of all runs, "
                f"loss {loss:.3f}, ETA {left}"
            )
