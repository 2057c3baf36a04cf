"""Line charts of several runs as inline SVG.

Colours come from the page's style by class, `run0` to `run5`. Long curves are cut into stretches of
which the mean is drawn as a line and the range as a band; a stretch tells its values on hover.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from pipeline.pages.text import escape, short_number

WIDTH, HEIGHT = 520, 240
_LEFT, _RIGHT, _TOP, _BOTTOM = 54, 12, 10, 38
_STRETCHES = 120
_COLOURS = 6
_NEW_LINE = "\n"

Point = tuple[float, float]


@dataclass(frozen=True)
class Curve:
    """One run's values.

    Attributes:
        run: Number of the run, which gives its colour.
        label: For the text on hover.
        points: (x, y), x growing.
        look: A line for many noisy values, dots for few exact ones, a guess for what a model is
            compared with, which holds from one of its points to the next and beyond both ends.
    """

    run: int
    label: str
    points: Sequence[Point]
    look: Literal["line", "dots", "guess"] = "line"


@dataclass(frozen=True)
class Border:
    """A place on the x axis where something new begins in a run, such as a phase."""

    run: int
    label: str
    x: float


@dataclass(frozen=True)
class Axis:
    """How values are placed and written.

    Attributes:
        write: A value as text, with its unit.
        is_log: Whether the axis is logarithmic.
        from_zero: Whether a linear axis begins at zero.
    """

    write: Callable[[float], str] = short_number
    is_log: bool = False
    from_zero: bool = False


@dataclass(frozen=True)
class _Scale:
    low: float
    high: float
    ticks: tuple[float, ...]
    is_log: bool

    def place(self, value: float) -> float:
        """Share of the way from low to high."""
        if self.is_log:
            return math.log(max(value, self.low) / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)


def line_chart(
    title: str, curves: Sequence[Curve], axis: Axis, x_name: str, borders: Sequence[Border] = ()
) -> str:
    """The curves over one another; an empty text where only a guess has a point to draw."""
    curves = [_drawable(curve, axis) for curve in curves]
    if not any(curve.points for curve in curves if curve.look != "guess"):
        return ""
    values = [y for curve in curves for _, y in curve.points]
    x_values = [x for curve in curves for x, _ in curve.points]
    x_scale = _linear(min(x_values), max(x_values), from_zero=False, is_tight=True)
    y_scale = (
        _logarithmic(min(values), max(values))
        if axis.is_log
        else _linear(min(values), max(values), axis.from_zero)
    )
    return (
        f'<svg class="lines" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">'
        f"{_grid(x_scale, y_scale, axis, x_name)}"
        f"{''.join(_draw_border(border, x_scale) for border in borders)}"
        f"{''.join(_draw(curve, x_scale, y_scale) for curve in curves)}"
        f"{_hover(curves, x_scale, axis, x_name)}</svg>"
    )


def _drawable(curve: Curve, axis: Axis) -> Curve:
    points = [(x, y) for x, y in curve.points if y > 0 or not axis.is_log]
    return replace(curve, points=points)


def _linear(low: float, high: float, from_zero: bool, is_tight: bool = False) -> _Scale:
    """A scale with some five round ticks; a tight one ends at its values, others at a tick."""
    if from_zero:
        low, high = min(0.0, low), max(0.0, high)
    if high - low <= 1e-9 * max(abs(low), abs(high)):
        low, high = low - (abs(low) or 1.0) / 2, high + (abs(high) or 1.0) / 2
    step = _round_step((high - low) / 4)
    first = math.ceil(low / step) if is_tight else math.floor(low / step + 1e-9)
    last = math.floor(high / step) if is_tight else math.ceil(high / step - 1e-9)
    ticks = tuple(step * index for index in range(first, last + 1))
    return (
        _Scale(low, high, ticks, False) if is_tight else _Scale(ticks[0], ticks[-1], ticks, False)
    )


def _logarithmic(low: float, high: float) -> _Scale:
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    last = max(last, first + 1)
    ticks = [10.0**power for power in range(first, last + 1, max(1, -(-(last - first) // 5)))]
    if last - first <= 2:
        ticks = sorted(
            [*ticks, *(factor * 10.0**power for power in range(first, last) for factor in (2, 5))]
        )
    low = max([each for each in ticks if each <= low * 1.0001], default=ticks[0])
    high = min([each for each in ticks if each >= high * 0.9999], default=10.0**last)
    if high <= low:
        high = 10 * low
    return _Scale(low, high, tuple(each for each in ticks if low <= each <= high), True)


def _round_step(step: float) -> float:
    power = 10.0 ** math.floor(math.log10(step))
    return next(
        power * factor for factor in (1, 2, 2.5, 5, 10) if step <= power * factor * (1 + 1e-9)
    )


def _x(scale: _Scale, value: float) -> float:
    return _LEFT + (WIDTH - _LEFT - _RIGHT) * scale.place(value)


def _y(scale: _Scale, value: float) -> float:
    return _TOP + (HEIGHT - _TOP - _BOTTOM) * (1 - scale.place(value))


def _grid(x_scale: _Scale, y_scale: _Scale, axis: Axis, x_name: str) -> str:
    rows = [
        f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{_y(y_scale, tick):.1f}" '
        f'y2="{_y(y_scale, tick):.1f}"/><text x="{_LEFT - 7}" y="{_y(y_scale, tick) + 3.5:.1f}" text-anchor="end">'
        f"{escape(axis.write(tick))}</text>"
        for tick in y_scale.ticks
    ]
    columns = [
        f'<text x="{_x(x_scale, tick):.1f}" y="{HEIGHT - 22}" text-anchor="middle">{short_number(tick)}</text>'
        for tick in x_scale.ticks
    ]
    name = (
        f'<text class="axis" x="{(_LEFT + WIDTH - _RIGHT) / 2:.1f}" y="{HEIGHT - 6}" text-anchor="middle">'
        f"{escape(x_name)}</text>"
    )
    return "".join([*rows, *columns, name])


def _draw_border(border: Border, x_scale: _Scale) -> str:
    x = _x(x_scale, border.x)
    return (
        f'<g class="run{border.run % _COLOURS} border">'
        f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{HEIGHT - _BOTTOM}"/>'
        f'<text x="{x + 4:.1f}" y="{_TOP + 9}">{escape(border.label)}</text></g>'
    )


def _draw(curve: Curve, x_scale: _Scale, y_scale: _Scale) -> str:
    if not curve.points:
        return ""
    kind = f"run{curve.run % _COLOURS}"
    if curve.look == "guess":
        return f'<g class="{kind} guess"><polyline points="{_held(curve, x_scale, y_scale)}"/></g>'
    if curve.look == "dots":
        places = [(_x(x_scale, x), _y(y_scale, y)) for x, y in curve.points]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        dots = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3"/>' for x, y in places)
        return f'<g class="{kind} dots"><polyline points="{path}"/>{dots}</g>'
    parts = _stretches(curve.points, x_scale)
    means = " ".join(f"{_x(x_scale, x):.1f},{_y(y_scale, mean):.1f}" for x, mean, _, _ in parts)
    upper = [f"{_x(x_scale, x):.1f},{_y(y_scale, high):.1f}" for x, _, _, high in parts]
    lower = [f"{_x(x_scale, x):.1f},{_y(y_scale, low):.1f}" for x, _, low, _ in reversed(parts)]
    band = (
        f'<polygon points="{" ".join([*upper, *lower])}"/>'
        if len(parts) < len(curve.points)
        else ""
    )
    dot = (
        f'<circle cx="{means.partition(",")[0]}" cy="{means.partition(",")[2]}" r="3"/>'
        if len(parts) == 1
        else ""
    )
    return f'<g class="{kind}">{band}<polyline points="{means}"/>{dot}</g>'


def _held(curve: Curve, x_scale: _Scale, y_scale: _Scale) -> str:
    """Corners of a level line: a value holds back to the point before, as what it guesses did."""
    places = [_x(x_scale, x) for x, _ in curve.points]
    starts, ends = [float(_LEFT), *places[:-1]], [*places[:-1], float(WIDTH - _RIGHT)]
    heights = [_y(y_scale, y) for _, y in curve.points]
    corners = [
        f"{start:.1f},{height:.1f} {end:.1f},{height:.1f}"
        for start, end, height in zip(starts, ends, heights, strict=True)
    ]
    return " ".join(corners)


def _stretches(points: Sequence[Point], x_scale: _Scale) -> list[tuple[float, float, float, float]]:
    """Mean x, mean y, lowest and highest y of the points of every stretch that has some."""
    groups: dict[int, list[Point]] = {}
    for point in points:
        groups.setdefault(_stretch(point[0], x_scale), []).append(point)
    return [
        (
            math.fsum(x for x, _ in group) / len(group),
            math.fsum(y for _, y in group) / len(group),
            min(y for _, y in group),
            max(y for _, y in group),
        )
        for group in groups.values()
    ]


def _stretch(x: float, scale: _Scale) -> int:
    return min(_STRETCHES - 1, int(_STRETCHES * scale.place(x)))


def _hover(curves: Sequence[Curve], x_scale: _Scale, axis: Axis, x_name: str) -> str:
    """Invisible columns, one a stretch, that tell what all curves are there."""
    told: dict[int, list[str]] = {}
    for curve in curves:
        parts = _stretches(curve.points, x_scale)
        for x, mean, low, high in parts:
            around = "" if low == high else f" ({axis.write(low)} to {axis.write(high)})"
            column = told.setdefault(_stretch(x, x_scale), [f"{x_name} {short_number(x)}"])
            column.append(f"{curve.label}: {axis.write(mean)}{around}")
    width = (WIDTH - _LEFT - _RIGHT) / _STRETCHES
    return "".join(
        f'<rect class="hover" x="{_LEFT + index * width:.1f}" y="{_TOP}" width="{width:.1f}" '
        f'height="{HEIGHT - _TOP - _BOTTOM}"><title>{_NEW_LINE.join(map(escape, lines))}</title></rect>'
        for index, lines in sorted(told.items())
    )
