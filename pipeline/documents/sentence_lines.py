"""A sentence a line and blank lines between documents, as create_pretraining_data.py reads.

Novels have blank lines too: between paragraphs, each a line or wrapped, or between chapters. They
are told by shares of the lines: those that end as a sentence does, few where lines are wrapped, and
those that hold a single one, at most 0.77 in 37 novels and 65 speeches; corpora have over 0.9.
"""

import re
from itertools import groupby
from typing import NamedTuple

SENTENCE_LINES = "sentence-lines"
WHICH_FLAG = (
    f"give --format {SENTENCE_LINES} if lines are sentences and blank lines stand between"
    " documents, or --format text if each file is one document"
)
_LEAST_BLOCKS, _LEAST_LINES = 3, 20
_LEAST_LINES_PER_BLOCK = 2
_SURE, _LIKELY = (0.85, 0.9), (0.7, 0.8)  # shares of lines that end as sentences do, that hold one
_NUM_LINES_SEEN = 100
_CLOSING = "\"'”\u2019»\u203a)\\]」』\uff09*_"
_OPENING = "\"'“\u2018«\u2039(\\[¿¡「『\u2013-"
_END = re.compile(rf"[.!?…。\uff01\uff1f｡।॥؟\u06d4\u0589።\u166e][\s{_CLOSING}]*$")
_STOP = re.compile(rf"(?:([.!?…])[{_CLOSING}]*\s+|[。\uff01\uff1f][{_CLOSING}]*)[{_OPENING}]*(\w)")
_LONGEST_ABBREVIATION = 3  # letters


class Seen(NamedTuple):
    """What the first lines of a plain text look like."""

    blocks: int
    """Runs of the `lines` that are not blank."""
    lines: int
    ending: float
    """The share of lines that end as a sentence does."""
    single: float
    """The share that hold one sentence."""

    @property
    def has_enough(self) -> bool:
        """Whether it is long enough to be told."""
        return self.blocks > 1 and self.lines >= _LEAST_LINES

    @property
    def is_sure(self) -> bool:
        """Whether blank lines stand between documents of a sentence a line."""
        return self.blocks >= _LEAST_BLOCKS and self._reaches(*_SURE)

    @property
    def is_likely(self) -> bool:
        """Whether they may stand there."""
        return self._reaches(*_LIKELY)

    def _reaches(self, ending: float, single: float) -> bool:
        has_runs = self.lines >= _LEAST_LINES_PER_BLOCK * self.blocks
        return self.has_enough and has_runs and self.ending >= ending and self.single >= single

    def __str__(self) -> str:
        what = f"{self.ending:.0%} end as sentences do and {self.single:.0%} hold one sentence"
        return f"{self.blocks:,} blank-line blocks of {self.lines:,} lines, of which {what}"


def look_at_lines(text: str, *, is_whole: bool) -> Seen:
    """What the beginning of a text looks like; its last line counts only where it is whole."""
    stripped = [line.strip() for line in text.split("\n")][: None if is_whole else -1]
    blocks = sum(has_text for has_text, _ in groupby(stripped, bool))
    lines = [line for line in stripped if line]
    shown = lines[:: max(1, len(lines) // _NUM_LINES_SEEN)]
    ending = sum(_END.search(line) is not None for line in shown)
    single = sum(not _holds_several(line) for line in shown)
    return Seen(blocks, len(lines), *(count / max(1, len(shown)) for count in (ending, single)))


def _holds_several(line: str) -> bool:
    """Whether a sentence seems to end within a line, in any language: no rules of one are used."""
    for found in _STOP.finditer(line):
        before = line[max(0, found.start() - _LONGEST_ABBREVIATION - 1) : found.start()]
        is_long = len(before) > _LONGEST_ABBREVIATION and not any(map(str.isspace, before))
        if not found[2].islower() and (found[1] != "." or is_long):
            return True
    return False
