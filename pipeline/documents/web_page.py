"""One HTTP response to the text of its page."""

import contextlib
import io
import zlib
from email.message import Message
from http.client import HTTPException, parse_headers

from pipeline.documents import records
from pipeline.documents.records import BadDocumentError

_HTML = {"text/html", "application/xhtml+xml"}


def read_html(response: bytes) -> str | None:
    """The HTML of a response, decoded; nothing where its status is not 200 or it is not HTML.

    Raises BadDocumentError where it is no HTTP, or its body not encoded as its header says.
    """
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
    """The main text of a page: paragraphs, one a line, without menus, lists' bullets and images' descriptions."""
    from resiliparse.extract.html2text import extract_plain_text

    return str(extract_plain_text(html, main_content=True, list_bullets=False, alt_texts=False))


def _decode_body(header: Message, body: bytes) -> bytes:
    """Crawlers keep bodies as they were sent, or undo transfer and content encoding and the header's word for it."""
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
