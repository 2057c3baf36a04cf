"""Cards of the report page. All text goes through `pipeline.pages.text.escape`."""

from collections.abc import Mapping
from typing import Any

from pipeline.inspect.charts import column_chart
from pipeline.pages.cards import card, small


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
