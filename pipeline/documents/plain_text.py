"""Plain text: a file is a document, a line is, or blank lines or WikiExtractor's tags divide."""

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
    """Runs of lines; those before the first blank line belong to the range before."""
    last_offset = file_range.last_offset
    is_ours = file_range.start == 0
    gathered = Gathered()
    for line in lines:
        if line.is_too_long or not is_blank(line.data):
            if is_ours:
                gathered.add(line)
            continue
        if gathered.lines:
            yield gathered.take()
        if line.offset >= last_offset:
            return
        is_ours = True
    if gathered.lines:
        yield gathered.take()


def split_wikiextractor(lines: Iterable[Line], file_range: FileRange) -> Iterator[Record]:
    """Lines from `<doc ...>` on, without the closing one; stray text belongs to the one before."""
    opened = Gathered()
    is_ours = file_range.start == 0
    for line in lines:
        if line.data.startswith(b"<doc "):
            if opened.lines:
                below = line.number - opened.lines[0].number
                yield opened.take(_unclosed(f"another one starts {below} lines below"))
            if line.offset >= file_range.last_offset:
                return
            opened.add(line)
            is_ours = True
        elif opened.lines and line.data.startswith(b"</doc>"):
            yield opened.take()
        elif opened.lines:
            opened.add(line)
        elif is_ours and (line.is_too_long or not is_blank(line.data)):
            found = f"found {line.data[:40]!r} outside <doc ...> ... </doc>"
            error = BadDocumentError("text_outside_doc", f"{found}, {_EXPECTED}")
            yield Record(line.number, line.offset, line.data, error)
            is_ours = False  # one complaint up to the next document
    if opened.lines:
        yield opened.take(_unclosed("the file ends"))


def _unclosed(instead: str) -> BadDocumentError:
    return BadDocumentError("unclosed_doc", f"found <doc ...> without its </doc> line: {instead}")


def parse_wikiextractor(text: str) -> str:
    """Returns the unescaped body, without its first line if that is the title."""
    header, _, body = text.partition("\n")
    first, _, rest = body.partition("\n")
    title = _TITLE.search(header)
    if title and first.strip() in {title[1], html.unescape(title[1])}:
        body = rest
    return unescape_text(body)


def _as_it_stands(text: str, *_: object) -> str:
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
