"""Whether a command may work in its output folder: nothing else is there, and no other job."""

import dataclasses
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from pipeline.storage.locks import wait_for_lock
from pipeline.storage.secret_values import hide_in

LOCK = ".lock"
"""Held by the job that works in a folder; it may be there before anything else is."""
PATIENCE_SECONDS = 60.0


@dataclass(frozen=True)
class Continuable:
    """How a command knows its own earlier work again.

    Attributes:
        kind: What the work is called in messages, with its article.
        marker: The file that is written first and says what the work was begun with.
        free: Settings that may change: they move work and files around, not what is computed.
        advice: What a person may do who wants other settings, in words.
    """

    kind: str
    marker: str
    free: tuple[str, ...]
    advice: str = ", or another --output"

    def is_foreign(self, path: Path) -> bool:
        """Whether something else is there."""
        if not path.is_dir():
            return path.exists()
        names = {each.name for each in path.iterdir()}
        return self.marker not in names and bool(names - {LOCK})

    def refuse_foreign(self, path: Path, where: str = "") -> None:
        """Raises FileExistsError where something else is there."""
        if self.is_foreign(path):
            raise FileExistsError(
                f"{where or path} exists and is not {self.kind}, it has no {self.marker}; give"
                " another --output, or remove it"
            )

    def bound_settings(self, settings: Any) -> dict[str, Any]:
        """The fields of a settings class that have to stay, without secrets."""
        fields = dataclasses.asdict(settings).items()
        return dict(hide_in({name: value for name, value in fields if name not in self.free}))

    def check_settings(
        self, where: str, old: Mapping[str, Any], new: Mapping[str, Any], others: Sequence[str] = ()
    ) -> None:
        """Compares plain values that earlier work was begun with and is to continue with.

        Raises:
            ValueError: Something differs that has to stay, or `others` say so in words; names each
                with its old and its new value.
        """
        found = [
            f"{key} was {before!r} and is now {after!r}"
            for key, before, after in _changes("", dict(old), dict(new))
            if key.partition(".")[0] not in self.free
        ]
        if changes := "; ".join([*found, *others]):
            raise ValueError(
                f"{where} holds {self.kind} with other settings: {changes}. Give the settings"
                f" it was started with to continue it{self.advice}"
            )


def complete_sections(old: Mapping[str, Any], settings: Any) -> dict[str, Any]:
    """Returns the settings that a run was begun with, completed by the defaults of newer settings.

    A run of an earlier version does not have the settings that were added later. It behaved as
    their defaults do. Only settings inside sections, and inside items of lists, are completed: if a
    whole section is missing, the file was cut.

    Args:
        old: The plain values of the run's config.yaml.
        settings: The settings to continue with, a dataclass whose sections are dataclasses too.
    """
    return {name: _complete(value, getattr(settings, name, None)) for name, value in old.items()}


def with_defaults(old: Mapping[str, Any], settings: Any) -> dict[str, Any]:
    """Returns the plain values of one section, with defaults for the settings that it lacks.

    Args:
        old: The plain values of the section in the run's config.yaml.
        settings: The section to continue with, a dataclass.
    """
    completed = dict(old)
    for each in dataclasses.fields(settings):
        value = getattr(settings, each.name)
        if each.name not in old:
            if each.default is not dataclasses.MISSING:
                completed[each.name] = _as_plain(each.default)
            elif each.default_factory is not dataclasses.MISSING:
                completed[each.name] = _as_plain(each.default_factory())
        else:
            completed[each.name] = _complete(old[each.name], value)
    return completed


def _complete(old: Any, value: Any) -> Any:
    if dataclasses.is_dataclass(value) and isinstance(old, Mapping):
        return with_defaults(old, value)
    if isinstance(value, list) and isinstance(old, list) and len(old) == len(value):
        return [_complete(before, now) for before, now in zip(old, value, strict=True)]
    return old


def _as_plain(value: Any) -> Any:
    is_record = dataclasses.is_dataclass(value) and not isinstance(value, type)
    return dataclasses.asdict(value) if is_record else value


def _changes(key: str, old: Any, new: Any) -> Iterator[tuple[str, Any, Any]]:
    """Leaves of plain values that differ: dotted key, old value, new value."""
    if isinstance(old, dict) and isinstance(new, dict):
        for name in sorted({*old, *new}):
            yield from _changes(f"{key}.{name}" if key else name, old.get(name), new.get(name))
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for index, pair in enumerate(zip(old, new, strict=True)):
            yield from _changes(f"{key}.{index}", *pair)
    elif old != new:
        yield key, old, new


def lock_folder(folder: Path, patience_seconds: float = PATIENCE_SECONDS) -> IO[bytes]:
    """Makes the folder, and keeps other jobs out as long as the file that this returns is open.

    Ranks of a killed launcher may still be leaving, so it waits. The lock's content is drawn by the
    job that holds it: a rank that reads it there sees the folder of rank 0.

    Raises:
        FileExistsError: It is a file, or another job is still there after so many seconds.
    """
    if folder.is_file():
        raise FileExistsError(f"{folder} is a file, expected a folder; give another --output")
    folder.mkdir(parents=True, exist_ok=True)
    file = (folder / LOCK).open("ab")
    try:
        wait_for_lock(file, folder, patience_seconds)
    except FileExistsError:
        file.close()
        raise
    file.truncate(0)
    file.write(secrets.token_bytes(16))
    file.flush()
    return file
