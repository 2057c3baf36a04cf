"""Text from users' files for messages: cut to a short length, without control characters.

So no text in a file can fill a log, or move a terminal's cursor.
"""

from collections.abc import Iterable

LONGEST = 60
"""The most characters of a text that a message shows."""


def quote(value: object) -> str:
    """Returns a value as Python writes it, text in quotes. A long value is cut."""
    if isinstance(value, str):
        is_whole = len(value) <= LONGEST
        return repr(value) if is_whole else f"{value[:LONGEST]!r}... ({len(value):,} characters)"
    shown = repr(value)
    return shown if len(shown) <= LONGEST else f"{shown[:LONGEST]}..."


def join_names(names: Iterable[object], most: int = 20) -> str:
    """Joins names by commas. Long names are cut, and a long list ends in "and 7 more"."""
    every = [str(name) for name in names]
    shown = [name if len(name) <= LONGEST else f"{name[:LONGEST]}..." for name in every[:most]]
    if len(every) > most:
        shown.append(f"and {len(every) - most:,} more")
    return ", ".join(shown)


def printable(text: str, *, keeps_lines: bool = False) -> str:
    """Writes as escapes the characters that would move a terminal's cursor or turn its direction.

    Args:
        text: A message, or a name in one.
        keeps_lines: Whether line ends stay, for a message of several lines.
    """
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() or (keeps_lines and each == "\n") else repr(each)[1:-1]
        for each in text
    )
