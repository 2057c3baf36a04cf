"""Runs as one page: curves over one another, settings that differ, hardware.

The page has no script; steps or tokens on the x axis are chosen by two buttons that only the style
knows.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.pages.cards import card, small, whole_page
from pipeline.pages.text import escape, short_number
from trainer.report.charts import (
    LEARNING,
    Chart,
    draw,
    extreme,
    is_always_zero,
    median,
    other_charts,
    recent_mean,
    speed_charts,
)
from trainer.report.header import describe
from trainer.report.read import ReadRun, Row, flatten, number
from trainer.watch.terminal import format_seconds

_MOST_EVENTS = 50
_NO_SETTING = ("output",)
STYLE = """
:root { --run0: #2f6fc4; --run1: #c2571a; --run2: #2a8a55; --run3: #8a4bb8; --run4: #b3203f; --run5: #6b6f1d; }
@media (prefers-color-scheme: dark) {
  :root { --run0: #6aa5f0; --run1: #f0935a; --run2: #66c592; --run3: #c191ea; --run4: #f0758d; --run5: #c5c95e; }
}
.run0 { --run: var(--run0); } .run1 { --run: var(--run1); } .run2 { --run: var(--run2); }
.run3 { --run: var(--run3); } .run4 { --run: var(--run4); } .run5 { --run: var(--run5); }
svg.lines { display: block; width: 100%; height: auto; }
svg.lines text { font-size: 11px; fill: var(--soft); font-variant-numeric: tabular-nums; }
svg.lines line.grid { stroke: var(--rule); stroke-width: 1; }
svg.lines polyline { fill: none; stroke: var(--run); stroke-width: 1.8; stroke-linejoin: round; }
svg.lines polygon { fill: var(--run); opacity: .16; }
svg.lines circle { fill: var(--run); }
svg.lines .dots polyline { stroke-dasharray: 4 3; stroke-width: 1.2; }
svg.lines .dots circle { stroke: var(--card); stroke-width: 1; }
svg.lines .guess polyline { stroke: var(--soft); stroke-width: 1; stroke-dasharray: 2 3; }
svg.lines .border line { stroke: var(--run); stroke-width: 1; opacity: .5; }
svg.lines .border text { fill: var(--run); font-size: 10px; }
section > .grid { grid-template-columns: repeat(auto-fill, minmax(min(440px, 100%), 1fr)); }
svg.lines .hover { fill: transparent; }
svg.lines .hover:hover { fill: var(--soft); opacity: .18; }
.key { white-space: nowrap; }
.key::before {
  content: ""; display: inline-block; width: 14px; height: 4px; border-radius: 2px; background: var(--run);
  margin-right: 7px; vertical-align: middle;
}
.legend {
  position: sticky; top: 0; z-index: 1; background: var(--page); display: flex; flex-wrap: wrap; gap: 4px 20px;
  align-items: baseline; padding: 10px 0; margin: 10px 0 -22px;
}
input[name=x] { position: absolute; opacity: 0; }
input[name=x] + label {
  display: inline-block; margin: 18px 8px 0 0; padding: 3px 14px; border: 1px solid var(--rule); border-radius: 99px;
  font-size: 14px; cursor: pointer; color: var(--soft);
}
input[name=x]:checked + label { background: var(--main); border-color: var(--main); color: var(--page); }
input[name=x]:focus-visible + label { outline: 2px solid var(--main); outline-offset: 2px; }
#by-step:checked ~ section .by-tokens, #by-tokens:checked ~ section .by-step { display: none; }
section > .card { margin-top: 12px; }
td.time { white-space: nowrap; }
table.summary th { white-space: normal; vertical-align: bottom; line-height: 1.25; }
@media print { .legend { position: static; } input[name=x]:not(:checked) + label { display: none; } }
"""
"""What this page adds to the style of all pages: colours of runs, line charts, choice of axis."""


def render_page(runs: Sequence[ReadRun]) -> str:
    """The whole page; all text from the runs is escaped."""
    legend = "".join(
        f'<span class="key run{index % 6}">{escape(run.name)}</span>'
        for index, run in enumerate(runs)
    )
    body = [
        f"<h1>{'Training run' if len(runs) == 1 else f'{len(runs)} training runs'}</h1>"
        + "".join(map(describe, runs)),
        _problems(runs),
        _summary(runs),
        '<input type="radio" name="x" id="by-step" checked><label for="by-step">over steps</label>'
        '<input type="radio" name="x" id="by-tokens"><label for="by-tokens">over tokens</label>'
        f'<div class="legend">{legend}<span class="soft small">dots: validation; bands: range of the steps that a '
        "point stands for; dotted: what a guess without the model reaches; upright: where a phase begins; values on "
        "hover</span></div>",
        _charts("Learning", LEARNING, runs),
        _charts("Speed and memory", speed_charts(runs), runs),
        _charts("More", other_charts(runs), runs),
        _settings(runs),
        _launches(runs),
        _events(runs),
    ]
    title = f"Training: {', '.join(run.name for run in runs)}"
    return whole_page(title, "\n".join(body), STYLE)


def _problems(runs: Sequence[ReadRun]) -> str:
    lines = [
        f'<li><span class="mark warn">!</span><span><b>{escape(run.name)}</b> {escape(problem)}</span></li>'
        for run in runs
        for problem in run.problems
    ]
    return f'<div class="card"><ul class="checks">{"".join(lines)}</ul></div>' if lines else ""


def _summary(runs: Sequence[ReadRun]) -> str:
    """A row for each run with its last and best numbers."""
    rows = [_summary_cells(run) for run in runs]
    names = [name for name in rows[0] if any(cells[name] for cells in rows)]
    head = "".join(f'<th class="n">{escape(name)}</th>' for name in names)
    body = "".join(
        f'<tr><td><span class="key run{index % 6}">{escape(run.name)}</span></td>'
        + "".join(f'<td class="n">{escape(cells[name])}</td>' for name in names)
        + "</tr>"
        for index, (run, cells) in enumerate(zip(runs, rows, strict=True))
    )
    note = (
        "Training numbers are means over the last twentieth of the steps, speeds medians over all of them; time is "
        "that of the steps alone, without validation, saving and starts."
    )
    return _table("summary", f"<tr><th>run</th>{head}</tr>{body}", small(note))


def _table(kind: str, rows: str, note: str = "") -> str:
    """A box with a table that scrolls sideways where it is too wide."""
    table = f'<table class="{kind}">{rows}</table>'
    return f'<div class="card"><div class="scroll">{table}</div>{note}</div>'


def _summary_cells(run: ReadRun) -> dict[str, str]:
    train, validation = run.train, run.validation
    tokens = sum(number(row, "tokens") or 0 for row in train)
    seconds = sum(number(row, "seconds") or 0 for row in train)
    memory = extreme(train, "peak_memory_bytes", largest=True)
    return {
        "steps": f"{train[-1]['step']:,}" if train else "0",
        "tokens": short_number(tokens) if tokens else "",
        "time": format_seconds(seconds) if seconds else "",
        "MLM loss": _number(recent_mean(train, "mlm_loss")),
        "MLM accuracy": _share(recent_mean(train, "mlm_accuracy")),
        "NSP accuracy": _share(recent_mean(train, "nsp_accuracy")),
        "validation loss": _number(number(validation[-1], "mlm_loss") if validation else None),
        "best of it": _number(extreme(validation, "mlm_loss", largest=False)),
        "tokens/s": _text(median(train, "tokens_per_second"), short_number),
        "MFU": _share(median(train, "mfu")),
        "data wait": _share(median(train, "data_wait_share")),
        "memory GB": _number(memory / 1e9 if memory else None),
    }


def _text(value: float | None, write: Any) -> str:
    return "" if value is None else str(write(value))


def _number(value: float | None) -> str:
    return _text(value, lambda each: f"{each:.4g}")


def _share(value: float | None) -> str:
    return _text(value, lambda each: f"{100 * each:.1f} %")


def _charts(title: str, charts: Sequence[Chart], runs: Sequence[ReadRun]) -> str:
    """Charts of what changes; what is 0 in every step is said in a line."""
    zeros = [chart for chart in charts if is_always_zero(chart, runs)]
    drawn = [chart for chart in charts if chart not in zeros]
    cards = {
        by: "".join(_chart_card(chart, runs, by) for chart in drawn) for by in ("step", "tokens")
    }
    said = small(f"always 0: {', '.join(chart.title for chart in zeros)}") if zeros else ""
    if not any(cards.values()) and not said:
        return ""
    grids = "".join(f'<div class="grid by-{by}">{drawn}</div>' for by, drawn in cards.items())
    return f"<section><h2>{escape(title)}</h2>{grids}{said}</section>"


def _chart_card(chart: Chart, runs: Sequence[ReadRun], by: str) -> str:
    drawn = draw(chart, runs, by)
    return card(chart.title, drawn) if drawn else ""


def _settings(runs: Sequence[ReadRun]) -> str:
    """The settings that differ between runs; of a single run all of them."""
    keys = list(dict.fromkeys(key for run in runs for key in run.config if key not in _NO_SETTING))
    read = [run for run in runs if run.config]
    if len(runs) > 1:
        keys = [key for key in keys if len({repr(run.config.get(key)) for run in read}) > 1]
    if not keys:
        said = "No settings could be read." if not read else "The runs have the same settings."
        return f'<section><h2>Settings</h2><p class="soft">{said}</p></section>'
    title = "Settings" if len(runs) == 1 else "Settings that differ"
    return f"<section><h2>{title}</h2>{_comparison(keys, [run.config for run in runs], runs)}</section>"


def _launches(runs: Sequence[ReadRun]) -> str:
    """The last launch of every run, side by side; then all launches of each."""
    last = [dict(flatten(run.launches[-1] if run.launches else {})) for run in runs]
    keys = list(dict.fromkeys(key for facts in last for key in facts if key != "argv"))
    if not keys:
        return ""
    datasets = "".join(
        small(
            f"{run.name} reads {each.get('name')}: {each.get('url')}, root hash {each.get('root_hash')}"
        )
        for run in runs
        for each in run.datasets
    )
    table = _comparison(keys, last, runs)
    return f"<section><h2>Hardware, software and data</h2>{datasets}{table}{_all_launches(runs)}</section>"


def _all_launches(runs: Sequence[ReadRun]) -> str:
    rows = "".join(
        f'<tr><td>{escape(run.name)}</td><td class="time">{escape(each.get("time", ""))}</td>'
        f'<td>{escape(each.get("host", ""))}</td><td class="n">{escape(each.get("world_size", ""))}</td>'
        f"<td><code>{_arguments(each)}</code></td></tr>"
        for run in runs
        for each in run.launches
    )
    head = '<tr><th>run</th><th>started</th><th>host of rank 0</th><th class="n">ranks</th><th>arguments</th></tr>'
    return card("Launches", f'<div class="scroll"><table>{head}{rows}</table></div>')


def _arguments(launch: Mapping[str, Any]) -> str:
    arguments = launch.get("argv")
    return escape(" ".join(map(str, arguments[1:]))) if isinstance(arguments, list) else ""


def _comparison(
    keys: Sequence[str], columns: Sequence[Mapping[str, Any]], runs: Sequence[ReadRun]
) -> str:
    """A table with a row for each key and a column for each run."""
    head = "".join(f"<th>{escape(run.name)}</th>" for run in runs)
    rows = "".join(
        f"<tr><td>{escape(key)}</td>"
        + "".join(f"<td>{_cell(values.get(key))}</td>" for values in columns)
        + "</tr>"
        for key in keys
    )
    return _table("pairs", f"<tr><th></th>{head}</tr>{rows}")


def _cell(value: Any) -> str:
    if value is None:
        return '<span class="soft">—</span>'
    return escape((", ".join(map(str, value)) or "none") if isinstance(value, list) else value)


def _events(runs: Sequence[ReadRun]) -> str:
    """Rows that are neither steps nor validations, the newest last."""
    rows = [(run, row) for run in runs for row in run.events]
    if not rows:
        return ""
    body = "".join(
        f'<tr><td>{escape(run.name)}</td><td class="n">{row["step"]:,}</td><td>{escape(_event(row))}</td></tr>'
        for run, row in rows[-_MOST_EVENTS:]
    )
    note = small(f"the last {_MOST_EVENTS} of {len(rows)}") if len(rows) > _MOST_EVENTS else ""
    head = '<tr><th>run</th><th class="n">step</th><th>what</th></tr>'
    return f"<section><h2>Events</h2>{_table('events', head + body, note)}</section>"


def _event(row: Row) -> str:
    return ", ".join(
        f"{key} {value}" for key, value in row.items() if key not in ("step", "instances")
    )
