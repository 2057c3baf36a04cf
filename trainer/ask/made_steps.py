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
_ROW = re.compile(
    rb'\{"step": (\d{1,18}), "split": "train", "phase": (\d{1,18}), "position": (\d{1,18}),'
)
_REMEDY = "restore the file, or remove the line"


@dataclass(frozen=True)
class MadeSteps:
    """S steps of a run in ascending order. All arrays are int64 [S].

    Attributes:
        step: The number of each step over the whole run, from 1.
        phase: The index of each step's phase.
        position: The stream position of each step's first instance.
    """

    step: Array
    phase: Array
    position: Array

    def __len__(self) -> int:
        return len(self.step)

    def of_phases(self, phases: list[int]) -> "MadeSteps":
        """Returns the steps of some phases.

        Args:
            phases: The indices of the phases.
        """
        chosen = np.isin(self.phase, phases)
        return MadeSteps(self.step[chosen], self.phase[chosen], self.position[chosen])

    def find(self, step: int) -> int | None:
        """Returns the index of a step in the arrays, or None if the step was not made.

        Args:
            step: The number of the step over the whole run.
        """
        index = int(np.searchsorted(self.step, step))
        is_made = index < len(self.step) and int(self.step[index]) == step
        return index if is_made else None


@dataclass(frozen=True)
class Anomaly:
    """A step whose gradient was not used, from a row of anomalies.jsonl.

    Attributes:
        step: The number of the step over the whole run.
        phase: The index of the step's phase.
        start: The stream position of the step's first instance.
        stop: One past the stream position of the step's last instance.
        in_a_row: The number of steps in a row whose gradients were not used, up to this step.
        grad_norm: The norm of the gradient: a number, or text such as "nan" if it is not finite.
        limit: The least norm with which the gradient would not be used; None if every finite
            gradient would be used.
    """

    step: int
    phase: int
    start: int
    stop: int
    in_a_row: int
    grad_norm: float | str
    limit: float | None


def read_made_steps(path: Path, where: str) -> MadeSteps:
    """Returns the steps that a metrics.jsonl has rows about.

    If a step was undone and made again, it has several rows, of which the last one counts.

    Args:
        path: The file. If it does not exist, no step was made.
        where: What messages call the file.

    Raises:
        ValueError: A line is not a JSON object, or lacks the step, the phase or the position.
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
        ValueError: A line is not a JSON object, or lacks a field of `Anomaly`.
    """
    return [
        _parse_anomaly(row, f"{where}, line {number}")
        for number, row in enumerate(_objects(run.anomalies, where), start=1)
    ]


def _step_rows(path: Path, where: str) -> Iterator[tuple[int, int, int]]:
    """Yields the step, the phase and the position in each row of metrics.jsonl about a step.

    Rows of other splits, such as those of validation, are left out.

    Raises:
        ValueError: A line is no JSON object, or a step, phase or position is no whole number.
    """
    for number, line in enumerate(_whole_lines(path), start=1):
        match = _ROW.match(line)
        if match is not None:
            yield int(match[1]), int(match[2]), int(match[3])
            continue
        row = _parse(line, f"{where}, line {number}")
        if row.get("split") == "train":
            places = [row.get(name) for name in ("step", "phase", "position")]
            if not all(type(place) is int and 0 <= place < 2**63 for place in places):
                raise ValueError(
                    f"{where}, line {number}: step, phase and position are {places}, expected whole"
                    f" numbers; {_REMEDY}"
                )
            yield row["step"], row["phase"], row["position"]


def _whole_lines(path: Path) -> Iterator[bytes]:
    """Yields the lines of a file, except for a last line without a line end.

    A run may be writing that line just now. There are no lines if the file does not exist.
    """
    if path.is_file():
        with path.open("rb") as file:
            yield from (line for line in file if line.endswith(b"\n"))


def _objects(path: Path, where: str) -> Iterator[dict[str, Any]]:
    """Yields the JSON object in each line of a file.

    Raises:
        ValueError: A line is not a JSON object.
    """
    for number, line in enumerate(_whole_lines(path), start=1):
        yield _parse(line, f"{where}, line {number}")


def _parse(line: bytes, where: str) -> dict[str, Any]:
    """Returns the JSON object in a line.

    Args:
        line: The line.
        where: The file and the number of the line, for the message.

    Raises:
        ValueError: The line is not a JSON object.
    """
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        row = None
    if not isinstance(row, dict):
        raise ValueError(f"{where} is no row: {line[:60]!r}; {_REMEDY}")  # noqa: TRY004
    return row


def _parse_anomaly(row: dict[str, Any], where: str) -> Anomaly:
    """Returns the `Anomaly` in a row of anomalies.jsonl.

    Args:
        row: The JSON object in a line.
        where: The file and the number of the line, for the message.

    Raises:
        ValueError: A field is missing or has another type.
    """
    try:
        start, stop = row["positions"]
        anomaly = Anomaly(
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
    # A norm that is not finite is a string.
    numbers = {"grad_norm": int | float | str, "limit": int | float | None}
    for field, types in numbers.items():
        if not isinstance(row[field], types):
            raise ValueError(  # noqa: TRY004
                f"{where} is no row of a step: {field} is {row[field]!r}; {_REMEDY}"
            )
    return anomaly
