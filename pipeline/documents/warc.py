"""WARC and WET archives of the web: a page is a document.

The text of a WET file (conversion records) is taken as it is, HTML of a WARC file (responses with
status 200) is reduced to its main text. Other records are passed over and only counted.
"""

import io
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from pipeline.documents import records
from pipeline.documents.files import FileRange, StorageOptions, read_blocks
from pipeline.documents.format import Format
from pipeline.documents.records import BadDocumentError, Record, too_long
from pipeline.documents.web_page import extract_text, read_html

_MAGIC = b"WARC/1."
_MAX_HEADER_BYTES = 2**20


def read_warc(file_range: FileRange, storage_options: StorageOptions = None) -> Iterator[Record]:
    """A record a page, lazily; `place` counts records from 1. Raises ValueError where it is no WARC, or broken."""
    import fastwarc.warc as warc

    stream = BlockReader(read_blocks(file_range, storage_options))
    number = 0
    try:
        options: dict[str, Any] = {"parse_http": False, "stream_detect": False}
        options["max_header_len"] = _MAX_HEADER_BYTES
        archive = warc.ArchiveIterator(stream, **options)
        for number, found in enumerate(archive, 1):
            yield _make_record(found, number, warc.WarcRecordType)
    except OSError as error:
        message = f"cannot be read as WARC ({error}); fetch the file again"
        raise ValueError(f"{file_range.url}, record {number + 1}: {message}") from error
    if number == 0:
        raise ValueError(f"{file_range.url}: found no WARC record; give the --format it has")


class BlockReader(io.RawIOBase):
    """Blocks of bytes as a file that is read once from its start."""

    def __init__(self, blocks: Iterable[bytes]) -> None:
        self._blocks = iter(blocks)
        self._rest = memoryview(b"")
        self._position = 0

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fills a part of the buffer; 0 at the end."""
        while not self._rest:
            block = next(self._blocks, None)
            if block is None:
                return 0
            self._rest = memoryview(block)
        target = memoryview(buffer)
        size = min(len(target), len(self._rest))
        target[:size], self._rest = self._rest[:size], self._rest[size:]
        self._position += size
        return size

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Where it is: fastwarc asks for that by a seek from the current position by nothing."""
        target = offset + (self._position if whence == io.SEEK_CUR else 0)
        if whence == io.SEEK_END or target != self._position:
            raise io.UnsupportedOperation("a stream is read once from its start")
        return target


def _make_record(found: Any, number: int, kinds: Any) -> Record:
    place = f"record {number}"
    empty = Record(number, 0, b"", None, place)
    is_http, expected = found.record_type == kinds.response, found.content_length
    if not is_http and found.record_type != kinds.conversion:
        return replace(empty, dropped="not_a_page")
    if expected > records.MAX_DOCUMENT_BYTES:
        return replace(empty, error=too_long())
    data = found.reader.read()
    if len(data) != expected:
        message = (
            f"found {len(data)} bytes of content, expected {expected}: the record is cut short"
        )
        return replace(empty, error=BadDocumentError("cut_short", message))
    if not is_http:
        return replace(empty, data=data)
    try:
        html = read_html(data)
    except BadDocumentError as error:
        return replace(empty, error=error)
    if html is None:
        return replace(empty, dropped="not_a_page")
    return replace(empty, data=html.encode("utf-8", "replace"), is_html=True)


WARC = Format(
    lambda text, record, *_: extract_text(text) if record.is_html else text,
    lambda beginning: beginning.head.startswith(_MAGIC),
    read=lambda file_range, _, storage_options: read_warc(file_range, storage_options),
    is_text=False,
    may_be_cut=False,
)
