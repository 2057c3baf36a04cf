"""Wikitext to paragraphs: only the text passages, no lists, tables and headers (BERT paper, section 3.1).

References, files, categories, comments and most templates go too; those that are a part of a
sentence are shown (pipeline/wiki/inline_templates.py). `define_paragraphs` is the definition,
over a parser of the whole syntax; `pipeline.wiki._wikitext`, where it is built, gives the same
paragraphs in one pass. Where markup is broken (a link, table or tag that is never closed) the two
may differ.
"""

import re
from collections.abc import Set
from html.entities import name2codepoint
from typing import Any

from pipeline.wiki import BadPageError
from pipeline.wiki.inline_templates import find, show
from pipeline.wiki.site import normalize_prefix
from tokenizer.compiled import load

_NO_READER = (
    "wikitext is read by our compiled module or by mwparserfromhell, and neither is installed: install a C compiler"
    " and then this package again, or `pip install mwparserfromhell`"
)
compiled: Any = load("pipeline.wiki._wikitext")
"""The compiled module, or None where the definition is to be used."""

ENTITIES = name2codepoint | {"apos": ord("'")}
_LIST_MARK = "\0"
_NOTHING = "\ue000"  # stands where something was that is not shown: private, so no article's own
_DROPPED_TAGS = {
    "ref", "references", "table", "gallery", "math", "chem", "score", "timeline", "imagemap", "syntaxhighlight",
    "source", "graph", "hiero", "categorytree", "inputbox", "templatedata", "mapframe", "maplink", "indicator", "style",
    "script",
}  # fmt: skip
_WRITTEN_TAGS = {"nowiki", "pre", "ce"}
_KNOWN_TAGS = (
    "abbr|b|bdi|bdo|big|blockquote|caption|center|cite|code|data|del|dfn|div|dl|em|font|h1|h2|h3|"
    "h4|h5|h6|hr|i|img|includeonly|ins|kbd|langconvert|link|mark|meta|noinclude|ol|onlyinclude|p|"
    "poem|q|ref|rp|rt|ruby|s|samp|section|small|span|strike|strong|sub|sup|table|td|"
    "templatestyles|th|time|tr|translate|tt|tvar|u|ul|var|wbr"
)
# What was never opened, or never closed.
_STRAY_TAG = re.compile(rf"</?(?:{_KNOWN_TAGS})(?:\s[^<>]*)?/?>", re.IGNORECASE)
_HIDDEN = frozenset({
    "file", "image", "media", "category", "datei", "bild", "kategorie", "fichier", "catégorie", "archivo",
    "categoría", "文件", "分类", "分類",
})  # fmt: skip
_FILE = re.compile(
    r"[^|]*:[^|]*\.(?:jpe?g|png|gif|svg|webm|og[agv]|tiff?|pdf|mid|wav)\s*$", re.IGNORECASE
)
# Half of the parser's time, and not shown: comments, the innermost templates, and references
# without tags in them.
_COMMENT = re.compile("<!--.*?-->", re.DOTALL)
_TEMPLATE = re.compile(r"\{\{(?!\{) *([^\s{}<>\[\]|][^{}<>\[\]|\n]*)\n?(?:\|[^{}<>]*)?\}\}(?!\})")
_REFERENCE = re.compile(r"<ref(?: [^<>{}/]*)?>[^<>{}]*</ref>|<ref [^<>{}]*/>")
_SHOWN_AS_WRITTEN = re.compile(r"<(?:nowiki|pre)\b", re.IGNORECASE)
_QUOTES = re.compile("'{2,}")
_BEHAVIOUR = re.compile("__[A-Z]+__")
# What is left around something that is not shown.
_EMPTY_BRACKETS = re.compile(r" ?\([\s,;]*\)|\uff08[\s\u3001\uff0c\uff1b]*\uff09")
_STOPS_IN_BRACKETS = re.compile(r"(?<=\()[ ,;]+|[ ,;]* (?=\))")
_LONE_COMMAS = re.compile(r" *,(?: *,)+| +,")
_LONE_STOPS = re.compile(r" +\.(?=[ \n]|\Z)")
_LINE_MARKS = ("*", "#", ":", ";", "=", "{|", "|", "!", "----")


def parse_wikitext(text: str, hidden_prefixes: Set[str] = frozenset()) -> str:
    """Paragraphs of a page, one a line, without links of hidden prefixes and of the commonest names of files.

    Raises:
        BadPageError: The definition's parser gives up.
    """
    hidden = _HIDDEN | hidden_prefixes
    if compiled is None:
        return define_paragraphs(text, hidden)

    def is_hidden(prefix: str) -> bool:
        return normalize_prefix(prefix) in hidden

    return str(compiled.to_paragraphs(text, is_hidden, show, ENTITIES))


