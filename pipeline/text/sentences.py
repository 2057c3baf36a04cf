"""Cleaned text to sentences, and very long documents to pieces."""

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import accumulate, pairwise

import sentencex

from pipeline.text.language_codes import check_language
from pipeline.text.sentence_rules import mark_stops

RULES = 3
"""Number of the rules below and in sentence_rules.py, in the settings of every dataset."""

MAX_CHARACTERS = 1000
"""The most characters of a sentence; a longer one is cut at a space."""

# `sentencex` takes quadratic time on opening quotes that nothing closes.
_WINDOW_CHARACTERS = 10_000
# `sentencex` never ends a sentence before a digit; without spaces many begin with a date.
_WITHOUT_SPACES = {"zh", "yue", "wuu", "ja"}
_STOP_BEFORE_DIGIT = re.compile(r"(?<=[。\uff01\uff1f])(?=\d)")
# `sentencex` keeps whole what stands between quotation marks, brackets or apostrophes.
_LONG_QUOTATION = 200  # characters
_OPENING_MARKS, _CLOSING_MARKS = "“„«\u2039\u2018\u201a([", "”»\u203a\u2019)]"
_MARKS = dict.fromkeys(map(ord, _OPENING_MARKS + _CLOSING_MARKS + "\"'"), "x")
_STOP_BEFORE_MARKS = re.compile(rf"([.!?]+)([\"'{re.escape(_CLOSING_MARKS)}]+)(?= )")
_INNER_STOP = re.compile(
    rf"[.!?。\uff01\uff1f](?:[\"'{re.escape(_CLOSING_MARKS)}]* |(?<=[。\uff01\uff1f]))."
)
# It takes the number or letter of a list's item for a sentence.
_ITEM = re.compile(r"([•\u2043] ?)?(\d{1,3}|[a-z])\. (?=\S)")
_OPENING, _CLOSING = "「『“\uff08《", "」』”\uff09》"


def split_sentences(
    text: str, language: str = "en", max_characters: int = MAX_CHARACTERS
) -> list[str]:
    """Sentences of cleaned text in order, none empty; a line end always ends one.

    `sentencex` has rules of some 240 languages (ISO 639) and falls back to relatives; ValueError
    for no code. A sentence beyond `max_characters` is cut at the last space that fits.
    """
    has_spaces = _has_spaces(language)
    found: list[str] = []
    for line in text.split("\n"):
        found += _split_list(line, language) if _ITEM.match(line) else _split_line(line, language)
    found = [
        part
        for each in found
        for part in (
            (each,) if len(each) <= _LONG_QUOTATION else _split_long_quotation(each, language)
        )
    ]
    if not has_spaces:
        found = [sentence for each in found for sentence in _split_before_digits(each)]
    stripped = [sentence for each in found if (sentence := each.strip(" "))]
    return _cut_sentences(stripped, max_characters)


def keep_lines(
    text: str, max_characters: int = MAX_CHARACTERS, *, keeps_words: bool = False
) -> list[str]:
    """Returns the non-empty lines of cleaned text as its sentences.

    Args:
        text: Cleaned text.
        max_characters: The most characters of a sentence. A longer line is cut as by
            `split_sentences`.
        keeps_words: Whether a single word longer than that stays whole.
    """
    return _cut_sentences(filter(None, text.split("\n")), max_characters, keeps_words)


def _split_items(line: str) -> Iterator[str]:
    """The items of a list that is one line: numbers or letters from 1 or a, or behind bullets."""
    found, start = _ITEM.match(line), 0
    while found and (found[1] or start or found[2] in ("1", "a")):
        number = str(int(found[2]) + 1) if found[2].isdecimal() else chr(ord(found[2]) + 1)
        item = rf"(?<= )({re.escape(found[1] or '')})({re.escape(number)})\. (?=\S)"
        if following := re.compile(item).search(line, found.end()):
            yield line[start : following.start()]
            start = following.start()
        found = following
    yield line[start:]


