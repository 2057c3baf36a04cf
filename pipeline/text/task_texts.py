"""Texts of task files, and whether a document holds some of one: windows of n words that both have.

A word is a run of letters and digits without case and accents; all else stands between words, and
an ideograph or kana is a word by itself (GPT-3 paper, appendix C: "a gram as a lowercase,
whitespace delimited word with no punctuation"). A text of fewer than n words counts as one window
where it has at least LEAST_WORDS, the least n of that appendix. `pipeline.text._task_texts`, where
it is built, finds the same.
"""

import unicodedata
from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np

from pipeline.text.cleaning import clean_text
from tokenizer.compiled import load

compiled: Any = load("pipeline.text._task_texts")
"""The compiled module, or None where the Python path is to be used."""

LEAST_WORDS = 8
MOST_WORDS = 64
_MOST_BYTES = 2**31 - 2
_UNICODE = (
    unicodedata.ucd_3_2_0
)  # part of every Python, so that no version of it decides what a word is
_SOFT_HYPHEN = "\u00ad"  # a dash to that version
_ALONE = (
    range(0x3040, 0x3100),
    range(0x3400, 0x4DC0),
    range(0x4E00, 0xA000),
    range(0xF900, 0xFB00),
)


def _form_of(code: int) -> str:
    """What a character becomes: nothing, a space between words, a word by itself, or a character of a word."""
    character = chr(code)
    category = _UNICODE.category(character)
    if category in ("Mn", "Me", "Cf") or character == _SOFT_HYPHEN:
        return ""
    if category[0] not in "LN" and category not in ("Mc", "Cn"):
        return " "
    if any(code in codes for codes in _ALONE):
        return f" {character} "
    lower = character.lower()
    bare = "".join(
        each for each in _UNICODE.normalize("NFD", lower) if _UNICODE.category(each) != "Mn"
    )
    return next(form for form in (bare, lower, character) if len(form) == 1)


class _Forms(dict[int, str]):
    """The forms of characters; those beyond the first plane separate words."""

    def __missing__(self, code: int) -> str:
        return " "


@cache
def _forms() -> _Forms:
    """Made when a text is first looked at: it takes a tenth of a second, which no other command waits for."""
    return _Forms((code, _form_of(code)) for code in range(1 << 16))


@cache
def _table() -> bytes:
    """The forms for the compiled module: 0 separates words, 1 is nothing, the bit 0x10000 says: a word by itself."""
    codes = {" ": 0, "": 1}
    forms = _forms().values()
    return np.array(
        [
            codes[form] if form in codes else ord(form.strip()) | (len(form) > 1) << 16
            for form in forms
        ],
        np.uint32,
    ).tobytes()


def normalize(text: str) -> str:
    """The words of a text with single spaces between them."""
    if compiled is not None:
        return str(compiled.normalize(text.encode("utf-8", "replace"), _table()).decode())
    return " ".join(text.translate(_forms()).split())


@dataclass(frozen=True)
class TaskTexts:
    """The texts of task files, as they are handed to workers.

    Attributes:
        n: Words of a window.
        words: The normalised texts that have enough words, a line each, in UTF-8.
        places: Where each of them stands in the task files.
    """

    n: int
    words: bytes
    places: tuple[str, ...]

    @property
    def least(self) -> int:
        """The fewest words of a text that is looked for."""
        return min(self.n, LEAST_WORDS)

    @cached_property
    def finder(self) -> "WindowFinder":
        """Made once a process."""
        return WindowFinder(self)


def prepare_texts(texts: Iterable[tuple[str, str]], n: int) -> TaskTexts:
    """Texts with their places as they are handed to workers; shorter ones than are looked for are left out.

    Raises:
        ValueError: None is left, or they are over 2 GiB.
    """
    rows = [(place, normalize(clean_text(text))) for place, text in texts]
    least = min(n, LEAST_WORDS)
    kept = [(place, words) for place, words in rows if words and words.count(" ") + 1 >= least]
    if not kept:
        raise ValueError(
            f"task_files: found {len(rows)} texts, none of {least} words or more, which are looked for"
        )
    joined = "".join(f"{words}\n" for _, words in kept).encode()
    if len(joined) > _MOST_BYTES:
        raise ValueError(
            f"task_files: found {len(joined)} bytes of words, expected at most {_MOST_BYTES}"
        )
    return TaskTexts(n, joined, tuple(place for place, _ in kept))


@dataclass(frozen=True)
class Overlap:
    """A text of a task file, by its place, and the words of it that a document holds."""

    place: str
    words: str


class WindowFinder:
    """Finds the first window of a document that is in the task files."""

    def __init__(self, texts: TaskTexts) -> None:
        self._texts = texts
        self._starts = [0]  # of the texts
        for line in texts.words.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))
        self._find = _make_find(texts)

    def find(self, text: str) -> Overlap | None:
        """The first window of a text that a task file has, and its first place there; None for a text without any."""
        start = self._find(text)
        if start < 0:
            return None
        number = bisect_right(self._starts, start) - 1
        line = self._texts.words[start : self._starts[number + 1] - 1].decode()
        return Overlap(self._texts.places[number], " ".join(line.split(" ")[: self._texts.n]))


def _make_find(texts: TaskTexts) -> Callable[[str], int]:
    if compiled is None:
        return _DefinedWindows(texts).find
    windows = compiled.Windows(texts.words, _table(), texts.n, texts.least)
    return lambda text: int(windows.find(text.encode("utf-8", "replace")))


class _DefinedWindows:
    """The definition: windows as strings, each with where its first copy begins in the texts."""

    def __init__(self, texts: TaskTexts) -> None:
        self._n, self._least = texts.n, texts.least
        self._windows: dict[str, int] = {}
        self._whole: dict[str, list[tuple[list[str], int]]] = {}  # by their first words
        start = 0
        for line in texts.words.decode().split("\n")[:-1]:
            self._add(line.split(" "), start)
            start += len(line.encode()) + 1

    def _add(self, words: list[str], start: int) -> None:
        if len(words) < self._n:
            self._whole.setdefault(" ".join(words[: self._least]), []).append((words, start))
        for first in range(len(words) - self._n + 1):
            self._windows.setdefault(" ".join(words[first : first + self._n]), start)
            start += len(words[first].encode()) + 1

    def find(self, text: str) -> int:
        words = normalize(text).split(" ")
        for first in range(len(words) - self._least + 1):
            window = words[first : first + self._n]
            if len(window) == self._n and (start := self._windows.get(" ".join(window), -1)) >= 0:
                return start
            for whole, start in self._whole.get(" ".join(window[: self._least]), ()):
                if window[: len(whole)] == whole:
                    return start
        return -1
