"""Reads the folders of runs for a report, also if files are missing or damaged.

People ask for a report above all when something went wrong. So everything that can be read is
shown, and a list says which files or lines could not be read.
"""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.runs.json_files import parse_object, wrong_types
from trainer.runs.run_folder import CONFIG, FACTS_TYPES, REMEDY, RUN_FACTS, RunFolder

Row = Mapping[str, Any]
_SETTINGS_TYPES: dict[str, Any] = {"optimizer": {}, "phases": [{}]}
_MOST_STEPS = 2**53
"""Steps are below this number, because charts hold them as floating-point numbers."""
_NEVER_SHOWN = ("drawn", "epochs")
"""Columns that no report shows. They are tables, and half of the memory of a long run's rows."""


@dataclass(frozen=True)
class ReadRun:
    """The content of a run's folder.

    Attributes:
        name: The folder's name, with as many parent folders as tell it from the other runs.
        path: The folder.
        train: Rows of steps, in order. If a step was made several times, the last row counts.
        validation: Rows of measurements, in order; one for each step at which there was one.
        events: All rows of metrics.jsonl that are of neither a step nor a measurement, and then
            the rows of anomalies.jsonl: steps whose gradient was not used.
        facts: The content of run.json, without values of wrong types; empty if it cannot be read.
        settings: The content of config.yaml, without values of wrong types; empty if it cannot be
            read.
        problems: Messages about files, lines and values that could not be used.
    """

    name: str
    path: Path
    train: list[Row]
    validation: list[Row]
    events: list[Row]
    facts: Mapping[str, Any]
    settings: Mapping[str, Any]
    problems: list[str]


def read_runs(folders: Sequence[str]) -> list[ReadRun]:
    """Reads the runs of some folders, each once and in the given order.

    Raises:
        FileNotFoundError: A folder holds no run.
    """
    paths = list(dict.fromkeys(Path(folder).resolve() for folder in folders))
    return [_read_run(path, name) for path, name in zip(paths, _names(paths), strict=True)]


def number(row: Row, column: str) -> float | None:
    """Returns a finite number of a row, or None if the row has none in this column."""
    value = row.get(column)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    is_finite = abs(value) <= sys.float_info.max
    return float(value) if is_finite else None


def _names(paths: Sequence[Path]) -> list[str]:
    """Returns a name for each path: its last parts, as many as make all names differ."""
    for length in range(1, max(len(path.parts) for path in paths) + 1):
        names = ["/".join(path.parts[-length:]) for path in paths]
        if len(set(names)) == len(names):
            return names
    raise AssertionError("resolved paths differ")


def _read_run(path: Path, name: str) -> ReadRun:
    """Reads the folder of a run, which is shown as `name`.

    Raises:
        FileNotFoundError: The folder holds no run.
    """
    folder = RunFolder(path)
    problems: list[str] = []
    facts: dict[str, Any] = {}
    settings: dict[str, Any] = {}
    if not folder.facts.is_file() and not folder.metrics.is_file():
        found = "is no folder" if not path.is_dir() else "holds neither run.json nor metrics.jsonl"
        raise FileNotFoundError(f"{path} {found}; give the --output of a pretrain command")
    try:
        facts = parse_object(folder.facts.read_bytes(), str(folder.facts), REMEDY)
        facts = _drop_wrong_types(facts, FACTS_TYPES, RUN_FACTS, problems)
    except (OSError, ValueError) as error:
        problems.append(str(error))
    if folder.config.is_file():
        try:
            settings = folder.read_config()
            settings = _drop_wrong_types(settings, _SETTINGS_TYPES, CONFIG, problems)
        except (OSError, ValueError) as error:
            problems.append(str(error))
    rows = list(_rows(folder.metrics, problems))
    train = [row for row in rows if row.get("split") == "train"]
    validation = [row for row in rows if row.get("split") == "validation"]
    events = [row for row in rows if row.get("split") not in ("train", "validation")]
    events += _rows(folder.anomalies, problems)
    if not train:
        problems.append("metrics.jsonl has no step yet")
    return ReadRun(name, path, _last(train), _last(validation), events, facts, settings, problems)


def _drop_wrong_types(
    content: Mapping[str, Any], types: Mapping[str, Any], name: str, problems: list[str]
) -> dict[str, Any]:
    """Returns the keys of a file whose values have the right types.

    Every value of a wrong type is appended to the problems.

    Args:
        content: The content of the file.
        types: The expected types by key, as in `wrong_types`.
        name: The name of the file, for messages.
        problems: The list to which messages are appended.
    """
    sound = dict(content)
    for key, expected in types.items():
        wrong = list(wrong_types(content[key], expected, key)) if key in content else []
        problems += [f"{name}: {message}" for message in wrong]
        if wrong:
            del sound[key]
    return sound


def _rows(path: Path, problems: list[str]) -> Iterator[Row]:
    """Yields the rows of a file: the lines that are JSON objects with a valid step and phase.

    If there are other lines, one message with their number and the first five of them is appended
    to the problems.
    """
    bad = []
    text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
    lines = text.split("\n")
    if not lines[-1]:
        del lines[-1]
    for place, line in enumerate(lines, start=1):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        if isinstance(row, dict) and _has_place(row):
            yield {column: value for column, value in row.items() if column not in _NEVER_SHOWN}
        else:
            bad.append(place)
    if bad:
        shown = ", ".join(map(str, bad[:5])) + (" and more" if len(bad) > 5 else "")
        problems.append(f"{path.name}: {len(bad)} line(s) are no row: {shown}")


def _has_place(row: Row) -> bool:
    """Returns whether a row says which step it is about.

    Its "step" must be an int from 0 to below _MOST_STEPS, and its "phase" too if it has one.
    """
    places = [row.get("step"), row.get("phase", 0)]
    return all(type(place) is int and 0 <= place < _MOST_STEPS for place in places)


def _last(rows: Sequence[Row]) -> list[Row]:
    """Returns the last row of every step.

    A run that went back to a checkpoint has several rows of the steps that it repeated.
    """
    return [row for _, row in sorted({row["step"]: row for row in rows}.items())]
