"""Text of users' files in messages: always short, whatever a file holds."""

from collections.abc import Iterable

LONGEST = 60
"""The most characters of a text that a message shows."""


def quote(text: object, longest: int = LONGEST) -> str:
    """Returns the text in quotes; a longer one is cut, and its length is said."""
    whole = str(text)
    if len(whole) <= longest:
        return repr(whole)
    return f"{whole[:longest]!r}... ({len(whole):,} characters)"


def join_names(names: Iterable[object], most: int = 20) -> str:
    """Returns names with commas between them; long names are cut, and so is a long list."""
    every = [str(name) for name in names]
    shown = [name if len(name) <= LONGEST else f"{name[:LONGEST]}..." for name in every[:most]]
    if len(every) > most:
        shown.append(f"and {len(every) - most:,} more")
    return ", ".join(shown)
