"""HTML files: each is one document, the main text of the page, as for pages of a WARC file."""

import re
from typing import Any

from pipeline.documents.html_pages import decode_html, extract_text, is_text
from pipeline.documents.kinds import MARKDOWN_SUFFIXES
from pipeline.documents.records import BadDocumentError, Beginning, Format

_SUFFIXES = {".html", ".htm", ".xhtml", ".shtml"}
_BEGINS = re.compile(
    rb"(?:<\?xml[^>]*\?>\s*)?(?:<!--.*?-->\s*)*<(?:!doctype\s+html|html|head|body)\b[^>]*>",
    re.IGNORECASE | re.DOTALL,
)
_TAG_FOLLOWS = re.compile(rb"\s*<[a-z!?]", re.IGNORECASE)
_CLOSING_TAG = re.compile(rb"</[a-z]", re.IGNORECASE)


def _is_html(beginning: Beginning) -> bool:
    """Tells by the name, or by a first tag of HTML that is no word of a sentence about HTML."""
    if beginning.suffix in _SUFFIXES:
        return True
    first = _BEGINS.match(beginning.text)
    if not first or beginning.suffix in MARKDOWN_SUFFIXES:
        return False
    follows = _TAG_FOLLOWS.match(beginning.text, first.end())
    return bool(follows or _CLOSING_TAG.search(beginning.text, first.end()))


def _parse_html(html: str, *_: Any) -> str:
    if not is_text(html):
        raise BadDocumentError("not_text", "found binary data, expected HTML; leave the file out")
    return extract_text(html)


HTML = Format(_parse_html, _is_html, may_be_cut=False, decoder=decode_html)
