"""`python -m trainer finetune`: a loop over the runs of a search, of which the best model is kept.

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

from tqdm import tqdm

from pipeline.storage.local import make_folder, replace_file
from trainer.conversion.export import export_hf, write_export
from trainer.engine.partitions import iterate_weights
from trainer.finetune.batches import Recipe
from trainer.finetune.prepare import DataFile, Prepared, begin_model, prepare_data
from trainer.finetune.results import (
    FINETUNING,
    Run,
    best_run,
    describe_work,
    format_table,
    list_recipes,
    make_results,
    read_finished,
    summarize,
)
from trainer.finetune.settings import FinetuneSettings, check_settings
from trainer.finetune.task import OwnModel
from trainer.finetune.training import predict_items, train_task
from trainer.model.task_heads import BertForTask
from trainer.process.allocator import keep_freed_memory
from trainer.process.ranks import Ranks, start_ranks, stop_ranks, together
from trainer.process.stopping import LauncherWatch
from trainer.runs.continuing import names_in
from trainer.runs.json_files import to_json
from trainer.runs.run_lock import locked


def finetune(settings: FinetuneSettings, remainder: object = None) -> None:
    """Fine-tunes, or goes on with, what the settings ask for."""
    assert not remainder, "the command line passes nothing after --"
    check_settings(settings)
    LauncherWatch()
    keep_freed_memory()
    ranks = start_ranks()
    try:
        finetune_on(ranks, settings)
    finally:
        stop_ranks()


def finetune_on(ranks: Ranks, settings: FinetuneSettings) -> None:
    """Fine-tunes by processes that have joined each other already; may be called again and again.

    Raises:
        FileExistsError: The output folder holds something else.
        ValueError: A file, a model or an output folder that does not fit; the same on every rank.
    """
    check_settings(settings)
    output = Path(settings.output)
    with contextlib.ExitStack() as stack:
        finished: dict[str, Run] = {}
        with together(ranks):
            prepared = prepare_data(settings)
            recipes, made_with = list_recipes(settings), describe_work(settings, prepared)
            if ranks.rank == 0:
                stack.enter_context(locked(output))
                FINETUNING.refuse_foreign(str(output), names_in(output))
                make_folder(output / "runs")
                finished = read_finished(output, recipes, prepared, made_with)
        finished = ranks.from_first(finished)
        left = [recipe for recipe in recipes if recipe.name not in finished]
        bar = stack.enter_context(_progress(prepared, left, ranks))
        for note in prepared.notes:
            _say(note, ranks)
        if finished:
            _say(f"{len(finished)} of {len(recipes)} runs were finished before", ranks)
        for recipe in left:
            bar.set_description_str(recipe.name)
            engine, run = train_run(recipe, settings, prepared, ranks, bar.update)
            finished[recipe.name] = run
            runs = [finished[each.name] for each in recipes if each.name in finished]
            if best_run(runs, prepared) is run:
                _keep_best(engine, run, settings, prepared, ranks)
            if ranks.rank == 0:
                content = to_json({**run, "made_with": made_with})
                replace_file(output / "runs" / f"{recipe.name}.json", content)
            engine.destroy()
            del engine
            gc.collect()  # engines are cycles: five large ones would fill a GPU before they are found
        runs = [finished[recipe.name] for recipe in recipes]
        best = best_run(runs, prepared)
        assert best is not None, "there is at least one run"
        if ranks.rank == 0:
            results = make_results(settings, prepared, runs, best)
            replace_file(output / "results.json", to_json(results))
        where = f"{output}: results.json, predictions, and the best model in {output / 'best'}"
        _say(f"{format_table(summarize(runs), best)}\n{where}", ranks)


def train_run(
    recipe: Recipe,
    settings: FinetuneSettings,
    prepared: Prepared,
    ranks: Ranks,
    tell_step: Callable[[], object],
) -> tuple[Any, Run]:
    """Trains and measures; the engine, whose module is the trained model, and the run's facts."""
    model = begin_model(prepared, recipe.seed)
    began, losses = time.monotonic(), list[float]()

    def report(loss: float) -> None:
        losses.append(loss)
        tell_step()

    engine = train_task(model, prepared.train_items, recipe, settings, ranks, report)
    seconds = time.monotonic() - began
    measured = prepared.files["validation"]
    metrics = {
        file.name: measure(engine.module, file, prepared, settings, ranks) for file in measured
    }
    tokens = recipe.epochs * sum(file.facts["tokens"] for file in prepared.files["train"])
    file, metric = measured[0].name, prepared.task.main_metric
    _say(f"{recipe.name}: {file} {metric} {metrics[file][metric]:.4f}", ranks)
    return engine, {
        "name": recipe.name,
        **dataclasses.asdict(recipe),
        "steps": len(losses),
        "train_loss": statistics.fmean(losses[-(len(losses) // recipe.epochs) :]),
        "metrics": metrics,
        "train_seconds": seconds,
        "train_tokens_per_second": tokens / seconds,
    }


def measure(
    model: BertForTask, file: DataFile, prepared: Prepared, settings: FinetuneSettings, ranks: Ranks
) -> dict[str, float]:
    """Metrics of a model's predictions for a file."""
    predictions = predict(model, file, prepared, settings, ranks)
    return prepared.task.score(file.examples, predictions)


def predict(
    model: BertForTask, file: DataFile, prepared: Prepared, settings: FinetuneSettings, ranks: Ranks
) -> list[Any]:
    """A prediction for each example of a file."""
    outputs = predict_items(model, file.items, settings.micro_tokens, ranks)
    return prepared.task.decode(file.examples, file.items, outputs, prepared.head.labels)


def write_predictions(output: Path, file_name: str, contents: dict[str, str]) -> Path:
    """Writes what a model says of one file of data to a folder of that name, which is returned."""
    folder = output / "predictions" / file_name
    for name, text in contents.items():
        replace_file(folder / name, text.encode())
    return folder


def _progress(prepared: Prepared, left: list[Recipe], ranks: Ranks) -> Any:
    """A bar over the steps of all runs, in a log a line every ten seconds."""
    num_steps = sum(recipe.num_steps(len(prepared.train_items)) for recipe in left)
    seconds = 0.5 if sys.stderr.isatty() else 10.0
    is_hidden = ranks.rank != 0
    return tqdm(total=num_steps, unit="step", mininterval=seconds, disable=is_hidden)


def _say(text: str, ranks: Ranks) -> None:
    if ranks.rank == 0:
        tqdm.write(text)
        sys.stdout.flush()  # a log file would show it only with the next 8 kB


def _keep_best(
    engine: Any, run: Run, settings: FinetuneSettings, prepared: Prepared, ranks: Ranks
) -> None:
    """Writes the model that is the best so far, and its predictions."""
    output, task, opened = Path(settings.output), prepared.task, prepared.opened
    state = dict(iterate_weights(engine, ranks))
    facts = {"task": settings.task, "run": run["name"], "seq_len": settings.seq_len}
    finetuned = {**facts, "metrics": run["metrics"]}
    provenance = {**opened.provenance, "finetuned": finetuned}
    if ranks.rank == 0 and isinstance(task, OwnModel):
        files = task.model_files(state, prepared.head, provenance)
        write_export(files, str(output / "best"))
    elif ranks.rank == 0:
        export_hf(
            state,
            opened.config,
            prepared.vocab.to_text().encode(),
            str(output / "best"),
            lower_case=opened.lower_case,
            provenance=provenance,
            head=prepared.head,
        )
    tuned = run["metrics"][prepared.files["validation"][0].name]
    for file in [*prepared.files["validation"], *prepared.files["test"]]:
        predictions = predict(engine.module, file, prepared, settings, ranks)
        if ranks.rank == 0:
            contents = task.prediction_files(file.path, file.examples, predictions, tuned)
            write_predictions(output, file.name, contents)
