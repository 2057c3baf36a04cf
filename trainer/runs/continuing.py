"""Whether a command may continue what lies in its output folder: one answer for all of them."""

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.storage.secret_values import hide_in

LOCK = ".lock"
"""Held by the job that works in a folder; it may be there before anything else is."""


@dataclass(frozen=True)
class Continuable:
    """How a command knows its own earlier work again.

    Attributes:
        kind: What the work is called in messages, with its article.
        marker: The file that is written first and says what the work was begun with.
        free: Settings that may change: they move work and files around, not what is computed.
        advice: What else a person may do who wants other settings, in words.
    """

    kind: str
    marker: str
    free: tuple[str, ...]
    advice: str = ""

    def is_foreign(self, names: Collection[str]) -> bool:
        """Whether a folder of these files holds something else."""
        return self.marker not in names and any(name != LOCK for name in names)

    def refuse_foreign(self, where: str, names: Collection[str]) -> None:
        """Raises FileExistsError where a folder of these files holds something else."""
        if self.is_foreign(names):
            raise FileExistsError(
                f"{where} exists and is not {self.kind}, it has no {self.marker}; give another --output, or remove it"
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
            ValueError: Something differs that has to stay, or `others`, which says so in words;
                names each with its old and its new value.
        """
        bound_old, bound_new = (
            {k: v for k, v in each.items() if k not in self.free} for each in (old, new)
        )
        found = [
            f"{key} was {before!r} and is now {after!r}"
            for key, before, after in _changes("", bound_old, bound_new)
        ]
        found += others
        if found:
            raise ValueError(
                f"{where} holds {self.kind} with other settings: {'; '.join(found)}. Give the settings it was started "
                f"with to continue it, or another --output{self.advice}"
            )


def names_in(path: Path) -> list[str]:
    """Names of what lies in a local folder; a file in its place counts as one without a name."""
    return [each.name for each in path.iterdir()] if path.is_dir() else [""] * path.exists()


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
