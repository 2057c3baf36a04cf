"""WARC and WET archives of the web: a page is a document.

The text of a WET file (conversion records) is taken as it is, HTML of a WARC file (responses with
status 200) is reduced to its main text. Other records are passed over and only counted.
"""

import contextlib
import io
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import replace
from email.message import Message
from http.client import HTTPException, parse_headers
from typing import Any

from pipeline.documents import records
from pipeline.documents.files import FileRange, StorageOptions, read_blocks
from pipeline.documents.records import BadDocumentError, Format, Record, too_long

_MAGIC = b"WARC/1."
_MAX_HEADER_BYTES = 2**20
_HTML = {"text/html", "application/xhtml+xml"}


def read_warc(file_range: FileRange, storage_options: StorageOptions = None) -> Iterator[Record]:
    """A record a page, lazily; `place` counts records from 1."""
    import fastwarc.warc as warc

    stream: Any = _Stream(read_blocks(file_range, storage_options))
    number = 0
    try:
        options: dict[str, Any] = {"parse_http": False, "stream_detect": False}
        options["max_header_len"] = _MAX_HEADER_BYTES
        for number, found in enumerate(warc.ArchiveIterator(stream, **options), 1):
            yield _make_record(found, number, warc.WarcRecordType)
    except OSError as error:
        message = f"cannot be read as WARC ({error}); fetch the file again"
        raise ValueError(f"{file_range.url}, record {number + 1}: {message}") from error
    if number == 0:
        raise ValueError(f"{file_range.url}: found no WARC record; give the --format it has")


class _Stream:
    """Blocks of bytes as what fastwarc takes for a file."""

    def __init__(self, blocks: Iterable[bytes]) -> None:
        self._blocks = (memoryview(block) for block in blocks if block)
        self._rest = memoryview(b"")
        self._position = 0

    def read(self, size: int) -> bytes:
        self._rest = self._rest or next(self._blocks, self._rest)
        data, self._rest = bytes(self._rest[:size]), self._rest[size:]
        self._position += len(data)
        return data

    def tell(self) -> int:
        return self._position


def _make_record(found: Any, number: int, kinds: Any) -> Record:
    empty = Record(number, 0, b"", None, f"record {number}")
    is_http, expected = found.record_type == kinds.response, found.content_length
    if not is_http and found.record_type != kinds.conversion:
        return replace(empty, dropped="not_a_page")
    if expected > records.MAX_DOCUMENT_BYTES:
        return replace(empty, error=too_long())
    data = found.reader.read()
    if len(data) != expected:
        message = f"found {len(data)} bytes of content, expected {expected}"
        error = BadDocumentError("cut_short", f"{message}: the record is cut short")
        return replace(empty, error=error)
    if not is_http:
        return replace(empty, data=data)
    try:
        html = read_html(data)
    except BadDocumentError as error:
        return replace(empty, error=error)
    if html is None:
        return replace(empty, dropped="not_a_page")
    return replace(empty, data=html.encode("utf-8", "replace"), is_html=True)


def read_html(response: bytes) -> str | None:
    """The HTML of a response, decoded; None where its status is not 200 or it is not HTML."""
    stream = io.BytesIO(response)
    status = stream.readline(65_536).split(None, 2)
    if len(status) < 2 or not status[0].startswith(b"HTTP/"):
        raise BadDocumentError("bad_http", f"found {response[:20]!r}, expected a response of HTTP")
    try:
        header = parse_headers(stream)
    except HTTPException as error:
        message = f"found a header of HTTP that cannot be read ({error!r})"
        raise BadDocumentError("bad_http", message) from error
    if status[1] != b"200" or header.get_content_type() not in _HTML:
        return None
    try:
        body = _decode_body(header, stream.read())
    except (zlib.error, ValueError) as error:
        message = f"found a body that is not encoded as its header says ({error})"
        raise BadDocumentError("bad_http", message) from error
    import resiliparse.parse.encoding as encodings

    # Servers name charsets that do not exist, or with a NUL.
    with contextlib.suppress(LookupError, ValueError):
        if charset := header.get_content_charset():
            return str(encodings.bytes_to_str(body, charset))
    return str(encodings.bytes_to_str(body, encodings.detect_encoding(body) or "utf-8"))


def extract_text(html: str) -> str:
    """The main text of a page, a paragraph a line, without menus, bullets and alternative texts."""
    from resiliparse.extract.html2text import extract_plain_text

    return str(extract_plain_text(html, main_content=True, list_bullets=False, alt_texts=False))


def _decode_body(header: Message, body: bytes) -> bytes:
    # Crawlers keep bodies as sent, or undo the encodings and what the header says of them.
    if header.get("Transfer-Encoding", "").strip().lower() == "chunked":
        body = _join_chunks(body)
    encoding = header.get("Content-Encoding", "identity").strip().lower()
    if encoding in {"", "identity"}:
        return body
    if encoding not in {"gzip", "x-gzip", "deflate"}:
        raise ValueError(f"Content-Encoding {encoding[:40]!r} is not supported")
    decoder = zlib.decompressobj(wbits=47)  # gzip or zlib, as its first bytes say
    text = decoder.decompress(body, records.MAX_DOCUMENT_BYTES + 1)
    if not decoder.eof:
        raise ValueError("it is cut short or too long")
    return text


def _join_chunks(body: bytes) -> bytes:
    pieces: list[bytes] = []
    at = 0
    while True:
        end = body.index(b"\n", at)
        size = int(body[at:end].split(b";")[0], 16)
        if size == 0:
            return b"".join(pieces)
        if size < 0 or end + 1 + size > len(body):
            raise ValueError("a chunk is cut short")
        pieces.append(body[end + 1 : end + 1 + size])
        at = end + 1 + size + 2


WARC = Format(
    lambda text, record, *_: extract_text(text) if record.is_html else text,
    lambda beginning: beginning.head.startswith(_MAGIC),
    read=lambda file_range, _, storage_options: read_warc(file_range, storage_options),
    is_text=False,
    may_be_cut=False,
)
