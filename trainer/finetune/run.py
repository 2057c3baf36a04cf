"""`python -m trainer finetune`, which keeps the best model of a search, and `predict`.

All ranks call everything and share the items of each file; rank 0 writes and prints.
"""

import contextlib
import dataclasses
import gc
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from pipeline.storage.local import make_folder, replace_file
from pipeline.storage.terminal import say
from trainer.conversion.export import export_hf, write_export
from trainer.engine.zero import iterate_weights
from trainer.finetune import results
from trainer.finetune.batches import Recipe
from trainer.finetune.prepare import DataFile, Prepared, begin_model, describe_losses, prepare_data
from trainer.finetune.settings import FinetuneSettings, PredictSettings, check_settings
from trainer.finetune.task import Metrics, OwnModel
from trainer.finetune.training import predict_items, train_task
from trainer.inference.open_model import OpenedModel, open_model
from trainer.model.task_heads import BertForTask
from trainer.process.ranks import Ranks, start_ranks, stop_ranks, together
from trainer.process.stopping import LauncherWatch
from trainer.runs.continuing import lock_folder
from trainer.runs.json_files import to_json
from trainer.watch.terminal import StepCount


def finetune(settings: FinetuneSettings, _remainder: object = None) -> None:
    """Fine-tunes, or goes on with, what the settings ask for."""
    check_settings(settings)
    LauncherWatch()
    ranks = start_ranks()
    try:
        finetune_on(ranks, settings)
    finally:
        stop_ranks()


def predict(settings: PredictSettings, _remainder: object = None) -> None:
    """Writes what a fine-tuned model says of files without labels."""
    ranks = start_ranks()
    try:
        with together(ranks):
            opened = open_model(settings.model)
            prepared = prepare_data(_as_finetuned(settings, opened), opened)
        model = begin_model(prepared, seed=0)
        model.to(ranks.device, torch.bfloat16 if settings.precision == "bf16" else torch.float32)
        # Of the first validation file, with the thresholds that were tuned there.
        measured = opened.provenance.get("finetuned", {}).get("metrics", {})
        tuned: Metrics = next(iter(measured.values()), {})
        for file in tqdm(prepared.files["test"], unit="file", disable=ranks.rank > 0 or None):
            _say(_write_predictions(model, file, prepared, tuned, ranks), ranks)
    finally:
        stop_ranks()


def finetune_on(ranks: Ranks, settings: FinetuneSettings) -> None:
    """Fine-tunes by processes that have joined each other; may be called again and again.

    What does not fit raises ValueError or FileExistsError, the same on every rank.
    """
    output = Path(settings.output)
    with contextlib.ExitStack() as stack:
        finished: dict[str, results.Run] = {}
        with together(ranks):
            prepared = prepare_data(settings)
            recipes, made_with = results.list_recipes(settings), results.describe_work(prepared)
            if ranks.rank == 0:
                stack.enter_context(lock_folder(output))
                results.FINETUNING.refuse_foreign(output)
                make_folder(output / "runs")
                finished = results.read_finished(output, recipes, prepared, made_with)
        finished = ranks.from_first(finished)
        left = [recipe for recipe in recipes if recipe.name not in finished]
        num_steps = sum(recipe.num_steps(len(prepared.train_items)) for recipe in left)
        progress = StepCount(num_steps, shown=ranks.rank == 0)
        stack.callback(progress.close)
        were = [f"{len(finished)} of {len(recipes)} runs were finished before"] if finished else []
        for note in [*prepared.notes, *were]:
            _say(note, ranks)
        for recipe in left:
            progress.begin_run(recipe.name)
            engine, run = train_run(recipe, prepared, ranks, progress.advance)
            finished[recipe.name] = run
            runs = [finished[each.name] for each in recipes if each.name in finished]
            if results.best_run(runs, prepared) is run:
                _keep_best(engine, run, prepared, ranks)
            if ranks.rank == 0:
                content = to_json({**run, "made_with": made_with})
                replace_file(output / "runs" / f"{recipe.name}.json", content)
            engine.destroy()
            del engine
            gc.collect()  # engines are cycles: large ones would fill a GPU before they are found
        found = results.make_results(prepared, [finished[recipe.name] for recipe in recipes])
        if ranks.rank == 0:
            replace_file(output / "results.json", to_json(found))
        where = f"{output}: results.json, predictions, and the best model in {output / 'best'}"
        _say(f"{results.format_table(found['settings'], found['best'])}\n{where}", ranks)


