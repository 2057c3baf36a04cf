"""Plain text: a file is a document, a line is one, or blank lines stand between documents."""

from collections.abc import Iterable, Iterator

from pipeline.documents.files import FileRange
from pipeline.documents.jsonl import split_jsonl
from pipeline.documents.records import Format, Gathered, Line, Record
from pipeline.documents.wrapping import unwrap


def split_blank_lines(lines: Iterable[Line], file_range: FileRange) -> Iterator[Record]:
    """Runs of lines; those before the first blank line belong to the range before."""
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


def _as_it_stands(text: str, *_: object) -> str:
    return text


TEXT = Format(lambda text, _, file_range, __: unwrap(text, file_range.wrapping), may_be_cut=False)
LINES = Format(_as_it_stands, split=split_jsonl)
TEXT_BLANK_LINES = Format(_as_it_stands, split=split_blank_lines)
SENTENCE_LINES = Format(_as_it_stands, split=split_blank_lines, has_sentence_lines=True)