def _split_list(line: str, language: str) -> Iterator[str]:
    """Sentences of a line that begins with an item's number, which stays with what follows it."""
    for item in _split_items(line):
        found = _ITEM.match(item)
        assert found is not None, f"{item!r} begins with no number"
        sentences = iter(_split_line(item[found.end() :], language))
        yield found[0] + next(sentences, "")
        yield from sentences


def _split_long_quotation(sentence: str, language: str) -> Sequence[str]:
    """Splits what marks or brackets make one long sentence, as if these were letters."""
    if not _INNER_STOP.search(sentence):
        return (sentence,)
    letters = _STOP_BEFORE_MARKS.sub(r"\2\1", sentence).translate(_MARKS)
    if letters == sentence:
        return (sentence,)
    ends = list(accumulate(map(len, _split_line(letters, language)), initial=0))
    return [sentence[start:end] for start, end in pairwise(ends)]


def _split_line(line: str, language: str) -> list[str]:
    """Splits one line into sentences in time linear in its length.

    Sentences keep the spaces around them.
    """
    marked = mark_stops(line, language)
    start = 0
    ends: list[int] = []
    while len(line) - start > _WINDOW_CHARACTERS:
        window = marked[start : start + _WINDOW_CHARACTERS]
        sentences = sentencex.segment(language, window)
        complete = sentences[:-1] or [window[: window.rfind(" ") + 1 or len(window)]]
        for sentence in complete:
            start += len(sentence)
            ends.append(start)
    for sentence in sentencex.segment(language, marked[start:]):
        start += len(sentence)
        ends.append(start)
    return [line[begin:end] for begin, end in pairwise([0, *ends])]


def _split_before_digits(sentence: str) -> list[str]:
    """In languages without spaces, the parts of one sentence; a quotation stays whole."""
    pieces = [""]
    for piece in _STOP_BEFORE_DIGIT.split(sentence):
        if sum(map(pieces[-1].count, _OPENING)) > sum(map(pieces[-1].count, _CLOSING)):
            pieces[-1] += piece
        else:
            pieces.append(piece)
    return pieces[1:]


def _cut_sentences(
    sentences: Iterable[str], max_characters: int, keeps_words: bool = False
) -> list[str]:
    cut: list[str] = []
    for sentence in sentences:
        is_short = len(sentence) <= max_characters
        cut += (sentence,) if is_short else _cut_sentence(sentence, max_characters, keeps_words)
    return cut


def _cut_sentence(sentence: str, max_characters: int, keeps_words: bool) -> Iterator[str]:
    """Cuts a sentence into pieces of at most `max_characters`.

    With `keeps_words`, a longer word is a longer piece.
    """
    start = 0
    while len(sentence) - start > max_characters:
        space = sentence.rfind(" ", start + 1, start + max_characters + 1)
        if space < 0 and keeps_words:
            space = sentence.find(" ", start + max_characters + 1)
            if space < 0:
                break
        stop = space if space > 0 else start + max_characters
        yield sentence[start:stop]
        start = stop + (space > 0)
    if start < len(sentence):
        yield sentence[start:]


def cut_document(sentences: list[str], max_bytes: int = 8 * 2**20) -> list[list[str]]:
    """Runs of sentences whose text, one sentence a line, is at most `max_bytes` of UTF-8.

    A single sentence beyond `max_bytes` is a run of its own.
    """
    if 4 * sum(map(len, sentences)) + len(sentences) <= max_bytes:  # 4 bytes a character at most
        return [sentences] if sentences else []
    pieces: list[list[str]] = []
    first, num_bytes = 0, 0
    for index, sentence in enumerate(sentences):
        size = len(sentence.encode()) + 1
        if num_bytes + size > max_bytes and index > first:
            pieces.append(sentences[first:index])
            first, num_bytes = index, 0
        num_bytes += size
    return [*pieces, sentences[first:]]


@cache
def _has_spaces(language: str) -> bool:
    """Whether a language is written with spaces between sentences."""
    check_language(language)
    return language.split("-", 1)[0] not in _WITHOUT_SPACES