def train_run(
    recipe: Recipe, prepared: Prepared, ranks: Ranks, tell_step: Callable[[], object]
) -> tuple[Any, results.Run]:
    """Trains and measures; the engine, whose module is the trained model, and the run's facts."""
    model = begin_model(prepared, recipe.seed)
    began, losses = time.monotonic(), list[float]()

    def report(loss: float) -> None:
        losses.append(loss)
        tell_step()

    engine = train_task(model, prepared.train_items, recipe, prepared.settings, ranks, report)
    seconds = time.monotonic() - began
    measured = prepared.files["validation"]
    metrics = {file.name: measure(engine.module, file, prepared, ranks) for file in measured}
    file, metric = measured[0].name, prepared.task.main_metric
    _say(f"{recipe.name}: {file} {metric} {metrics[file][metric]:.4f}", ranks)
    return engine, {
        "name": recipe.name,
        **dataclasses.asdict(recipe),
        "steps": len(losses),
        "train_loss": statistics.fmean(losses[-(len(losses) // recipe.epochs) :]),
        "metrics": metrics,
        "train_seconds": seconds,
    }


def measure(
    model: BertForTask, file: DataFile, prepared: Prepared, ranks: Ranks
) -> dict[str, float]:
    """Metrics of a model's predictions for a file."""
    return prepared.task.score(file.examples, _predict(model, file, prepared, ranks))


def _predict(model: BertForTask, file: DataFile, prepared: Prepared, ranks: Ranks) -> list[Any]:
    """A prediction for each example of a file."""
    outputs = predict_items(model, file.items, prepared.settings.micro_tokens, ranks)
    return prepared.task.decode(file.examples, file.items, outputs, prepared.head.labels)


def _write_predictions(
    model: BertForTask, file: DataFile, prepared: Prepared, tuned: Metrics, ranks: Ranks
) -> str:
    """Writes OUTPUT/predictions/FILE/; says what is there, and what of the file was cut."""
    predictions = _predict(model, file, prepared, ranks)
    contents = prepared.task.prediction_files(file.path, file.examples, predictions, tuned)
    folder = Path(prepared.settings.output) / "predictions" / file.name
    with together(ranks):
        for name, text in contents.items() if ranks.rank == 0 else ():
            replace_file(folder / name, text.encode())
    others = "".join(f", {each}" for each in describe_losses(file))
    return f"{folder}: {', '.join(contents)}, {len(predictions):,} rows{others}"


def _as_finetuned(settings: PredictSettings, opened: OpenedModel) -> FinetuneSettings:
    """Those of a fine-tuning: what is given, then what the model says of itself, then defaults."""
    facts = opened.provenance.get("finetuned", {})
    task = settings.task or facts.get("task")
    if task is None:
        says = "does not say which task it was fine-tuned on; give --task"
        raise ValueError(f"{opened.where} {says}")
    names = {field.name for field in dataclasses.fields(FinetuneSettings)} - {"seq_len", "task"}
    given = {name: value for name, value in vars(settings).items() if name in names}
    if seq_len := settings.seq_len or facts.get("seq_len"):
        given["seq_len"] = seq_len
    return FinetuneSettings(**given, task=task, train=[], validation=[], test=settings.input)


def _say(text: str, ranks: Ranks) -> None:
    if ranks.rank == 0:
        say(text)


def _keep_best(engine: Any, run: results.Run, prepared: Prepared, ranks: Ranks) -> None:
    """Writes the model that is the best so far, and its predictions."""
    settings, task, opened = prepared.settings, prepared.task, prepared.opened
    best = str(Path(settings.output) / "best")
    state = dict(iterate_weights(engine, ranks))
    facts = {"task": settings.task, "run": run["name"], "seq_len": settings.seq_len}
    provenance = {**opened.provenance, "finetuned": {**facts, "metrics": run["metrics"]}}
    if ranks.rank == 0 and isinstance(task, OwnModel):
        write_export(task.model_files(state, prepared.head, provenance), best)
    elif ranks.rank == 0:
        vocab = opened.vocabulary().to_text().encode()
        known = {"rule": opened.word_rule, "provenance": provenance, "head": prepared.head}
        export_hf(state, opened.config, vocab, best, **known)
    tuned = run["metrics"][prepared.files["validation"][0].name]
    for file in [*prepared.files["validation"], *prepared.files["test"]]:
        _write_predictions(engine.module, file, prepared, tuned, ranks)
