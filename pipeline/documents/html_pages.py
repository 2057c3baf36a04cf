"""Makes text of HTML: finds the encoding of a page's bytes, and the main text of the page.

Servers often name a wrong encoding. The encodings that the HTTP header and the page itself name are
therefore checked against the bytes. If neither fits, resiliparse's detector decides.
"""

import codecs
import re
from collections.abc import Iterable

_MARKS = {
    codecs.BOM_UTF8: "utf-8",
    codecs.BOM_UTF16_LE: "utf-16-le",
    codecs.BOM_UTF16_BE: "utf-16-be",
}
_DECLARATION_BYTES = 4096  # first bytes in which a page may declare its encoding; browsers: 1024
_DECLARATION = re.compile(
    rb"""<(?:meta\b[^>]*?\bcharset|\?xml\b[^>]*?\bencoding)\s*=\s*["']?\s*([\w.:-]+)""",
    re.IGNORECASE,
)
_MARKUP = re.compile(r"<(script|style)\b.*?</\1|<[^<>]*>", re.DOTALL | re.IGNORECASE)
_ASCII_LETTERS = re.compile("[A-Za-z]")
_ACCENTED_LETTERS = re.compile("[\u00c0-\u00ff]")
_NOT_TEXT = re.compile("[\0-\x08\x0e-\x1a\x1c-\x1f\x7f\x80-\x84\x86-\x9f\ufffd]")
_CHECKED_CHARACTERS = 10_000
_MOST_NOT_TEXT = 0.05
"""The largest share of `_NOT_TEXT` in a text. Binary data, decoded by mistake, have more."""


def decode_html(body: bytes, charset_hint: str | None = None) -> str:
    """Decodes the bytes of an HTML page. It never raises: some encoding is always chosen.

    The first of these that applies decides:

    1. A byte order mark.
    2. UTF-8, if the bytes are UTF-8 with characters beyond ASCII.
    3. The hint or the page's own declaration, if it fits the bytes. If they differ and both fit,
       resiliparse's detector chooses between them.
    4. The detector.

    Args:
        body: The page as the server stored it, without compression.
        charset_hint: The charset that came with the page, from an HTTP header or a setting, as it
            was written there. A name that no browser knows is ignored.
    """
    from resiliparse.parse.encoding import detect_encoding

    for mark, encoding in _MARKS.items():
        if body.startswith(mark):
            return body[len(mark) :].decode(encoding, "replace")
    if not body.isascii() and b"\0" not in body:
        text = _try_decode(body, "utf-8")
        if text:
            return text

    declared = _DECLARATION.search(body[:_DECLARATION_BYTES])
    declaration = declared[1].decode("ascii", "replace") if declared else None
    names = list(_known_encodings([charset_hint, declaration]))
    texts = _decode_by_all(body, names)
    plausible = [name for name, text in texts.items() if _is_plausible(text, name)]
    if len(plausible) == 1:
        return texts[plausible[0]]

    detected = detect_encoding(body) or "utf-8"
    if detected in plausible:
        return texts[detected]
    if plausible:
        return texts[plausible[0]]
    text = _try_decode(body, detected)
    if text is not None:
        return text
    return texts[next(iter(texts))] if texts else body.decode([*names, "utf-8"][0], "replace")


def is_text(decoded: str) -> bool:
    """Returns whether a decoded page begins with text, not with binary data decoded by mistake."""
    beginning = decoded[:_CHECKED_CHARACTERS]
    return len(_NOT_TEXT.findall(beginning)) <= _MOST_NOT_TEXT * len(beginning)


def extract_text(html: str) -> str:
    """Returns a page's main text, one paragraph per line, without menus, bullets and alt texts."""
    from resiliparse.extract.html2text import extract_plain_text

    return str(extract_plain_text(html, main_content=True, list_bullets=False, alt_texts=False))


def _known_encodings(labels: Iterable[str | None]) -> Iterable[str]:
    """Returns Python's names of the encodings that HTML calls by some labels, each name once.

    For example, pages call cp1252 "iso-8859-1". A label that browsers do not know is left out.

    Args:
        labels: The labels. An item that is None is skipped.
    """
    from resiliparse.parse.encoding import map_encoding_to_html5

    known = (map_encoding_to_html5(label.strip(), fallback_utf8=False) for label in labels if label)
    return dict.fromkeys(str(name) for name in known if name)


def _decode_by_all(body: bytes, encodings: Iterable[str]) -> dict[str, str]:
    """Decodes a page by several encodings.

    Returns:
        The decoded page by the name of the encoding, for each encoding that fits the bytes.
    """
    texts: dict[str, str] = {}
    for encoding in encodings:
        text = _try_decode(body, encoding)
        if text is not None:
            texts[encoding] = text
    return texts


def _try_decode(body: bytes, encoding: str) -> str | None:
    """Decodes a page, or returns None if its bytes are not in this encoding.

    A page may have been cut, so its bytes may end within a character. For UTF-8 some bytes may be
    wrong too, which become U+FFFD. There may be as many of them as there are correct characters
    beyond ASCII. Bytes of another encoding hardly ever form correct characters of UTF-8 beyond
    ASCII.
    """
    try:
        return codecs.getincrementaldecoder(encoding)("strict").decode(body)
    except (UnicodeError, LookupError):
        if encoding != "utf-8":
            return None
    text = body.decode("utf-8", "replace")
    num_wrong = text.count("\ufffd")
    num_beyond_ascii = len(text) - len(text.encode("ascii", "ignore"))
    return text if num_wrong * 2 <= num_beyond_ascii else None


def _is_plausible(text: str, encoding: str) -> bool:
    """Returns whether a page was probably decoded by the right encoding.

    Only cp1252 is checked; for any other encoding the result is True. cp1252 can decode nearly any
    bytes, and servers name it without looking at the page. Its result is plausible if the text,
    without its markup, has no more accented letters than ASCII letters.

    Args:
        text: The decoded page.
        encoding: Python's name of the encoding by which it was decoded.
    """
    if encoding != "cp1252":
        return True
    shown = _MARKUP.sub(" ", text[: 10 * _CHECKED_CHARACTERS])
    return len(_ACCENTED_LETTERS.findall(shown)) <= len(_ASCII_LETTERS.findall(shown))
