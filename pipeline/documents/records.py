"""The bytes of one document on their way from a reader to a parser, and what may be wrong with it."""

from dataclasses import dataclass, field
from typing import NamedTuple

# Reading, cleaning and splitting a text of 300 MB took 6.7 times its length in memory, 7.6 times in
# JSONL: some 4 GiB for one this long.
MAX_DOCUMENT_BYTES = 512 * 2**20


class BadDocumentError(ValueError):
    """A document that cannot be read.

    Attributes:
        reason: To count it by.
        line: At fault, counted from 0 at the record's first line.
    """

    def __init__(self, reason: str, message: str, line: int = 0) -> None:
        super().__init__(message)
        self.reason, self.line = reason, line


class Line(NamedTuple):
    r"""One line without its "\n".

    Attributes:
        number: From 1 on, counted from the first line read.
        offset: Where its first byte lies in the decompressed file.
        data: Its bytes; none where there are too many.
        is_too_long: Whether it is longer than a document may be.
    """

    number: int
    offset: int
    data: bytes
    is_too_long: bool = False


@dataclass(frozen=True)
class Record:
    """The bytes of one document.

    Attributes:
        number: Line it starts at, counted from the first line read.
        offset: Its first byte in the decompressed file.
        data: Its lines.
        error: What is wrong with it, if reading already shows that.
        place: Where it is in the file, if lines do not say: "row 7".
        dropped: Why it is no document and no error either, for the counts: "redirect".
        member: Name within an archive, whose lines `number` counts.
        format: Layout of that member.
        is_html: Whether it is a web page, of which the text is to be found.
        hidden_prefixes: Of wikitext, the prefixes of links that are not shown.
    """

    number: int
    offset: int
    data: bytes
    error: BadDocumentError | None = None
    place: str = ""
    dropped: str = ""
    member: str = ""
    format: str = ""
    is_html: bool = False
    hidden_prefixes: frozenset[str] = frozenset()


@dataclass
class Gathered:
    """Lines of the document being read; let go of once they are longer than a document may be."""

    lines: list[Line] = field(default_factory=list)
    num_bytes: int = 0

    def add(self, line: Line) -> None:
        """Keeps a line, or only its length."""
        self.num_bytes += MAX_DOCUMENT_BYTES + 1 if line.is_too_long else len(line.data) + 1
        if self.num_bytes > MAX_DOCUMENT_BYTES:
            del self.lines[1:]
        if not self.lines or self.num_bytes <= MAX_DOCUMENT_BYTES:
            self.lines.append(line)

    def take(self, error: BadDocumentError | None = None) -> Record:
        """The record of the lines so far, of which there must be one; none are left."""
        first = self.lines[0]
        if self.num_bytes > MAX_DOCUMENT_BYTES:
            record = Record(first.number, first.offset, b"", error or too_long())
        else:
            record = Record(
                first.number, first.offset, b"\n".join(line.data for line in self.lines), error
            )
        self.lines, self.num_bytes = [], 0
        return record


def too_long() -> BadDocumentError:
    """The error of a document over the limit."""
    message = f"found a document of more than {MAX_DOCUMENT_BYTES} bytes, the most that is read; cut it into several"
    return BadDocumentError("too_long", message)
