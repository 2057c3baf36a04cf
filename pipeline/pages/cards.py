"""The pieces that a page is laid out of, and the page around them. All text goes through `escape`."""

from collections.abc import Mapping
from typing import Any

from pipeline.pages.style import STYLE
from pipeline.pages.text import escape, short_number

_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def whole_page(title: str, body: str, style: str = "") -> str:
    """A page of its own: no script, no other file, nothing that its own policy would let it load.

    Args:
        title: As text.
        body: As HTML.
        style: Rules besides those all pages have.
    """
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}{style}</style></head>\n"
        f"<body><main>\n{body}\n</main></body></html>\n"
    )


def card(title: str, content: str) -> str:
    """A titled box around HTML."""
    return f'<div class="card"><h3>{escape(title)}</h3>{content}</div>'


def small(text: str) -> str:
    """A paragraph of small text."""
    return f'<p class="small soft">{escape(text)}</p>'


def pairs(values: Mapping[str, Any]) -> str:
    """A table of names and values."""
    rows = "".join(
        f"<tr><td>{escape(name.replace('_', ' '))}</td><td>{_value(v)}</td></tr>"
        for name, v in values.items()
    )
    return f'<table class="pairs">{rows}</table>'


def format_bytes(count: int) -> str:
    """Such as 12.3 MB, a million bytes each."""
    return f"{short_number(count)}B".replace("kB", " kB").replace("MB", " MB").replace("GB", " GB")


def _value(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return "<br>".join(map(_value, value))
    if value is None or isinstance(value, bool):
        value = {None: "not set", True: "yes", False: "no"}[value]
    text = escape(value)
    return (
        f"<code>{text}</code>"
        if isinstance(value, str) and len(value) > 24 and " " not in value
        else text
    )
