"""The chart of pages: lines, dots and level guesses over one another, as inline SVG.

Colours come from the page's style by class, `run0` to `run5`. Long curves are cut into stretches:
the mean is drawn as a line and the range as a band, and each tells its values on hover.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from markupsafe import Markup

from pipeline.pages.render import render, short_number

NUM_COLOURS = 6
_WIDTH, _HEIGHT = 520, 240
_LEFT, _RIGHT, _TOP, _BOTTOM = 54, 508, 10, 202
_STRETCHES = 120

Point = tuple[float, float]


class Curve(NamedTuple):
    """Values along the x axis, which grows.

    It is a line of many noisy values, dots of few exact ones, or a guess: a level that holds beyond
    both ends.
    """

    label: str
    points: Sequence[Point]
    look: Literal["line", "dots", "guess"] = "line"
    colour: int = 0


class _Scale(NamedTuple):
    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
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
) -> Markup:
    """The curves; an empty text where there is nothing to draw but guesses.

    Args:
        title: Read by screen readers.
        curves: What is drawn, later ones above earlier ones.
        x_name: What x counts.
        write: A value as text, with its unit.
        from_zero: Whether the y axis begins at zero.
        borders: Places on the x axis where something new begins, each with its name.
    """
    curves = [curve for curve in curves if curve.points]
    if all(curve.look == "guess" for curve in curves):
        return Markup()
    points = [point for curve in curves for point in curve.points]
    left, right = _widen([x for x, _ in points])
    ticks = _ticks(*_widen([y for _, y in points] + [0.0] * from_zero), outside=True)
    x, y = _Scale(left, right, _LEFT, _RIGHT), _Scale(ticks[0], ticks[-1], _BOTTOM, _TOP)
    return Markup(
        render(
            Path(__file__).with_name("chart.html"),
            size=(_WIDTH, _HEIGHT),
            frame=(_LEFT, _RIGHT, _TOP, _BOTTOM),
            title=title,
            x_name=x_name,
            rows=[(y(tick), write(tick)) for tick in ticks],
            columns=[(x(tick), short_number(tick)) for tick in _ticks(left, right, outside=False)],
            borders=[(x(place), name) for place, name in borders],
            shapes=[_shape(curve, x, y) for curve in curves],
            hovers=list(_hover(curves, x, x_name, write)),
        )
    )


def _widen(values: Sequence[float]) -> tuple[float, float]:
    """The least and the most, or values around them where they are hardly apart."""
    low, high = min(values), max(values)
    if high - low > 1e-9 * max(abs(low), abs(high)):
        return low, high
    return low - (abs(low) or 1.0) / 2, high + (abs(high) or 1.0) / 2


def _ticks(low: float, high: float, *, outside: bool) -> list[float]:
    """Some five round values within both ends, or up to the next ones outside."""
    rough = (high - low) / 4
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * each for each in (1, 2, 2.5, 5, 10) if rough <= power * each * (1 + 1e-9))
    first, last = math.ceil(low / step), math.floor(high / step)
    if outside:
        first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [step * tick for tick in range(first, last + 1)]


def _shape(curve: Curve, x: _Scale, y: _Scale) -> dict[str, Any]:
    """What the template draws of a curve."""
    points: list[Point] = [(x(at), y(value)) for at, value in curve.points]
    band: list[Point] = []
    if curve.look == "guess":
        points = [(_LEFT, points[0][1]), *points, (_RIGHT, points[-1][1])]
    elif curve.look == "line":
        parts = [each for _, *each in _stretches(curve.points, x)]
        points = [(x(at), y(mean)) for at, mean, _, _ in parts]
        if len(parts) < len(curve.points):
            upper = [(x(at), y(high)) for at, _, _, high in parts]
            band = [*upper, *((x(at), y(low)) for at, _, low, _ in reversed(parts))]
    colour = curve.colour % NUM_COLOURS
    return {"colour": colour, "look": curve.look, "points": points, "band": band}


def _stretches(
    points: Sequence[Point], x: _Scale
) -> Iterator[tuple[int, float, float, float, float]]:
    """Number, mean x, mean y, lowest and highest y of every stretch that has points."""
    groups: dict[int, list[Point]] = {}
    for point in points:
        share = (x(point[0]) - _LEFT) / (_RIGHT - _LEFT)
        groups.setdefault(min(_STRETCHES - 1, int(_STRETCHES * share)), []).append(point)
    for number, group in groups.items():
        values = [value for _, value in group]
        at = math.fsum(each / len(group) for each, _ in group)
        yield number, at, math.fsum(each / len(group) for each in values), min(values), max(values)


def _hover(
    curves: Sequence[Curve], x: _Scale, x_name: str, write: Callable[[float], str]
) -> Iterator[tuple[float, float, list[str]]]:
    """Place, width and text of an invisible column for every stretch, with all curves' values."""
    told: dict[int, list[str]] = {}
    for curve in curves:
        for number, at, mean, low, high in _stretches(curve.points, x):
            around = "" if low == high else f" ({write(low)} to {write(high)})"
            lines = told.setdefault(number, [f"{x_name} {short_number(at)}"])
            lines.append(f"{curve.label}: {write(mean)}{around}")
    width = (_RIGHT - _LEFT) / _STRETCHES
    for number, lines in sorted(told.items()):
        yield round(_LEFT + number * width, 1), round(width, 1), lines
