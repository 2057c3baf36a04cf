"""CSV, TSV and similar files: rows of cells, in a dialect that is found from the first rows.

A dialect is the delimiter between cells and the meaning of quotes. A quote inside of quotes is
doubled (RFC 4180) or has a backslash before it (Spark), or quotes are ordinary characters (TSV). In
the last case MySQL writes a backslash before tabs and line ends. The dialect of a file is the first
one in which all of the first rows have as many cells as the header, which has at least two. Every
later row must fit it.
"""

import csv
import json
import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Any, NamedTuple

from pipeline.documents import records
from pipeline.documents.files import TAIL_BLOCK_BYTES, FileRange, StorageOptions, read_head
from pipeline.documents.jsonl import parse_object
from pipeline.documents.lines import decode, head_to_text, split_lines
from pipeline.documents.records import BadDocumentError, Format, Line, Record, too_long
from pipeline.storage.compression import plain_suffix
from pipeline.storage.quoting import join_names

_NAMES = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
_SUFFIXES = {".csv": "", ".tsv": "\t", ".tab": "\t", ".psv": "|"}
_NULL_CELL = re.compile(r"(?:^|(?<=\t))\\N(?=\t|\r?\n?$)")
_BACKSLASHED = re.compile(r"\\(.)", re.DOTALL)
_MOST_ROWS = 1000
_FEW_ROWS = 3


class Dialect(NamedTuple):
    """The delimiter, quotes and escapes of a file's rows."""

    delimiter: str = ","
    has_quotes: bool = True
    """Whether double quotes around a cell are no part of it."""
    has_backslashes: bool = False
    """Whether a backslash stands before what is meant as it is."""

    @property
    def has_nulls(self) -> bool:
        r"""Returns whether a cell \N is MySQL's NULL, which is read as an empty text."""
        return self.has_backslashes and not self.has_quotes

    def describe(self) -> str:
        """Returns a phrase for messages, such as "commas between cells, quotes doubled"."""
        quotes = "a backslash before quotes" if self.has_backslashes else "quotes doubled"
        if not self.has_quotes:
            quotes = "quotes as they are"
            if self.has_backslashes:
                quotes += ", backslashes before tabs"
        return f"{_NAMES[self.delimiter]} between cells, {quotes}"

    def options(self) -> dict[str, Any]:
        """Returns the keyword arguments of `csv.reader` for lines that `prepare` has changed."""
        return {
            "delimiter": self.delimiter,
            "quoting": csv.QUOTE_MINIMAL if self.has_quotes else csv.QUOTE_NONE,
            "escapechar": "\\" if self.has_nulls else None,
            "strict": True,
        }

    def prepare(self, line: str) -> str:
        """Rewrites the backslashes of a line, because `csv.reader` itself is too lax about them."""
        if not self.has_backslashes or "\\" not in line:
            return line
        if self.has_quotes:
            return _BACKSLASHED.sub(_double_quote, line)
        return _BACKSLASHED.sub(_unescape_letter, _NULL_CELL.sub("", line))


def _double_quote(found: re.Match[str]) -> str:
    r"""Returns \" as "" and \\ as \. A backslash that escapes nothing stays: the \n of C:\new."""
    character = found[1]
    if character == '"':
        return '""'
    return character if character in "\\\n" else found[0]


def _unescape_letter(found: re.Match[str]) -> str:
    r"""Returns PostgreSQL's \n as a backslash and a line end, and \t and \r as spaces."""
    return {"n": "\\\n", "t": " ", "r": " "}.get(found[1], found[0])


_PLAIN_TABS = Dialect("\t", has_quotes=False)
_ESCAPED_TABS = Dialect("\t", has_quotes=False, has_backslashes=True)
_DIALECTS = (
    *(Dialect(delimiter) for delimiter in _NAMES),
    *(Dialect(delimiter, has_backslashes=True) for delimiter in _NAMES),
    _PLAIN_TABS,
    _ESCAPED_TABS,
)


class Row(NamedTuple):
    """One row of a file."""

    number: int
    """Of its first line, from 1."""
    cells: list[str]
    error: BadDocumentError | None = None
    data: bytes = b""
    """The first line of a row with an error."""


