"""From finished runs to results: means over seeds, the best run, results.json and the table.

Times are not in results.json: the same command killed and started again gives the same file.
"""

import statistics
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

from trainer.finetune.settings import SWEEPS, FinetuneSettings
from trainer.finetune.training import Recipe

Run = Mapping[str, Any]
"""Content of OUTPUT/runs/NAME.json: name, recipe, steps, train_loss and metrics."""

_GRID = ("global_batch", "peak_lr", "epochs")


def list_recipes(settings: FinetuneSettings) -> list[Recipe]:
    """Every run of the grid, in order: settings outside, seeds inside."""
    chosen = settings.global_batch, settings.peak_lr, settings.epochs
    grid = SWEEPS[settings.sweep] if settings.sweep else chosen
    seeds = list(range(settings.seeds[0])) if len(settings.seeds) == 1 else settings.seeds
    return [Recipe(*values, seed) for values in product(*grid) for seed in seeds]


def best_run(runs: Sequence[Run], main_file: str, main_metric: str) -> Run | None:
    """The first run with the best main metric on the first validation file; None without runs."""
    return max(runs, key=lambda run: run["metrics"][main_file][main_metric], default=None)


def summarize(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Mean and standard deviation (of the sample; None for one) over the seeds of each setting."""
    groups: dict[tuple[Any, ...], list[Run]] = {}
    for run in runs:
        groups.setdefault(tuple(run[name] for name in _GRID), []).append(run)
    return [
        {
            **dict(zip(_GRID, key, strict=True)),
            "num_seeds": len(group),
            "mean": _over_seeds(group, statistics.fmean),
            "standard_deviation": _over_seeds(
                group, lambda values: statistics.stdev(values) if values[1:] else None
            ),
        }
        for key, group in groups.items()
    ]


def format_table(summary: Sequence[Mapping[str, Any]], best: Run) -> str:
    """A line for each setting, its metrics as mean +- standard deviation over seeds."""
    columns = [(file, metric) for file, metrics in summary[0]["mean"].items() for metric in metrics]
    several = len(summary[0]["mean"]) > 1
    names = [f"{file} {metric}" if several else metric for file, metric in columns]
    rows = [["batch", "learning rate", "epochs", "seeds", *names]]
    for entry in summary:
        mark = " *" if all(entry[name] == best[name] for name in _GRID) else ""
        setting = [str(entry["global_batch"]), f"{entry['peak_lr']:g}", str(entry["epochs"])]
        pairs = [
            (entry["mean"][file][metric], entry["standard_deviation"][file][metric])
            for file, metric in columns
        ]
        rows.append(
            [*setting, f"{entry['num_seeds']}{mark}", *(_format_cell(*pair) for pair in pairs)]
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    return "\n".join([*lines, f"* has the best run, {best['name']}"])


def _over_seeds(group: Sequence[Run], fold: Any) -> dict[str, dict[str, float | None]]:
    return {
        file: {metric: fold([run["metrics"][file][metric] for run in group]) for metric in metrics}
        for file, metrics in group[0]["metrics"].items()
    }


def _format_cell(mean: float, deviation: float | None) -> str:
    return f"{mean:.4f}" if deviation is None else f"{mean:.4f} +- {deviation:.4f}"
