"""The chart of all pages: lines, dots, columns and level guesses over one another, as inline SVG.

Colours come from the page's style by class, `run0` to `run5`. Long curves are cut into stretches, of
which the mean is drawn as a line and the range as a band. Each stretch tells its values on hover.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from markupsafe import Markup

from pipeline.pages.render import render, short_number

NUM_COLOURS = 6
_WIDTH, _HEIGHT = 520, 240
_LEFT, _RIGHT, _TOP, _BOTTOM = 54, 508, 10, 202
_STRETCHES = 120
_MOST_LABELS = 8

Point = tuple[float, float]


@dataclass(frozen=True)
class Curve:
    """Values along the x axis.

    Attributes:
        label: For the text on hover.
        points: (x, y), x growing.
        look: A line for many noisy values, dots for few exact ones, columns around each x, or a guess:
            a level that holds beyond both ends.
        colour: Number of its colour.
    """

    label: str
    points: Sequence[Point]
    look: Literal["line", "dots", "columns", "guess"] = "line"
    colour: int = 0


@dataclass(frozen=True)
class _Scale:
    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        share = value / (self.high - self.low) - self.low / (self.high - self.low)
        return round(self.start + (self.end - self.start) * share, 1)

    def stretch(self, value: float, number: int) -> int:
        share = (self(value) - self.start) / (self.end - self.start)
        return min(number - 1, max(0, int(number * share)))


def draw_chart(
    title: str,
    curves: Sequence[Curve],
    x_name: str,
    write: Callable[[float], str] = short_number,
    *,
    from_zero: bool = False,
    labels: Sequence[str] = (),
    borders: Sequence[tuple[float, str]] = (),
) -> Markup:
    """The curves; an empty text where there is nothing to draw but guesses.

    Args:
        title: Read by screen readers.
        curves: What is drawn, later ones above earlier ones.
        x_name: What x counts.
        write: A value as text, with its unit.
        from_zero: Whether the y axis begins at zero.
        labels: Names of x = 0, 1, 2 and so on, in place of numbers.
        borders: Places on the x axis where something new begins, each with its name.
    """
    curves = [curve for curve in curves if curve.points]
    if all(curve.look == "guess" for curve in curves):
        return Markup()
    points = [point for curve in curves for point in curve.points]
    half = 0.5 if labels else 0.0
    left, right = _widen(min(x for x, _ in points) - half, max(x for x, _ in points) + half)
    low, high = min(y for _, y in points), max(y for _, y in points)
    bottom, top = _widen(min(0.0, low), max(0.0, high)) if from_zero else _widen(low, high)
    ticks = _ticks(bottom, top, outside=True)
    x, y = _Scale(left, right, _LEFT, _RIGHT), _Scale(ticks[0], ticks[-1], _BOTTOM, _TOP)
    return Markup(
        render(
            Path(__file__).with_name("chart.html"),
            size=(_WIDTH, _HEIGHT),
            frame=(_LEFT, _RIGHT, _TOP, _BOTTOM),
            title=title,
            x_name=x_name,
            rows=[(y(tick), write(tick)) for tick in ticks],
            columns=_name_columns(x, left, right, labels),
            borders=[(x(place), name) for place, name in borders],
            shapes=[_shape(curve, x, y) for curve in curves],
            hovers=list(_hover(curves, x, x_name, write, labels)),
        )
    )


def _widen(low: float, high: float) -> tuple[float, float]:
    """The same two values, or values around them where they are hardly apart."""
    if high - low > 1e-9 * max(abs(low), abs(high)):
        return low, high
    return low - (abs(low) or 1.0) / 2, high + (abs(high) or 1.0) / 2


def _ticks(low: float, high: float, *, outside: bool) -> list[float]:
    """Some five round values within both ends, or up to the next ones outside."""
    rough = (high - low) / 4
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * each for each in (1, 2, 2.5, 5, 10) if rough <= power * each * (1 + 1e-9))
    first, last = low / step, high / step
    if outside:
        return [step * tick for tick in range(math.floor(first + 1e-9), math.ceil(last - 1e-9) + 1)]
    return [step * tick for tick in range(math.ceil(first), math.floor(last) + 1)]


def _name_columns(
    x: _Scale, left: float, right: float, labels: Sequence[str]
) -> list[tuple[float, str]]:
    """Where the x axis is written on, and what; of many labels every second, third or so."""
    if not labels:
        return [(x(tick), short_number(tick)) for tick in _ticks(left, right, outside=False)]
    every = -(-len(labels) // _MOST_LABELS)
    last = len(labels) - 1
    return [(x(at), name) for at, name in enumerate(labels) if (last - at) % every == 0]


def _shape(curve: Curve, x: _Scale, y: _Scale) -> dict[str, Any]:
    """What the template draws of a curve."""
    points: list[Point] = [(x(at), y(value)) for at, value in curve.points]
    shape: dict[str, Any] = {"colour": curve.colour % NUM_COLOURS, "look": curve.look, "band": []}
    if curve.look == "guess":
        points = [(_LEFT, points[0][1]), *points, (_RIGHT, points[-1][1])]
    elif curve.look == "line":
        parts = _stretches(curve.points, x)
        points = [(x(at), y(mean)) for at, mean, _, _ in parts]
        if len(parts) < len(curve.points):
            upper = [(x(at), y(high)) for at, _, _, high in parts]
            shape["band"] = [*upper, *((x(at), y(low)) for at, _, low, _ in reversed(parts))]
    return shape | {"points": points, "width": 0.9 * abs(x(1) - x(0))}


def _stretches(points: Sequence[Point], x: _Scale) -> list[tuple[float, float, float, float]]:
    """Mean x, mean y, lowest and highest y of the points of every stretch that has some."""
    groups: dict[int, list[Point]] = {}
    for point in points:
        groups.setdefault(x.stretch(point[0], _STRETCHES), []).append(point)
    return [
        (
            math.fsum(at / len(group) for at, _ in group),
            math.fsum(value / len(group) for _, value in group),
            min(value for _, value in group),
            max(value for _, value in group),
        )
        for group in groups.values()
    ]


def _hover(
    curves: Sequence[Curve],
    x: _Scale,
    x_name: str,
    write: Callable[[float], str],
    labels: Sequence[str],
) -> Iterator[tuple[float, float, list[str]]]:
    """Place, width and text of an invisible column for every stretch, which tells what all curves are there."""
    number = len(labels) or _STRETCHES
    told: dict[int, list[str]] = {}
    for curve in curves:
        for at, mean, low, high in _stretches(curve.points, x):
            name = labels[int(at)] if labels else short_number(at)
            around = "" if low == high else f" ({write(low)} to {write(high)})"
            lines = told.setdefault(x.stretch(at, number), [f"{x_name} {name}"])
            lines.append(f"{curve.label}: {write(mean)}{around}")
    width = (_RIGHT - _LEFT) / number
    for index, lines in sorted(told.items()):
        yield round(_LEFT + index * width, 1), round(width, 1), lines
