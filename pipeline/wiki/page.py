"""A page of a MediaWiki dump: its title, namespace and text."""

from typing import Any, NamedTuple
from xml.parsers import expat

from pipeline.wiki import BadPageError

_FIELDS = {
    "page/title": "title",
    "page/id": "id",
    "page/ns": "namespace",
    "page/redirect": "is_redirect",
    "page/revision/model": "model",
    "page/revision/text": "text",
}


class Page(NamedTuple):
    """What is read of a page, of its last revision where there are several; `text` is its wikitext."""

    title: str = ""
    id: str = ""
    namespace: str = "0"
    model: str = "wikitext"
    is_redirect: bool = False
    text: str = ""


def read_page(data: bytes) -> Page:
    """The page from its tag on; raises BadPageError where it is not well-formed, or has declarations."""
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
        message = "found a document type or an entity declaration in a page"
        raise BadPageError("declaration", message)

    parser = expat.ParserCreate()
    parser.buffer_text = True
    parser.buffer_size = 2**20
    parser.StartElementHandler, parser.CharacterDataHandler = start, text
    parser.EndElementHandler = lambda _: path.pop()
    parser.StartDoctypeDeclHandler = parser.EntityDeclHandler = refuse
    try:
        parser.Parse(data, True)
    except expat.ExpatError as error:
        raise BadPageError("bad_xml", f"found no well-formed XML ({error})") from error
    is_redirect = found.pop("is_redirect", None) is not None
    return Page(is_redirect=is_redirect, **found)
