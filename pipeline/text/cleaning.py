"""Raw text to cleaned text, and the document id that is a hash of it.

Works on UTF-8 bytes with explicit lists of code points: no Unicode table of the Python version can change a document or
its id. What the lists leave in (zero-width characters, private use) is the tokenizer's to judge.
`pipeline.text._cleaning`, where it is built, does the same by the same lists in one go.
"""

import re
from hashlib import blake2b
from typing import Any

from tokenizer.compiled import load

compiled: Any = load("pipeline.text._cleaning")
"""The compiled module, or None where the Python path is to be used."""

# Line ends besides \n: \r, vertical tab, form feed, next line (U+0085), line and paragraph separator (U+2028, U+2029).
# Spaces besides " ": tab, U+00A0, U+1680, U+2000 to U+200A, U+202F, U+205F, U+3000. Dropped: the other control
# characters (U+0000 to U+001F, U+007F to U+009F), the byte order mark U+FEFF and the replacement character U+FFFD.
_ASCII_LINE_ENDS, _ASCII_SPACES = b"\r\v\f", b"\t"
_ASCII_DROPPED = bytes(code for code in (*range(32), 127) if code not in b"\n\r\v\f\t")
_ASCII_TABLE = bytes.maketrans(_ASCII_LINE_ENDS + _ASCII_SPACES, b"\n\n\n ")

_SPACE_CODES = (0xA0, 0x1680, *range(0x2000, 0x200B), 0x202F, 0x205F, 0x3000)
_LINE_END_CODES = (0x85, 0x2028, 0x2029)
_DROPPED_CODES = (*range(0x80, 0x85), *range(0x86, 0xA0), 0xFEFF, 0xFFFD)
_REPLACEMENTS = {
    chr(code).encode(): replacement
    for codes, replacement in ((_SPACE_CODES, b" "), (_LINE_END_CODES, b"\n"), (_DROPPED_CODES, b""))
    for code in codes
}
_LAST_BYTES = {code[:-1]: [each[-1:] for each in _REPLACEMENTS if each[:-1] == code[:-1]] for code in _REPLACEMENTS}
_REPLACED = re.compile(b"|".join(first + b"[" + b"".join(last) + b"]" for first, last in _LAST_BYTES.items()))

_KEPT, _SPACE, _LINE_END, _DROPPED = range(4)  # as in _cleaning.c
_KINDS_OF_CODES = {
    **dict.fromkeys((*_ASCII_SPACES, ord(" "), *_SPACE_CODES), _SPACE),
    **dict.fromkeys((*_ASCII_LINE_ENDS, ord("\n"), *_LINE_END_CODES), _LINE_END),
    **dict.fromkeys((*_ASCII_DROPPED, *_DROPPED_CODES), _DROPPED),
}
_KINDS = bytes(_KINDS_OF_CODES.get(code, _KEPT) for code in range(1 << 16))
_FIRST_BYTES = {chr(code).encode()[0] for code in _KINDS_OF_CODES} - set(b" ")
_PLAIN = bytes(byte not in _FIRST_BYTES for byte in range(256))
"""Of each byte, whether no character of the lists begins with it; so of the space, which stays where it is single."""


def clean_text(raw: bytes | str) -> str:
    """Paragraphs of a document, one a line: single spaces, nothing at line ends, no empty line, no control character.

    Raises:
        UnicodeDecodeError: `raw` is bytes, and not UTF-8.
    """
    if isinstance(raw, bytes):
        raw = raw.decode()
    # JSON can hold half of a surrogate pair, which no UTF-8 can: dropped like U+FFFD.
    data = raw.encode("utf-8", "ignore")
    if compiled is not None:
        return str(compiled.clean(data, _KINDS, _PLAIN))
    data = data.translate(_ASCII_TABLE, _ASCII_DROPPED)
    if not data.isascii():
        data = _REPLACED.sub(lambda match: _REPLACEMENTS[match[0]], data)
    while b"  " in data:  # each round halves the runs
        data = data.replace(b"  ", b" ")
    return b"\n".join(filter(None, (line.strip(b" ") for line in data.split(b"\n")))).decode()


def document_id(cleaned: str) -> bytes:
    """The id of a document (16 bytes): equal texts have equal ids, wherever they were read."""
    return blake2b(cleaned.encode(), digest_size=16).digest()
