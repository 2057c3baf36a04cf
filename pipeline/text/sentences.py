"""Splits cleaned text into sentences, and very long documents into smaller ones."""

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import accumulate, pairwise

import sentencex

from pipeline.text.language_codes import check_language
from pipeline.text.sentence_rules import mark_stops

RULES = 3
"""Version of the rules in this file and in sentence_rules.py.

It is among the settings of every dataset, and rises if the rules change.
"""

MAX_CHARACTERS = 1000
"""The most characters of a sentence; a longer one is cut at a space."""

# The characters given to `sentencex` at once: it takes quadratic time on quotes that never close.
_WINDOW_CHARACTERS = 10_000
# `sentencex` never ends a sentence before a digit. In languages without spaces between sentences
# many begin with a date.
_WITHOUT_SPACES = {"zh", "yue", "wuu", "ja"}
_STOP_BEFORE_DIGIT = re.compile(r"(?<=[。\uff01\uff1f])(?=\d)")
# `sentencex` never splits text between quotation marks, brackets or apostrophes. Sentences of more
# than this many characters are split in another way.
_LONG_QUOTATION = 200
_OPENING_MARKS = "“„«\u2039\u2018\u201a(["
_CLOSING_MARKS = "”»\u203a\u2019)]"
_MARKS = dict.fromkeys(map(ord, _OPENING_MARKS + _CLOSING_MARKS + "\"'"), "x")
_STOP_BEFORE_MARKS = re.compile(rf"([.!?]+)([\"'{re.escape(_CLOSING_MARKS)}]+)(?= )")
_INNER_STOP = re.compile(
    rf"[.!?。\uff01\uff1f](?:[\"'{re.escape(_CLOSING_MARKS)}]* |(?<=[。\uff01\uff1f]))."
)
# `sentencex` takes the number or letter of a list's item, such as "1.", for a sentence.
_ITEM = re.compile(r"([•\u2043] ?)?(\d{1,3}|[a-z])\. (?=\S)")
_OPENING = "「『“\uff08《"
_CLOSING = "」』”\uff09》"


def split_sentences(
    text: str, language: str = "en", max_characters: int = MAX_CHARACTERS
) -> list[str]:
    """Returns the sentences of a cleaned text in order, none of them empty.

    The end of a line always ends a sentence.

    Args:
        text: Cleaned text.
        language: The ISO 639 code of its language. `sentencex` has rules for some 240 languages,
            and takes those of a related language for others.
        max_characters: The most characters of a sentence. A longer one is cut at the last space
            that fits.

    Raises:
        ValueError: `language` is not a language code.
    """
    has_spaces = _has_spaces(language)
    sentences: list[str] = []
    for line in text.split("\n"):
        split = _split_list if _ITEM.match(line) else _split_line
        for sentence in split(line, language):
            if len(sentence) <= _LONG_QUOTATION:
                sentences.append(sentence)
            else:
                sentences += _split_long_quotation(sentence, language)
    if not has_spaces:
        sentences = [part for sentence in sentences for part in _split_before_digits(sentence)]
    stripped = [sentence.strip(" ") for sentence in sentences]
    return _cut_sentences(filter(None, stripped), max_characters)


def keep_lines(
    text: str, max_characters: int = MAX_CHARACTERS, *, keeps_words: bool = False
) -> list[str]:
    """Returns the lines of a cleaned text as its sentences, without empty lines.

    Args:
        text: Cleaned text.
        max_characters: The most characters of a sentence. A longer line is cut at the last space
            that fits.
        keeps_words: Whether a word longer than `max_characters` stays whole, as a sentence that is
            longer too. Otherwise such a word is cut.
    """
    return _cut_sentences(filter(None, text.split("\n")), max_characters, keeps_words)


