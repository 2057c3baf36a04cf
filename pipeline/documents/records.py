"""The bytes of one document on their way from a reader to a parser, and what may be wrong with it."""

from dataclasses import dataclass, field
from typing import NamedTuple

MAX_DOCUMENT_BYTES = 512 * 2**20  # takes some 4 GiB of memory to read, clean and split


class BadDocumentError(ValueError):
    """A document that cannot be read: the reason to count it by, and the line at fault, from 0 at its first."""

    def __init__(self, reason: str, message: str, line: int = 0) -> None:
        super().__init__(message)
        self.reason, self.line = reason, line


class Line(NamedTuple):
    r"""One line without its "\n": its number from 1, its place in the decompressed file, and its bytes.

    There are none of a line that is longer than a document may be.
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
        place: Where it is in the file, if lines do not say: "row 7".
        dropped: Why it is no document and no error either, for the counts: "redirect".
        member: Name within an archive, whose lines `number` counts; `format` is its layout.
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
        lines, is_too_long = self.lines, self.num_bytes > MAX_DOCUMENT_BYTES
        self.lines, self.num_bytes = [], 0
        data = b"" if is_too_long else b"\n".join(line.data for line in lines)
        error = error or (too_long() if is_too_long else None)
        return Record(lines[0].number, lines[0].offset, data, error)


def too_long() -> BadDocumentError:
    """The error of a document over the limit."""
    message = f"found a document of more than {MAX_DOCUMENT_BYTES} bytes, the most that is read; cut it into several"
    return BadDocumentError("too_long", message)
