"""Renders runs as one HTML page, from the template run.html beside this file."""

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from markupsafe import Markup

from pipeline.pages.chart import NUM_COLOURS, Curve, Point, draw_chart
from pipeline.pages.render import format_share, render, short_number
from trainer.runs.training_facts import training_facts
from trainer.watch.read_run import ReadRun, Row, number
from trainer.watch.terminal import format_seconds

_MOST_EVENTS = 50


def _small(value: float) -> str:
    """Returns a number as text with up to four significant digits."""
    return f"{value:.4g}"


class Chart(NamedTuple):
    """A chart of one column of metrics.jsonl, with a curve for steps and one for validations.

    Attributes:
        column: Name of the column.
        title: Title of the chart.
        write: Returns a value as text, for the vertical axis.
        from_zero: Whether the vertical axis begins at 0.
        guess: A second column, of validation rows only. It has the value that a guess without the
            model would reach, and is drawn as a dotted line. Empty for no such line.
    """

    column: str
    title: str
    write: Callable[[float], str] = _small
    from_zero: bool = False
    guess: str = ""


CHARTS = (
    Chart("mlm_loss", "MLM loss, nats", guess="unigram_entropy"),
    Chart("mlm_accuracy", "MLM accuracy", format_share, from_zero=True),
    Chart("nsp_loss", "NSP loss, nats"),
    Chart("nsp_accuracy", "NSP accuracy", format_share, guess="nsp_majority_share"),
    Chart("pairs_mean_accuracy", "Minimal pairs, mean accuracy; chance is 50 %", format_share),
    Chart("learning_rate", "Learning rate", from_zero=True),
    Chart("tokens_per_second", "Real tokens a second, all ranks", short_number, from_zero=True),
    Chart("data_wait_share", "Share of the time spent waiting for data", format_share, True),
)


def render_page(runs: Sequence[ReadRun]) -> str:
    """Returns the whole page as HTML, in which all text from the runs is escaped."""
    drawn = {chart.title: draw(chart, runs) for chart in CHARTS}
    rows = [_summarize(run) for run in runs]
    events = [(run.name, row["step"], _say(row)) for run in runs for row in run.events]
    return render(
        Path(__file__).with_name("run.html"),
        runs=runs,
        num_colours=NUM_COLOURS,
        described=[list(_describe(run)) for run in runs],
        problems=[(run.name, problem) for run in runs for problem in run.problems],
        summary=rows,
        columns=[name for name in rows[0] if any(row[name] for row in rows)],
        charts={title: chart for title, chart in drawn.items() if chart},
        settings=list(_list_settings(runs)),
        events=events[-_MOST_EVENTS:],
    )


def draw(chart: Chart, runs: Sequence[ReadRun]) -> Markup:
    """Draws a chart with the step on the horizontal axis and the curves of all runs.

    Returns:
        The SVG, or an empty text if no row of the runs has a number in the chart's column.
    """
    curves = [curve for index, run in enumerate(runs) for curve in _curves(chart, index, run)]
    return draw_chart(
        chart.title, curves, "step", chart.write, from_zero=chart.from_zero, borders=_borders(runs)
    )


def _borders(runs: Sequence[ReadRun]) -> list[tuple[float, str]]:
    """Returns the last step before each later phase, with a label such as "phase 2".

    If only some of the runs begin the phase after that step, the label also has their names, as in
    "small, large: phase 2".
    """
    beginning: dict[tuple[float, str], list[str]] = {}
    for run in runs:
        for row, following in pairwise(run.train):
            phase = following.get("phase", row.get("phase"))
            if phase != row.get("phase"):
                place = (float(row["step"]), f"phase {phase + 1}")
                beginning.setdefault(place, []).append(run.name)
    borders = []
    for (step, phase), names in beginning.items():
        is_shared = len(names) == len(runs)
        borders.append((step, phase if is_shared else f"{', '.join(names)}: {phase}"))
    return sorted(borders)


def _curves(chart: Chart, index: int, run: ReadRun) -> Iterator[Curve]:
    """Yields a run's curves: training steps, validations and, if the chart has it, the guess.

    All of them have the run's colour, whose number is `index`.
    """
    yield Curve(run.name, _points(run.train, chart.column), "line", index)
    validation = _points(run.validation, chart.column)
    yield Curve(f"{run.name}, validation", validation, "dots", index)
    if chart.guess:
        name = f"{run.name}, {chart.guess.replace('_', ' ')}"
        yield Curve(name, _points(run.validation, chart.guess), "guess", index)


def _points(rows: Sequence[Row], column: str) -> list[Point]:
    """Returns the steps and values of a column; rows without a number are left out."""
    values = ((float(row["step"]), number(row, column)) for row in rows)
    return [(step, value) for step, value in values if value is not None]