def _split_items(line: str) -> Iterator[str]:
    """Yields the items of a list that was written on one line, each with its number or letter.

    Examples of such lines are "1. One. 2. Two." and "a. One. b. Two.". If each number follows a
    bullet, the first may be any number, as in "• 9. Nine. • 10. Ten.". Without bullets, a line that
    does not begin with 1 or a is yielded as one item.

    Args:
        line: A line that begins with the number or letter of an item.
    """
    item = _ITEM.match(line)
    start = 0
    while item and (item[1] or start or item[2] in ("1", "a")):
        number = str(int(item[2]) + 1) if item[2].isdecimal() else chr(ord(item[2]) + 1)
        next_item = rf"(?<= )({re.escape(item[1] or '')})({re.escape(number)})\. (?=\S)"
        # An item has a text: in "1. 2. Some words." the second number begins the first item's.
        item = re.compile(next_item).search(line, item.end() + 1)
        if item:
            yield line[start : item.start()]
            start = item.start()
    yield line[start:]


def _split_list(line: str, language: str) -> Iterator[str]:
    """Yields the sentences of a list that was written on one line.

    The number of an item is part of the item's first sentence.
    """
    for item in _split_items(line):
        number = _ITEM.match(item)
        assert number is not None, f"{item!r} begins with no number"
        sentences = iter(_split_line(item[number.end() :], language))
        yield number[0] + next(sentences, "")
        yield from sentences


def _split_long_quotation(sentence: str, language: str) -> Sequence[str]:
    """Splits a long sentence as if its quotation marks, apostrophes and brackets were letters.

    Otherwise `sentencex` would not split the text between such marks.
    """
    if not _INNER_STOP.search(sentence):
        return (sentence,)
    letters = _STOP_BEFORE_MARKS.sub(r"\2\1", sentence).translate(_MARKS)
    if letters == sentence:
        return (sentence,)
    ends = list(accumulate(map(len, _split_line(letters, language)), initial=0))
    return [sentence[start:end] for start, end in pairwise(ends)]


def _split_line(line: str, language: str) -> list[str]:
    """Splits one line into sentences, in time that is linear in its length.

    The sentences keep the spaces around them, so that joined they are the line.
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
    """Splits a sentence at stops before digits, for languages without spaces between sentences.

    Text between opening and closing marks is not split.
    """
    parts = [""]
    for part in _STOP_BEFORE_DIGIT.split(sentence):
        if sum(map(parts[-1].count, _OPENING)) > sum(map(parts[-1].count, _CLOSING)):
            parts[-1] += part
        else:
            parts.append(part)
    return parts[1:]


def _cut_sentences(
    sentences: Iterable[str], max_characters: int, keeps_words: bool = False
) -> list[str]:
    """Returns the sentences in order, with pieces (`_cut_sentence`) in place of the long ones.

    A sentence is long if it has more than `max_characters`.
    """
    cut: list[str] = []
    for sentence in sentences:
        is_short = len(sentence) <= max_characters
        cut += (sentence,) if is_short else _cut_sentence(sentence, max_characters, keeps_words)
    return cut


def _cut_sentence(sentence: str, max_characters: int, keeps_words: bool) -> Iterator[str]:
    """Yields pieces of a sentence, which is cut at the last space that fits.

    Args:
        sentence: The sentence.
        max_characters: The most characters of a piece.
        keeps_words: Whether a single word with more characters is a longer piece. Otherwise the
            word is cut.
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
    """Cuts a document into smaller ones, each a list of consecutive sentences.

    Args:
        sentences: The sentences of the document.
        max_bytes: The most bytes of UTF-8 in a smaller document, with a line end after each
            sentence. A single sentence with more bytes is a document as well.
    """
    if 4 * sum(map(len, sentences)) + len(sentences) <= max_bytes:  # 4 bytes a character at most
        return [sentences] if sentences else []
    documents: list[list[str]] = []
    first = 0
    num_bytes = 0
    for index, sentence in enumerate(sentences):
        size = len(sentence.encode()) + 1
        if num_bytes + size > max_bytes and index > first:
            documents.append(sentences[first:index])
            first = index
            num_bytes = 0
        num_bytes += size
    return [*documents, sentences[first:]]


@cache
def _has_spaces(language: str) -> bool:
    """Returns whether a language is written with spaces between sentences.

    Raises:
        ValueError: `language` is not a language code.
    """
    check_language(language)
    return language.split("-", 1)[0] not in _WITHOUT_SPACES
