"""How far a grid of runs is: a bar with ETA over all their steps, or lines in a log."""

import sys
import time
from collections.abc import Callable
from types import TracebackType

from tqdm import tqdm

from trainer.watch.terminal import LOG_SECONDS, format_seconds


class GridProgress:
    """The bar on rank 0's terminal; where standard error is none, a line every ten seconds."""

    def __init__(self, num_steps: int, num_runs: int, shown: bool, clock: Callable[[], float] = time.monotonic) -> None:
        is_terminal = sys.stderr.isatty()
        self._bar = tqdm(
            total=num_steps, unit="step", dynamic_ncols=True, mininterval=0.5, disable=not (shown and is_terminal)
        )
        self._writes_lines = shown and not is_terminal
        self._shown, self._num_steps, self._num_runs, self._clock = shown, num_steps, num_runs, clock
        self._started = clock()
        self._next_line = self._started + LOG_SECONDS
        self._step, self._run = 0, 0
        self._name = ""

    def __enter__(self) -> "GridProgress":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.close()

    def begin(self, name: str) -> None:
        """The next run."""
        self._run, self._name = self._run + 1, name
        self._bar.set_description_str(f"run {self._run}/{self._num_runs} {name}")

    def advance(self, loss: float) -> None:
        """One more step."""
        self._step += 1
        self._bar.set_postfix_str(f"loss {loss:.3f}", refresh=False)
        self._bar.update()
        now = self._clock()
        if self._writes_lines and now >= self._next_line:
            self._next_line = now + LOG_SECONDS
            left = (now - self._started) / self._step * (self._num_steps - self._step)
            self.say(
                f"run {self._run}/{self._num_runs} {self._name}: step {self._step:,}/{self._num_steps:,} of all runs, "
                f"loss {loss:.3f}, ETA {format_seconds(left)}"
            )

    def say(self, text: str) -> None:
        """A line above the bar, from rank 0 only."""
        if self._shown:
            tqdm.write(text)
            sys.stdout.flush()
