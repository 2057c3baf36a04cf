"""Reads the pages of a MediaWiki dump, and the facts about the wiki that its beginning names.

Every page belongs to a namespace. The title of a page begins with the prefix of its namespace, such
as "Category:". Only the titles of articles have no prefix. Pages of old dumps have no `<ns>`, so
the prefix alone shows their namespace. The dump's `<siteinfo>` lists the namespaces of the wiki.

Prefixes also decide which links a page shows as text. A link to a file, to a category, or to the
same page in another language ("de:Berlin") is not shown. `LANGUAGES` lists the prefixes of
languages.
"""

import html
import re
from collections.abc import Iterable
from typing import Any, NamedTuple
from xml.parsers import expat

from pipeline.wiki import BadPageError

_SPACES = re.compile(r"[\s_]+")
_HEAD_END = re.compile(rb"</siteinfo>|<page>")
_MAX_HEAD_BYTES = 2**20
_NAMESPACE = re.compile(r"""<namespace key=["'](-?\d+)["'][^>]*>([^<]+)</namespace>""")
_LANGUAGE = re.compile(r"""<mediawiki\b[^>]*\bxml:lang=["']([\w-]+)["']""")
_PROJECTS = "i|tionary|inews|ibooks|isource|iquote|iversity|ivoyage"
_DATABASE = re.compile(rf"<dbname>(\w+?)wik(?:{_PROJECTS})</dbname>")
_NOT_SHOWN_KEYS = {"-2", "6", "14"}  # numbers of the namespaces of media, files and categories
_CANONICAL = """
media|special|talk|user|user talk|project|project talk|file|file talk|image|image talk|mediawiki|
mediawiki talk|template|template talk|help|help talk|category|category talk
"""
_CANONICAL_NAMESPACES = frozenset(_CANONICAL.replace("\n", "").strip().split("|"))
"""English names of namespaces, which every wiki knows as well as its own names.

The namespace of articles has no name.
"""
_REDIRECT = re.compile(r"\s*#REDIRECT", re.IGNORECASE)
_REDIRECT_IN_ANY_LANGUAGE = re.compile(r"\s*#[^\W\d_]+[\s:]*\[\[[^\[\]\n]+\]\]")

_CODES = """
aa ab ace ady af ak als alt am ami an ang anp ar arc ary arz as ast atj av avk awa ay az azb ba
ban bar bat-smg bcl be be-tarask be-x-old bg bh bi bjn blk bm bn bo bpy br bs btm bug bxr ca
cbk-zam cdo ce ceb ch cho chr chy ckb co cr crh cs csb cu cv cy da dag de din diq dk dsb dty dv
dz ee el eml en eo es et eu ext fa fat ff fi fiu-vro fj fo fr frp frr fur fy ga gag gan gcr gd
gl glk gn gom gor got gpe gsw gu guc gur guw gv ha hak haw he hi hif ho hr hsb ht hu hy hyw hz
ia id ie ig ii ik ilo inh io is it iu ja jam jbo jv ka kaa kab kbd kbp kcg kg ki kj kk kl km kn
ko koi kr krc ks ksh ku kv kw ky la lad lb lbe lez lfn lg li lij lld lmo ln lo lrc lt ltg lv lzh
mad mai map-bms mdf mg mh mhr mi min mk ml mn mni mnw mo mr mrj ms mt mus mwl my myv mzn na nah
nan nap nb nds nds-nl ne new ng nia nl nn no nov nqo nrm nso nv ny oc olo om or os pa pag pam
pap pcd pcm pdc pfl pi pih pl pms pnb pnt ps pt pwn qu rm rmy rn ro roa-rup roa-tara ru rue rup
rw sa sah sat sc scn sco sd se sg sgs sh shi shn shy si simple sk skr sl sm smn sn so sq sr srn
ss st stq su sv sw szl szy ta tay tcy te tet tg th ti tk tl tly tn to tpi tr trv ts tt tum tw ty
tyv udm ug uk ur uz ve vec vep vi vls vo vro wa war wo wuu xal xh xmf yi yo yue za zea zh
zh-classical zh-cn zh-min-nan zh-tw zh-yue zu
"""
LANGUAGES = frozenset(_CODES.split())
"""Codes of the languages of Wikimedia's wikis.

They are those of Wikimedia's file `langlist`, and the aliases dk, nb, zh-cn and zh-tw.
"""


def take_head(blocks: Iterable[bytes]) -> bytes:
    """Returns the first blocks of a dump, joined, for `read_site`.

    Blocks are read up to the one that holds the end of `<siteinfo>`, or the first `<page>` if the
    dump has no `<siteinfo>`. If neither is found, reading stops once more than 1 MiB was read.

    Args:
        blocks: The blocks of the dump, in UTF-8, from its beginning. They are read lazily.
    """
    head = bytearray()
    for block in blocks:
        head += block
        if _HEAD_END.search(head) or len(head) > _MAX_HEAD_BYTES:
            break
    return bytes(head)


