"""Small charts as inline SVG or HTML. Standard library and pipeline.pages only.

Charts name no colours: the page's style gives them by class, so they follow light, dark and print.
Every mark has a <title>, which browsers show on hover and screen readers read.
"""

from collections.abc import Sequence

from pipeline.pages.text import escape, nice_ceiling, short_number

WIDTH, HEIGHT = 380, 196
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 8, 8, 38
_MAX_LABELS = 8


def column_chart(
    title: str,
    labels: Sequence[str],
    values: Sequence[float],
    notes: Sequence[str],
    axis: str,
    line: Sequence[float | None] = (),
    as_percent: bool = False,
) -> str:
    """Columns from zero over labelled bins, with an optional dashed line of what is expected.

    Args:
        title: Read by screen readers.
        labels: One for each column; where there are many, only some are written.
        values: Heights.
        notes: Shown on hover, one for each column.
        axis: What the labels are.
        line: Expected heights; None leaves the column out.
        as_percent: How heights are written.
    """
    top = nice_ceiling(max([*values, *(each for each in line if each is not None)], default=0))
    step = (WIDTH - _LEFT - _RIGHT) / max(1, len(values))
    return (
        f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">'
        f"{_grid(top, as_percent)}{_columns(values, notes, top, step)}{_expected(line, top, step)}"
        f"{_bin_labels(labels, step)}"
        f'<text class="axis" x="{(WIDTH + _LEFT - _RIGHT) / 2:.0f}" y="{HEIGHT - 4}" text-anchor="middle">'
        f"{escape(axis)}</text></svg>"
    )


def bar_rows(
    rows: Sequence[tuple[str, float, str]], kind: str = "", most: float | None = None
) -> str:
    """Horizontal bars: (label, length, text behind the bar); `most`, or else the longest, fills the width."""
    most = most or max((length for _, length, _ in rows), default=0) or 1
    cells = "".join(
        f'<div class="label">{escape(label)}</div><div class="track"><div class="bar" style="width:'
        f'{100 * length / most:.2f}%"></div></div><div class="number">{escape(text)}</div>'
        for label, length, text in rows
    )
    return f'<div class="bars {kind}">{cells}</div>'


def _y(value: float, top: float) -> float:
    return _TOP + (HEIGHT - _TOP - _BOTTOM) * (1 - value / top)


def _grid(top: float, as_percent: bool) -> str:
    parts = []
    for quarter in (0, 1, 2, 3, 4):
        value = top * quarter / 4
        written = f"{100 * value:.3g} %" if as_percent else short_number(value)
        y = _y(value, top)
        parts.append(
            f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
            f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{written}</text>'
        )
    return "".join(parts)


def _columns(values: Sequence[float], notes: Sequence[str], top: float, step: float) -> str:
    parts = []
    gap = min(2.0, step / 5)
    for index, (value, note) in enumerate(zip(values, notes, strict=True)):
        y = _y(value, top)
        parts.append(
            f'<rect class="column" x="{_LEFT + index * step + gap / 2:.1f}" y="{y:.1f}" width="{step - gap:.1f}" '
            f'height="{_y(0, top) - y:.1f}" rx="1.5"><title>{escape(note)}</title></rect>'
        )
    return "".join(parts)


def _expected(line: Sequence[float | None], top: float, step: float) -> str:
    return "".join(
        f'<line class="expected" x1="{_LEFT + index * step:.1f}" x2="{_LEFT + (index + 1) * step:.1f}" '
        f'y1="{_y(value, top):.1f}" y2="{_y(value, top):.1f}"/>'
        for index, value in enumerate(line)
        if value is not None
    )


def _bin_labels(labels: Sequence[str], step: float) -> str:
    every = -(-len(labels) // _MAX_LABELS)
    written = [index for index in range(len(labels)) if (len(labels) - 1 - index) % every == 0]
    return "".join(
        f'<text x="{_LEFT + (index + 0.5) * step:.1f}" y="{HEIGHT - _BOTTOM + 15}" text-anchor="middle">'
        f"{escape(labels[index])}</text>"
        for index in written
    )