def split_rows(lines: Iterable[Line], url: str, *, checks_width: bool = True) -> Iterator[Row]:
    """Yields the rows of a file, lazily; the first row has the names of the columns.

    A row that breaks the dialect is reported as its first line alone, and the next line begins
    another row.

    Args:
        lines: The lines of the whole file.
        url: The file; its extension may decide the delimiter.
        checks_width: Whether a row with another number of cells than the first row has an error.

    Raises:
        ValueError: The first row cannot be read.
    """
    beginning, others = _take_beginning(lines)
    dialect = find_dialect(beginning, url, is_whole=others is None)
    rows = _read_rows(chain(beginning, others or ()), dialect)
    header = next(rows, None)
    if header is None:
        return
    if header.error:
        raise ValueError(f"{url}:{header.number}: in the names of the columns {header.error}")
    yield header
    for row in rows:
        if row.error or not checks_width or len(row.cells) == len(header.cells):
            yield row
            continue
        found = f"found {len(row.cells)} cells, expected {len(header.cells)}"
        message = f"{found} ({join_names(header.cells)}) with {dialect.describe()}"
        yield row._replace(error=BadDocumentError("bad_row", message))


def _read_rows(lines: Iterable[Line], dialect: Dialect, *, is_whole: bool = True) -> Iterator[Row]:
    """Yields rows with any number of cells.

    Unless the lines are the whole file, the last row is left out, as it may be cut.
    """
    csv.field_size_limit(records.MAX_DOCUMENT_BYTES)
    source = _Source(iter(lines), dialect)
    reader = csv.reader(source, **dialect.options())
    while (row := _read_row(reader, source)) is not None:
        if source.is_at_end and not is_whole:
            return
        yield row


def _read_row(reader: Any, source: "_Source") -> Row | None:
    """Returns the next row that is not blank, or None at the end."""
    while True:
        source.begin_row()
        cells: list[str] = []
        try:
            cells = next(reader)
            fault = source.fault
        except StopIteration:
            return None
        except csv.Error as error:
            message = f"{error}, with {source.dialect.describe()}"
            fault = source.fault or BadDocumentError("bad_row", message)
            source.give_back()
        if cells or fault:
            first = source.taken[0]
            return Row(first.number, cells, fault, first.data)


class _Source:
    """Gives the lines of a file to `csv.reader`, and keeps those of the current row."""

    def __init__(self, lines: Iterator[Line], dialect: Dialect) -> None:
        self._lines = lines
        self._ahead = next(lines, None)
        self._given_back: deque[Line] = deque()
        self.dialect = dialect
        self.is_at_end = False
        """Whether all lines were taken."""
        self.taken: list[Line] = []
        self.fault: BadDocumentError | None = None
        """The first fault of a line of the row."""

    def __iter__(self) -> "_Source":
        return self

    def __next__(self) -> str:
        line = self._given_back.popleft() if self._given_back else self._next_line()
        self.taken.append(line)
        if line.is_too_long:
            self.fault = self.fault or too_long()
            return "\n"
        try:
            text = line.data.decode()
        except UnicodeDecodeError:
            text = line.data.decode(errors="replace")
            self.fault = self.fault or _decoding_error(line.data)
        return self.dialect.prepare(f"{text}\n")

    def _next_line(self) -> Line:
        line = self._ahead
        if line is None:
            raise StopIteration
        self._ahead = next(self._lines, None)
        self.is_at_end = self._ahead is None
        return line

    def begin_row(self) -> None:
        """Forgets the lines and the fault of the previous row."""
        self.taken.clear()
        self.fault = None

    def give_back(self) -> None:
        """Puts the lines of the current row, except for its first, back to be read again."""
        self._given_back.extendleft(reversed(self.taken[1:]))


def _decoding_error(data: bytes) -> BadDocumentError:
    try:
        decode(data)
    except BadDocumentError as error:
        return error
    raise AssertionError("the line is UTF-8")


def _take_beginning(lines: Iterable[Line]) -> tuple[list[Line], Iterator[Line] | None]:
    """Splits off the first lines, at least TAIL_BLOCK_BYTES of them if the file has so many bytes.

    Returns:
        The first lines, and an iterator over the later ones; None if the file has ended.
    """
    stream = iter(lines)
    beginning: list[Line] = []
    num_bytes = 0
    for line in stream:
        beginning.append(line)
        num_bytes += len(line.data)
        if num_bytes >= TAIL_BLOCK_BYTES:
            return beginning, stream
    return beginning, None


def find_dialect(lines: Sequence[Line], url: str, *, is_whole: bool) -> Dialect:
    """Finds the dialect of a file from its first lines and its name.

    It is the first dialect in which every row has as many cells as the first row, or otherwise the
    dialect with the most such rows.

    Args:
        lines: The first lines.
        url: The file: .tsv means tabs, .psv bars; for .csv the rows decide.
        is_whole: Whether these are all lines. Otherwise the last row may be cut.
    """
    delimiter = _SUFFIXES.get(plain_suffix(url), "")
    choices = [dialect for dialect in _DIALECTS if delimiter in ("", dialect.delimiter)]
    if delimiter == "\t" and (tabs := _find_tab_dialect(lines, is_whole)):
        return tabs
    tried: dict[Dialect, _Tried] = {}
    for dialect in choices:
        tried[dialect] = _Tried.of(lines, dialect, is_whole)
        if tried[dialect].num_good and not tried[dialect].num_bad:
            return dialect
    return max(choices, key=lambda dialect: tried[dialect].num_good)


