"""Wikitext to paragraphs: text passages, no lists, tables and headers (BERT paper, section 3.1).

References, files, comments and templates go too, but for inline_templates.py. `render` is the
definition, over a parser of the whole syntax; `pipeline.wiki._wikitext`, where it is built, gives
the same in one pass, but where markup is broken (a link, table or tag that is never closed).
"""

import re
from collections.abc import Set
from functools import partial
from html.entities import name2codepoint
from typing import Any

from pipeline.wiki import BadPageError
from pipeline.wiki.dump import normalize_prefix
from pipeline.wiki.inline_templates import show
from tokenizer.compiled import load

_NO_READER = (
    "wikitext is read by our compiled module or by mwparserfromhell, and neither is installed:"
    " install a C compiler and then this package again, or `pip install mwparserfromhell`"
)
compiled: Any = load("pipeline.wiki._wikitext")
"""The compiled module, or None where the definition is to be used."""

ENTITIES = name2codepoint | {"apos": ord("'")}
_LIST_MARK = "\0"
_DROPPED = """
ref references table gallery math chem score timeline imagemap syntaxhighlight source graph hiero
categorytree inputbox templatedata mapframe maplink indicator style script
"""
_DROPPED_TAGS = {*_DROPPED.split()}
_WRITTEN_TAGS = {"nowiki", "pre", "ce"}
_ITEM_TAGS = {"li", "dd", "dt"}
_KNOWN = """
abbr b bdi bdo big blockquote caption center cite code data del dfn div dl em font h1 h2 h3 h4 h5 h6
hr i img includeonly ins kbd langconvert link mark meta noinclude ol onlyinclude p poem q ref rp rt
ruby s samp section small span strike strong sub sup table td templatestyles th time tr translate tt
tvar u ul var wbr
"""
_KNOWN_TAGS = _KNOWN.split()
# For the compiled module: what each tag does, by its numbers, and in higher bits a number of its
# own for a tag that holds no wikitext.
_RAW_TAGS = sorted((_DROPPED_TAGS | _WRITTEN_TAGS) - {"ref", "table"})
TAGS = dict.fromkeys(_KNOWN_TAGS, 0) | {"br": 1} | dict.fromkeys(_ITEM_TAGS, 2)
TAGS |= {"table": 3, "ref": 4}
TAGS |= {name: (6 if name in _WRITTEN_TAGS else 5) + 8 * i for i, name in enumerate(_RAW_TAGS, 1)}
_PLAIN = "bitcoin geo magnet mailto news sip sips sms tel urn xmpp"
_SLASHED = "ftp ftps git gopher http https irc ircs mms nntp redis sftp ssh svn telnet worldwind"
SCHEMES = dict.fromkeys(_PLAIN.split(), False) | dict.fromkeys(_SLASHED.split(), True)
"""Whether two slashes must follow the scheme of an address."""

# What was never opened, or never closed.
_STRAY_TAG = re.compile(rf"</?(?:{'|'.join(_KNOWN_TAGS)})(?:\s[^<>]*)?/?>", re.IGNORECASE)
_FILES_AND_CATEGORIES = """
file image media category datei bild kategorie fichier catégorie archivo categoría 文件 分类 分類
"""
_HIDDEN = frozenset(_FILES_AND_CATEGORIES.split())
_MEDIA_SUFFIXES = ".jpg .jpeg .png .gif .svg .webm .oga .ogg .ogv .tif .tiff .pdf .mid .wav"
_MEDIA = tuple(_MEDIA_SUFFIXES.split())
_HEADING = re.compile("^=+[^=\n].*=", re.MULTILINE)
_QUOTES = re.compile("'{2,}")
_BEHAVIOUR = re.compile("__[A-Z]+__")
# What is left around something that is not shown; none begins within a run of spaces, so that long
# ones take linear time.
_EMPTY_BRACKETS = re.compile(r" ?\([\s,;]*\)|\uff08[\s\u3001\uff0c\uff1b]*\uff09")
_STOPS_IN_BRACKETS = re.compile(r"(?<=\()[ ,;]+|(?<![ ,;])[ ,;]* (?=\))")
_LONE_COMMAS = re.compile(r"(?<! ) +,(?: *,)*|,(?: *,)+")
_LONE_STOPS = re.compile(r"(?<! ) +\.(?=[ \n]|\Z)")
_LINE_MARKS = (_LIST_MARK, "*", "#", ":", ";", "=", "{|", "|", "!", "----")


