"""Reads CSV, TSV and similar files: rows of cells, in a dialect that the first rows decide.

A dialect says which character separates cells, and what quotes and backslashes mean. There are four
ways to write quotes:

- RFC 4180 puts quotes around a cell, and doubles a quote within the cell.
- Spark puts quotes around a cell, and writes a backslash before a quote within the cell.
- Most TSV files have no quoting: a quote is an ordinary character.
- MySQL has no quoting either, and writes a backslash before tabs and line ends within a cell.

The dialect of a file is the first one, in a fixed order, in which the header has two or more cells
and all of the first rows have as many (`find_dialect` has the whole rule). Every later row must
follow this dialect.
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
_MOST_ROWS = 1000  # rows that are read to find the dialect
_FEW_ROWS = 3  # rows, with the header, that are too few to conclude anything from quotes


class Dialect(NamedTuple):
    """How the rows of a file are written: delimiter, quotes and escapes.

    Attributes:
        delimiter: The character between two cells.
        has_quotes: Whether a cell may be written in double quotes, which are no part of its text.
        has_backslashes: Whether a backslash escapes the next character.
    """

    delimiter: str = ","
    has_quotes: bool = True
    has_backslashes: bool = False

    @property
    def has_nulls(self) -> bool:
        r"""Whether a cell \N stands for NULL, as MySQL writes it. It is read as an empty text."""
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
        """Returns the keyword arguments with which `csv.reader` reads this dialect.

        The lines must be rewritten by `prepare` before.
        """
        return {
            "delimiter": self.delimiter,
            "quoting": csv.QUOTE_MINIMAL if self.has_quotes else csv.QUOTE_NONE,
            "escapechar": "\\" if self.has_nulls else None,
            "strict": True,
        }

    def prepare(self, line: str) -> str:
        """Rewrites the backslashes of a line in the form that `csv.reader` understands."""
        if not self.has_backslashes or "\\" not in line:
            return line
        if self.has_quotes:
            return _BACKSLASHED.sub(_double_quote, line)
        return _BACKSLASHED.sub(_unescape_letter, _NULL_CELL.sub("", line))


def _double_quote(found: re.Match[str]) -> str:
    r"""Rewrites one backslash and its next character as RFC 4180 writes them.

    The pair \" becomes "", and \\ becomes \. A backslash before a line end is dropped. Before any
    other character it escapes nothing and stays, as in C:\new.
    """
    character = found[1]
    if character == '"':
        return '""'
    return character if character in "\\\n" else found[0]


def _unescape_letter(found: re.Match[str]) -> str:
    r"""Rewrites one backslash and its next character, as MySQL and PostgreSQL's COPY write them.

    The pair \n becomes a backslash and a line end, which `csv.reader` takes for a line end within
    the cell. The pairs \t and \r become spaces. Any other pair stays as it is.
    """
    return {"n": "\\\n", "t": " ", "r": " "}.get(found[1], found[0])


_QUOTED_TABS = Dialect("\t")
_PLAIN_TABS = Dialect("\t", has_quotes=False)
_ESCAPED_TABS = Dialect("\t", has_quotes=False, has_backslashes=True)
_DIALECTS = (
    *(Dialect(delimiter) for delimiter in _NAMES),
    *(Dialect(delimiter, has_backslashes=True) for delimiter in _NAMES),
    _PLAIN_TABS,
    _ESCAPED_TABS,
)


class Row(NamedTuple):
    """One row of a file.

    Attributes:
        number: Number of the row's first line, from 1.
        cells: The texts of the cells; empty if the row cannot be read.
        error: Why the row cannot be read, or None.
        data: The row's first line, for messages about a bad row.
    """

    number: int
    cells: list[str]
    error: BadDocumentError | None = None
    data: bytes = b""


def split_rows(lines: Iterable[Line], url: str, *, checks_width: bool = True) -> Iterator[Row]:
    """Yields the rows of a file, lazily. The first row has the names of the columns.

    If a row does not follow the dialect, only its first line is reported as a bad row, and reading
    goes on with the next line.

    Args:
        lines: The lines of the whole file.
        url: The file; its extension may decide the delimiter.
        checks_width: Whether a row is bad if it has more or fewer cells than the first row.

    Raises:
        ValueError: The first row cannot be read.
    """
    beginning, later_lines = _take_beginning(lines)
    dialect = find_dialect(beginning, url, is_whole=later_lines is None)
    rows = _read_rows(chain(beginning, later_lines or ()), dialect)
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
    """Yields the rows of a file, or of its first lines. Rows may have any number of cells.

    Args:
        lines: The lines, from the first one of the file on.
        dialect: How the rows are written.
        is_whole: Whether `lines` are all lines of the file. If they are not, the last row is left
            out, because its end may be missing.
    """
    csv.field_size_limit(records.MAX_DOCUMENT_BYTES)
    source = _Source(iter(lines), dialect)
    reader = csv.reader(source, **dialect.options())
    while (row := _read_row(reader, source)) is not None:
        if source.is_at_end and not is_whole:
            return
        yield row


def _read_row(reader: Any, source: "_Source") -> Row | None:
    """Returns the next row that is not blank, or None at the end.

    Args:
        reader: The `csv.reader` that reads from `source`.
        source: The lines of the file.
    """
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
    """Iterates over the lines of a file for `csv.reader`, and remembers the lines of one row.

    If the row turns out to be malformed, its lines but the first can be given back, so that they
    are read again as further rows.

    Attributes:
        dialect: How the rows are written.
        is_at_end: Whether `csv.reader` has got the last line of the file.
        taken: The lines that `csv.reader` has got since `begin_row` was called.
        fault: The error of the first of these lines that is too long or not UTF-8; None if all are
            sound.
    """

    def __init__(self, lines: Iterator[Line], dialect: Dialect) -> None:
        self._lines = lines
        self._ahead = next(lines, None)
        self._given_back: deque[Line] = deque()
        self.dialect = dialect
        self.is_at_end = False
        self.taken: list[Line] = []
        self.fault: BadDocumentError | None = None

    def __iter__(self) -> "_Source":
        return self

    def __next__(self) -> str:
        r"""Returns the next line as text that ends in "\n", rewritten by `Dialect.prepare`.

        If the line is too long or is not UTF-8, `fault` becomes an error that says so.
        """
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
        """Takes the next line that has not been read before; raises StopIteration at the end."""
        line = self._ahead
        if line is None:
            raise StopIteration
        self._ahead = next(self._lines, None)
        self.is_at_end = self._ahead is None
        return line

    def begin_row(self) -> None:
        """Prepares for a new row: `taken` becomes empty, and `fault` None."""
        self.taken.clear()
        self.fault = None

    def give_back(self) -> None:
        """Puts back all lines of the current row but the first, so that they are read again."""
        self._given_back.extendleft(reversed(self.taken[1:]))


def _decoding_error(data: bytes) -> BadDocumentError:
    """Returns the error of `decode` for a line that is not UTF-8."""
    try:
        decode(data)
    except BadDocumentError as error:
        return error
    raise AssertionError("the line is UTF-8")


def _take_beginning(lines: Iterable[Line]) -> tuple[list[Line], Iterator[Line] | None]:
    """Splits the lines of a file into the first ones, of TAIL_BLOCK_BYTES or more, and the rest.

    Returns:
        The first lines, and an iterator over the other lines. The iterator is None if the file has
        fewer than TAIL_BLOCK_BYTES, so that the first lines are the whole file.
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

    The dialects that the name allows are tried one after another. The first one is taken in which
    the header has two or more cells and every row has as many. If there is none, the dialect with
    the most rows like the header is taken. For the extensions .tsv and .tab, `_find_tab_dialect`
    decides first, if it can.

    Args:
        lines: The first lines of the file.
        url: The file. The extension .tsv or .tab means tabs between cells, and .psv means bars.
            With .csv any delimiter is tried.
        is_whole: Whether `lines` are all lines of the file. If they are not, the last row does not
            count, because its end may be missing.
    """
    delimiter = _SUFFIXES.get(plain_suffix(url), "")
    if delimiter == "\t":
        tab_dialect = _find_tab_dialect(lines, is_whole)
        if tab_dialect:
            return tab_dialect

    choices = [dialect for dialect in _DIALECTS if delimiter in ("", dialect.delimiter)]
    trials: dict[Dialect, _Trial] = {}
    for dialect in choices:
        trials[dialect] = _try_dialect(lines, dialect, is_whole)
        if trials[dialect].num_good and not trials[dialect].num_bad:
            return dialect
    return max(choices, key=lambda dialect: trials[dialect].num_good)


class _Trial(NamedTuple):
    """The first rows of a file as one dialect reads them.

    Attributes:
        rows: The cells of each row.
        num_good: Number of rows with as many cells as the header, the header included; 0 if the
            header has a single cell.
        num_bad: Number of rows with more or fewer cells than the header, or with an error.
    """

    rows: list[list[str]]
    num_good: int
    num_bad: int


def _try_dialect(lines: Sequence[Line], dialect: Dialect, is_whole: bool) -> _Trial:
    """Reads the first rows of a file in a dialect, and counts the rows that are like the header.

    Args:
        lines: The first lines of the file.
        dialect: The dialect.
        is_whole: Whether `lines` are all lines of the file. If they are not, the last row does not
            count.
    """
    rows = list(islice(_read_rows(lines, dialect, is_whole=is_whole), _MOST_ROWS))
    width = len(rows[0].cells) if rows else 0
    num_fitting = sum(not row.error and len(row.cells) == width for row in rows)
    return _Trial(
        rows=[row.cells for row in rows],
        num_good=num_fitting if width > 1 else 0,
        num_bad=len(rows) - num_fitting,
    )


def _find_tab_dialect(lines: Sequence[Line], is_whole: bool) -> Dialect | None:
    r"""Returns the dialect of a file with tabs between cells, or None if it is not clear.

    A file with a cell \N was written by MySQL. In other files quotes are ordinary characters,
    unless the rows show that they enclose cells. The result is None if rows differ in their number
    of cells when quotes are ordinary characters.
    """
    if any(_NULL_CELL.search(line.data.decode(errors="replace")) for line in lines):
        return _ESCAPED_TABS

    plain = _try_dialect(lines, _PLAIN_TABS, is_whole)
    quoted = _try_dialect(lines, _QUOTED_TABS, is_whole)
    if plain.num_bad > 0:
        return None
    if quoted.num_bad == 0 and _needs_quotes(quoted.rows, plain.rows):
        return _QUOTED_TABS
    return _PLAIN_TABS


def _needs_quotes(quoted_rows: Sequence[list[str]], plain_rows: Sequence[list[str]]) -> bool:
    """Returns whether double quotes in a file with tabs enclose cells, as in RFC 4180.

    They do if a cell of `quoted_rows` holds a character that only an enclosed cell can hold: a
    quote or, in a file of one column, a line end. They also do if all cells of a column, apart from
    its name in the header, are in quotes. Three rows or fewer are too few to show the latter.

    Args:
        quoted_rows: The cells of the first rows, read as if quotes enclosed cells.
        plain_rows: The cells of the first rows, read as if quotes were ordinary characters. All
            rows have the same number of cells.
    """
    # A line end within a cell counts only if there is a single column. With several columns, both
    # lines are whole rows without quoting, so they are two rows with a stray quote in each.
    width = max(map(len, plain_rows), default=1)
    must_be_quoted = '"' if width > 1 else '"\n'
    for row in quoted_rows:
        for cell in row:
            if any(character in cell for character in must_be_quoted):
                return True

    if len(plain_rows) <= _FEW_ROWS:
        return False
    columns = zip(*plain_rows[1:], strict=True)
    return any(all(map(_is_in_quotes, column)) for column in columns)


def _is_in_quotes(cell: str) -> bool:
    """Returns whether a cell begins and ends with a double quote."""
    return len(cell) > 1 and cell[0] == cell[-1] == '"'


def split_csv(lines: Iterable[Line], file_range: FileRange) -> Iterator[Record]:
    """Yields a record for every row but the header.

    The data of a record are a JSON object that maps the names of the columns to the row's cells.
    """
    rows = split_rows(lines, file_range.url)
    header = next(rows, None)
    names = header.cells if header else []
    for row in rows:
        if row.error:
            yield Record(row.number, 0, row.data, row.error)
        else:
            yield Record(row.number, 0, _to_json(names, row.cells))


def _to_json(names: Sequence[str], cells: Sequence[str]) -> bytes:
    """Returns a JSON object that maps the names of the columns to the cells of a row.

    If two columns have the same name, the object has this name twice. `parse_jsonl` refuses such an
    object if the name is that of the column with the text.
    """
    if len(set(names)) == len(names):
        return json.dumps(dict(zip(names, cells, strict=True))).encode()
    pairs = zip(names, cells, strict=True)
    fields = (f"{json.dumps(name)}: {json.dumps(cell)}" for name, cell in pairs)
    return f"{{{', '.join(fields)}}}".encode()


def read_beginning(
    file_range: FileRange, storage_options: StorageOptions = None
) -> tuple[Dialect, list[str]]:
    """Returns the dialect of a file and the names of its columns, from the first bytes alone."""
    head = read_head(file_range.url, file_range.size, storage_options)
    is_whole = len(head) < TAIL_BLOCK_BYTES
    lines = list(split_lines([head_to_text(head).encode()]))
    dialect = find_dialect(lines, file_range.url, is_whole=is_whole)
    header = next(_read_rows(lines, dialect), None)
    return dialect, header.cells if header else []


def read_column_names(file_range: FileRange, storage_options: StorageOptions = None) -> list[str]:
    """Returns the names of the columns of a file, from its first bytes alone.

    The result is empty if the file has no row, or if its first row does not follow the dialect.

    Args:
        file_range: The file; which range of it does not matter.
        storage_options: Options of the file's filesystem.
    """
    return read_beginning(file_range, storage_options)[1]


CSV = Format(
    parse_object,
    lambda beginning: beginning.suffix in _SUFFIXES,
    split_csv,
    names=read_column_names,
    may_be_cut=False,
)
