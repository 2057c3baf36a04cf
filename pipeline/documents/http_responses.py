"""Parses HTTP responses as crawlers store them, whose headers and encodings may be wrong.

The rules are those of warcio's reader. A body that is not encoded as its header says is kept as it
is. If a body ends early, the part that is there is kept.
"""

import re
import zlib
from collections.abc import Mapping
from typing import Any, NamedTuple

from pipeline.documents import records
from pipeline.documents.records import BadDocumentError, too_long

_GZIP = b"\x1f\x8b\x08"
_ZSTD = b"\x28\xb5\x2f\xfd"
_CHUNK_SIZE = re.compile(rb"([0-9a-fA-F]{1,8})[ \t]*(?:;[^\n]*)?\r?\n")
_CHARSET = re.compile(r"""charset\s*=\s*["']?\s*([^\s"';,]+)""", re.IGNORECASE)
_BLANKS = " \t"
_PIECE_BYTES = 2**20


class Response(NamedTuple):
    """A response whose body is not decoded yet.

    Attributes:
        status: The status code, such as b"200".
        header: The value of each header field, by its name in lower case. If a field occurs more
            than once, the first value counts.
        body: The bytes after the header.
    """

    status: bytes
    header: Mapping[str, str]
    body: bytes

    @property
    def media_type(self) -> str:
        """Returns the media type in lower case, such as "text/html"; empty if there is none."""
        return self.header.get("content-type", "").partition(";")[0].strip().lower()

    @property
    def charset(self) -> str | None:
        """Returns the charset that the header names, or None."""
        charset = _CHARSET.search(self.header.get("content-type", ""))
        return charset[1] if charset else None


def parse_response(data: bytes) -> Response:
    """Splits a response into status, header and body.

    Lines without a colon are ignored, the number of fields is not limited, and lines may end with a
    line feed alone.

    Raises:
        BadDocumentError: The data do not begin with a status line of HTTP.
    """
    first, position = _read_line(data, 0)
    words = first.split(None, 2)
    if len(words) < 2 or not words[0].upper().startswith("HTTP/"):
        raise BadDocumentError("bad_http", f"found {data[:20]!r}, expected a response of HTTP")

    header: dict[str, str] = {}
    name = ""
    while position < len(data):
        line, position = _read_line(data, position)
        if not line:
            break
        if line[0] in _BLANKS:
            if name:
                header[name] += line
            continue
        name, colon, value = line.partition(":")
        name = name.rstrip(_BLANKS).lower() if colon else ""
        if name in header:
            name = ""  # a field's first value counts
        elif name:
            header[name] = value.lstrip()
    return Response(words[1].encode(), header, data[position:])


def _read_line(data: bytes, start: int) -> tuple[str, int]:
    """Reads one line of the header.

    Returns:
        The line without white space at its end, and the position of the next line.
    """
    end = data.find(b"\n", start)
    stop = len(data) if end < 0 else end + 1
    return data[start:stop].decode("latin-1").rstrip(), stop


def decode_body(response: Response) -> bytes:
    """Undoes the chunks and the compression that a response's header names, and returns the body.

    Some crawlers store a decoded body with the header that was sent. So a body that is not encoded
    as the header says is kept as it is. A body that begins like gzip is decompressed even if the
    header does not name gzip.

    Raises:
        BadDocumentError: The compressed data are broken, or too long.
    """
    body = response.body
    if response.header.get("transfer-encoding", "").lower().rstrip().endswith("chunked"):
        body = join_chunks(body)
    codings = response.header.get("content-encoding", "").lower().split(",")
    for coding in reversed(codings):
        decode = _DECODERS.get(coding.strip())
        body = decode(body) if decode else body
    # No page begins like gzip, so a body that still does was compressed twice, or its header does
    # not name the compression.
    return _decode_gzip(body)