def parse_wikitext(text: str, hidden_prefixes: Set[str] = frozenset()) -> str:
    """Paragraphs of a page, one a line, without links to files or of hidden prefixes.

    Raises BadPageError where the definition's parser gives up.
    """
    hidden = _HIDDEN | hidden_prefixes
    if compiled is None:
        return _make_paragraphs(render(text, hidden))
    is_hidden = partial(_is_hidden, hidden=hidden)
    return _make_paragraphs(compiled.render(text, is_hidden, show, TAGS, SCHEMES, ENTITIES))


def _make_paragraphs(rendered: str) -> str:
    rendered = _BEHAVIOUR.sub("", _QUOTES.sub("", rendered))
    rendered = _STOPS_IN_BRACKETS.sub("", _EMPTY_BRACKETS.sub("", rendered))
    rendered = _LONE_STOPS.sub(".", _LONE_COMMAS.sub(",", rendered))
    paragraphs: list[list[str]] = [[]]
    for line in map(str.strip, _HEADING.sub("\n\n", rendered).split("\n")):
        if line and not line.startswith(_LINE_MARKS):
            paragraphs[-1].append(line)
        elif paragraphs[-1]:
            paragraphs.append([])
    return "\n".join(" ".join(lines) for lines in paragraphs if lines)


def render(text: str, hidden: Set[str]) -> str:
    """The text of a page in lines; raises ValueError where mwparserfromhell is not installed."""
    try:
        import mwparserfromhell as parser
    except ImportError as error:
        raise ValueError(_NO_READER) from error
    try:
        text = text.replace("&apos;", "&#39;")  # which the parser does not know
        before, close, behind = text.rpartition(">")  # no tag ends behind the last one
        text = before + close + behind.replace("<", "&lt;")
        return _render(parser.parse(text, skip_style_tags=True), parser.nodes, hidden)
    except (parser.parser.ParserError, RecursionError) as error:
        message = f"found wikitext that cannot be parsed ({error})"
        raise BadPageError("bad_wikitext", message) from error


def _render(code: Any, nodes: Any, hidden: Set[str]) -> str:
    return "".join(_render_node(node, nodes, hidden) for node in code.nodes)


def _render_node(node: Any, nodes: Any, hidden: Set[str]) -> str:
    if isinstance(node, nodes.Text):
        return _STRAY_TAG.sub("", str(node.value))
    if isinstance(node, nodes.Wikilink):
        if _is_hidden(str(node.title), hidden):
            return ""
        return _render(node.text or node.title, nodes, hidden).lstrip(":")
    if isinstance(node, nodes.ExternalLink):
        return _render(node.title, nodes, hidden) if node.title else ""
    if isinstance(node, nodes.Template):
        arguments = (_render_argument(each, nodes, hidden) for each in node.params)
        call = "|".join([_render(node.name, nodes, hidden), *arguments])
        return show(call)
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


def _is_hidden(title: str, hidden: Set[str]) -> bool:
    """Whether a link is not shown where it stands: to a file, a category or another language."""
    prefix, colon, _ = title.partition(":")
    is_media = title.rstrip().lower().endswith(_MEDIA)
    return bool(colon) and (is_media or normalize_prefix(prefix) in hidden)


def _render_tag(node: Any, nodes: Any, hidden: Set[str]) -> str:
    name = str(node.tag).strip().lower()
    if node.wiki_markup in {"*", "#", ":", ";"}:
        return _LIST_MARK
    if name in _ITEM_TAGS:
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
