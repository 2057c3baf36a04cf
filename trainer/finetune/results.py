"""Lists the runs of a search, reads the finished ones, and summarizes them for people."""

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, get_args

from trainer.conversion.export import read_json
from trainer.conversion.initial_weights import hash_state
from trainer.conversion.names import CONFIG, PROVENANCE_KEY
from trainer.finetune.batches import Recipe
from trainer.finetune.prepare import Prepared
from trainer.finetune.settings import SEARCHED, FinetuneSettings
from trainer.process.precision import Precision
from trainer.runs.continuing import Continuable
from trainer.runs.json_files import parse_object, to_json, wrong_types

Run = dict[str, Any]
"""A finished run as it is written to OUTPUT/runs.

Its keys are "name", the fields of its `Recipe`, "steps", "train_loss" (the mean of the last epoch),
"metrics" (by validation file, then by name), "train_seconds" and "made_with".
"""

FINETUNING = Continuable(
    kind="a fine-tuning",
    marker="runs",
    # The search may grow. Files and the model may move, because their hashes are compared.
    free=(
        "model",
        "train",
        "validation",
        "test",
        "output",
        "micro_tokens",
        "storage_options",
        *SEARCHED,
    ),
)
_SETTING = ("global_batch", "peak_lr", "epochs")
"""The searched settings but the seed. Metrics are averaged over runs that agree in these three."""
_REMEDY = "delete it, and this run is made again"
_RUN_TYPES: dict[str, Any] = {
    "name": str,
    "global_batch": int,
    "peak_lr": float,
    "epochs": int,
    "metrics": {},
}
"""The values of a finished run that a later launch uses, with their types, as in `wrong_types`."""
_UNREPRODUCIBLE = ("train_seconds", "made_with")
"""Facts of a run that are not written to results.json."""


def list_recipes(settings: FinetuneSettings) -> list[Recipe]:
    """Returns one recipe for every combination of the values that the settings in `SEARCHED` have.

    Combinations that differ in the seed alone follow each other.
    """
    values = product(*(dict.fromkeys(getattr(settings, name)) for name in SEARCHED))
    return [Recipe(*combination) for combination in values]


def describe_work(prepared: Prepared) -> dict[str, Any]:
    """Describes the work of a launch by all that the runs of one output folder must share.

    A run that an earlier launch finished is used only if its description is equal.

    Returns:
        The settings that must not change, the sha256 of the model and of each file, and the labels,
        as values that JSON can hold.
    """
    hashes = {
        split: {file.name: file.facts["sha256"] for file in files}
        for split, files in prepared.files.items()
    }
    facts = {
        **FINETUNING.bound_settings(prepared.settings),
        "model_sha256": hash_state(prepared.opened.state),
        "labels": prepared.head.labels,
        "data_sha256": hashes,
    }
    return dict(json.loads(to_json(facts)))


def find_precision(output: Path) -> Precision | None:
    """Returns the precision of the finished runs of earlier launches; None if there are none.

    Args:
        output: The output folder.

    Raises:
        ValueError: A run is damaged.
    """
    for path in sorted((output / "runs").glob("*.json")):
        precision: Precision | None = _read_run(path).get("made_with", {}).get("precision")
        if precision in get_args(Precision):
            return precision
        if precision is not None:
            says = f"precision is {precision!r}, expected {' or '.join(get_args(Precision))}"
            raise ValueError(f"{path} is damaged: {says}; {_REMEDY}")
    return None


def read_finished(
    output: Path, recipes: Sequence[Recipe], prepared: Prepared, made_with: Mapping[str, Any]
) -> dict[str, Run]:
    """Returns the finished runs of earlier launches, by name.

    Only the model of the best run is kept, in OUTPUT/best. If that folder has no model, or the
    model of another run, the best run is left out of the result, so that it is trained again.

    Args:
        output: The output folder.
        recipes: The runs of the search.
        prepared: The files, the model and the task of this launch.
        made_with: The result of `describe_work`.

    Raises:
        ValueError: A run is damaged, or was made with other settings, files or another model, or
            by a version of this program that did not compute the main metric.
    """
    finished: dict[str, Run] = {}
    for recipe in recipes:
        path = output / "runs" / f"{recipe.name}.json"
        if path.is_file():
            run = _read_run(path)
            FINETUNING.check_settings(str(path), run.get("made_with", {}), made_with)
            for file in prepared.files["validation"]:
                if file.name not in run["metrics"]:
                    raise ValueError(f"{path} is damaged: metrics lacks {file.name}; {_REMEDY}")
            metric = prepared.task.main_metric
            if any(metric not in metrics for metrics in run["metrics"].values()):
                lacks = f"lacks the metric {metric}, because an earlier version of this program"
                raise ValueError(f"{path} {lacks} made it; {_REMEDY}")
            finished[recipe.name] = run
    best = best_run(list(finished.values()), prepared)
    exported_name = None
    if (output / "best" / CONFIG).is_file():
        settings = read_json(str(output / "best"), CONFIG)
        shape = {PROVENANCE_KEY: {"finetuned": {"run": str}}}
        for problem in wrong_types(settings, shape, CONFIG):
            remedy = "delete the folder, and its run is made again"
            raise ValueError(f"{output / 'best'} is damaged: {problem}; {remedy}")
        exported_name = settings.get(PROVENANCE_KEY, {}).get("finetuned", {}).get("run")
    if best is not None and best["name"] != exported_name:
        del finished[best["name"]]
    return finished


