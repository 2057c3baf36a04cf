"""The pieces that the report page is laid out of. All text goes through `pipeline.report.charts.escape`."""

from collections.abc import Mapping
from typing import Any

from pipeline.report.charts import column_chart, escape, short_number


def histogram(title: str, measured: Mapping[str, Any], axis: str, said: str) -> str:
    """A card with a chart of a histogram of report.json; `said` is how it was measured."""
    edges = measured["up_to"]
    labels = [f"{edge:,}" if edge is not None else "more" for edge in edges]
    total = max(1, sum(measured["counts"]))
    notes = [
        f"{'up to ' if edge is not None else ''}{label}: {count:,} ({count / total:.1%})"
        for edge, label, count in zip(edges, labels, measured["counts"], strict=True)
    ]
    chart = column_chart(title, labels, measured["counts"], notes, axis)
    quantiles = ", ".join(f"{name} ≤ {value:,}" for name, value in measured["quantiles"].items())
    return card(title, chart + small(f"mean {measured['mean']:,}; {quantiles}; {said}"))


def card(title: str, content: str) -> str:
    """A titled box around HTML."""
    return f'<div class="card"><h3>{escape(title)}</h3>{content}</div>'


def small(text: str) -> str:
    """A paragraph of small text."""
    return f'<p class="small soft">{escape(text)}</p>'


def pairs(values: Mapping[str, Any]) -> str:
    """A table of names and values."""
    rows = "".join(
        f"<tr><td>{escape(name.replace('_', ' '))}</td><td>{_value(v)}</td></tr>" for name, v in values.items()
    )
    return f'<table class="pairs">{rows}</table>'


def _value(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return "<br>".join(map(_value, value))
    if value is None or isinstance(value, bool):
        value = {None: "not set", True: "yes", False: "no"}[value]
    text = escape(value)
    return f"<code>{text}</code>" if isinstance(value, str) and len(value) > 24 and " " not in value else text


def format_bytes(count: int) -> str:
    """Such as 12.3 MB, a million bytes each."""
    return f"{short_number(count)}B".replace("kB", " kB").replace("MB", " MB").replace("GB", " GB")
