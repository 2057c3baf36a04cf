"""Reads HTML files: each file is one document, with the main text of the page."""

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
    """Returns whether a file has an extension of HTML, or begins with a tag of HTML.

    A first tag alone is not enough, as a text about HTML may begin with "<body> is a tag". Another
    tag must follow it, or a closing tag must be in the first bytes.
    """
    if beginning.suffix in _SUFFIXES:
        return True
    first = _BEGINS.match(beginning.text)
    if not first or beginning.suffix in MARKDOWN_SUFFIXES:
        return False
    follows = _TAG_FOLLOWS.match(beginning.text, first.end())
    return bool(follows or _CLOSING_TAG.search(beginning.text, first.end()))


def _parse_html(html: str, *_: Any) -> str:
    """Returns the main text of a page; raises BadDocumentError if the page is binary data."""
    if not is_text(html):
        raise BadDocumentError("not_text", "found binary data, expected HTML; leave the file out")
    return extract_text(html)


HTML = Format(_parse_html, _is_html, may_be_cut=False, decoder=decode_html)
