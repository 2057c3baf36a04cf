"""Draws the charts of HTML pages as inline SVG.

A curve is drawn as a line, as dots, or as a guess: a level that is only estimated. Colours are set
by the page's style for the classes `run0` to `run5`. The x axis is cut into 120 columns of equal
width. A line goes through the mean of its points in each column, and a band around it shows their
least and greatest value. When the pointer is over a column, the page shows the values in it.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from markupsafe import Markup

from pipeline.pages.render import render, short_number

NUM_COLOURS = 6
"""Number of colours that the page's style has for curves."""

# The size of the drawing and the edges of the area with the curves, in units of the SVG.
_WIDTH = 520
_HEIGHT = 240
_LEFT = 54
_RIGHT = 508
_TOP = 10
_BOTTOM = 202

_NUM_COLUMNS = 120

Point = tuple[float, float]
"""x and y of a value, or of a place in the drawing."""


class Curve(NamedTuple):
    """A curve of a chart.

    Attributes:
        label: The curve's name.
        points: (x, y) of each value to draw, in the order of x.
        look: "line" for many noisy values; "dots" for few exact ones; "guess" for an estimated
            level, which is drawn across the whole width.
        colour: Number of the colour, modulo NUM_COLOURS.
    """

    label: str
    points: Sequence[Point]
    look: Literal["line", "dots", "guess"] = "line"
    colour: int = 0


class _Scale(NamedTuple):
    """Maps the values of an axis to coordinates in the drawing.

    Attributes:
        low: The least value.
        high: The greatest value.
        start: The coordinate of the least value, in units of the SVG.
        end: The coordinate of the greatest value, in units of the SVG.
    """

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """Returns the coordinate of a value in units of the SVG, rounded to a tenth."""
        share = value / (self.high - self.low) - self.low / (self.high - self.low)
        return round(self.start + (self.end - self.start) * share, 1)


def draw_chart(
    title: str,
    curves: Sequence[Curve],
    x_name: str,
    write: Callable[[float], str] = short_number,
    *,
    from_zero: bool = False,
    borders: Sequence[tuple[float, str]] = (),
    labelled: bool = False,
) -> Markup:
    """Draws curves over a common pair of axes.

    Args:
        title: Describes the chart for screen readers.
        curves: The curves; later ones are drawn over earlier ones.
        x_name: Name of what x counts, such as "step".
        write: Returns a value of y as text, with its unit.
        from_zero: Whether the y axis begins at zero.
        borders: Values of x at which something new begins, such as a phase, each with its name.
        labelled: Whether the label of each curve is written at its end. Pages that have a legend
            beside their charts leave it out.

    Returns:
        The SVG; an empty text if no line and no dots are to be drawn.
    """
    curves = [curve for curve in curves if curve.points]
    if all(curve.look == "guess" for curve in curves):
        return Markup()
    points = [point for curve in curves for point in curve.points]
    left, right = _widen([x for x, _ in points])
    ticks = _ticks(*_widen([y for _, y in points] + [0.0] * from_zero), outside=True)
    x = _Scale(left, right, _LEFT, _RIGHT)
    y = _Scale(ticks[0], ticks[-1], _BOTTOM, _TOP)
    return Markup(
        render(
            Path(__file__).with_name("chart.html"),
            size=(_WIDTH, _HEIGHT),
            frame=(_LEFT, _RIGHT, _TOP, _BOTTOM),
            title=title,
            x_name=x_name,
            rows=[(y(tick), write(tick)) for tick in ticks],
            columns=[(x(tick), short_number(tick)) for tick in _ticks(left, right, outside=False)],
            borders=[(x(value), name) for value, name in borders],
            shapes=[_shape(curve, x, y) for curve in curves],
            labelled=labelled,
            hovers=list(_hover(curves, x, x_name, write)),
        )
    )


def _widen(values: Sequence[float]) -> tuple[float, float]:
    """Returns the least and the greatest value.

    If they are equal or nearly so, the range is widened around them, so that an axis has a length.
    """
    low = min(values)
    high = max(values)
    if high - low > 1e-9 * max(abs(low), abs(high)):
        return low, high
    return low - (abs(low) or 1.0) / 2, high + (abs(high) or 1.0) / 2


