"""Which charts a report has, and what of the rows they draw."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from pipeline.pages.text import short_number
from trainer.report.lines import Axis, Border, Curve, Point, line_chart
from trainer.report.read import ReadRun, Row, number


def write_share(value: float) -> str:
    """A share as percent."""
    return f"{100 * value:.4g} %"


def write_small(value: float) -> str:
    """A number that may be far below one, such as a learning rate."""
    return f"{value:.3g}"


@dataclass(frozen=True)
class Chart:
    """One column of metrics.jsonl.

    Attributes:
        column: Name of the column.
        title: For people, with the unit.
        axis: How values are placed and written.
        factor: What values are multiplied by, for the unit.
        has_validation: Whether validation rows have the column too.
        guess: The column of validation rows that says what a guess without the model reaches.
        guess_name: The guess for people.
    """

    column: str
    title: str
    axis: Axis
    factor: float = 1.0
    has_validation: bool = False
    guess: str | None = None
    guess_name: str = ""


_SHARE = Axis(write_share, from_zero=True)
_COUNT = Axis(short_number, from_zero=True)
LEARNING = (
    Chart(
        "mlm_loss",
        "MLM loss, nats",
        Axis(write_small),
        has_validation=True,
        guess="unigram_entropy",
        guess_name="unigram entropy",
    ),
    Chart("mlm_accuracy", "MLM accuracy", _SHARE, has_validation=True),
    Chart("nsp_loss", "NSP loss, nats", Axis(write_small), has_validation=True),
    Chart(
        "nsp_accuracy",
        "NSP accuracy",
        Axis(write_share),
        has_validation=True,
        guess="nsp_majority_share",
        guess_name="constant answer",
    ),
    Chart("grad_norm", "Gradient norm before clipping", Axis(write_small, is_log=True)),
    Chart("learning_rate", "Learning rate", Axis(write_small, from_zero=True)),
)
SPEED = (
    Chart("tokens_per_second", "Real tokens a second, all ranks", _COUNT),
    Chart("mfu", "MFU: share of the device's peak", _SHARE),
    Chart("model_tflops_per_rank", "Model TFLOP/s of a rank", Axis(write_small, from_zero=True)),
    Chart("data_wait_share", "Share of the time spent waiting for data", _SHARE),
    Chart("max_over_mean_tokens", "Tokens of the fullest rank over the mean", Axis(write_small)),
    Chart(
        "peak_memory_bytes",
        "Peak memory of the fullest rank, GB",
        Axis(write_small, from_zero=True),
        factor=1e-9,
    ),
    Chart("seconds", "Seconds a step", Axis(write_small, from_zero=True)),
)
# Columns that need no chart of their own: sums and places, and the loss that is the sum of two.
_LEFT_OUT = {
    "step",
    "phase",
    "position",
    "tokens",
    "instances",
    "masked",
    "eta_seconds",
    "phase_seconds",
    "loss",
}
_MOST_OTHERS = 12


def speed_charts(runs: Sequence[ReadRun]) -> list[Chart]:
    """The charts of SPEED that tell something: TFLOP/s only where a run has no MFU."""
    all_have_mfu = all(number(row, "mfu") is not None for run in runs for row in run.train[-1:])
    return [chart for chart in SPEED if chart.column != "model_tflops_per_rank" or not all_have_mfu]


def other_charts(runs: Sequence[ReadRun]) -> list[Chart]:
    """A chart for every other column of numbers, or number of a table such as trust ratios."""
    known = {chart.column for chart in (*LEARNING, *SPEED)} | _LEFT_OUT
    found: dict[str, None] = {}
    for run in runs:
        for row in run.train[-1:]:
            found.update(
                dict.fromkeys(
                    name for name in flat_numbers(row) if name.partition("/")[0] not in known
                )
            )
    return [
        Chart(name, name.replace("_", " "), Axis(write_small))
        for name in list(found)[:_MOST_OTHERS]
    ]


def flat_numbers(row: Row) -> dict[str, float]:
    """Finite numbers of a row, those of tables as COLUMN/KEY."""
    found = {}
    for column, value in row.items():
        inner = (
            {f"{column}/{key}": each for key, each in value.items()}
            if isinstance(value, Mapping)
            else {}
        )
        cells = inner or {column: value}
        found.update({name: each for name in cells if (each := number(cells, name)) is not None})
    return found


def draw(chart: Chart, runs: Sequence[ReadRun], by: str) -> str:
    """The chart over steps or over tokens; an empty text where no run has the column."""
    borders = [border for index, run in enumerate(runs) for border in _borders(index, run, by)]
    return line_chart(chart.title, list(_curves(chart, runs, by)), chart.axis, by, borders)


def is_always_zero(chart: Chart, runs: Sequence[ReadRun]) -> bool:
    """Whether some run has the column and all its numbers are 0, which is not worth a chart."""
    values = {y for run in runs for _, y in _points(chart, run.train, _places(run, "step"))}
    return values == {0.0}


def _borders(index: int, run: ReadRun, by: str) -> Iterator[Border]:
    """The places where a run's phases begin, but for the first."""
    places = _places(run, by)
    for row, following in pairwise(run.train):
        phase = following.get("phase")
        if isinstance(phase, int) and phase != row.get("phase"):
            yield Border(index, f"phase {phase}", places[row["step"]])


def _curves(chart: Chart, runs: Sequence[ReadRun], by: str) -> Iterator[Curve]:
    for index, run in enumerate(runs):
        places = _places(run, by)
        yield Curve(index, run.name, _points(chart, run.train, places))
        if chart.has_validation:
            yield Curve(
                index,
                f"{run.name}, validation",
                _points(chart, run.validation, places),
                look="dots",
            )
        if chart.guess is not None:
            guess = Chart(chart.guess, "", chart.axis, chart.factor)
            label = f"{run.name}, {chart.guess_name}"
            yield Curve(index, label, _points(guess, run.validation, places), look="guess")


def _places(run: ReadRun, by: str) -> Mapping[int, float]:
    """Where on the x axis each step lies."""
    if by == "step":
        return {row["step"]: float(row["step"]) for row in (*run.train, *run.validation)}
    seen, places = 0.0, {}
    for row in run.train:
        seen += number(row, "tokens") or 0.0
        places[row["step"]] = seen
    return places


def _points(chart: Chart, rows: Sequence[Row], places: Mapping[int, float]) -> list[Point]:
    column, _, key = chart.column.partition("/")
    points = []
    for row in rows:
        cells = row.get(column) if key else row
        value = number(cells, key or column) if isinstance(cells, Mapping) else None
        if value is not None and row["step"] in places:
            points.append((places[row["step"]], value * chart.factor))
    return points


def recent_mean(rows: Sequence[Row], column: str) -> float | None:
    """Mean of a column over the last twentieth of the rows."""
    values = [
        value
        for row in rows[-max(1, len(rows) // 20) :]
        if (value := number(row, column)) is not None
    ]
    return statistics.fmean(values) if values else None


def median(rows: Sequence[Row], column: str) -> float | None:
    """Median of a column over all rows."""
    values = [value for row in rows if (value := number(row, column)) is not None]
    return statistics.median(values) if values else None


def extreme(rows: Sequence[Row], column: str, *, largest: bool) -> float | None:
    """Largest or smallest value of a column."""
    values = [value for row in rows if (value := number(row, column)) is not None]
    return (max if largest else min)(values, default=None)
