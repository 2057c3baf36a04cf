"""WikiExtractor's output: documents from `<doc ...>` to `</doc>`."""

import html
import re
from collections.abc import Iterable, Iterator

from pipeline.documents.files import FileRange
from pipeline.documents.records import BadDocumentError, Format, Gathered, Line, Record

_TITLE = re.compile('title="(.*)"')
_EXPECTED = "expected a WikiExtractor file; give the --format it has"


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
        elif is_ours and (line.is_too_long or line.data.strip()):
            found = f"found {line.data[:40]!r} outside <doc ...> ... </doc>"
            error = BadDocumentError("text_outside_doc", f"{found}, {_EXPECTED}")
            yield Record(line.number, line.offset, line.data, error)
            is_ours = False  # one complaint up to the next document
    if opened.lines:
        yield opened.take(_unclosed("the file ends"))


def _unclosed(instead: str) -> BadDocumentError:
    return BadDocumentError("unclosed_doc", f"found <doc ...> without its </doc> line: {instead}")


def parse_wikiextractor(text: str) -> str:
    """The body without the first line, where that is the title."""
    header, _, body = text.partition("\n")
    first, _, rest = body.partition("\n")
    title = _TITLE.search(header)
    if title and first.strip() in {title[1], html.unescape(title[1])}:
        return rest
    return body


WIKIEXTRACTOR = Format(
    lambda text, *_: parse_wikiextractor(text),
    lambda beginning: beginning.text.startswith(b"<doc "),
    split_wikiextractor,
)
