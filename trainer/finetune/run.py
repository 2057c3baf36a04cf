"""`python -m trainer finetune`: the runs of a grid, the best model, its predictions, results.

All ranks call everything; rank 0 writes and prints.
"""

import contextlib
import dataclasses
import gc
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed
from tqdm import tqdm

from pipeline.interrupts import INTERRUPTED, Interrupted
from pipeline.storage.local import replace_file
from trainer.conversion.export import export_hf, load_hf_task, read_provenance, write_export
from trainer.engine.partitions import iterate_weights
from trainer.engine.train_step import agree_on_waiting
from trainer.finetune.output import OutputFolder, open_output
from trainer.finetune.prepare import DataFile, Prepared, begin_model, prepare_data
from trainer.finetune.progress import GridProgress
from trainer.finetune.results import Run, best_run, format_table, list_recipes, summarize
from trainer.finetune.settings import FinetuneSettings, check_settings
from trainer.finetune.start import describe_new
from trainer.finetune.task import OwnModel
from trainer.finetune.training import Recipe, predict_items, train_task
from trainer.model.task_heads import BertForTask, build_task_model
from trainer.process.allocator import keep_freed_memory
from trainer.process.ranks import Ranks, start_ranks, stop_ranks, together
from trainer.process.stopping import LauncherWatch, StopRequest, Told, stops_requested
from trainer.runs.json_files import to_json
from trainer.runs.run_lock import locked

STOPPING = "stopping after this step, finished runs are kept; again leaves at once"


def finetune(settings: FinetuneSettings, remainder: object = None) -> None:
    """Fine-tunes, or goes on with, what the settings ask for."""
    assert not remainder, "the command line passes nothing after --"
    check_settings(settings)
    watch = LauncherWatch()
    keep_freed_memory()
    ranks = start_ranks()
    try:
        finetune_on(ranks, settings, watch)
    finally:
        stop_ranks()


def finetune_on(
    ranks: Ranks, settings: FinetuneSettings, watch: LauncherWatch | None = None
) -> None:
    """Fine-tunes by processes that have joined each other already; may be called again and again.

    Raises:
        Interrupted: A rank was told to stop, or its launcher is gone; says how many runs are kept.
        ValueError: A file, a model or an output folder that does not fit; the same on every rank.
    """
    check_settings(settings)
    output = OutputFolder(Path(settings.output))
    with contextlib.ExitStack() as stack:
        with together(ranks):
            prepared = prepare_data(settings)
            if ranks.rank == 0:
                stack.enter_context(locked(output.path))
                open_output(output, settings, prepared)
        runs = run_grid(settings, prepared, output, ranks, watch or LauncherWatch())
        _finish(settings, prepared, output, runs, ranks)


def run_grid(
    settings: FinetuneSettings,
    prepared: Prepared,
    output: OutputFolder,
    ranks: Ranks,
    watch: LauncherWatch,
) -> list[Run]:
    """All runs of the grid, finished before or now, in the grid's order."""
    recipes = list_recipes(settings)
    finished = share(ranks, lambda: read_finished(output, prepared, recipes))
    num_items = len(prepared.train_items)
    left = [recipe for recipe in recipes if recipe.name not in finished]
    num_steps, stop = sum(recipe.num_steps(num_items) for recipe in left), StopRequest()

    def told() -> bool:
        return stop.is_made

    with (
        contextlib.closing(GridProgress(num_steps, len(left), ranks.rank == 0)) as progress,
        stops_requested(watch, stop, progress.say, STOPPING),
    ):
        for note in prepared.notes:
            progress.say(note)
        if finished:
            progress.say(f"{len(finished)} of {len(recipes)} runs were finished before")
        for recipe in left:
            progress.begin(recipe.name)
            try:
                finished[recipe.name] = _run(
                    recipe, settings, prepared, output, finished, ranks, progress, told
                )
                _leave_if_told(ranks, told)
            except Interrupted as error:
                kept = f"{len(finished)} of {len(recipes)} runs are kept"
                raise Interrupted(
                    f"{INTERRUPTED}; {kept}, the same command continues", stop.number
                ) from error
            gc.collect()  # engines are cycles: five large ones would fill a GPU before they are found
    return [finished[recipe.name] for recipe in recipes]


