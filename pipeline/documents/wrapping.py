"""Joins the wrapped lines of plain text, so that every paragraph is one line.

The setting `wrapping` says what ends a paragraph:

- none: every line end.
- blank-lines: a blank line.
- hard: a blank line or a short line. A line is short if the first word of the next line would have
  fitted into it.
- auto: one of these three, which is chosen for each document by its lines.

With auto, the lines of a document are taken to be wrapped if there are at least 20 that are not
blank, none is longer than 100 characters, and their median length is at least 45 characters and at
least three quarters of the width. The width is the 95th percentile of the lines' lengths. Otherwise
every line end ends a paragraph. In a wrapped document blank lines end paragraphs if there is at
least one for every 50 lines; if there are fewer, short lines do. These limits were chosen on 37
novels.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise

WRAPPINGS = ("auto", "none", "blank-lines", "hard")
_MIN_LINES = 20
_MAX_WIDTH = 100
_MIN_MEDIAN = 45
_LINES_PER_BLANK = 50


def unwrap(text: str, wrapping: str) -> str:
    """Returns a text with each paragraph on one line.

    Args:
        text: The text of a document.
        wrapping: What ends a paragraph, one of `WRAPPINGS`.
    """
    if wrapping == "none":
        return text
    lines = [line.strip() for line in text.split("\n")]
    if wrapping == "auto":
        wrapping = detect_wrapping(lines)
        if wrapping == "none":
            return text
    paragraphs = _between_blank_lines(lines) if wrapping == "blank-lines" else _by_width(lines)
    return "\n".join(map(_join, paragraphs))


def detect_wrapping(lines: Sequence[str]) -> str:
    """Chooses what ends a paragraph of a document whose `wrapping` is auto.

    Args:
        lines: All lines of the document, without white space at their ends.

    Returns:
        "none", "blank-lines" or "hard".
    """
    lengths = sorted(len(line) for line in lines if line)
    if len(lengths) < _MIN_LINES or lengths[-1] > _MAX_WIDTH:
        return "none"
    median = lengths[len(lengths) // 2]
    width = _width(lengths)
    if median < _MIN_MEDIAN or 4 * median < 3 * width:
        return "none"
    num_blank = sum(not line and bool(before) for before, line in pairwise(lines))
    return "blank-lines" if num_blank * _LINES_PER_BLANK >= len(lengths) else "hard"


def _width(sorted_lengths: Sequence[int]) -> int:
    """Returns the width, in characters, to which the lines of a text were wrapped.

    It is the 95th percentile of their lengths. If it were the greatest length, one line that is too
    long would make all other lines look short, as if each of them ended a paragraph.

    Args:
        sorted_lengths: The lengths of the lines that are not blank, ascending.
    """
    return sorted_lengths[len(sorted_lengths) * 95 // 100]


def _between_blank_lines(lines: Sequence[str]) -> Iterator[list[str]]:
    """Yields the groups of lines between blank lines."""
    return (list(group) for has_text, group in groupby(lines, bool) if has_text)


def _by_width(lines: Sequence[str]) -> Iterator[list[str]]:
    """Yields the lines of each paragraph of a text whose paragraphs end at short lines.

    A paragraph ends at a blank line, or at a line into which the first word of the next line would
    have fitted.
    """
    width = _width(sorted(len(line) for line in lines if line) or [0])
    for block in _between_blank_lines(lines):
        start = 0
        for number in range(1, len(block)):
            first_word = block[number].split(None, 1)[0]
            if len(block[number - 1]) + 1 + len(first_word) <= width:
                yield block[start:number]
                start = number
        yield block[start:]


def _join(lines: Sequence[str]) -> str:
    """Joins the lines of a paragraph by spaces.

    No space follows a line that ends with a hyphen after a letter, as in "well-" and "known".
    """
    pieces: list[str] = []
    for line in lines:
        ends_in_hyphen = line[-1] == "-" and line[-2:-1].isalpha()
        pieces.append(line if ends_in_hyphen else f"{line} ")
    return "".join(pieces).removesuffix(" ")
