"""Shows progress on rank 0: a bar on a terminal, or lines in a log."""

import sys
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from tqdm import tqdm

from pipeline.storage.terminal import say

TERMINAL_SECONDS = 60.0
"""Seconds between two lines of progress on a terminal, which also has a bar."""

LOG_SECONDS = 10.0
"""Seconds between two lines of progress in a log."""


class Progress:
    """Shows the progress of a run.

    On a terminal, rank 0 shows a bar with lines above it. In a log it writes only the lines. Other
    ranks show nothing.
    """

    def __init__(
        self,
        num_steps: int | None,
        step: int,
        *,
        shown: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        is_terminal = sys.stderr.isatty()
        self.bar = tqdm(
            total=num_steps, initial=step, unit="step", dynamic_ncols=True, mininterval=0.5,
            disable=not (shown and is_terminal),
        )  # fmt: skip
        self._shown = shown
        self._num_steps = num_steps
        self._clock = clock
        self._pause = TERMINAL_SECONDS if is_terminal else LOG_SECONDS
        self._next_line = 0.0

    def say(self, text: str) -> None:
        """Prints a line above the bar, on rank 0 only."""
        if self._shown:
            say(text)

    def advance(self, row: Mapping[str, Any]) -> None:
        """Counts one more step, and prints a line about it from time to time.

        Args:
            row: The row of the step in metrics.jsonl.
        """
        self.bar.set_postfix_str(f"loss {row['loss']:.3f} {_format_speed(row)}", refresh=False)
        self.bar.update()
        if self._clock() >= self._next_line or row["step"] == self._num_steps:
            self._next_line = self._clock() + self._pause
            self.say(f"{datetime.now(UTC):%H:%M:%S}Z {format_step(row, self._num_steps)}")

    def close(self) -> None:
        """Ends the bar, which stays on the terminal."""
        self.bar.close()


class StepCount:
    """Shows how many steps of several runs are done: by a bar on a terminal, or lines in a log."""

    def __init__(
        self, num_steps: int, *, shown: bool, clock: Callable[[], float] = time.monotonic
    ) -> None:
        is_terminal = sys.stderr.isatty()
        self._bar = tqdm(total=num_steps, unit="step", disable=not (shown and is_terminal))
        self._is_log = shown and not is_terminal
        self._num_steps = num_steps
        self._clock = clock
        self._step = 0
        self._run = ""
        self._began = clock()
        self._next_line = self._began + LOG_SECONDS

    def begin_run(self, name: str) -> None:
        """Sets the name that is shown from now on, that of the run that makes the next steps."""
        self._run = name
        self._bar.set_description_str(name)

    def advance(self) -> None:
        """Counts one more step."""
        self._step += 1
        self._bar.update()
        now = self._clock()
        is_last = self._step == self._num_steps
        if self._is_log and (now >= self._next_line or is_last):
            self._next_line = now + LOG_SECONDS
            left = (now - self._began) / self._step * (self._num_steps - self._step)
            count = f"step {self._step:,}/{self._num_steps:,} of all runs"
            say(f"{self._run}: {count}, ETA {format_seconds(left)}", is_aside=True)

    def close(self) -> None:
        """Ends the bar, which stays on the terminal."""
        self._bar.close()


def _format_speed(row: Mapping[str, Any]) -> str:
    """Returns the speed of a step as text."""
    return f"{row['tokens_per_second']:,.0f} tok/s, data wait {row['data_wait_share']:.0%}"


def format_step(row: Mapping[str, Any], num_steps: int | None) -> str:
    """Returns a row of metrics.jsonl as a line for a terminal.

    Args:
        row: The row of a step.
        num_steps: Steps of the whole run; None if they are not known.
    """
    total = "" if num_steps is None else f"/{num_steps:,}"
    losses = f"MLM {row['mlm_loss']:.3f} ({row['mlm_accuracy']:.0%})"
    if "nsp_loss" in row:
        losses += f", NSP {row['nsp_loss']:.3f} ({row['nsp_accuracy']:.0%})"
    mfu = "" if row["mfu"] is None else f", MFU {row['mfu']:.0%}"
    return (
        f"step {row['step']:,}{total}: loss {row['loss']:.3f}, {losses}; norm"
        f" {row['grad_norm']:.2g}, lr {row['learning_rate']:.2g}; {_format_speed(row)}{mfu}; ETA"
        f" {format_seconds(row['eta_seconds'])}"
    )


def format_seconds(seconds: float) -> str:
    """Returns a duration as text, such as 12 s, 3 min 20 s, 5 h 12 min, or 3 d 4 h."""
    whole = round(seconds)
    units = ((86_400, "d", 3_600, "h"), (3_600, "h", 60, "min"), (60, "min", 1, "s"))
    for size, unit, smaller, smaller_unit in units:
        if whole >= size:
            return f"{whole // size} {unit} {whole % size // smaller} {smaller_unit}"
    return f"{whole} s"
