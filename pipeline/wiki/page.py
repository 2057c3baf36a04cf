"""A page of a MediaWiki dump: its title, namespace and text, of its last revision where there are several."""

import re
from typing import Any, NamedTuple
from xml.parsers import expat

from pipeline.wiki import BadPageError, wikitext

_FIELDS = {
    "page/title": "title",
    "page/id": "id",
    "page/ns": "namespace",
    "page/redirect": "is_redirect",
    "page/revision/model": "model",
    "page/revision/text": "text",
}

# A page of one revision as MediaWiki's own export writes it, before and behind its text.
_SIMPLE = (
    rb"<(id|parentid|timestamp|minor|comment|origin|model|format|sha1|username|ip)"
    rb'(?: \w+="\w*")?(?: ?/>|>[^<>]*</\%d>)\s*'
)
_BEFORE_TEXT = re.compile(
    rb"<page>\s*<title>([^<>]*)</title>\s*<ns>(-?\d+)</ns>\s*<id>(\d+)</id>\s*"
    rb'(<redirect title="[^<>"]*" />\s*)?(?:<restrictions>[^<>]*</restrictions>\s*)?<revision>\s*'
    rb"(?:%s|<contributor>\s*(?:%s)*</contributor>\s*)*"
    rb'<text(?: [\w:]+="\w*")*>' % (_SIMPLE % 5, _SIMPLE % 6)
)
_BEHIND_TEXT = re.compile(rb"</text>\s*(?:%s)*</revision>\s*</page>" % (_SIMPLE % 1))
_MODEL = re.compile(rb"<model>([^<>]*)</model>")
_TAGS = re.compile(rb"<[^<>]*>")


class Page(NamedTuple):
    """What is read of a page, of its last revision where there are several; `text` is its wikitext in UTF-8."""

    title: str = ""
    id: str = ""
    namespace: str = "0"
    model: str = "wikitext"
    is_redirect: bool = False
    text: bytes = b""


def read_page(data: bytes) -> Page:
    """The page between its tags; raises as `parse_page`."""
    return read_plain_page(data) or parse_page(data)


def read_plain_page(data: bytes) -> Page | None:
    """What `parse_page` finds, of a page that needs no parser; None of any other, or without the compiled module."""
    before = _BEFORE_TEXT.match(data) if wikitext.compiled else None
    end = data.find(b"<", before.end()) if before else -1
    behind = _BEHIND_TEXT.fullmatch(data, end) if end > 0 else None
    if not before or not behind:
        return None
    around = _TAGS.sub(b" ", before[0] + behind[0])
    text = wikitext.compiled.resolve_text(data, before.end(), end)
    if text is None or wikitext.compiled.resolve_text(around, 0, len(around)) is None:
        return None
    model = _MODEL.search(before[0]) or _MODEL.search(behind[0])
    names = [before[1], before[3], before[2], model[1] if model else b"wikitext"]
    title, number, namespace, kind = (
        wikitext.compiled.resolve_text(each, 0, len(each)).decode() for each in names
    )
    return Page(title, number, namespace, kind, bool(before[4]), text)


def parse_page(data: bytes) -> Page:
    """A page by a parser of XML.

    Raises:
        BadPageError: Not well-formed, or with declarations.
    """
    found: dict[str, str] = {}
    path: list[str] = []

    def start(name: str, _: dict[str, str]) -> None:
        path.append(name)
        if (where := "/".join(path)) in _FIELDS:
            found[_FIELDS[where]] = ""

    def text(value: str) -> None:
        if field := _FIELDS.get("/".join(path)):
            found[field] += value

    def refuse(*_: Any) -> None:
        raise BadPageError(
            "declaration", "found a document type or an entity declaration in a page"
        )

    parser = expat.ParserCreate()
    parser.buffer_text = True
    parser.StartElementHandler, parser.CharacterDataHandler = start, text
    parser.EndElementHandler = lambda _: path.pop()
    parser.StartDoctypeDeclHandler = parser.EntityDeclHandler = refuse
    try:
        parser.Parse(data, True)
    except expat.ExpatError as error:
        raise BadPageError("bad_xml", f"found no well-formed XML ({error})") from error
    is_redirect = found.pop("is_redirect", None) is not None
    return Page(is_redirect=is_redirect, text=found.pop("text", "").encode(), **found)
