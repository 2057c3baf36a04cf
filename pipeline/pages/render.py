"""Renders self-contained HTML pages from Jinja2 templates.

A page needs no other file, has no script, and all text in it is escaped.
"""

import unicodedata
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

_HARMLESS_FORMATS = "\u200c\u200d"  # joiners, which several scripts and emoji need
_HERE = Path(__file__).parent


def render(template: Path, **values: Any) -> str:
    """Renders a template to text.

    Args:
        template: Path of the template. It may extend page.html and import kit.html of this folder.
        **values: The variables of the template. A variable that is missing is an error.
    """
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader([template.parent, _HERE]),
        autoescape=True,
        finalize=show_hidden,
        undefined=jinja2.StrictUndefined,
        extensions=["jinja2.ext.do"],
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"short": short_number, "bytes": format_bytes, "percent": format_share}
    return environment.get_template(template.name).render(values)


def show_hidden(value: object) -> object:
    """Returns a value as text in which invisible characters are written as ⟨U+202E⟩.

    Control characters, marks of direction and lone surrogates are written so. Markup, which a
    template has made itself, is returned unchanged.
    """
    return value if isinstance(value, Markup) else "".join(map(_show, str(value)))


def _show(character: str) -> str:
    """Returns a character, or its code point if it is invisible."""
    is_hidden = unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp")
    if is_hidden and character not in _HARMLESS_FORMATS:
        return f"⟨U+{ord(character):04X}⟩"
    return character


def short_number(value: float) -> str:
    """Returns a count with three digits and a unit: 950, 17.7k, 2.5M."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"


def format_bytes(count: float) -> str:
    """Returns a number of bytes with three digits and a unit: 12.3 MB, where 1 MB is 10^6 bytes."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def format_share(value: float) -> str:
    """Returns a share between 0 and 1 in percent, with three digits: 12.5 %."""
    return f"{100 * value:.3g} %"