def _leave_if_told(ranks: Ranks, told: Told) -> None:
    _, is_told = agree_on_waiting(ranks, is_ready=True, must_stop=told())
    if is_told:
        raise Interrupted(INTERRUPTED)


def read_finished(
    output: OutputFolder, prepared: Prepared, recipes: list[Recipe]
) -> dict[str, Run]:
    """Finished runs by name; the best one is redone where its model is not in OUTPUT/best."""
    found = {recipe.name: output.read_run(recipe.name) for recipe in recipes}
    finished: dict[str, Run] = {name: run for name, run in found.items() if run is not None}
    best = best_run(list(finished.values()), prepared.validation[0].name, prepared.task.main_metric)
    if best is not None and best_name(output) != best["name"]:
        del finished[str(best["name"])]
    return finished


def best_name(output: OutputFolder) -> str | None:
    """The run whose model lies in OUTPUT/best."""
    if not (output.best / "config.json").is_file():
        return None
    name: str | None = read_provenance(str(output.best)).get("finetuned", {}).get("run")
    return name


def measure(
    model: BertForTask,
    file: DataFile,
    prepared: Prepared,
    settings: FinetuneSettings,
    ranks: Ranks,
    told: Told = lambda: False,
) -> Any:
    """Predictions for each example of a file, and its metrics."""
    predictions = predict(model, file, prepared, settings, ranks, told)
    return prepared.task.score(file.examples, predictions)


def predict(
    model: BertForTask,
    file: DataFile,
    prepared: Prepared,
    settings: FinetuneSettings,
    ranks: Ranks,
    told: Told = lambda: False,
) -> list[Any]:
    """A prediction for each example of a file."""
    outputs = predict_items(model, file.items, settings.micro_tokens, ranks, told)
    return prepared.task.decode(file.examples, file.items, outputs, prepared.head.labels)


def share(ranks: Ranks, read: Callable[[], Any]) -> Any:
    """What rank 0 reads, on every rank."""
    box = [None]
    with together(ranks):
        if ranks.rank == 0:
            box = [read()]
    torch.distributed.broadcast_object_list(box, src=0, group=ranks.counts_group)
    return box[0]


