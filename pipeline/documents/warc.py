"""Reads WARC and WET archives of the web: each page is a document.

A WET file has records of the type "conversion", which hold text. It is kept as it is. A WARC file
has records of the type "response". If the status is 200 and the body is HTML, the main text of the
page is kept. All other records are skipped, and counted as "not_a_page".
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from pipeline.documents import records
from pipeline.documents.files import FileRange, StorageOptions, read_blocks
from pipeline.documents.html_pages import decode_html, extract_text, is_text
from pipeline.documents.http_responses import decode_body, parse_response
from pipeline.documents.records import BadDocumentError, Format, Record, too_long

_ARC_MAGIC = b"filedesc://"
_MAGIC = re.compile(rb"WARC/\d|" + _ARC_MAGIC)  # ARC is detected here to be refused by its name
_SUFFIXES = {".warc", ".wet", ".wat"}
_LINE_FEED_ALONE = re.compile(rb"\s*WARC/[\d.]+\n")
_MAX_HEADER_BYTES = 2**20
_READ_BYTES = 2**20
_HTML = {"text/html", "application/xhtml+xml"}
_HEADER_ENDS = (b"\r\n\r\n", b"\n\n")
_FETCH_AGAIN = "a part of the file is missing; fetch it again"


def read_warc(file_range: FileRange, storage_options: StorageOptions = None) -> Iterator[Record]:
    """Yields a `Record` for every record of a WARC or WET file, lazily.

    The `place` of a `Record` is "record N", with numbers from 1. WARC records without a page that
    can be read are yielded too: `dropped` or `error` says why.

    Raises:
        ValueError: The file is an ARC file, has no records, or is broken.
    """
    import fastwarc.warc as warc

    stream: Any = _Stream(read_blocks(file_range, storage_options))
    first_block = stream.first_block()
    found = ""
    if first_block[: len(_ARC_MAGIC)] == _ARC_MAGIC:
        found = "an ARC file, expected WARC"
    elif _LINE_FEED_ALONE.match(first_block):  # fastwarc would silently skip broken records in it
        found = r"a header whose lines end in \n alone, expected \r\n"
    if found:
        cure = "convert the file by `warcio recompress IN OUT.warc.gz`"
        raise ValueError(f"{file_range.url}: found {found}; {cure}")
    number = 0
    content_length = -1
    try:
        options: dict[str, Any] = {"parse_http": False, "stream_detect": False}
        options["max_header_len"] = _MAX_HEADER_BYTES
        for number, record in enumerate(warc.ArchiveIterator(stream, **options), 1):
            content_length = record.content_length
            yield _make_record(record, number, warc.WarcRecordType)
    except OSError as error:
        message = f"cannot be read as WARC ({error}); fetch the file again"
        raise ValueError(f"{file_range.url}, record {number + 1}: {message}") from error
    except _CutShortError as error:
        raise ValueError(f"{file_range.url}, record {number}: {error}; {_FETCH_AGAIN}") from error
    if number == 0:
        raise ValueError(f"{file_range.url}: found no WARC record; give the --format it has")
    if content_length == 0 and not stream.last_bytes.endswith(_HEADER_ENDS):
        message = "found the file's end within a header"
        raise ValueError(f"{file_range.url}, record {number}: {message}; {_FETCH_AGAIN}")


class _CutShortError(Exception):
    """The file ends within a record."""


class _Stream:
    """A file object for fastwarc, whose bytes are those of an iterator over blocks.

    Attributes:
        last_bytes: The last four bytes that were read. At the end of the file they show whether the
            last header is whole, because a header ends with a blank line.
    """

    def __init__(self, blocks: Iterable[bytes]) -> None:
        self._blocks = (memoryview(block) for block in blocks if block)
        self._rest = memoryview(b"")
        self._position = 0
        self.last_bytes = b""

    def first_block(self) -> memoryview:
        """Returns the first block of bytes, which `read` will return again."""
        self._rest = self._rest or next(self._blocks, self._rest)
        return self._rest

    def read(self, size: int) -> bytes:
        """Returns the next bytes, at most `size` and possibly fewer; b"" at the end of the file."""
        self._rest = self._rest or next(self._blocks, self._rest)
        data = bytes(self._rest[:size])
        self._rest = self._rest[size:]
        self._position += len(data)
        self.last_bytes = (self.last_bytes + data[-4:])[-4:]
        return data

    def tell(self) -> int:
        """Returns the number of bytes that `read` has returned so far."""
        return self._position


def _make_record(record: Any, number: int, kinds: Any) -> Record:
    """Makes the `Record` of a record that fastwarc has read.

    Its data are the text of a conversion, or the HTML of a response. Otherwise `dropped` or `error`
    says why there is no page.

    Args:
        record: The record of fastwarc.
        number: The number of the record in the file, from 1.
        kinds: `fastwarc.warc.WarcRecordType`, which enumerates the types of records.

    Raises:
        _CutShortError: The file ends within this record.
    """
    empty = Record(number, 0, b"", None, f"record {number}")
    # If the file ends within a header, fastwarc returns the beginning of the header as a whole one.
    if "Content-Length" not in record.headers:
        raise _CutShortError("found a header without Content-Length")
    is_response = record.record_type == kinds.response
    # A response may also be of DNS or FTP.
    media_type = (record.headers.get("Content-Type") or "").lower()
    is_http = is_response and media_type.startswith("application/http")
    is_page = is_http or record.record_type == kinds.conversion
    is_kept = is_page and record.content_length <= records.MAX_DOCUMENT_BYTES
    data = _read_content(record, is_kept)
    if not is_page:
        return replace(empty, dropped="not_a_page")
    if not is_kept:
        return replace(empty, error=too_long())
    if not is_http:
        return replace(empty, data=data)
    try:
        html = read_html(data)
    except BadDocumentError as error:
        return replace(empty, error=error)
    if html is None:
        return replace(empty, dropped="not_a_page")
    return replace(empty, data=html.encode("utf-8", "replace"), is_html=True)


def _read_content(record: Any, is_kept: bool) -> bytes:
    """Reads the content of a WARC record to its end, and returns its bytes.

    Args:
        record: The record of fastwarc.
        is_kept: If False, the bytes are only counted, and the result is b"".

    Raises:
        _CutShortError: The content is shorter than the record's header says.
    """
    pieces: list[bytes] = []
    num_bytes = 0
    while piece := record.reader.read(_READ_BYTES):
        num_bytes += len(piece)
        if is_kept:
            pieces.append(piece)
    if num_bytes != record.content_length:
        message = f"found {num_bytes} bytes of content, expected {record.content_length}"
        raise _CutShortError(message)
    return b"".join(pieces)


def read_html(data: bytes) -> str | None:
    """Returns the decoded HTML in an HTTP response, or None if the response has no page.

    It has a page if its status is 200 and its media type is HTML or XHTML.

    Args:
        data: The whole response: status line, header and body.

    Raises:
        BadDocumentError: The data are no HTTP response, or the decoded body is not text.
    """
    response = parse_response(data)
    if response.status != b"200" or response.media_type not in _HTML:
        return None
    html = decode_html(decode_body(response), response.charset)
    if not is_text(html):
        encoding = response.header.get("content-encoding", "")[:40]
        message = f"found binary data as HTML, with the Content-Encoding {encoding!r}"
        raise BadDocumentError("bad_http", message)
    return html


WARC = Format(
    lambda text, record, *_: extract_text(text) if record.is_html else text,
    lambda beginning: beginning.suffix in _SUFFIXES or bool(_MAGIC.match(beginning.text)),
    read=lambda file_range, _, storage_options: read_warc(file_range, storage_options),
    is_text=False,
    may_be_cut=False,
)