def define_paragraphs(text: str, hidden: Set[str] = _HIDDEN) -> str:
    """As `parse_wikitext`, by mwparserfromhell; raises ValueError where that is not installed."""
    try:
        import mwparserfromhell as parser
    except ImportError as error:
        raise ValueError(_NO_READER) from error
    try:
        text = text.replace("&apos;", "&#39;")  # which the parser does not know
        before, close, behind = text.rpartition(">")  # no tag ends behind the last one
        text = before + close + behind.replace("<", "&lt;")
        code = parser.parse(_blank_out(text), skip_style_tags=True)
        rendered = _render(code, parser.nodes, hidden)
    except (parser.parser.ParserError, RecursionError) as error:
        message = f"found wikitext that cannot be parsed ({error})"
        raise BadPageError("bad_wikitext", message) from error
    rendered = _BEHAVIOUR.sub("", _QUOTES.sub("", rendered.replace(_NOTHING, "")))
    rendered = _LONE_COMMAS.sub(",", _STOPS_IN_BRACKETS.sub("", _EMPTY_BRACKETS.sub("", rendered)))
    rendered = _LONE_STOPS.sub(".", rendered)
    paragraphs: list[list[str]] = [[]]
    for line in map(str.strip, rendered.split("\n")):
        if line and not line.startswith((_LIST_MARK, *_LINE_MARKS)):
            paragraphs[-1].append(line)
        elif paragraphs[-1]:
            paragraphs.append([])
    return "\n".join(" ".join(lines) for lines in paragraphs if lines)


def _blank_out(text: str) -> str:
    """Replaces what is surely not shown by a character that is taken out in the end: parsing takes half the time."""
    if _NOTHING in text or _SHOWN_AS_WRITTEN.search(text):
        return text
    text, before = _COMMENT.sub(_NOTHING, text), ""
    while text != before:
        before = text
        text = _TEMPLATE.sub(lambda found: found[0] if find(found[1]) else _NOTHING, text)
        text = _REFERENCE.sub(_NOTHING, text)
    return text


def _render(code: Any, nodes: Any, hidden: Set[str]) -> str:
    return "".join(_render_node(node, nodes, hidden) for node in code.nodes)


def _render_node(node: Any, nodes: Any, hidden: Set[str]) -> str:
    if isinstance(node, nodes.Text):
        return _STRAY_TAG.sub("", str(node.value))
    if isinstance(node, nodes.Wikilink):
        title = str(node.title)
        if _FILE.match(title) or _has_prefix(title, hidden):
            return ""
        return _render(node.text or node.title, nodes, hidden).lstrip(":")
    if isinstance(node, nodes.ExternalLink):
        return _render(node.title, nodes, hidden) if node.title else ""
    if isinstance(node, nodes.Template):
        arguments = (_render_argument(each, nodes, hidden) for each in node.params)
        call = "|".join([_render(node.name, nodes, hidden), *arguments])
        return show(call.replace(_NOTHING, ""))
    if isinstance(node, nodes.HTMLEntity):
        shown = str(node.normalize())
        is_half = "\ud800" <= shown <= "\udfff"  # of a pair, which is no character
        return str(node) if is_half else shown
    if isinstance(node, nodes.Heading):
        return "\n\n"
    return _render_tag(node, nodes, hidden) if isinstance(node, nodes.Tag) else ""


def _render_argument(argument: Any, nodes: Any, hidden: Set[str]) -> str:
    value = _render(argument.value, nodes, hidden)
    return f"{_render(argument.name, nodes, hidden)}={value}" if argument.showkey else value


def _has_prefix(title: str, prefixes: Set[str]) -> bool:
    prefix, colon, _ = title.partition(":")
    return bool(colon) and normalize_prefix(prefix) in prefixes


def _render_tag(node: Any, nodes: Any, hidden: Set[str]) -> str:
    name = str(node.tag).strip().lower()
    if node.wiki_markup in {"*", "#", ":", ";"}:
        return _LIST_MARK
    if name in {"li", "dd", "dt"}:
        return f"\n{_LIST_MARK}\n"
    if name == "br":
        return " "
    if name in _DROPPED_TAGS or node.contents is None:
        return ""
    if name in _WRITTEN_TAGS:
        return "".join(
            str(each) if isinstance(each, nodes.Text) else _render_node(each, nodes, hidden)
            for each in node.contents.nodes
        )
    return _render(node.contents, nodes, hidden)
