"""The formats of plain text.

A document is a whole file, a line, the lines between two blank lines, or what WikiExtractor writes
between its tags.
"""

import html
import re
from collections.abc import Iterable, Iterator

from pipeline.documents.files import FileRange
from pipeline.documents.jsonl import split_jsonl, unescape_text
from pipeline.documents.lines import is_blank
from pipeline.documents.records import BadDocumentError, Format, Gathered, Line, Record
from pipeline.documents.wrapping import unwrap

_TITLE = re.compile('title="(.*)"')
_EXPECTED = "expected a WikiExtractor file; give the --format it has"


def split_blank_lines(lines: Iterable[Line], file_range: FileRange) -> Iterator[Record]:
    """Yields a record for every group of lines, without blank lines, that belongs to a range.

    A group belongs to the range in which the last blank line before it starts. The first group of a
    file belongs to the range with byte 0.
    """
    last_offset = file_range.last_offset
    is_in_range = file_range.start == 0
    gathered = Gathered()
    for line in lines:
        if line.is_too_long or not is_blank(line.data):
            if is_in_range:
                gathered.add(line)
            continue
        if gathered.lines:
            yield gathered.take()
        if line.offset >= last_offset:
            return
        is_in_range = True
    if gathered.lines:
        yield gathered.take()


def split_wikiextractor(lines: Iterable[Line], file_range: FileRange) -> Iterator[Record]:
    """Yields a record for every document that starts in a range.

    A document is the line `<doc ...>` and the lines up to `</doc>`, which is not part of the
    record. If text follows between two documents, a record with an `error` is yielded for its first
    line. Such a record belongs to the range of the document before it.
    """
    opened = Gathered()
    is_in_range = file_range.start == 0
    for line in lines:
        if line.data.startswith(b"<doc "):
            if opened.lines:
                below = line.number - opened.lines[0].number
                yield opened.take(_unclosed(f"another one starts {below} lines below"))
            if line.offset >= file_range.last_offset:
                return
            opened.add(line)
            is_in_range = True
        elif opened.lines and line.data.startswith(b"</doc>"):
            yield opened.take()
        elif opened.lines:
            opened.add(line)
        elif is_in_range and (line.is_too_long or not is_blank(line.data)):
            found = f"found {line.data[:40]!r} outside <doc ...> ... </doc>"
            error = BadDocumentError("text_outside_doc", f"{found}, {_EXPECTED}")
            yield Record(line.number, line.offset, line.data, error)
            is_in_range = False  # reports stray text once, up to the next document
    if opened.lines:
        yield opened.take(_unclosed("the file ends"))


def _unclosed(instead: str) -> BadDocumentError:
    """Returns the error of a document without a closing tag.

    Args:
        instead: What was found in place of the tag, such as "the file ends".
    """
    return BadDocumentError("unclosed_doc", f"found <doc ...> without its </doc> line: {instead}")


def parse_wikiextractor(text: str) -> str:
    """Returns the text of a document of WikiExtractor, with entities of HTML as characters.

    The tag is left out. So is the first line of the text if it repeats the title in the tag.

    Args:
        text: The document, which begins with the line `<doc ...>`.
    """
    header, _, body = text.partition("\n")
    first, _, rest = body.partition("\n")
    title = _TITLE.search(header)
    if title and first.strip() in {title[1], html.unescape(title[1])}:
        body = rest
    return unescape_text(body)


def _as_it_stands(text: str, *_: object) -> str:
    """Returns a record's text unchanged."""
    return text


TEXT = Format(lambda text, _, file_range, __: unwrap(text, file_range.wrapping), may_be_cut=False)
LINES = Format(_as_it_stands, split=split_jsonl)
TEXT_BLANK_LINES = Format(_as_it_stands, split=split_blank_lines)
SENTENCE_LINES = Format(_as_it_stands, split=split_blank_lines, has_sentence_lines=True)
WIKIEXTRACTOR = Format(
    lambda text, *_: parse_wikiextractor(text),
    lambda beginning: beginning.text.startswith(b"<doc "),
    split_wikiextractor,
)