def join_chunks(body: bytes) -> bytes:
    """Joins the chunks of a body that was sent by HTTP's chunked transfer encoding.

    A chunk is a line with its size and the bytes after it. If a size line is malformed, the bytes
    from this line on are kept as they are. If a chunk does not end where its size says, the bytes
    after its size line are kept.
    """
    pieces: list[bytes] = []
    position = 0
    while size_line := _CHUNK_SIZE.match(body, position):
        size = int(size_line[1], 16)
        start = size_line.end()
        if size == 0:
            return b"".join(pieces)
        end = start + size
        if end >= len(body):
            return b"".join([*pieces, body[start:]])
        line_end = next((mark for mark in (b"\r\n", b"\n") if body.startswith(mark, end)), None)
        if line_end is None:
            return b"".join([*pieces, body[start:]])
        pieces.append(body[start:end])
        position = end + len(line_end)
    return b"".join([*pieces, body[position:]])


def _decode_gzip(body: bytes) -> bytes:
    """Decompresses all members of a gzip body, and drops bytes after them.

    A body of another kind is returned unchanged.
    """
    if not body.startswith(_GZIP):
        return body
    pieces: list[bytes] = []
    num_bytes = 0
    while body.startswith(_GZIP):
        decoder = zlib.decompressobj(wbits=31)
        pieces.append(_decompress(decoder, body, num_bytes))
        num_bytes += len(pieces[-1])
        body = decoder.unused_data
    return b"".join(pieces)


def _decode_deflate(body: bytes) -> bytes:
    """Decompresses deflate data with zlib's header, or raw data as some servers send it.

    A body that is neither is returned unchanged.
    """
    for wbits in (15, -15):
        try:
            return _decompress(zlib.decompressobj(wbits), body, 0)
        except BadDocumentError as error:
            if error.reason != "bad_http":
                raise
    return body


def _decompress(decoder: Any, body: bytes, num_before: int) -> bytes:
    """Decompresses a body, or one member of it.

    Args:
        decoder: A `zlib.decompressobj`.
        body: The compressed bytes. Bytes after the first member are not read.
        num_before: Number of decompressed bytes of earlier members of the same body.

    Raises:
        BadDocumentError: The data are broken, or the whole body is longer than a document may be.
    """
    most = records.MAX_DOCUMENT_BYTES - num_before
    try:
        text = bytes(decoder.decompress(body, most + 1))
    except zlib.error as error:
        message = f"found a body that is not encoded as its header says ({error})"
        raise BadDocumentError("bad_http", message) from error
    if len(text) > most:
        raise too_long()
    return text


def _decode_brotli(body: bytes) -> bytes:
    """Decompresses a body by Brotli. A body of another kind is returned unchanged."""
    import brotli

    decoder = brotli.Decompressor()
    pieces: list[bytes] = []
    num_bytes = 0
    data = body
    try:
        while data or not (decoder.is_finished() or decoder.can_accept_more_data()):
            pieces.append(decoder.process(data, output_buffer_limit=_PIECE_BYTES))
            data = b""
            num_bytes += len(pieces[-1])
            if num_bytes > records.MAX_DOCUMENT_BYTES:
                raise too_long()
    except brotli.error:
        return body
    return b"".join(pieces)


def _decode_zstd(body: bytes) -> bytes:
    """Decompresses all frames of a zstd body. A body of another kind is returned unchanged.

    Raises:
        BadDocumentError: The body is damaged, or its text is too long.
    """
    import zstandard

    if not body.startswith(_ZSTD):
        return body
    try:
        with zstandard.ZstdDecompressor().stream_reader(body, read_across_frames=True) as reader:
            text: bytes = reader.read(records.MAX_DOCUMENT_BYTES + 1)
    except zstandard.ZstdError as error:
        message = f"found a body that is not encoded as its header says ({error})"
        raise BadDocumentError("bad_http", message) from error
    if len(text) > records.MAX_DOCUMENT_BYTES:
        raise too_long()
    return text


_DECODERS = {
    "gzip": _decode_gzip,
    "x-gzip": _decode_gzip,
    "deflate": _decode_deflate,
    "br": _decode_brotli,
    "zstd": _decode_zstd,
}
