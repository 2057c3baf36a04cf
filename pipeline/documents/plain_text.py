"""Plain text: documents with blank lines between them. Stdlib and pipeline.documents."""

from collections.abc import Iterable, Iterator

from pipeline.documents.files import FileRange
from pipeline.documents.records import Gathered, Line, Record


def split_blank_lines(lines: Iterable[Line], file_range: FileRange) -> Iterator[Record]:
    """Runs of lines that are not blank; lines before the range's first blank line belong to the range before."""
    is_ours = file_range.start == 0
    gathered = Gathered()
    for line in lines:
        if line.is_too_long or line.data.strip():
            if is_ours:
                gathered.add(line)
            continue
        if gathered.lines:
            yield gathered.take()
        if line.offset >= file_range.last_offset:
            return
        is_ours = True
    if gathered.lines:
        yield gathered.take()
