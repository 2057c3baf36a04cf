"""Text of users' files in messages: always short, and no terminal obeys it, whatever it holds."""

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


def printable(text: str, *, keeps_lines: bool = False) -> str:
    """Returns a text with an escape for what would move a cursor or turn a terminal's direction.

    Args:
        text: A message, or a name in one.
        keeps_lines: Whether line ends stay, as in a message of several lines.
    """
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() or (keeps_lines and each == "\n") else repr(each)[1:-1]
        for each in text
    )
