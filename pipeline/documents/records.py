"""Defines what a format is, and the records that readers of formats pass to their parsers."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from pipeline.documents.files import FileRange, StorageOptions

MAX_DOCUMENT_BYTES = 512 * 2**20  # takes some 4 GiB of memory to read, clean and split


class BadDocumentError(ValueError):
    """A document cannot be read.

    Attributes:
        reason: The name under which documents with this error are counted, such as "not_utf8".
        line: The number of the faulty line, from 0 at the first line of the document.
    """

    def __init__(self, reason: str, message: str, line: int = 0) -> None:
        super().__init__(message)
        self.reason = reason
        self.line = line


class Line(NamedTuple):
    r"""One line of a file.

    Attributes:
        number: Number of the line. The first line that was read has the number 1, even if the file
            was read from its middle.
        offset: Offset of the line's first byte in the decompressed file.
        data: The line's bytes in UTF-8 without the line end; empty if the line is too long.
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
        number: Number of the line at which the document starts. The first line that was read has
            the number 1, even if the file was read from its middle.
        offset: Offset of the document's first byte in the decompressed file.
        data: The document's bytes in UTF-8.
        error: Why the document cannot be read, or None.
        place: Where the document is in the file, such as "row 7", for formats that are not read
            line by line. Empty if `number` says it.
        dropped: The name under which the record is counted if it is left out although nothing is
            wrong with it, such as "redirect". Empty for a record that is a document.
        member: Name of the member of the archive that holds the document; empty for a file that is
            no archive. `number` then counts the lines of the member.
        format: Name of the member's format; empty if the file is no archive.
        is_html: Whether the data of a WARC record are HTML, not plain text.
        hidden_prefixes: For wikitext: the prefixes of links that are left out of the text.
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
    """Collects the lines of one document while a file is read line by line.

    If the document becomes longer than MAX_DOCUMENT_BYTES, only its first line is kept in memory,
    and `take` returns a record with an error.

    Attributes:
        lines: The lines so far, or the first line alone if the document is too long.
        num_bytes: Number of bytes of all lines so far, with a line end each.
    """

    lines: list[Line] = field(default_factory=list)
    num_bytes: int = 0

    def add(self, line: Line) -> None:
        """Adds the next line of the document, or only counts its bytes if there are too many."""
        self.num_bytes += MAX_DOCUMENT_BYTES + 1 if line.is_too_long else len(line.data) + 1
        if self.num_bytes > MAX_DOCUMENT_BYTES:
            del self.lines[1:]
        if not self.lines or self.num_bytes <= MAX_DOCUMENT_BYTES:
            self.lines.append(line)

    def take(self, error: BadDocumentError | None = None) -> Record:
        """Returns the record of the document, and is empty again for the next one.

        At least one line must have been added.

        Args:
            error: What the reader of the format found wrong with the document, or None.
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
        """Returns the text of a document. Its white space need not be cleaned.

        Args:
            text: The decoded bytes of the record, with all of its markup.
            record: The record, for what the reader of the format noted in it.
            file_range: The range of the file that the record was read from. It has the source's
                setting `wrapping`.
            text_field: The value of the setting `text_field`: the name of the field or column that
                holds the text. Formats without fields ignore it.

        Raises:
            BadDocumentError: The record is malformed.
        """
        ...


@dataclass(frozen=True)
class Format:
    """A format of input files: how to find the records of a file, and the text of a record.

    A format has either `split` or `read`, or neither. With `split`, files are read line by line.
    With `read`, the format reads files in its own way. With neither, every file is one document.

    Attributes:
        parse: Returns the text of a record.
        detect: Returns whether a file has the format, by its name and first bytes. If it is None,
            the format is used only if the user names it. It is not called for files that `KINDS` in
            kinds.py refuses.
        split: Yields records, given the lines of a file from the first one in a range on, and the
            range. It stops after the last record that belongs to the range. Members of archives are
            read by it too.
        read: Yields the records that belong to a range. Its arguments are the range, the name of
            the field that holds the text, and the options of the filesystem.
        decoder: Decodes the bytes of a whole file, for a format whose files name their encoding. If
            it is None, files are UTF-8, or UTF-16 with a byte order mark.
        names: Returns the names of the columns of a file, or of the fields of its first objects. It
            is None for a format whose text is not in a named field or column.
        is_text: Whether files are text, so that they may be UTF-16.
        may_be_cut: Whether an uncompressed file may be cut into byte ranges.
        cut_suffix: The extension of compressed files that may be cut into byte ranges too, such as
            ".bz2". Empty if no compressed file may be cut.
        has_sentence_lines: Whether every line is one sentence.
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