def _ticks(low: float, high: float, *, outside: bool) -> list[float]:
    """Returns some five round values at equal distances.

    Args:
        low: The least value on the axis.
        high: The greatest value on the axis.
        outside: Whether the ticks enclose both values; otherwise they are between them.
    """
    rough = (high - low) / 4
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(
        power * factor for factor in (1, 2, 2.5, 5, 10) if rough <= power * factor * (1 + 1e-9)
    )
    first = math.ceil(low / step)
    last = math.floor(high / step)
    if outside:
        first = math.floor(low / step + 1e-9)
        last = math.ceil(high / step - 1e-9)
    return [step * tick for tick in range(first, last + 1)]


def _shape(curve: Curve, x: _Scale, y: _Scale) -> dict[str, Any]:
    """Returns the variables with which the template draws a curve.

    Returns:
        colour: The number of the colour, below NUM_COLOURS.
        look: `Curve.look`.
        label: `Curve.label`.
        label_place: Where a label is written; the result of `_label_place`.
        points: The points to draw, in units of the SVG.
        band: The corners of the polygon between the least and the greatest values of the columns,
            in units of the SVG. Empty if the curve is not a line, or if no column has two points.
    """
    points: list[Point] = [(x(at), y(value)) for at, value in curve.points]
    band: list[Point] = []
    if curve.look == "guess":
        points = [(_LEFT, points[0][1]), *points, (_RIGHT, points[-1][1])]
    elif curve.look == "line":
        columns = _columns(curve.points, x)
        points = [(x(column.x), y(column.mean)) for column in columns]
        if len(columns) < len(curve.points):
            upper = [(x(column.x), y(column.high)) for column in columns]
            lower = [(x(column.x), y(column.low)) for column in columns]
            band = [*upper, *reversed(lower)]
    colour = curve.colour % NUM_COLOURS
    return {
        "colour": colour,
        "look": curve.look,
        "label": curve.label,
        "label_place": _label_place(curve, points[-1]),
        "points": points,
        "band": band,
    }


def _label_place(curve: Curve, end: Point) -> tuple[float, float, str]:
    """Returns x and y of a curve's label in units of the SVG, and its `text-anchor`.

    The label of a level is above its right end. Other labels are beside the last point, on the side
    that has more room.

    Args:
        curve: The curve.
        end: Its last point, in units of the SVG.
    """
    x, y = end
    if curve.look == "guess":
        return x, round(y - 6, 1), "end"
    if x > (_LEFT + _RIGHT) / 2:
        return round(x - 7, 1), round(y + 4, 1), "end"
    return round(x + 7, 1), round(y + 4, 1), "start"


class _Column(NamedTuple):
    """The points of a curve in one of the columns that the x axis is cut into.

    Attributes:
        number: The column, counted from the left.
        x: Mean x of the points.
        mean: Mean y of the points.
        low: The lowest y.
        high: The highest y.
    """

    number: int
    x: float
    mean: float
    low: float
    high: float


def _columns(points: Sequence[Point], x: _Scale) -> list[_Column]:
    """Returns the columns that have points, in the order of their first points.

    Args:
        points: The points of a curve.
        x: The scale of the x axis.
    """
    groups: dict[int, list[Point]] = {}
    for point in points:
        share = (x(point[0]) - _LEFT) / (_RIGHT - _LEFT)
        groups.setdefault(min(_NUM_COLUMNS - 1, int(_NUM_COLUMNS * share)), []).append(point)

    columns = []
    for number, group in groups.items():
        values = [value for _, value in group]
        mean_x = math.fsum(at / len(group) for at, _ in group)
        mean = math.fsum(value / len(group) for value in values)
        columns.append(_Column(number, mean_x, mean, min(values), max(values)))
    return columns


def _hover(
    curves: Sequence[Curve], x: _Scale, x_name: str, write: Callable[[float], str]
) -> Iterator[tuple[float, float, list[str]]]:
    """Yields an invisible rectangle for each column that has points.

    When the pointer is over the rectangle, the page shows the values of all curves in the column.

    Yields:
        The left edge of the rectangle and its width, in units of the SVG, and the lines of text to
        show.
    """
    texts: dict[int, list[str]] = {}
    for curve in curves:
        for column in _columns(curve.points, x):
            is_single = column.low == column.high
            around = "" if is_single else f" ({write(column.low)} to {write(column.high)})"
            lines = texts.setdefault(column.number, [f"{x_name} {short_number(column.x)}"])
            lines.append(f"{curve.label}: {write(column.mean)}{around}")

    width = (_RIGHT - _LEFT) / _NUM_COLUMNS
    for number, lines in sorted(texts.items()):
        yield round(_LEFT + number * width, 1), round(width, 1), lines
