"""Lines of plain text to paragraphs, one a line.

With none a line is a paragraph, with blank-lines a blank line ends one, with hard a line into which
the first word of the next one would have fitted.

`auto` decides for a document: it is wrapped if it has at least 20 lines that are not blank, none
longer than 100 characters, half of them at least 45 characters and three quarters as long as the
95th percentile; blank lines separate its paragraphs if every 50 lines have one. By 37 novels.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise

WRAPPINGS = ("auto", "none", "blank-lines", "hard")
_MIN_LINES = 20
_MAX_WIDTH = 100
_MIN_MEDIAN = 45
_LINES_PER_BLANK = 50


def unwrap(text: str, wrapping: str) -> str:
    """The text with each paragraph in one line, by one of `WRAPPINGS`."""
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
    """What `auto` means for a document of these stripped lines."""
    lengths = sorted(len(line) for line in lines if line)
    if len(lengths) < _MIN_LINES or lengths[-1] > _MAX_WIDTH:
        return "none"
    median, width = lengths[len(lengths) // 2], _width(lengths)
    if median < _MIN_MEDIAN or 4 * median < 3 * width:
        return "none"
    num_blank = sum(not line and bool(before) for before, line in pairwise(lines))
    return "blank-lines" if num_blank * _LINES_PER_BLANK >= len(lengths) else "hard"


def _width(sorted_lengths: Sequence[int]) -> int:
    # The 95th percentile: single longer lines would make every paragraph end look full.
    return sorted_lengths[len(sorted_lengths) * 95 // 100]


def _between_blank_lines(lines: Sequence[str]) -> Iterator[list[str]]:
    return (list(run) for has_text, run in groupby(lines, bool) if has_text)


def _by_width(lines: Sequence[str]) -> Iterator[list[str]]:
    width = _width(sorted(len(line) for line in lines if line) or [0])
    for block in _between_blank_lines(lines):
        start = 0
        for i in range(1, len(block)):
            if len(block[i - 1]) + 1 + len(block[i].split(None, 1)[0]) <= width:
                yield block[start:i]
                start = i
        yield block[start:]


def _join(lines: Sequence[str]) -> str:
    """One paragraph; a word cut or joined by a hyphen at a line's end stays one."""
    is_open = [line[-1] == "-" and line[-2:-1].isalpha() for line in lines]
    pieces = (line if own else f"{line} " for line, own in zip(lines, is_open, strict=True))
    return "".join(pieces).removesuffix(" ")
