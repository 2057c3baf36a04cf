"""Makes text from users' files safe for messages: short, and without control characters.

Otherwise a text in a file could fill a log or move the cursor of a terminal.
"""

from collections.abc import Iterable

LONGEST = 60
"""The most characters of a text that a message shows."""


def quote(value: object) -> str:
    """Returns the `repr` of a value for a message. A long value is cut after 60 characters."""
    if isinstance(value, str):
        is_whole = len(value) <= LONGEST
        return repr(value) if is_whole else f"{value[:LONGEST]!r}... ({len(value):,} characters)"
    shown = repr(value)
    return shown if len(shown) <= LONGEST else f"{shown[:LONGEST]}..."


def join_names(names: Iterable[object], most: int = 20) -> str:
    """Joins names by commas. Long names are cut, and a long list ends in "and 7 more".

    Args:
        names: What to list.
        most: How many names are written out.
    """
    texts = [str(name) for name in names]
    shown = [text if len(text) <= LONGEST else f"{text[:LONGEST]}..." for text in texts[:most]]
    if len(texts) > most:
        shown.append(f"and {len(texts) - most:,} more")
    return ", ".join(shown)


def printable(text: str, *, keeps_lines: bool = False) -> str:
    r"""Returns a text with all characters that are not printable written as escapes, such as \x1b.

    They could move the cursor of a terminal, or reverse the direction of its text.

    Args:
        text: A message, or a name in one.
        keeps_lines: Whether line ends stay, for a message of several lines.
    """
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() or (keeps_lines and char == "\n") else repr(char)[1:-1]
        for char in text
    )
