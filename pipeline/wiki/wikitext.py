"""Makes paragraphs of wikitext: text passages without lists, tables and headers.

This is the rule of the BERT paper, section 3.1. References, files, comments and templates are
removed as well, except for the templates of inline_templates.py. `markup.render` defines how markup
is read. If `pipeline.wiki._wikitext` is compiled, it gives the same text faster.
"""

import re
from collections.abc import Set
from functools import partial
from typing import Any

from pipeline.wiki import markup
from pipeline.wiki.dump import normalize_prefix
from pipeline.wiki.inline_templates import show
from pipeline.wiki.markup import LIST_MARK
from pipeline.wiki.variants import convert
from tokenizer.compiled import load

compiled: Any = load("pipeline.wiki._wikitext")
"""The compiled module, or None if the definition in Python is to be used."""

_TAG_NUMBERS = {name: kind + 8 * number for number, (name, kind) in enumerate(markup.TAGS.items())}
TABLES = (_TAG_NUMBERS, markup.SCHEMES, markup.ENTITIES)
"""Tables for the compiled module.

The first has a number for each tag: the lower three bits are the value of `markup.TAGS`, and the
higher bits number the tags from 0. The others are `markup.SCHEMES` and `markup.ENTITIES`.
"""

_FILES_AND_CATEGORIES = """
file image media category datei bild kategorie fichier catégorie archivo categoría 文件 分类 分類
"""
_HIDDEN = frozenset(_FILES_AND_CATEGORIES.split())
_MEDIA_SUFFIXES = ".jpg .jpeg .png .gif .svg .webm .oga .ogg .ogv .tif .tiff .pdf .mid .wav"
_MEDIA = tuple(_MEDIA_SUFFIXES.split())
_HEADING = re.compile("^=+[^=\n].*=", re.MULTILINE)
_RULE = re.compile(r"^[ \t]*-{4,}", re.MULTILINE)
_QUOTES = re.compile("'{2,}")
_BEHAVIOUR = re.compile("__[A-Z]+__")
# Brackets and punctuation that are left around markup that is not shown. No pattern can begin
# within a sequence of spaces, so that long sequences take linear time.
_EMPTY_BRACKETS = re.compile(r" ?\([\s,;]*\)|\uff08[\s\u3001\uff0c\uff1b]*\uff09")
_STOPS_IN_BRACKETS = re.compile(r"(?<=\()[ ,;]+|(?<![ ,;])[ ,;]* (?=\))")
_LONE_COMMAS = re.compile(r"(?<! ) +,(?: *,)*|,(?: *,)+")
_LONE_STOPS = re.compile(r"(?<! ) +\.(?=[ \n]|\Z)")
# Lines that begin with one of these are lists, headers or tables.
_LINE_MARKS = (LIST_MARK, "*", "#", ":", ";", "=", "{|", "|", "!")


def parse_wikitext(text: str, hidden_prefixes: Set[str] = frozenset()) -> str:
    """Returns the paragraphs of a page, one per line.

    Args:
        text: The wikitext.
        hidden_prefixes: Prefixes of the links that are left out, from
            `pipeline.wiki.dump.hidden_prefixes`. The prefixes of files and categories in English,
            German, French, Spanish and Chinese are always among them.
    """
    is_hidden = partial(_is_hidden, hidden=_HIDDEN | hidden_prefixes)
    if compiled is None:
        return _make_paragraphs(markup.render(text, is_hidden))
    return _make_paragraphs(compiled.render(text, is_hidden, show, convert, *TABLES))


def _make_paragraphs(rendered: str) -> str:
    """Divides the rendered text of a page into paragraphs, and returns them, one per line.

    Args:
        rendered: The text that `markup.render` returned. It still has the marks of headings, lists
            and tables at the beginning of lines, and quotes around bold text. Lines with such marks
            are removed.
    """
    rendered = _BEHAVIOUR.sub("", _QUOTES.sub("", rendered))
    rendered = _STOPS_IN_BRACKETS.sub("", _EMPTY_BRACKETS.sub("", rendered))
    rendered = _LONE_STOPS.sub(".", _LONE_COMMAS.sub(",", rendered))
    rendered = _RULE.sub("\n\n", _HEADING.sub("\n\n", rendered))

    paragraphs: list[list[str]] = [[]]
    for line in map(str.strip, rendered.split("\n")):
        if line and not line.startswith(_LINE_MARKS):
            paragraphs[-1].append(line)
        elif paragraphs[-1]:
            paragraphs.append([])
    return "\n".join(" ".join(lines) for lines in paragraphs if lines)


def _is_hidden(title: str, hidden: Set[str]) -> bool:
    """Returns whether a link is left out of the text.

    A link is left out if its title has a prefix from `hidden`, or has any prefix and ends like the
    name of a media file, such as ".jpg".

    Args:
        title: The title that the link names, such as "File:Map.png" or "de:Berlin".
        hidden: The prefixes of files, categories and other languages, in the form that
            `normalize_prefix` returns.
    """
    prefix, colon, _ = title.partition(":")
    is_media = title.rstrip().lower().endswith(_MEDIA)
    return bool(colon) and (is_media or normalize_prefix(prefix) in hidden)
