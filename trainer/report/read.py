"""Runs as a report reads them: forgiving about what is missing or torn, and saying so.

A report is asked for most when something went wrong, so whatever can be read is shown, and what
cannot is listed.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from trainer.runs.metrics import format_steps, missing_steps
from trainer.runs.run_folder import RunFolder

Row = Mapping[str, Any]
_MAX_LOSSES = 12
_NEVER_SHOWN = ("drawn", "epochs")  # tables in every row: half of the memory that a long run takes


@dataclass(frozen=True)
class ReadRun:
    """What a run's folder says.

    Attributes:
        name: The folder's, with as many of its parents as tell it from the other runs.
        path: The folder.
        train: Rows of steps, in their order, each step once.
        validation: Rows of measurements, in the same way.
        events: Rows of other kinds, and those of steps that were not taken.
        facts: run.json; empty where it cannot be read.
        config: Settings by dotted key; empty where they cannot be read.
        problems: What could not be read, for people.
    """

    name: str
    path: Path
    train: list[Row]
    validation: list[Row]
    events: list[Row]
    facts: Mapping[str, Any]
    config: Mapping[str, Any]
    problems: list[str]

    @property
    def launches(self) -> list[Mapping[str, Any]]:
        """What run.json says of each start."""
        return _mappings(self.facts.get("launches"))

    @property
    def datasets(self) -> list[Mapping[str, Any]]:
        """What run.json says of each dataset."""
        return _mappings(self.facts.get("datasets"))


def _mappings(value: Any) -> list[Mapping[str, Any]]:
    found = value if isinstance(value, list) else []
    return [each for each in found if each and isinstance(each, dict)]


def read_runs(folders: Sequence[str]) -> list[ReadRun]:
    """The runs in the order given.

    Raises:
        FileNotFoundError: A folder is missing or holds no run.
        ValueError: A run is named twice.
    """
    paths = [Path(folder) for folder in folders]
    resolved = [path.resolve() for path in paths]
    for index, path in enumerate(resolved):
        if path in resolved[:index]:
            raise ValueError(f"{paths[index]} is named twice; give every run once")
    return [_read_run(path, name) for path, name in zip(paths, _names(resolved), strict=True)]


def number(row: Row, column: str) -> float | None:
    """A finite number of a row; None where there is none."""
    value = row.get(column)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return float(value)


def choose_losses(run: ReadRun, last_step: int) -> list[list[Any]]:
    """Step, training loss and validation MLM loss of up to `_MAX_LOSSES` measurements (or steps), evenly chosen."""
    training = {row["step"]: number(row, "loss") for row in run.train}
    validation = {row["step"]: number(row, "mlm_loss") for row in run.validation}
    steps = [step for step in sorted(validation) or sorted(training) if step <= last_step]
    if len(steps) > _MAX_LOSSES:
        last = len(steps) - 1
        steps = [steps[round(n * last / (_MAX_LOSSES - 1))] for n in range(_MAX_LOSSES)]

    def rounded(loss: float | None) -> float | None:
        return None if loss is None else round(loss, 4)

    return [[step, rounded(training.get(step)), rounded(validation.get(step))] for step in steps]


def flatten(values: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Leaves of nested mappings and lists of mappings by dotted key."""
    if isinstance(values, dict):
        for key, value in values.items():
            yield from flatten(value, f"{prefix}.{key}" if prefix else str(key))
    elif isinstance(values, list) and any(isinstance(value, dict) for value in values):
        for index, value in enumerate(values):
            yield from flatten(value, f"{prefix}.{index}")
    else:
        yield prefix, values


def _names(paths: Sequence[Path]) -> list[str]:
    """The shortest ends of the paths that differ from each other."""
    for length in range(1, max(len(path.parts) for path in paths) + 1):
        names = ["/".join(path.parts[-length:]) for path in paths]
        if len(set(names)) == len(names):
            return names
    raise AssertionError("resolved paths differ")


def _read_run(path: Path, name: str) -> ReadRun:
    folder = RunFolder(path)
    if not folder.facts.is_file() and not folder.metrics.is_file():
        found = "is no folder" if not path.is_dir() else "holds neither run.json nor metrics.jsonl"
        raise FileNotFoundError(f"{path} {found}; give the --output of a pretrain command")
    problems: list[str] = []
    facts = _parse(folder.facts, json.loads, problems)
    config = dict(flatten(_parse(folder.config, yaml.safe_load, problems)))
    rows = list(_rows(folder.metrics, problems))
    train = _each_step_once([row for row in rows if row.get("split") == "train"], problems)
    validation = _each_step_once([row for row in rows if row.get("split") == "validation"], [])
    events = [row for row in rows if row.get("split") not in ("train", "validation")]
    events += _rows(folder.anomalies, problems)
    last = max(_last_saved(folder), train[-1]["step"] if train else 0)
    if missing := missing_steps((row["step"] for row in train), last):
        lost = format_steps(missing)
        problems.append(f"metrics.jsonl lacks the rows of {lost}: it was cut or edited")
    elif not train:
        problems.append("metrics.jsonl has no step yet")
    return ReadRun(name, path, train, validation, events, facts, config, problems)


def _last_saved(folder: RunFolder) -> int:
    """Step of the newest checkpoint."""
    names = [
        path.parent.name.removeprefix("step-")
        for path in folder.checkpoints.glob("step-*/COMMITTED")
    ]
    return max((int(name) for name in names if name.isdecimal()), default=0)


def _parse(path: Path, parse: Any, problems: list[str]) -> Mapping[str, Any]:
    try:
        found = parse(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        problems.append(f"{path.name} cannot be read: {why}")
        return {}
    if isinstance(found, dict):
        return found
    problems.append(f"{path.name} holds no mapping")
    return {}


def _rows(path: Path, problems: list[str]) -> Iterator[Row]:
    """Rows that are JSON objects with a whole step; the numbers of other lines are told."""
    bad = []
    text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
    for place, line in enumerate(text.splitlines(), start=1):
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        if isinstance(row, dict) and isinstance(row.get("step"), int):
            yield {column: value for column, value in row.items() if column not in _NEVER_SHOWN}
        else:
            bad.append(place)
    if bad:
        shown = ", ".join(map(str, bad[:5])) + (" and more" if len(bad) > 5 else "")
        problems.append(f"{path.name}: {len(bad)} line(s) are no row: {shown}")


def _each_step_once(rows: Sequence[Row], problems: list[str]) -> list[Row]:
    """The last row of every step: a run that went back made some of them again."""
    last = {row["step"]: row for row in rows}
    if len(last) < len(rows):
        problems.append(
            f"{len(rows) - len(last)} step(s) were made again after going back; the last time counts"
        )
    return [last[step] for step in sorted(last)]