class _Tried(NamedTuple):
    """The first rows of a file as one dialect reads them."""

    rows: list[list[str]]
    num_good: int
    """Rows with as many cells as the first one has, none if that has a single cell."""
    num_bad: int

    @classmethod
    def of(cls, lines: Sequence[Line], dialect: Dialect, is_whole: bool) -> "_Tried":
        """Reads the first rows of lines in a dialect."""
        found = list(islice(_read_rows(lines, dialect, is_whole=is_whole), _MOST_ROWS))
        rows = [row.cells for row in found]
        width = len(rows[0]) if rows else 0
        num_good = sum(not row.error and len(row.cells) == width for row in found)
        return cls(rows, num_good if width > 1 else 0, len(found) - num_good)


def _find_tab_dialect(lines: Sequence[Line], is_whole: bool) -> Dialect | None:
    r"""Returns the dialect of a file with tabs, or None if its rows do not decide.

    A file of MySQL has cells \N, and most other files with tabs do not use quotes.
    """
    if any(_NULL_CELL.search(line.data.decode(errors="replace")) for line in lines):
        return _ESCAPED_TABS
    plain = _Tried.of(lines, _PLAIN_TABS, is_whole)
    quoted = _Tried.of(lines, Dialect("\t"), is_whole)
    if plain.num_bad == 0 and quoted.num_bad == 0:
        return Dialect("\t") if _needs_quotes(quoted.rows, plain.rows) else _PLAIN_TABS
    return _PLAIN_TABS if plain.num_bad == 0 else None


def _needs_quotes(quoted_rows: Sequence[list[str]], plain_rows: Sequence[list[str]]) -> bool:
    """Returns whether some quoted cell needs its quotes, or all cells of a column have them."""
    # Rows that are whole without quotes need none for their line ends: a quotation that begins in
    # one row and ends in another would join the two. Of a single column every row is whole.
    width = max(map(len, plain_rows), default=1)
    marks = '"' if width > 1 else '"\n'
    if any(mark in cell for row in quoted_rows for cell in row for mark in marks):
        return True
    columns = zip(*plain_rows[1:], strict=True)
    return len(plain_rows) > _FEW_ROWS and any(
        all(len(cell) > 1 and cell[0] == cell[-1] == '"' for cell in column) for column in columns
    )


def split_csv(lines: Iterable[Line], file_range: FileRange) -> Iterator[Record]:
    """Yields one record for each row: a JSON object of the cells by column name."""
    rows = split_rows(lines, file_range.url)
    header = next(rows, None)
    names = header.cells if header else []
    for row in rows:
        if row.error:
            yield Record(row.number, 0, row.data, row.error)
        else:
            yield Record(row.number, 0, _to_json(names, row.cells))


def _to_json(names: Sequence[str], cells: Sequence[str]) -> bytes:
    """Returns a JSON object of cells by name. A name that two columns share is in it twice."""
    if len(set(names)) == len(names):
        return json.dumps(dict(zip(names, cells, strict=True))).encode()
    pairs = zip(names, cells, strict=True)
    fields = (f"{json.dumps(name)}: {json.dumps(cell)}" for name, cell in pairs)
    return f"{{{', '.join(fields)}}}".encode()


def read_beginning(
    file_range: FileRange, storage_options: StorageOptions = None
) -> tuple[Dialect, list[str]]:
    """Returns the dialect of a file and the names of its columns; reads its first bytes alone."""
    head = read_head(file_range.url, file_range.size, storage_options)
    is_whole = len(head) < TAIL_BLOCK_BYTES
    lines = list(split_lines([head_to_text(head).encode()]))
    dialect = find_dialect(lines, file_range.url, is_whole=is_whole)
    header = next(_read_rows(lines, dialect), None)
    return dialect, header.cells if header else []


def read_column_names(file_range: FileRange, storage_options: StorageOptions = None) -> list[str]:
    """Returns the names of the columns of a file."""
    return read_beginning(file_range, storage_options)[1]


CSV = Format(
    parse_object,
    lambda beginning: beginning.suffix in _SUFFIXES,
    split_csv,
    names=read_column_names,
    may_be_cut=False,
)
