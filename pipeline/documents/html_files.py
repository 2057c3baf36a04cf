"""HTML files: each is one document, the main text of the page, as for pages of a WARC file."""

import re
from typing import Any

from pipeline.documents.html_pages import decode_html, extract_text, is_text
from pipeline.documents.records import BadDocumentError, Beginning, Format

_SUFFIXES = {".html", ".htm", ".xhtml", ".shtml"}
_BEGINS = re.compile(
    rb"(?:<\?xml[^>]*\?>\s*)?(?:<!--.*?-->\s*)*<(?:!doctype\s+html|html|head|body)\b",
    re.IGNORECASE | re.DOTALL,
)


def _is_html(beginning: Beginning) -> bool:
    return beginning.suffix in _SUFFIXES or bool(_BEGINS.match(beginning.text))


def _parse_html(html: str, *_: Any) -> str:
    if not is_text(html):
        raise BadDocumentError("not_text", "found binary data, expected HTML; leave the file out")
    return extract_text(html)


HTML = Format(_parse_html, _is_html, may_be_cut=False, decoder=decode_html)
