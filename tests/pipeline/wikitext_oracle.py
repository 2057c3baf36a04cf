"""Wikitext read by mwparserfromhell: a parser by others, to which hard cases are held.

It goes back where markup is broken, and knows neither variants nor which tags MediaWiki knows, so
that only cases of sound markup are read alike.
"""

import mwparserfromhell
from mwparserfromhell import nodes

from pipeline.wiki import markup
from pipeline.wiki.inline_templates import show

DROPPED = {name for name, kind in markup.TAGS.items() if kind == markup.RAW_DROPPED}
DROPPED |= {"ref", "table"}
WRITTEN = {name for name, kind in markup.TAGS.items() if kind == markup.RAW_WRITTEN}
ITEMS = {name for name, kind in markup.TAGS.items() if kind == markup.LIST_ITEM}


def render(text, is_hidden):
    parsed = mwparserfromhell.parse(text.replace("&apos;", "&#39;"), skip_style_tags=True)
    return render_code(parsed, is_hidden)


def render_code(code, is_hidden):
    return "".join(render_node(node, is_hidden) for node in code.nodes)


def render_node(node, is_hidden):
    match node:
        case nodes.Text():
            return str(node.value)
        case nodes.Wikilink():
            if is_hidden(str(node.title)):
                return ""
            return render_code(node.text or node.title, is_hidden).lstrip(":")
        case nodes.ExternalLink():
            return render_code(node.title, is_hidden) if node.title else ""
        case nodes.Template():
            arguments = [render_argument(each, is_hidden) for each in node.params]
            return show("|".join([render_code(node.name, is_hidden), *arguments]))
        case nodes.HTMLEntity():
            return str(node.normalize())
        case nodes.Heading():
            return "\n\n"
        case nodes.Tag():
            return render_tag(node, is_hidden)
    return ""


def render_argument(argument, is_hidden):
    value = render_code(argument.value, is_hidden)
    return f"{render_code(argument.name, is_hidden)}={value}" if argument.showkey else value


def render_tag(node, is_hidden):
    name = str(node.tag).strip().lower()
    if node.wiki_markup in {"*", "#", ":", ";"}:
        return markup.LIST_MARK
    if node.wiki_markup and name == "hr":
        return "\n\n"
    if name in ITEMS:
        return f"\n{markup.LIST_MARK}\n"
    if name == "br":
        return " "
    if name in DROPPED or node.contents is None:
        return ""
    if name in WRITTEN:
        return "".join(
            str(each) if isinstance(each, nodes.Text) else render_node(each, is_hidden)
            for each in node.contents.nodes
        )
    return render_code(node.contents, is_hidden)
