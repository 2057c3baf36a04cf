"""What a layout of text is, and the bytes of one document on their way from reader to parser."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pipeline.documents.files import FileRange, StorageOptions

MAX_DOCUMENT_BYTES = 512 * 2**20  # takes some 4 GiB of memory to read, clean and split


class BadDocumentError(ValueError):
    """A document that cannot be read: the reason to count it by, and its line at fault, from 0."""

    def __init__(self, reason: str, message: str, line: int = 0) -> None:
        super().__init__(message)
        self.reason, self.line = reason, line


class Line(NamedTuple):
    r"""One line without its "\n"; of one longer than a document may be, without its bytes."""

    number: int
    """From 1."""
    offset: int
    """Of its first byte in the decompressed file."""
    data: bytes
    is_too_long: bool = False


@dataclass(frozen=True)
class Record:
    """The bytes of one document."""

    number: int
    """Line it starts at, counted from the first line read."""
    offset: int
    """Of its first byte in the decompressed file."""
    data: bytes
    error: BadDocumentError | None = None
    place: str = ""
    """Where it is in the file, if lines do not say: "row 7"."""
    dropped: str = ""
    """Why it is no document and no error either, for the counts: "redirect"."""
    member: str = ""
    """Name within an archive, whose lines `number` counts."""
    format: str = ""
    """The layout of the member."""
    is_html: bool = False
    hidden_prefixes: frozenset[str] = frozenset()
    """Of wikitext: prefixes of links that are not shown."""


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
    most = f"more than {MAX_DOCUMENT_BYTES} bytes, the most that is read"
    return BadDocumentError("too_long", f"found a document of {most}; cut it into several")


class Beginning(NamedTuple):
    """How a file begins."""

    suffix: str
    """The end of its name in lower case, without that of a compression: ".csv"."""
    head: bytes
    text: bytes
    """The head as stripped UTF-8."""


@dataclass(frozen=True)
class Format:
    """A layout of text. One that neither splits nor reads makes every file one document."""

    parse: Callable[[Any, Record, FileRange, str], str]
    """The text of a record: of its decoded bytes, the record, its range and the field of text."""
    detect: Callable[[Beginning], bool] | None = None
    """Whether a file begins like this; without it, only users choose the format."""
    split: Callable[[Iterable[Line], FileRange], Iterator[Record]] | None = None
    """Lines to the records that belong to a range; also reads members of archives."""
    read: Callable[[FileRange, str, StorageOptions], Iterator[Record]] | None = None
    """The records that belong to a range, of a layout that is not made of lines."""
    decoder: Callable[[bytes], str] | None = None
    """Makes text of a whole file that tells its encoding itself; without it that is UTF-8."""
    names: Callable[[FileRange, StorageOptions], list[str]] | None = None
    """Returns the names of a file's columns, or of its first objects' fields; for layouts in which
    the field of text has a name."""
    is_text: bool = True
    """Whether files are text, which may be UTF-16."""
    may_be_cut: bool = True
    """Whether ranges of a file can be read on their own where it is not compressed."""
    cut_suffix: str = ""
    """A compression of which ranges can be read on their own too."""
    has_sentence_lines: bool = False
    """Whether every line is a sentence."""

    @property
    def is_whole(self) -> bool:
        """Whether a file is one document."""
        return self.split is None and self.read is None
