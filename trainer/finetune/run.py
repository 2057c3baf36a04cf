"""`python -m trainer finetune`: a loop over the runs of a search, of which the best model is kept.

All ranks call everything; rank 0 writes and prints.
"""

import contextlib
import dataclasses
import gc
import statistics
import time
from pathlib import Path
from typing import Any

from pipeline.storage.local import make_folder, replace_file
from trainer.conversion.export import export_hf, write_export
from trainer.engine.partitions import iterate_weights
from trainer.finetune.prepare import DataFile, Prepared, begin_model, prepare_data
from trainer.finetune.progress import SearchProgress
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
from trainer.finetune.training import Recipe, predict_items, train_task
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
        num_steps = sum(recipe.num_steps(len(prepared.train_items)) for recipe in left)
        progress = stack.enter_context(
            contextlib.closing(SearchProgress(num_steps, len(left), ranks.rank == 0))
        )
        for note in prepared.notes:
            progress.say(note)
        if finished:
            progress.say(f"{len(finished)} of {len(recipes)} runs were finished before")
        for recipe in left:
            progress.begin(recipe.name)
            engine, run = train_run(recipe, settings, prepared, ranks, progress)
            finished[recipe.name] = run
            runs = [finished[each.name] for each in recipes if each.name in finished]
            if best_run(runs, prepared) is run:
                _keep_best(engine, run, settings, prepared, output, ranks)
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
        progress.say(
            f"{format_table(summarize(runs), best)}\n{output}: results.json, predictions, and the "
            f"best model in {output / 'best'}"
        )


def train_run(
    recipe: Recipe,
    settings: FinetuneSettings,
    prepared: Prepared,
    ranks: Ranks,
    progress: SearchProgress,
) -> tuple[Any, Run]:
    """Trains and measures; the engine, whose module is the trained model, and the run's facts."""
    model = begin_model(prepared, recipe.seed)
    began, losses = time.monotonic(), list[float]()

    def report(loss: float) -> None:
        losses.append(loss)
        progress.advance(loss)

    engine = train_task(model, prepared.train_items, recipe, settings, ranks, report)
    seconds = time.monotonic() - began
    metrics = {
        file.name: measure(engine.module, file, prepared, settings, ranks)
        for file in prepared.validation
    }
    tokens = recipe.epochs * sum(file.facts["tokens"] for file in prepared.train)
    file, metric = prepared.validation[0].name, prepared.task.main_metric
    progress.say(f"{recipe.name}: {file} {metric} {metrics[file][metric]:.4f}")
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
    model: BertForTask,
    file: DataFile,
    prepared: Prepared,
    settings: FinetuneSettings,
    ranks: Ranks,
) -> Any:
    """Metrics of a model's predictions for a file."""
    predictions = predict(model, file, prepared, settings, ranks)
    return prepared.task.score(file.examples, predictions)


def predict(
    model: BertForTask,
    file: DataFile,
    prepared: Prepared,
    settings: FinetuneSettings,
    ranks: Ranks,
) -> list[Any]:
    """A prediction for each example of a file."""
    outputs = predict_items(model, file.items, settings.micro_tokens, ranks)
    return prepared.task.decode(file.examples, file.items, outputs, prepared.head.labels)


def _keep_best(
    engine: Any,
    run: Run,
    settings: FinetuneSettings,
    prepared: Prepared,
    output: Path,
    ranks: Ranks,
) -> None:
    """Writes the model that is the best so far, and its predictions."""
    state = dict(iterate_weights(engine, ranks))
    if ranks.rank == 0:
        _export(state, run, settings, prepared, output / "best")
    tuned = run["metrics"][prepared.validation[0].name]
    for file in [*prepared.validation, *prepared.test]:
        predictions = predict(engine.module, file, prepared, settings, ranks)
        if ranks.rank == 0:
            contents = prepared.task.prediction_files(file.path, file.examples, predictions, tuned)
            write_predictions(output, file.name, contents)


def write_predictions(output: Path, file_name: str, contents: dict[str, str]) -> Path:
    """Writes what a model says of one file of data to a folder of that name, which is returned."""
    folder = output / "predictions" / file_name
    for name, text in contents.items():
        replace_file(folder / name, text.encode())
    return folder


def _export(
    state: Any, run: Run, settings: FinetuneSettings, prepared: Prepared, folder: Path
) -> None:
    facts = {
        "task": settings.task,
        "run": run["name"],
        "seq_len": settings.seq_len,
        "metrics": run["metrics"],
    }
    provenance = {**prepared.opened.provenance, "finetuned": facts}
    if isinstance(prepared.task, OwnModel):
        write_export(prepared.task.model_files(state, prepared.head, provenance), str(folder))
        return
    export_hf(
        state,
        prepared.opened.config,
        prepared.vocab.to_text().encode(),
        str(folder),
        lower_case=prepared.opened.lower_case,
        provenance=provenance,
        head=prepared.head,
    )
