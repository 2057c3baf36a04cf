"""Defines what a format is, and the records that readers of formats pass to their parsers."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from pipeline.documents.files import FileRange, StorageOptions

MAX_DOCUMENT_BYTES = 512 * 2**20  # takes some 4 GiB of memory to read, clean and split


class BadDocumentError(ValueError):
    """A document cannot be read.

    Attributes:
        reason: The word by which such documents are counted, such as "not_utf8".
        line: The line at fault, counted from 0 at the beginning of the document.
    """

    def __init__(self, reason: str, message: str, line: int = 0) -> None:
        super().__init__(message)
        self.reason = reason
        self.line = line


class Line(NamedTuple):
    r"""One line of a file.

    Attributes:
        number: Number of the line, from 1 at the first line that was read.
        offset: Offset of its first byte in the decompressed file.
        data: Its bytes in UTF-8 without the line end. Empty if the line is too long.
        is_too_long: Whether the line is longer than a document may be.
    """

    number: int
    offset: int
    data: bytes
    is_too_long: bool = False


@dataclass(frozen=True)
class Record:
    """The bytes of one document, from which the parser of its format makes the text.

    Attributes:
        number: Number of the line at which the document starts, from 1 at the first line that was
            read.
        offset: Offset of its first byte in the decompressed file.
        data: Its bytes in UTF-8.
        error: Why the document cannot be read, or None.
        place: Where it is in the file, such as "row 7", if it is not told by lines.
        dropped: Why this is not a document although nothing is wrong, such as "redirect", for the
            counts; empty for a document.
        member: Name of the member, if the file is an archive. `number` counts lines of the member.
        format: Name of the member's format; empty for the format of the file.
        is_html: Whether the data of a WARC record are HTML, not plain text.
        hidden_prefixes: Prefixes of links that are not shown in this wikitext.
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
    """The lines of the document that is being read.

    If they become longer than a document may be, all but the first are forgotten.

    Attributes:
        lines: The lines so far.
        num_bytes: Number of their bytes with line ends; more than MAX_DOCUMENT_BYTES once there are
            too many.
    """

    lines: list[Line] = field(default_factory=list)
    num_bytes: int = 0

    def add(self, line: Line) -> None:
        """Adds a line, or only its length if the document is too long."""
        self.num_bytes += MAX_DOCUMENT_BYTES + 1 if line.is_too_long else len(line.data) + 1
        if self.num_bytes > MAX_DOCUMENT_BYTES:
            del self.lines[1:]
        if not self.lines or self.num_bytes <= MAX_DOCUMENT_BYTES:
            self.lines.append(line)

    def take(self, error: BadDocumentError | None = None) -> Record:
        """Returns a record of the lines so far, and forgets them. There must be at least one.

        Args:
            error: What the reader found wrong with the document, or None.
        """
        lines = self.lines
        is_too_long = self.num_bytes > MAX_DOCUMENT_BYTES
        self.lines = []
        self.num_bytes = 0
        data = b"" if is_too_long else b"\n".join(line.data for line in lines)
        error = error or (too_long() if is_too_long else None)
        return Record(lines[0].number, lines[0].offset, data, error)


def too_long() -> BadDocumentError:
    """Returns the error of a document with more than MAX_DOCUMENT_BYTES."""
    most = f"more than {MAX_DOCUMENT_BYTES} bytes, the most that is read"
    return BadDocumentError("too_long", f"found a document of {most}; cut it into several")


class Beginning(NamedTuple):
    """The name and the first bytes of a file, by which its format is detected.

    Attributes:
        suffix: The extension of the file in lower case, without that of a compression: ".csv" for
            "A.CSV.gz".
        head: The first bytes, decompressed.
        text: The first bytes as UTF-8, without white space before them.
    """

    suffix: str
    head: bytes
    text: bytes


class ParseRecord(Protocol):
    """The type of `Format.parse`: a function that makes the text of one record."""

    def __call__(self, text: str, record: Record, file_range: FileRange, text_field: str, /) -> str:
        """Returns the text of a document, which may still have any white space.

        Args:
            text: The decoded bytes of the record, with all of its markup.
            record: The record, which says what the reader knows about it besides its bytes.
            file_range: The range of the file that the record was read from, with the settings of
                the source for its files.
            text_field: The setting of this name, for formats whose text is in a field or a column.

        Raises:
            BadDocumentError: The record is malformed.
        """
        ...


@dataclass(frozen=True)
class Format:
    """A format of input files: how to find the records of a file, and the text of a record.

    A format has `split` if its files are lines, `read` if they are read in another way. If it has
    neither, every file is one document.

    Attributes:
        parse: Returns the text of a record.
        detect: Returns whether a file with this beginning has the format. A format without it is
            used only if the user names it. It is not asked about files that `KINDS` in kinds.py
            refuses.
        split: Makes records of the lines of a range, and stops after the last record that belongs
            to the range. It is used for members of archives as well.
        read: Yields the records that belong to a range, for a format that is not made of lines. Its
            arguments are the range, the name of the field that holds the text, and the options of
            the filesystem.
        decoder: Decodes a whole file that names its own encoding. Without it files are UTF-8, or
            UTF-16 with a byte order mark.
        names: Returns the names of the columns of a file, or of the fields of its first objects. A
            format has it if the text is in a field with a name.
        is_text: Whether files are text, which may be UTF-16.
        may_be_cut: Whether an uncompressed file may be cut into ranges.
        cut_suffix: Extension of a compression with which files may be cut as well, or empty.
        has_sentence_lines: Whether every line is a sentence.
    """

    parse: ParseRecord
    detect: Callable[[Beginning], bool] | None = None
    split: Callable[[Iterable[Line], FileRange], Iterator[Record]] | None = None
    read: Callable[[FileRange, str, StorageOptions], Iterator[Record]] | None = None
    decoder: Callable[[bytes], str] | None = None
    names: Callable[[FileRange, StorageOptions], list[str]] | None = None
    is_text: bool = True
    may_be_cut: bool = True
    cut_suffix: str = ""
    has_sentence_lines: bool = False

    @property
    def is_whole(self) -> bool:
        """Whether every file is one document."""
        return self.split is None and self.read is None
