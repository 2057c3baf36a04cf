"""A Parquet file's description of itself, read without Arrow. Stdlib only.

Arrow ends the process, by an exception that Python cannot catch, where the description of a column
is damaged and its statistics are asked for. So they are read here. Written from the
format's description (parquet.thrift, Thrift's compact protocol): numbers of a varying length,
fields with the distance to the one before, sizes before lists and texts.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO, Any

MAGIC = b"PAR1"
_TAIL_BYTES = 8  # the footer's length and MAGIC
_ENOUGH_BYTES = 2**16  # what Arrow reads first too, so that a store is asked once
_MAX_DEPTH = 32
_STOP, _TRUE, _FALSE, _BYTE, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = (
    0,
    1,
    2,
    3,
    7,
    8,
    9,
    10,
    11,
    12,
)
_INTEGERS = (4, 5, 6)

# What fields of other kinds and lengths than a footer or a page's header has lead to.
_WRONG_FIELDS = (AttributeError, IndexError, ValueError, TypeError, KeyError, OverflowError)


@dataclass(frozen=True, slots=True)
class ColumnChunk:
    """Bytes start to stop - 1 of a file: a column of a row group, as pages one after another.

    Attributes:
        path: Names of the column and of what it is nested in.
        start, stop: Where it lies.
        num_values: In it.
        bounds: The least and the most of its values as they are stored; None where the file does
            not say.
    """

    path: tuple[bytes, ...]
    start: int
    stop: int
    num_values: int
    bounds: tuple[bytes, bytes] | None = None


@dataclass(frozen=True, slots=True)
class RowGroup:
    """Rows that are stored together."""

    num_rows: int
    columns: tuple[ColumnChunk, ...]

    @property
    def start(self) -> int:
        """Its first byte."""
        return min(column.start for column in self.columns)

    @property
    def stop(self) -> int:
        """One after its last byte."""
        return max(column.stop for column in self.columns)


class DamagedParquetError(ValueError):
    """A Parquet file tells of what it cannot hold; the message says what, and not where."""


def read_footer(read: Callable[[int, int], bytes], num_bytes: int) -> list[RowGroup]:
    """The row groups of a file, every column within the file and before the footer.

    Args:
        read: Bytes start to stop - 1.
        num_bytes: The file's size.

    Raises:
        DamagedParquetError: The footer is damaged, or tells of more than the file can hold.
    """
    start = max(0, num_bytes - _ENOUGH_BYTES)
    tail = read(start, num_bytes)
    length = int.from_bytes(tail[-8:-4], "little")
    end = num_bytes - _TAIL_BYTES - length
    if tail[-4:] != MAGIC or end < len(MAGIC):
        raise DamagedParquetError(f"it ends with {tail[-8:]!r}, which tells no footer of it")
    footer = (
        tail[end - start : -_TAIL_BYTES] if end >= start else read(end, num_bytes - _TAIL_BYTES)
    )
    try:
        groups, num_rows = _parse(footer, end)
    except _WRONG_FIELDS as error:
        raise DamagedParquetError(f"its footer is damaged: {error or repr(error)}") from error
    if sum(group.num_rows for group in groups) != num_rows:
        raise DamagedParquetError(
            f"its footer is damaged: row groups do not hold the {num_rows} rows of all"
        )
    return groups


def read_file_footer(file: IO[bytes]) -> list[RowGroup]:
    """The row groups of an open file; raises as `read_footer`."""

    def read(start: int, stop: int) -> bytes:
        file.seek(start)
        return file.read(stop - start)

    return read_footer(read, file.seek(0, os.SEEK_END))


def _parse(footer: bytes, end: int) -> tuple[list[RowGroup], int]:
    """The row groups and the number of rows that a footer tells; it begins at byte `end` of the file."""
    reader = _Reader(footer, 0)
    groups: list[RowGroup] = []
    num_rows = None
    for field, kind in reader.fields():
        if field == 3 and kind in _INTEGERS:
            num_rows = reader.integer()
        elif field == 4 and kind == _LIST:
            size, of = reader.list_head()
            groups = [_group(reader, of, end) for _ in range(size)]
        else:
            reader.skip(kind)
    if num_rows is None or num_rows < 0:
        raise ValueError(f"num_rows is {num_rows}")
    return groups, num_rows


def _group(reader: "_Reader", kind: int, end: int) -> RowGroup:
    reader.expect(kind, _STRUCT)
    columns: tuple[ColumnChunk, ...] = ()
    num_rows = -1
    for field, each in reader.fields():
        if field == 1 and each == _LIST:
            size, of = reader.list_head()
            columns = tuple(_chunk(reader, of, end) for _ in range(size))
        elif field == 3 and each in _INTEGERS:
            num_rows = reader.integer()
        else:
            reader.skip(each)
    if num_rows < 0 or not columns:
        raise ValueError(f"a row group of {num_rows} rows and {len(columns)} columns")
    return RowGroup(num_rows, columns)


def _chunk(reader: "_Reader", kind: int, end: int) -> ColumnChunk:
    reader.expect(kind, _STRUCT)
    told: dict[int, Any] = {}
    for field, each in reader.fields():
        if field == 3 and each == _STRUCT:
            told = _column(reader)
        else:
            reader.skip(each)
    start, size, values = told[9], told[7], told[5]
    if 0 < told.get(11, 0) < start:
        start = told[11]
    if not (len(MAGIC) <= start <= start + size <= end and values >= 0):
        raise ValueError(
            f"a column of {values} values at bytes {start}-{start + size}, before the footer are {end}"
        )
    return ColumnChunk(told[3], start, start + size, values, told.get(12))


def _column(reader: "_Reader") -> dict[int, Any]:
    """The path (3) and the numbers of a column's metadata by field: values (5), bytes (7), pages (9, 11)."""
    told: dict[int, Any] = {}
    for field, kind in reader.fields():
        if field == 3 and kind == _LIST:
            size, of = reader.list_head()
            reader.expect(of, _BINARY)
            told[3] = tuple(reader.binary() for _ in range(size))
        elif field == 12 and kind == _STRUCT:
            told[12] = _bounds(reader)
        elif kind in _INTEGERS:
            told[field] = reader.integer()
        else:
            reader.skip(kind)
    return told


