"""Cleans raw text, and makes document ids, which are hashes of cleaned text.

The rules are explicit lists of code points, so that no Python version with another Unicode table
can change an id. If `tokenizer._matcher` is compiled, it does the same by the same lists, 20 times
as fast.
"""

from collections.abc import Iterable
from hashlib import blake2b
from typing import Any

from tokenizer.compiled import load

compiled: Any = load("tokenizer._matcher")
"""The compiled module, or None if the Python functions are to be used."""

_SPACES = (0x09, 0x20, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x202F, 0x205F, 0x3000)
_LINE_ENDS = (0x0A, 0x0B, 0x0C, 0x0D, 0x85, 0x2028, 0x2029)
# Halves of surrogate pairs. JSON can hold them alone, but UTF-8 cannot.
_SURROGATES = range(0xD800, 0xE000)
# Control characters, the byte order mark, the replacement character and surrogates.
_DROPPED = (*range(0x20), *range(0x7F, 0xA0), 0xFEFF, 0xFFFD, *_SURROGATES)

_KIND_NUMBERS = {" ": 1, "\n": 2, "": 3}


class _Replacements:
    """The replacements of characters by one cleaning rule. Characters that are not listed stay.

    Attributes:
        of_code: The replacement of each listed code point: a space, a line end or nothing.
        kinds: [65,536] bytes, one for each code point below U+10000: the number of its replacement
            (`_KIND_NUMBERS`), or 0 if the character stays. The compiled module reads them.
        plain: [256] bytes, one for each value of a byte. It is 0 if a listed character begins with
            that byte in UTF-8, and 1 if the compiled module can copy the byte without a look at
            `kinds`. It is 1 for the space, which is replaced by itself.
    """

    def __init__(self, dropped: Iterable[int]) -> None:
        self.of_code = dict.fromkeys(dropped, "")
        self.of_code |= dict.fromkeys(_SPACES, " ")
        self.of_code |= dict.fromkeys(_LINE_ENDS, "\n")
        kinds = (_KIND_NUMBERS.get(self.of_code.get(code, "x"), 0) for code in range(1 << 16))
        self.kinds = bytes(kinds)
        encoded = {chr(code).encode("utf-8", "ignore") for code in self.of_code}
        first_bytes = {byte for character in encoded for byte in character[:1]} - set(b" ")
        self.plain = bytes(byte not in first_bytes for byte in range(256))


_OF_PROSE = _Replacements(_DROPPED)
_OF_WORDS = _Replacements(_SURROGATES)


def clean_text(raw: bytes | str, *, keeps_words: bool = False) -> str:
    """Returns a text's paragraphs, one per line, with single spaces and no empty lines.

    Args:
        raw: A text, or its bytes in UTF-8.
        keeps_words: Whether words stay unchanged, so that only white space is cleaned. Otherwise
            control characters are dropped too.

    Raises:
        UnicodeDecodeError: The bytes are not UTF-8.
    """
    replacements = _OF_WORDS if keeps_words else _OF_PROSE
    text = raw.decode() if isinstance(raw, bytes) else raw
    if compiled is not None:
        data = text.encode("utf-8", "ignore")
        return str(compiled.clean(data, replacements.kinds, replacements.plain))
    lines = text.translate(replacements.of_code).split("\n")
    single_spaced = (" ".join(filter(None, line.split(" "))) for line in lines)
    return "\n".join(filter(None, single_spaced))


def document_id(cleaned: str | bytes) -> bytes:
    """Returns the id of a document, a hash of 16 bytes. Equal texts have equal ids.

    Args:
        cleaned: The cleaned text, or its bytes in UTF-8.
    """
    data = cleaned.encode() if isinstance(cleaned, str) else cleaned
    return blake2b(data, digest_size=16).digest()
