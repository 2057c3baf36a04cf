"""Decides whether a command may work in its output folder.

The folder must be empty, or have earlier work of the same command with the same settings, and no
other job may work in it.
"""

import dataclasses
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from pipeline.storage.local import find_temporaries
from pipeline.storage.locks import take_lock
from pipeline.storage.secret_values import hide_in

LOCK = ".lock"
"""The file that the job working in a folder holds locked. It is written before all others."""
PATIENCE_SECONDS = 60.0
"""How long a job waits for another one to leave the folder."""


@dataclass(frozen=True)
class Continuable:
    """How a command recognizes earlier work of its own, and which settings must not have changed.

    Attributes:
        kind: What messages call the work, with an article, such as "a run".
        marker: Name of a file or folder that the command writes before anything is computed. A
            folder that has it holds earlier work of the command.
        free: Names of settings that may change, because they do not affect what is computed.
        advice: The end of the message about changed settings: what else a person can do.
        early: Names of files that the command writes before the marker.
    """

    kind: str
    marker: str
    free: tuple[str, ...]
    advice: str = ", or another --output"
    early: tuple[str, ...] = ()

    def is_foreign(self, path: Path) -> bool:
        """Returns whether the command must not use a path, because something else is there.

        That is a file, or a folder that is not empty and has no `marker`. The lock file, the
        `early` files and temporary files do not count, because a command that is killed before it
        has written the marker leaves them behind.
        """
        if not path.is_dir():
            return path.exists()
        names = {entry.name for entry in path.iterdir()}
        left_behind = {LOCK, *self.early, *find_temporaries(names)}
        return self.marker not in names and bool(names - left_behind)

    def refuse_foreign(self, path: Path, where: str = "") -> None:
        """Raises an error if `is_foreign` says that something else is at a path.

        Args:
            path: The output folder.
            where: What the message calls the folder; "" means its path.

        Raises:
            FileExistsError: Something is there that is not earlier work of the command.
        """
        if self.is_foreign(path):
            raise FileExistsError(
                f"{where or path} exists and is not {self.kind}, it has no {self.marker}; give"
                " another --output, or remove it"
            )

    def bound_settings(self, settings: Any) -> dict[str, Any]:
        """Returns the settings that must not change between launches, by name, as plain values.

        Secrets in them are replaced.

        Args:
            settings: The settings of the command, a dataclass.
        """
        fields = dataclasses.asdict(settings).items()
        return dict(hide_in({name: value for name, value in fields if name not in self.free}))

    def check_settings(
        self, where: str, old: Mapping[str, Any], new: Mapping[str, Any], others: Sequence[str] = ()
    ) -> None:
        """Refuses to continue earlier work with other settings.

        Args:
            where: The output folder, for the message.
            old: The settings that the work was begun with, as plain values.
            new: The settings to continue with, as plain values.
            others: Descriptions of other changes, found by the caller, for which the work is
                refused too.

        Raises:
            ValueError: A setting that is not in `free` has changed, or `others` is not empty. The
                message has the old and the new value of each setting.
        """
        changes = [
            f"{key} was {before!r} and is now {after!r}"
            for key, before, after in _changes("", dict(old), dict(new))
            if key.partition(".")[0] not in self.free
        ]
        changes += others
        if changes:
            raise ValueError(
                f"{where} holds {self.kind} with other settings: {'; '.join(changes)}. Give"
                " the settings"
                f" it was started with to continue it{self.advice}"
            )


def complete_sections(old: Mapping[str, Any], settings: Any) -> dict[str, Any]:
    """Returns the settings that a run was begun with, and defaults for settings added since then.

    A run of an earlier version lacks the settings that were added later; it behaved as if they had
    their defaults. Only settings inside sections, and inside items of lists, are completed, because
    a file that lacks a whole section was cut.

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
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if field.name not in old:
            if field.default is not dataclasses.MISSING:
                completed[field.name] = _as_plain(field.default)
            elif field.default_factory is not dataclasses.MISSING:
                completed[field.name] = _as_plain(field.default_factory())
        else:
            completed[field.name] = _complete(old[field.name], value)
    return completed


def _complete(old: Any, value: Any) -> Any:
    """Fills in the defaults of settings that an old value lacks, in all sections inside it.

    Args:
        old: The value of one setting in the run's config.yaml: a dict if it is a section.
        value: The value of the same setting to continue with, a dataclass if it is a section. Its
            class has the defaults.

    Returns:
        The completed value, as plain values. A list of another length than `value` is not
        completed.
    """
    if dataclasses.is_dataclass(value) and isinstance(old, Mapping):
        return with_defaults(old, value)
    if isinstance(value, list) and isinstance(old, list) and len(old) == len(value):
        return [_complete(before, now) for before, now in zip(old, value, strict=True)]
    return old


def _as_plain(value: Any) -> Any:
    """Returns a section of settings as a dict, and every other value as it is."""
    is_record = dataclasses.is_dataclass(value) and not isinstance(value, type)
    return dataclasses.asdict(value) if is_record else value


def _changes(key: str, old: Any, new: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yields the differences between two plain values.

    Dicts, and lists of the same length, are compared item by item, and so are the dicts and lists
    in them. Other values are compared as a whole.

    Args:
        key: The dotted key of the values; "" for the whole settings.
        old: The old value.
        new: The new value.

    Yields:
        For each difference its dotted key, such as "phases.0.steps", the old value and the new one.
        A key that a dict lacks has the value None.
    """
    if isinstance(old, dict) and isinstance(new, dict):
        for name in sorted({*old, *new}):
            yield from _changes(f"{key}.{name}" if key else name, old.get(name), new.get(name))
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for index, pair in enumerate(zip(old, new, strict=True)):
            yield from _changes(f"{key}.{index}", *pair)
    elif old != new:
        yield key, old, new


def lock_folder(folder: Path, patience_seconds: float = PATIENCE_SECONDS) -> IO[bytes]:
    """Makes a folder and locks it, so that no other job works in it.

    If another job holds the lock, this function waits for up to `patience_seconds`, because ranks
    of a killed launcher may still be ending.

    It writes random bytes into the lock file. Every rank compares the lock file that it finds at
    this path with that of rank 0. If the bytes are equal, the rank sees the same folder as rank 0;
    otherwise its node has another disk there.

    Args:
        folder: The folder.
        patience_seconds: How long to wait for another job.

    Returns:
        The open lock file. The lock is held until it is closed, at the latest when the process
        ends.

    Raises:
        FileExistsError: The folder is a file, or another job still holds the lock after the wait.
        ValueError: The disk has no locks.
    """
    if folder.is_file():
        raise FileExistsError(f"{folder} is a file, expected a folder; give another --output")
    file = take_lock(folder / LOCK, folder, patience_seconds)
    file.truncate(0)
    file.write(secrets.token_bytes(16))
    file.flush()
    return file