class Site(NamedTuple):
    """The facts about a wiki from the beginning of its dump.

    Attributes:
        has_root: Whether the file has the root element of a dump, <mediawiki>. Such a file must end
            with the closing tag; a file that holds only pages need not.
        hidden_prefixes: Prefixes of the links that are not shown as text, in the form that
            `normalize_prefix` returns.
        other_namespaces: Title prefixes of the pages that are no articles, in the form that
            `normalize_prefix` returns.
    """

    has_root: bool
    hidden_prefixes: frozenset[str]
    other_namespaces: frozenset[str]

    def is_article(self, page: "Page") -> bool:
        """Returns whether a page is in the namespace of articles.

        The page's `<ns>` decides. If there is none, a page is an article unless its title begins
        with the prefix of another namespace.
        """
        if page.namespace is not None:
            return page.namespace == "0"
        prefix, colon, _ = page.title.partition(":")
        return not (colon and normalize_prefix(prefix) in self.other_namespaces)


def read_site(head: bytes) -> Site:
    """Reads the facts about a wiki from the beginning of its dump, as `take_head` returns it."""
    names = _namespaces(head.decode(errors="replace"))
    others = {name for key, name in names.items() if key != "0"}
    return Site(b"<mediawiki" in head, hidden_prefixes(head), _CANONICAL_NAMESPACES | others)


def hidden_prefixes(head: bytes) -> frozenset[str]:
    """Returns the prefixes of links that are not shown as text, from the beginning of a dump."""
    text = head.decode(errors="replace").partition("</siteinfo>")[0]
    names = _namespaces(text)
    wiki_languages = set(_LANGUAGE.findall(text))
    wiki_languages |= {name.replace("_", "-") for name in _DATABASE.findall(text)}
    other_languages = LANGUAGES - wiki_languages - set(names.values())
    return other_languages | {name for key, name in names.items() if key in _NOT_SHOWN_KEYS}


def _namespaces(text: str) -> dict[str, str]:
    """Returns the namespaces that a dump's `<siteinfo>` lists: from number, such as "6", to name.

    Args:
        text: The beginning of the dump.
    """
    text = text.partition("</siteinfo>")[0]
    return {key: normalize_prefix(html.unescape(name)) for key, name in _NAMESPACE.findall(text)}


def normalize_prefix(prefix: str) -> str:
    """Returns the prefix of a link or title in the form in which MediaWiki compares prefixes.

    It is in lower case, and has single spaces in place of underscores.
    """
    return _SPACES.sub(" ", prefix).strip().lower()


# The fields of `Page` by the path of their element.
_FIELDS = {
    "page/title": "title",
    "page/id": "id",
    "page/ns": "namespace",
    "page/redirect": "is_redirect",
    "page/revision/model": "model",
    "page/revision/text": "text",
}


class Page(NamedTuple):
    """The parts of a page that are used.

    Attributes:
        title: The title, with the prefix of the page's namespace.
        id: The number of the page.
        namespace: The number of the page's namespace, or None if the dump does not have it.
        model: The content model, such as "wikitext" or "json".
        is_redirect: Whether the page has the element `<redirect>`.
        text: The wikitext of the last revision.
    """

    title: str = ""
    id: str = ""
    namespace: str | None = None
    model: str = "wikitext"
    is_redirect: bool = False
    text: str = ""


def is_redirect(page: Page) -> bool:
    """Returns whether a page is a redirect to another page.

    A page is a redirect if it has the element `<redirect>`, or if its text begins with #REDIRECT.

    The oldest dumps have neither `<redirect>` nor `<ns>`, and their wikis may write #REDIRECT in
    their own language. So a page without `<ns>` is also a redirect if its text begins with "#", any
    word and a link.
    """
    if page.is_redirect or _REDIRECT.match(page.text):
        return True
    return page.namespace is None and bool(_REDIRECT_IN_ANY_LANGUAGE.match(page.text))


def read_page(data: bytes) -> Page:
    """Parses one page.

    Args:
        data: The XML from the opening to the closing tag of the page.

    Raises:
        BadPageError: The XML is not well-formed, or has a document type or entity declaration.
    """
    fields: dict[str, str] = {}
    path: list[str] = []

    def start(name: str, _: dict[str, str]) -> None:
        path.append(name)
        field = _FIELDS.get("/".join(path))
        if field:
            fields[field] = ""

    def text(value: str) -> None:
        field = _FIELDS.get("/".join(path))
        if field:
            fields[field] += value

    def refuse(*_: Any) -> None:
        raise BadPageError("declaration", "found a document type or an entity declaration")

    parser = expat.ParserCreate()
    parser.buffer_text = True
    parser.buffer_size = 2**20
    parser.StartElementHandler = start
    parser.CharacterDataHandler = text
    parser.EndElementHandler = lambda _: path.pop()
    parser.StartDoctypeDeclHandler = refuse
    parser.EntityDeclHandler = refuse
    try:
        parser.Parse(data, True)
    except expat.ExpatError as error:
        raise BadPageError("bad_xml", f"found no well-formed XML ({error})") from error
    is_redirect = fields.pop("is_redirect", None) is not None
    return Page(is_redirect=is_redirect, **fields)
