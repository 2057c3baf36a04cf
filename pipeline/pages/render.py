"""Pages of their own from Jinja2 templates: no script, no other file, all text escaped."""

import unicodedata
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

_HARMLESS_FORMATS = "\u200c\u200d"  # joiners, which several scripts and emoji need
_HERE = Path(__file__).parent


def render(template: Path, **values: Any) -> str:
    """The text of a template, which may extend page.html and import kit.html beside this file."""
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
    """Text whose control characters, directions and lone surrogates are written out: ⟨U+202E⟩."""
    return value if isinstance(value, Markup) else "".join(map(_show, str(value)))


def _show(character: str) -> str:
    is_hidden = unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp")
    if is_hidden and character not in _HARMLESS_FORMATS:
        return f"⟨U+{ord(character):04X}⟩"
    return character


def short_number(value: float) -> str:
    """A count of at most four characters or so: 950, 17.7k, 2.5M."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"


def format_bytes(count: float) -> str:
    """Such as 12.3 MB, a million bytes each."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def format_share(value: float) -> str:
    """A share in percent."""
    return f"{100 * value:.3g} %"
