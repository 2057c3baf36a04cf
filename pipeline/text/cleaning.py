"""Raw text to cleaned text, and the document id that is a hash of it.

Works by explicit lists of code points: no Unicode table of the Python version can change an id.
`tokenizer._matcher`, where it is built, does the same by the same lists, 20 times as fast.
"""

from hashlib import blake2b
from typing import Any

from tokenizer.compiled import load

compiled: Any = load("tokenizer._matcher")
"""The compiled module, or None where the Python path is to be used."""

_SPACES = (0x09, 0x20, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x202F, 0x205F, 0x3000)
_LINE_ENDS = (0x0A, 0x0B, 0x0C, 0x0D, 0x85, 0x2028, 0x2029)
# Control characters, the byte order mark, the replacement character, and halves of surrogate pairs,
# which JSON can hold and no UTF-8 can.
_DROPPED = (*range(0x20), *range(0x7F, 0xA0), 0xFEFF, 0xFFFD, *range(0xD800, 0xE000))
_REPLACEMENTS = dict.fromkeys(_DROPPED, "")
_REPLACEMENTS |= dict.fromkeys(_SPACES, " ") | dict.fromkeys(_LINE_ENDS, "\n")

# For the compiled module: the kind of each character, by these numbers; and of each byte, whether
# no character of the lists begins with it (a single space stays).
_KIND_NUMBERS = {" ": 1, "\n": 2, "": 3}
_KINDS = bytes(_KIND_NUMBERS.get(_REPLACEMENTS.get(code, "x"), 0) for code in range(1 << 16))
_ENCODED = {chr(code).encode("utf-8", "ignore") for code in _REPLACEMENTS}
_FIRST_BYTES = {byte for each in _ENCODED for byte in each[:1]} - set(b" ")
_PLAIN = bytes(byte not in _FIRST_BYTES for byte in range(256))


def clean_text(raw: bytes | str) -> str:
    """Paragraphs, one a line: single spaces, none at ends, no empty line, no control character.

    Raises UnicodeDecodeError for bytes that are not UTF-8.
    """
    text = raw.decode() if isinstance(raw, bytes) else raw
    if compiled is not None:
        return str(compiled.clean(text.encode("utf-8", "ignore"), _KINDS, _PLAIN))
    lines = text.translate(_REPLACEMENTS).split("\n")
    return "\n".join(filter(None, (" ".join(filter(None, line.split(" "))) for line in lines)))


def document_id(cleaned: str | bytes) -> bytes:
    """16 bytes, from the text or this in UTF-8: equal texts have equal ids."""
    data = cleaned.encode() if isinstance(cleaned, str) else cleaned
    return blake2b(data, digest_size=16).digest()
