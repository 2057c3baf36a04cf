"""Reads from a run's metrics.jsonl which steps were made, and where each began in its stream."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trainer.runs.run_folder import RunFolder
from trainer.stream.order.order import Array

# The columns with which a row begins. A run of a million steps has a gigabyte of rows, so they are
# not parsed whole.
_ROW = re.compile(rb'\{"step": (\d+), "split": "train", "phase": (\d+), "position": (\d+),')
_REMEDY = "restore the file, or remove the line"


@dataclass(frozen=True)
class MadeSteps:
    """The steps of a run, ascending; all arrays are int64 [S].

    Attributes:
        step: The number of each step over the whole run, from 1.
        phase: The index of its phase.
        position: The position in its stream of its first instance.
    """

    step: Array
    phase: Array
    position: Array

    def __len__(self) -> int:
        return len(self.step)

    def of_phases(self, phases: list[int]) -> "MadeSteps":
        """Returns the steps of some phases."""
        chosen = np.isin(self.phase, phases)
        return MadeSteps(self.step[chosen], self.phase[chosen], self.position[chosen])

    def find(self, step: int) -> int | None:
        """Returns the index of a step, or None if it was not made."""
        index = int(np.searchsorted(self.step, step))
        is_made = index < len(self.step) and int(self.step[index]) == step
        return index if is_made else None


@dataclass(frozen=True)
class Anomaly:
    """A step whose gradient was not used, as a row of anomalies.jsonl says it.

    Attributes:
        step: The number of the step.
        phase: The index of its phase.
        start: The position in the stream of its first instance.
        stop: One past the position of its last instance.
        in_a_row: How many steps in a row were not used, this one included.
        grad_norm: The norm of the gradient, as a number or in words, such as "nan".
        limit: The norm from which on a gradient is not used; None if any finite one is used.
    """

    step: int
    phase: int
    start: int
    stop: int
    in_a_row: int
    grad_norm: float | str
    limit: float | None


def read_made_steps(path: Path, where: str) -> MadeSteps:
    """Returns the steps that a metrics.jsonl has rows of; the last row of a step counts.

    Args:
        path: The file. If it does not exist, no step was made.
        where: What messages call the file.

    Raises:
        ValueError: A line is no row.
    """
    rows = np.array([*_step_rows(path, where)], np.int64).reshape(-1, 3)
    _, from_behind = np.unique(rows[::-1, 0], return_index=True)
    last_rows = rows[len(rows) - 1 - from_behind]
    return MadeSteps(*last_rows.T)


def read_anomalies(run: RunFolder, where: str) -> list[Anomaly]:
    """Returns the rows of anomalies.jsonl in their order; none if there is no such file.

    Args:
        run: The run.
        where: What messages call the file.

    Raises:
        ValueError: A line is no row.
    """
    return [
        _parse_anomaly(row, f"{where}, line {number}")
        for number, row in enumerate(_objects(run.anomalies, where), start=1)
    ]


def _step_rows(path: Path, where: str) -> Iterator[tuple[int, int, int]]:
    """Yields step, phase and position of each row about a step."""
    for number, line in enumerate(_whole_lines(path), start=1):
        match = _ROW.match(line)
        if match is not None:
            yield int(match[1]), int(match[2]), int(match[3])
            continue
        row = _parse(line, f"{where}, line {number}")
        if row.get("split") == "train":
            places = [row.get(name) for name in ("step", "phase", "position")]
            if not all(type(place) is int and place >= 0 for place in places):
                raise ValueError(
                    f"{where}, line {number}: step, phase and position are {places}, expected whole"
                    f" numbers; {_REMEDY}"
                )
            yield row["step"], row["phase"], row["position"]


def _whole_lines(path: Path) -> Iterator[bytes]:
    """Yields the lines of a file, but not a last one that is being written."""
    if path.is_file():
        with path.open("rb") as file:
            yield from (line for line in file if line.endswith(b"\n"))


def _objects(path: Path, where: str) -> Iterator[dict[str, Any]]:
    """Yields the lines of a file as objects."""
    for number, line in enumerate(_whole_lines(path), start=1):
        yield _parse(line, f"{where}, line {number}")


def _parse(line: bytes, where: str) -> dict[str, Any]:
    """Returns the object of a line; raises a ValueError if there is none."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        row = None
    if not isinstance(row, dict):
        raise ValueError(f"{where} is no row: {line[:60]!r}; {_REMEDY}")  # noqa: TRY004
    return row


def _parse_anomaly(row: dict[str, Any], where: str) -> Anomaly:
    """Returns a row of anomalies.jsonl as a record."""
    try:
        start, stop = row["positions"]
        return Anomaly(
            step=int(row["step"]),
            phase=int(row["phase"]),
            start=int(start),
            stop=int(stop),
            in_a_row=int(row["in_a_row"]),
            grad_norm=row["grad_norm"],
            limit=row["limit"],
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{where} is no row of a step: {error!r}; {_REMEDY}") from error
