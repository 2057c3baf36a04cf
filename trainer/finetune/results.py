"""The runs of a search: means over seeds, the best one, and what OUTPUT says of them."""

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from trainer.conversion.export import read_json
from trainer.conversion.initial_weights import hash_state
from trainer.conversion.names import CONFIG, PROVENANCE_KEY
from trainer.finetune.batches import Recipe
from trainer.finetune.prepare import Prepared
from trainer.finetune.settings import SEARCHED, FinetuneSettings
from trainer.runs.continuing import Continuable
from trainer.runs.json_files import parse_object, to_json

Run = dict[str, Any]
"""A finished run: name, recipe, steps, train_loss and metrics."""

FINETUNING = Continuable(
    kind="a fine-tuning",
    marker="runs",
    # The search may grow; files and models are known by their hashes.
    free=("model", "train", "validation", "test", "output", "micro_tokens", *SEARCHED),
)
_SETTING = ("global_batch", "peak_lr", "epochs")
_SPEED = ("train_seconds", "made_with")


def list_recipes(settings: FinetuneSettings) -> list[Recipe]:
    """Every run of the search, in order: settings outside, seeds inside."""
    values = product(*(dict.fromkeys(getattr(settings, name)) for name in SEARCHED))
    return [Recipe(*each) for each in values]


def describe_work(prepared: Prepared) -> dict[str, Any]:
    """What all runs of a folder are made with, as plain values."""
    files = prepared.files.items()
    facts = {
        **FINETUNING.bound_settings(prepared.settings),
        "model_sha256": hash_state(prepared.opened.state),
        "labels": prepared.head.labels,
        "data_sha256": {split: {f.name: f.facts["sha256"] for f in each} for split, each in files},
    }
    return dict(json.loads(to_json(facts)))


def read_finished(
    output: Path, recipes: Sequence[Recipe], prepared: Prepared, made_with: Mapping[str, Any]
) -> dict[str, Run]:
    """Finished runs by name; the best one is made again where its model is not in OUTPUT/best."""
    finished: dict[str, Run] = {}
    for recipe in recipes:
        path = output / "runs" / f"{recipe.name}.json"
        if path.is_file():
            remedy = "delete it, and this run is made again"
            run = parse_object(path.read_bytes(), str(path), remedy)
            FINETUNING.check_settings(str(path), run.get("made_with", {}), made_with)
            finished[recipe.name] = run
    best, kept = best_run(list(finished.values()), prepared), None
    if (output / "best" / CONFIG).is_file():
        provenance = read_json(str(output / "best"), CONFIG).get(PROVENANCE_KEY, {})
        kept = provenance.get("finetuned", {}).get("run")
    if best is not None and best["name"] != kept:
        del finished[best["name"]]
    return finished


def best_run(runs: Sequence[Run], prepared: Prepared) -> Run | None:
    """The first run with the best main metric on the first validation file; None without runs."""
    file, metric = prepared.files["validation"][0].name, prepared.task.main_metric
    return max(runs, key=lambda run: run["metrics"][file][metric], default=None)


def make_results(prepared: Prepared, runs: Sequence[Run]) -> dict[str, Any]:
    """Content of results.json: nothing in it depends on when or how often the command ran."""
    timeless = [{name: run[name] for name in run if name not in _SPEED} for run in runs]
    return {
        "task": prepared.settings.task,
        "main_metric": prepared.task.main_metric,
        "model": prepared.settings.model,
        "head": {"kind": prepared.head.kind, "labels": prepared.head.labels},
        "data": {split: [each.facts for each in of] for split, of in prepared.files.items()},
        "best": best_run(timeless, prepared),
        "settings": summarize(runs),
        "runs": timeless,
    }


def summarize(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Mean and standard deviation (of the sample; None for one) over the seeds of each setting."""
    groups: dict[tuple[Any, ...], list[Run]] = {}
    for run in runs:
        groups.setdefault(tuple(run[name] for name in _SETTING), []).append(run)

    def fold(group: list[Run], by: Callable[[list[float]], float | None]) -> dict[str, Any]:
        return {
            file: {name: by([run["metrics"][file][name] for run in group]) for name in metrics}
            for file, metrics in group[0]["metrics"].items()
        }

    def deviation(values: list[float]) -> float | None:
        return statistics.stdev(values) if len(values) > 1 else None

    summary = []
    for key, group in groups.items():
        means = {
            "mean": fold(group, statistics.fmean),
            "standard_deviation": fold(group, deviation),
        }
        setting = dict(zip(_SETTING, key, strict=True))
        summary.append({**setting, "num_seeds": len(group), **means})
    return summary


def format_table(summary: Sequence[Mapping[str, Any]], best: Run) -> str:
    """A line for each setting, its metrics as mean +- standard deviation over seeds."""
    columns = [(file, metric) for file, metrics in summary[0]["mean"].items() for metric in metrics]
    several = len(summary[0]["mean"]) > 1
    names = [f"{file} {metric}" if several else metric for file, metric in columns]
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