def _read_run(path: Path) -> Run:
    """Returns a finished run of an earlier launch.

    Raises:
        ValueError: The file is damaged: it is not JSON, lacks a value that is used, or has a value
            of another type.
    """
    run = parse_object(path.read_bytes(), str(path), _REMEDY)
    metrics = run.get("metrics")
    files = metrics if isinstance(metrics, dict) else {}
    shape = {
        **_RUN_TYPES,
        "made_with": {},
        "metrics": {
            file: dict.fromkeys(values, float) if isinstance(values, dict) else {}
            for file, values in files.items()
        },
    }
    problems = [f"{name} is missing" for name in _RUN_TYPES if name not in run]
    for name in shape.keys() & run.keys():
        problems += wrong_types(run[name], shape[name], name)
    if problems:
        raise ValueError(f"{path} is damaged: {', '.join(sorted(problems))}; {_REMEDY}")
    return run


def best_run(runs: Sequence[Run], prepared: Prepared) -> Run | None:
    """Returns the run with the highest main metric on the first validation file.

    The result is the first of several runs with equal metrics, and None if there are no runs.
    """
    file = prepared.files["validation"][0].name
    metric = prepared.task.main_metric
    return max(runs, key=lambda run: run["metrics"][file][metric], default=None)


def make_results(prepared: Prepared, runs: Sequence[Run]) -> dict[str, Any]:
    """Returns the content of results.json: the data, the metrics of all runs, and the best run.

    It does not depend on when, or how often, the command was launched: times of runs are left out.

    Args:
        prepared: The task, the data and the model of the fine-tuning.
        runs: The finished runs of the search.
    """
    reproducible_runs = [
        {name: value for name, value in run.items() if name not in _UNREPRODUCIBLE} for run in runs
    ]
    return {
        "task": prepared.settings.task,
        "main_metric": prepared.task.main_metric,
        "model": prepared.settings.model,
        "head": {"kind": prepared.head.kind, "labels": prepared.head.labels},
        "data": {split: [file.facts for file in files] for split, files in prepared.files.items()},
        "best": best_run(reproducible_runs, prepared),
        "settings": summarize(runs),
        "runs": reproducible_runs,
    }


def summarize(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Averages the metrics of runs that differ in the seed alone.

    Returns:
        One dict for each combination of batch, learning rate and epochs, with the keys
        "global_batch", "peak_lr", "epochs", "num_seeds", "mean" and "standard_deviation". The last
        two are dicts of numbers by validation file, then by metric. The standard deviation is that
        of a sample, and None if there is one seed.

    Raises:
        ValueError: A run has other metrics than the first one, because versions of this program
            with other metrics made them.
    """
    _check_metrics(runs)
    groups: dict[tuple[Any, ...], list[Run]] = {}
    for run in runs:
        groups.setdefault(tuple(run[name] for name in _SETTING), []).append(run)

    summary = []
    for key, group in groups.items():
        setting = dict(zip(_SETTING, key, strict=True))
        summary.append(
            {
                **setting,
                "num_seeds": len(group),
                "mean": _over_seeds(group, statistics.fmean),
                "standard_deviation": _over_seeds(group, _deviation),
            }
        )
    return summary


def _check_metrics(runs: Sequence[Run]) -> None:
    """Checks that all runs have the same metrics.

    Raises:
        ValueError: A run has other metrics than the first one.
    """
    for run in runs[1:]:
        for file, metrics in run["metrics"].items():
            others = runs[0]["metrics"][file]
            if metrics.keys() != others.keys():
                raise ValueError(
                    f"runs/{runs[0]['name']}.json has the metrics {', '.join(others)}, and"
                    f" runs/{run['name']}.json {', '.join(metrics)}: different versions of this"
                    " program made them; delete the older file, and its run is made again"
                )


def _over_seeds(
    runs: Sequence[Run], statistic: Callable[[list[float]], float | None]
) -> dict[str, dict[str, float | None]]:
    """Computes a statistic of every metric over some runs.

    Args:
        runs: The runs, at least one. All have the same files and metrics.
        statistic: Computes a number, such as the mean, from the values of one metric.

    Returns:
        The results by validation file, then by metric.
    """
    return {
        file: {
            metric: statistic([run["metrics"][file][metric] for run in runs]) for metric in metrics
        }
        for file, metrics in runs[0]["metrics"].items()
    }


def _deviation(values: list[float]) -> float | None:
    """Returns the standard deviation of a sample, or None for a single value."""
    return statistics.stdev(values) if len(values) > 1 else None


def format_table(summary: Sequence[Mapping[str, Any]], best: Run) -> str:
    """Formats a search as a table for people.

    There is one line for each entry of the summary, with mean +- standard deviation of each metric.

    Args:
        summary: The result of `summarize`.
        best: The best run. The line that it belongs to is marked with a star.
    """
    columns = [(file, metric) for file, metrics in summary[0]["mean"].items() for metric in metrics]
    has_several_files = len(summary[0]["mean"]) > 1
    names = [f"{file} {metric}" if has_several_files else metric for file, metric in columns]
    rows = [["batch", "learning rate", "epochs", "seeds", *names]]
    for entry in summary:
        mark = " *" if all(entry[name] == best[name] for name in _SETTING) else ""
        row = [f"{entry[name]:g}" for name in _SETTING] + [f"{entry['num_seeds']}{mark}"]
        for file, metric in columns:
            deviation = entry["standard_deviation"][file][metric]
            spread = "" if deviation is None else f" +- {deviation:.4f}"
            row.append(f"{entry['mean'][file][metric]:.4f}{spread}")
        rows.append(row)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    return "\n".join([*lines, f"* has the best run, {best['name']}"])
