"""report.json as one page (report.html beside this file); all text is escaped there."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from markupsafe import Markup

from pipeline.inspect.checks import find_checks
from pipeline.pages.chart import Curve, draw_chart
from pipeline.pages.render import format_share, render
from pipeline.storage.folder import Folder

REPORT_PAGE = "report.html"


def render_page(report: Mapping[str, Any]) -> str:
    """The whole page; the order of keys in the report changes nothing."""
    report = json.loads(json.dumps(report, sort_keys=True))
    return render(
        Path(__file__).with_name("report.html"),
        dataset=report["dataset"],
        build=report.get("build", {}),
        checks=list(find_checks(report["dataset"])),
        histogram=draw_histogram,
        positions=draw_positions,
    )


def write_page(report: Mapping[str, Any], folder: Folder, name: str) -> None:
    """Writes the page of a report."""
    folder.write(name, render_page(report).encode())


def draw_histogram(title: str, measured: Mapping[str, Any]) -> Markup:
    """The shares of a histogram of report.json."""
    total = max(1, sum(measured["counts"]))
    shares = [count / total for count in measured["counts"]]
    return _draw_columns(title, measured["up_to"], shares, "tokens, up to")


def draw_positions(group: Mapping[str, Any]) -> Markup:
    """The share of masked positions, by position."""
    shares = [share or 0.0 for share in group["masked_by_position"]]
    return _draw_columns("Masked", group["lengths"]["up_to"], shares, "position, up to")


def _draw_columns(title: str, up_to: list[int | None], shares: list[float], x_name: str) -> Markup:
    labels = ["more" if edge is None else f"{edge:,}" for edge in up_to]
    points = [(float(at), share) for at, share in enumerate(shares)]
    curve = Curve(title, points, "columns")
    return draw_chart(title, [curve], x_name, format_share, from_zero=True, labels=labels)