def _run(
    recipe: Recipe,
    settings: FinetuneSettings,
    prepared: Prepared,
    output: OutputFolder,
    finished: dict[str, Run],
    ranks: Ranks,
    progress: GridProgress,
    told: Told,
) -> Run:
    """Trains and measures one run, keeps its model if it is the best, and marks it as finished."""
    model, new = begin_model(prepared, recipe.seed)
    if not finished and (note := describe_new(new)):
        progress.say(note)
    began, items = time.monotonic(), prepared.train_items
    losses: list[float] = []

    def report(loss: float) -> None:
        losses.append(loss)
        progress.advance(loss)

    engine = train_task(model, items, recipe, settings, ranks, report, told)
    trained_seconds = time.monotonic() - began
    run: dict[str, Any] = {
        "name": recipe.name,
        **dataclasses.asdict(recipe),
        "steps": len(losses),
        "train_loss": statistics.fmean(losses[-(len(losses) // recipe.epochs) :]),
        "metrics": {
            file.name: measure(engine.module, file, prepared, settings, ranks, told)
            for file in prepared.validation
        },
    }
    file, metric = prepared.validation[0].name, prepared.task.main_metric
    best = best_run([*finished.values(), run], file, metric)
    state = dict(iterate_weights(engine, ranks)) if best is run else {}
    if ranks.rank == 0:
        if best is run:
            _export(state, run, settings, prepared, output)
        tokens = recipe.epochs * sum(file.facts["tokens"] for file in prepared.train)
        speed = {
            "train_seconds": trained_seconds,
            "train_tokens_per_second": tokens / trained_seconds,
        }
        output.write_run(recipe.name, {**run, **speed})
        progress.say(f"{recipe.name}: {file} {metric} {run['metrics'][file][metric]:.4f}")
    engine.destroy()
    return run


def _export(
    state: Any, run: Run, settings: FinetuneSettings, prepared: Prepared, output: OutputFolder
) -> None:
    facts = {
        "task": settings.task,
        "run": run["name"],
        "seq_len": settings.seq_len,
        "metrics": run["metrics"],
    }
    provenance = {**prepared.opened.provenance, "finetuned": facts}
    if isinstance(prepared.task, OwnModel):
        write_export(prepared.task.model_files(state, prepared.head, provenance), str(output.best))
        return
    export_hf(
        state,
        prepared.opened.config,
        prepared.vocab.to_text().encode(),
        str(output.best),
        lower_case=prepared.lower_case,
        provenance=provenance,
        head=prepared.head,
    )


def _finish(
    settings: FinetuneSettings,
    prepared: Prepared,
    output: OutputFolder,
    runs: list[Run],
    ranks: Ranks,
) -> None:
    """Predictions of the best model, results.json, and the table."""
    best = best_run(runs, prepared.validation[0].name, prepared.task.main_metric)
    assert best is not None, "there is at least one run"
    model = _open_best(prepared, output, ranks)
    model.to(torch.bfloat16 if settings.precision == "bf16" else torch.float32)
    tuned = best["metrics"][prepared.validation[0].name]
    for file in [*prepared.validation, *prepared.test]:
        predictions = predict(model, file, prepared, settings, ranks)
        if ranks.rank == 0:
            contents = prepared.task.prediction_files(file.path, file.examples, predictions, tuned)
            output.write_predictions(file.name, contents)
    if ranks.rank == 0:
        summary = summarize(runs)
        replace_file(output.results, to_json(_results(settings, prepared, runs, summary, best)))
        tqdm.write(format_table(summary, best))
        tqdm.write(
            f"{output.path}: {output.results.name}, predictions, and the best model in {output.best}"
        )
        sys.stdout.flush()


def _open_best(prepared: Prepared, output: OutputFolder, ranks: Ranks) -> Any:
    """The best run's model on every rank; rank 0 alone reads it, others may not see its disk."""
    own = prepared.task if isinstance(prepared.task, OwnModel) else None
    model = (
        own.build_model(prepared.head, 0)
        if own
        else build_task_model(prepared.config, prepared.head, 0)
    )
    with together(ranks):
        if ranks.rank == 0:
            if own:
                state = own.load_model(str(output.best), prepared.head).state_dict()
            else:
                loaded = load_hf_task(str(output.best))
                assert loaded is not None, "the best model has a head"
                state = loaded[1]
            model.load_state_dict(state)
    model.to(ranks.device)
    for parameter in model.parameters():
        torch.distributed.broadcast(parameter.data, src=0)
    return model


def _results(
    settings: FinetuneSettings,
    prepared: Prepared,
    runs: list[Run],
    summary: list[dict[str, Any]],
    best: Run,
) -> dict[str, Any]:
    """Content of results.json: nothing in it depends on when or how often the command ran."""
    return {
        "task": settings.task,
        "main_metric": prepared.task.main_metric,
        "model": settings.model,
        "head": {"kind": prepared.head.kind, "labels": list(prepared.head.labels)},
        "data": {
            split: [file.facts for file in files]
            for split, files in (
                ("train", prepared.train), ("validation", prepared.validation), ("test", prepared.test)
            )
        },
        "best": _without_times(best),
        "settings": summary,
        "runs": [_without_times(run) for run in runs],
    }  # fmt: skip


def _without_times(run: Run) -> dict[str, Any]:
    return {
        name: value
        for name, value in run.items()
        if not name.startswith("train_seconds") and "per_second" not in name
    }