def _describe(run: ReadRun) -> Iterator[str]:
    """Yields lines about a run and its progress, as far as its files say it."""
    yield str(run.path)
    for dataset in run.facts.get("datasets", ()):
        root_hash = str(dataset.get("root_hash"))[:16]
        kind = f", {dataset['instances']}" if "instances" in dataset else ""
        yield f"data: {dataset.get('name')} at {dataset.get('url')}, root hash {root_hash}{kind}"
    yield from _describe_training(run)
    if "masking" in run.facts:
        yield f"masking: {run.facts['masking']}"
    times = [str(launch.get("time")) for launch in run.facts.get("launches", ())]
    if times:
        more = f", launched {len(times)} times, last {times[-1]}" if len(times) > 1 else ""
        yield f"started {times[0]}{more}"
    if run.train:
        last = run.train[-1]
        is_finished = number(last, "eta_seconds") == 0
        yield f"finished after {last['step']:,} steps" if is_finished else f"{last['step']:,} steps"


def _describe_training(run: ReadRun) -> Iterator[str]:
    """Yields lines about the model, the phases and the setup.

    A fact that run.json and config.yaml do not hold is left out.
    """
    model = run.facts.get("model")
    names = ("num_layers", "hidden_size", "num_heads", "vocab_size")
    if isinstance(model, Mapping) and all(isinstance(model.get(name), int) for name in names):
        sizes = "{num_layers} layers of {hidden_size}, {num_heads} heads".format(**model)
        yield f"model: {sizes}, vocabulary of {model['vocab_size']:,}"
    training = training_facts(run.settings, run.facts)
    for phase_number, phase in enumerate(training.get("phases", []), start=1):
        yield f"phase {phase_number}: {phase}"
    known = [
        f"{name} {training[name]}"
        for name in ("optimizer", "precision", "seed")
        if name in training
    ]
    if known:
        yield ", ".join(known)
    yield from (training[name] for name in ("hardware", "software") if name in training)


def _list_settings(runs: Sequence[ReadRun]) -> Iterator[list[str]]:
    """Yields a row for each setting of config.yaml: its name, and its value in every run."""
    columns = [dict(_flatten(run.settings)) for run in runs]
    for name in dict.fromkeys(name for column in columns for name in column):
        yield [name, *(column.get(name, "") for column in columns)]


def _flatten(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Yields the name and the value, as text, of every setting in nested settings.

    A name is the path to the setting, such as "phases[0].peak_lr". Settings that are null or empty
    are left out.

    Args:
        value: A mapping, list or single value of config.yaml.
        name: The path to `value`; empty for the whole file.
    """
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flatten(inner, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list) and any(isinstance(item, Mapping) for item in value):
        for index, inner in enumerate(value):
            yield from _flatten(inner, f"{name}[{index}]")
    elif value not in (None, [], {}):
        yield name, ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _summarize(run: ReadRun) -> dict[str, str]:
    """Returns a run's row of the summary: texts by the names of their columns.

    Losses and accuracies of training are means over the last twentieth of the steps. Speeds are
    medians over all steps. Of the validation losses, the last and the best are shown. A text is
    empty if the run has no number for it.
    """
    recent = run.train[-max(1, len(run.train) // 20) :]
    validation = _values(run.validation, "mlm_loss")
    memory = max(_values(run.train, "peak_memory_bytes"), default=0.0)
    return {
        "steps": f"{run.train[-1]['step']:,}" if run.train else "0",
        "tokens": _write(short_number, [sum(_values(run.train, "tokens"))]),
        "time": _write(format_seconds, [sum(_values(run.train, "seconds"))]),
        "MLM loss": _write(_small, _values(recent, "mlm_loss")),
        "MLM accuracy": _write(format_share, _values(recent, "mlm_accuracy")),
        "NSP accuracy": _write(format_share, _values(recent, "nsp_accuracy")),
        "validation loss": _write(_small, validation[-1:]),
        "best of it": _write(_small, [min(validation)] if validation else []),
        "tokens/s": _write(short_number, _median(run.train, "tokens_per_second")),
        "MFU": _write(format_share, _median(run.train, "mfu")),
        "data wait": _write(format_share, _median(run.train, "data_wait_share")),
        "peak memory": f"{memory / 1e9:.3g} GB" if memory else "",
    }


def _values(rows: Sequence[Row], column: str) -> list[float]:
    """Returns the numbers of a column; rows without one are left out."""
    numbers = (number(row, column) for row in rows)
    return [value for value in numbers if value is not None]


def _median(rows: Sequence[Row], column: str) -> list[float]:
    """Returns a list with the median of a column, or an empty list without numbers."""
    values = _values(rows, column)
    return [statistics.median(values)] if values else []


def _write(write: Callable[[float], str], values: Sequence[float]) -> str:
    """Returns the mean of the values as text, made by `write`; an empty text without values."""
    return write(statistics.fmean(values)) if values else ""


def _say(row: Mapping[str, Any]) -> str:
    """Returns a row that is neither a step nor a validation as text: "COLUMN VALUE, ..."."""
    shown = {key: value for key, value in row.items() if key not in ("step", "instances")}
    return ", ".join(f"{key} {value}" for key, value in shown.items())
