"""Text of users' files in messages: always short, whatever a file holds."""

from collections.abc import Iterable

LONGEST = 60
"""The most characters of a text that a message shows."""


def quote(value: object) -> str:
    """Returns a value as Python writes it, a text in quotes; of a long one the beginning."""
    if isinstance(value, str):
        is_whole = len(value) <= LONGEST
        return repr(value) if is_whole else f"{value[:LONGEST]!r}... ({len(value):,} characters)"
    shown = repr(value)
    return shown if len(shown) <= LONGEST else f"{shown[:LONGEST]}..."


def join_names(names: Iterable[object], most: int = 20) -> str:
    """Returns names with commas between them; long names are cut, and so is a long list."""
    every = [str(name) for name in names]
    shown = [name if len(name) <= LONGEST else f"{name[:LONGEST]}..." for name in every[:most]]
    if len(every) > most:
        shown.append(f"and {len(every) - most:,} more")
    return ", ".join(shown)