def _bounds(reader: "_Reader") -> tuple[bytes, bytes] | None:
    """The least (6) and the most (5) of a column's statistics."""
    told: dict[int, bytes] = {}
    for field, kind in reader.fields():
        if kind == _BINARY:
            told[field] = reader.binary()
        else:
            reader.skip(kind)
    return (told[6], told[5]) if 5 in told and 6 in told else None


class _Reader:
    """Values of Thrift's compact protocol; an IndexError or ValueError where there are none."""

    def __init__(self, data: bytes, position: int) -> None:
        self.data, self.position = data, position
        self._depth = 0

    def expect(self, kind: int, expected: int) -> None:
        if kind != expected:
            raise ValueError(f"a value of type {kind} where {expected} belongs")

    def unsigned(self) -> int:
        data, position = self.data, self.position
        byte = data[position]
        position += 1
        value, shift = byte & 0x7F, 7
        while byte > 0x7F:
            if shift > 63:
                raise ValueError("a number of more than 64 bits")
            byte = data[position]
            position += 1
            value |= (byte & 0x7F) << shift
            shift += 7
        self.position = position
        return value

    def integer(self) -> int:
        value = self.unsigned()
        return (value >> 1) ^ -(value & 1)

    def binary(self) -> bytes:
        size = self.unsigned()
        if size > len(self.data) - self.position:
            raise ValueError(f"a text of {size} bytes")
        self.position += size
        return self.data[self.position - size : self.position]

    def list_head(self) -> tuple[int, int]:
        """The number of values and their type."""
        head = self.data[self.position]
        self.position += 1
        size = head >> 4
        if size == 15:
            size = self.unsigned()
        if size > len(self.data) - self.position:
            raise ValueError(f"a list of {size} values")
        return size, head & 0x0F

    def fields(self) -> Any:
        """Number and type of each field of a struct, of which the value comes next."""
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise ValueError(f"structs within more than {_MAX_DEPTH} others")
        field = 0
        while True:
            head = self.data[self.position]
            self.position += 1
            if head == _STOP:
                break
            field = field + (head >> 4) if head >> 4 else self.integer()
            yield field, head & 0x0F
        self._depth -= 1

    def skip(self, kind: int) -> None:
        """Passes over a value."""
        if kind in _INTEGERS:
            self.unsigned()
        elif kind in (_TRUE, _FALSE):
            pass
        elif kind == _BINARY:
            self.binary()
        elif kind == _STRUCT:
            for _, each in self.fields():
                self.skip(each)
        elif kind in (_LIST, _SET):
            size, of = self.list_head()
            self._skip_items(size, of)
        elif kind == _MAP:
            self._skip_map()
        elif kind in (_BYTE, _DOUBLE):
            self.position += 1 if kind == _BYTE else 8
        else:
            raise ValueError(f"a value of the unknown type {kind}")

    def _skip_items(self, size: int, kind: int) -> None:
        if kind in (_TRUE, _FALSE, _BYTE):
            self.position += size
            return
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise ValueError(f"lists within more than {_MAX_DEPTH} others")
        for _ in range(size):
            self.skip(kind)
        self._depth -= 1

    def _skip_map(self) -> None:
        size = self.unsigned()
        if size > len(self.data) - self.position:
            raise ValueError(f"a map of {size} values")
        if size:
            kinds = self.data[self.position]
            self.position += 1
            for _ in range(size):
                self.skip(kinds >> 4)
                self.skip(kinds & 0x0F)
