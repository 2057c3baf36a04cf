"""`--profile steps=20..25`: what the time of a few steps went into, on rank 0."""

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tqdm import tqdm

from trainer.process.ranks import Ranks

ROWS = 40


class Profile:
    """Records the steps asked for. A step before them warms the profiler up."""

    def __init__(self, steps: str | None, folder: Path, ranks: Ranks) -> None:
        """Nothing is recorded before the first step, and nothing at all where `steps` is None.

        Args:
            steps: Such as steps=20..25, numbered as in metrics.jsonl, both ends included.
            folder: Folder of the trace and the table.
            ranks: Rank 0 records.

        Raises:
            ValueError: `steps` says something else.
        """
        self._first, self._last = parse_steps(steps) if steps else (0, -1)
        self._folder, self._ranks = folder, ranks
        self._profiler: Any = None

    @contextlib.contextmanager
    def step(self, step: int) -> Iterator[None]:
        """Around the work of one step."""
        if (
            self._profiler is None
            and self._ranks.rank == 0
            and max(1, self._first - 1) <= step <= self._last
        ):
            self._start(step)
        yield
        if self._profiler is not None:
            self._profiler.step()
            if step == self._last:
                self._profiler.stop()
                self._profiler = None

    def close(self) -> None:
        """Leaves what is unfinished: a run that ends in the middle of the steps has no profile."""
        if self._profiler is not None:
            tqdm.write(f"the run ended before step {self._last}, there is no profile")
            self._profiler.stop()
            self._profiler = None

    def _start(self, step: int) -> None:
        from torch.profiler import ProfilerActivity, profile, schedule

        warmup = max(0, self._first - step)
        activities = [ProfilerActivity.CPU]
        if self._ranks.device.type == "cuda":
            activities.append(ProfilerActivity.CUDA)
        plan = schedule(wait=0, warmup=warmup, active=self._last - step - warmup + 1, repeat=1)
        self._profiler = profile(
            activities=activities, schedule=plan, record_shapes=True, on_trace_ready=self._write
        )
        self._profiler.start()

    def _write(self, profiler: Any) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        place = self._folder / f"steps-{self._first}-{self._last}"
        profiler.export_chrome_trace(f"{place}.trace.json.gz")
        by = (
            "self_device_time_total" if self._ranks.device.type == "cuda" else "self_cpu_time_total"
        )
        table = profiler.key_averages().table(sort_by=by, row_limit=ROWS, max_name_column_width=60)
        Path(f"{place}.txt").write_text(table, encoding="utf-8")
        tqdm.write(
            f"profile of steps {self._first} to {self._last}: {place}.txt, and {place}.trace.json.gz for Perfetto"
        )


def parse_steps(text: str) -> tuple[int, int]:
    """The first and last step of `steps=20..25`.

    Raises:
        ValueError: It is not of this form, or names no step.
    """
    match = re.fullmatch(r"steps=(\d+)\.\.(\d+)", text)
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise ValueError(
            f"profile is {text!r}; give steps=FIRST..LAST, such as steps=20..25, from step 1 on"
        )
    return int(match[1]), int(match[2])
