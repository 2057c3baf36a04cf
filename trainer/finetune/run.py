"""Runs the commands `python -m trainer finetune` and `predict`.

`finetune` trains a model with every combination of the searched settings and keeps the best one.
`predict` writes the predictions of a fine-tuned model for files without labels.

All ranks call the functions of this module together. They divide the items of each file among them.
Rank 0 writes files and prints.
"""

import contextlib
import dataclasses
import gc
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import torch
from tqdm import tqdm

from pipeline.storage.local import make_folder, replace_file
from pipeline.storage.terminal import say
from trainer.conversion.export import export_hf, write_export
from trainer.engine.zero import current_model, iterate_weights
from trainer.finetune import results
from trainer.finetune.batches import Recipe
from trainer.finetune.prepare import DataFile, Prepared, begin_model, describe_losses, prepare_data
from trainer.finetune.settings import FinetuneSettings, PredictSettings, check_settings
from trainer.finetune.task import Metrics, OwnModel
from trainer.finetune.training import BF16_STAGE, predict_items, train_task
from trainer.inference.open_model import OpenedModel, open_model
from trainer.model.task_heads import BertForTask
from trainer.process.precision import Precision, default_precision, warn_of_slow_bf16, weakest
from trainer.process.ranks import Ranks, describe_device, start_ranks, stop_ranks, together
from trainer.process.stopping import LauncherWatch
from trainer.runs.continuing import lock_folder
from trainer.runs.json_files import to_json
from trainer.watch.terminal import StepCount


def finetune(settings: FinetuneSettings, _remainder: object = None) -> None:
    """Fine-tunes a model by the settings, or continues an earlier launch of the same command.

    Args:
        settings: The settings of the command.
        _remainder: Not used.

    Raises:
        ValueError: A setting, a file or the model does not fit the task.
        FileExistsError: The output folder holds something else, or another job works in it.
    """
    check_settings(settings)
    LauncherWatch()
    ranks = start_ranks()
    try:
        finetune_on(ranks, settings)
    finally:
        stop_ranks()


def predict(settings: PredictSettings, _remainder: object = None) -> None:
    """Writes the predictions of a fine-tuned model for files without labels.

    Args:
        settings: The settings of the command.
        _remainder: Not used.

    Raises:
        ValueError: A setting, a file or the model does not fit the task.
    """
    ranks = start_ranks()
    try:
        with together(ranks):
            opened = open_model(settings.model, settings.filesystem_options())
            prepared = prepare_data(_as_finetuned(settings, opened), opened)
        model = begin_model(prepared, seed=0)
        precision = prepared.settings.precision
        model.to(ranks.device, torch.bfloat16 if precision == "bf16" else torch.float32)

        # The first validation file is the one whose metrics contain the tuned thresholds.
        metrics_by_file = opened.provenance.get("finetuned", {}).get("metrics", {})
        tuned: Metrics = next(iter(metrics_by_file.values()), {})
        for file in tqdm(prepared.files["test"], unit="file", disable=ranks.rank > 0 or None):
            _say(_write_predictions(model, file, prepared, tuned, ranks), ranks)
    finally:
        stop_ranks()


def finetune_on(ranks: Ranks, settings: FinetuneSettings) -> None:
    """Does the work of `finetune` on ranks that have already joined a process group.

    It may be called several times in one process. If one rank finds a fault in the settings, the
    files or the output folder, all ranks raise an error.

    Raises:
        ValueError: A setting, a file or the model does not fit the task.
        FileExistsError: The output folder holds something else, or another job works in it. Only
            rank 0 looks there, so the other ranks raise it as a ValueError.
    """
    output = Path(settings.output)
    with together(ranks):
        prepared = prepare_data(settings)
    prepared = decide_precision(prepared, ranks)
    with contextlib.ExitStack() as stack:
        finished: dict[str, results.Run] = {}
        with together(ranks):
            recipes = results.list_recipes(settings)
            made_with = results.describe_work(prepared)
            if ranks.rank == 0:
                stack.enter_context(lock_folder(output))
                results.FINETUNING.refuse_foreign(output)
                make_folder(output / "runs")
                finished = results.read_finished(output, recipes, prepared, made_with)
        finished = ranks.from_first(finished)

        unfinished = [recipe for recipe in recipes if recipe.name not in finished]
        num_steps = sum(recipe.num_steps(len(prepared.train_items)) for recipe in unfinished)
        progress = StepCount(num_steps, shown=ranks.rank == 0)
        stack.callback(progress.close)
        for note in prepared.notes:
            _say(note, ranks)
        if finished:
            _say(f"{len(finished)} of {len(recipes)} runs were finished before", ranks)

        for recipe in unfinished:
            progress.begin_run(recipe.name)
            engine, run = train_run(recipe, prepared, ranks, progress.advance)
            finished[recipe.name] = run
            if results.best_run(_in_order(recipes, finished), prepared) is run:
                _keep_best(engine, run, prepared, ranks)
            if ranks.rank == 0:
                content = to_json({**run, "made_with": made_with})
                replace_file(output / "runs" / f"{recipe.name}.json", content)
            engine.destroy()
            del engine
            gc.collect()  # engines are cycles: large ones would fill a GPU before they are found
        _write_results(prepared, _in_order(recipes, finished), ranks)


def decide_precision(prepared: Prepared, ranks: Ranks) -> Prepared:
    """Decides the precision if the user gave none; all ranks call this together.

    It is that of the runs that earlier launches have finished in the output folder. In a new folder
    the device decides, and a line says so if it decides for bf16. A model of the task's own, which
    is small, is trained in fp32.

    Returns:
        `prepared` with the precision in its settings.

    Raises:
        ValueError: A run in the output folder is damaged.
    """
    settings = prepared.settings
    device = weakest(ranks.gather(describe_device(ranks.device)))
    if settings.precision is not None:
        if warning := warn_of_slow_bf16(device, settings.precision):
            _say(warning, ranks)
        return prepared
    begun: Precision | None = None
    with together(ranks):
        if ranks.rank == 0:
            begun = results.find_precision(Path(settings.output))
    begun = ranks.from_first(begun)
    zero_stage = 0 if isinstance(prepared.task, OwnModel) else BF16_STAGE
    precision = begun or default_precision(device, zero_stage)
    if begun is None and precision == "bf16":
        _say(f"{device.name}: fine-tuning in bf16; --precision fp32 does as on a CPU", ranks)
    return dataclasses.replace(
        prepared, settings=dataclasses.replace(settings, precision=precision)
    )


def train_run(
    recipe: Recipe, prepared: Prepared, ranks: Ranks, tell_step: Callable[[], object]
) -> tuple[Any, results.Run]:
    """Trains a model by one recipe and measures it on every validation file.

    Args:
        recipe: The searched settings of this run.
        prepared: The encoded files and the model to begin with.
        ranks: The ranks that train together.
        tell_step: A function that is called after every optimizer step, to show progress.

    Returns:
        The DeepSpeed engine, whose attribute `module` is the trained model; and the finished run as
        it is written to OUTPUT/runs, but without "made_with".
    """
    model = begin_model(prepared, recipe.seed)
    start_time = time.monotonic()
    losses = list[float]()

    def report(loss: float) -> None:
        losses.append(loss)
        tell_step()

    engine = train_task(model, prepared.train_items, recipe, prepared.settings, ranks, report)
    seconds = time.monotonic() - start_time

    validation_files = prepared.files["validation"]
    metrics = {
        file.name: score_file(current_model(engine), file, prepared, ranks)
        for file in validation_files
    }
    file_name = validation_files[0].name
    metric = prepared.task.main_metric
    _say(f"{recipe.name}: {file_name} {metric} {metrics[file_name][metric]:.4f}", ranks)
    last_epoch = losses[-(len(losses) // recipe.epochs) :]
    return engine, {
        "name": recipe.name,
        **dataclasses.asdict(recipe),
        "steps": len(losses),
        "train_loss": statistics.fmean(last_epoch),
        "metrics": metrics,
        "train_seconds": seconds,
    }


def score_file(
    model: BertForTask, file: DataFile, prepared: Prepared, ranks: Ranks
) -> dict[str, float]:
    """Returns the metrics, by name, of a model's predictions for a labelled file."""
    return prepared.task.score(file.examples, _predict(model, file, prepared, ranks))


def _predict(model: BertForTask, file: DataFile, prepared: Prepared, ranks: Ranks) -> list[Any]:
    """Returns a model's prediction for each example of a file."""
    outputs = predict_items(model, file.items, prepared.settings.micro_tokens, ranks)
    return prepared.task.decode(file.examples, file.items, outputs, prepared.head.labels)


def _write_predictions(
    model: BertForTask, file: DataFile, prepared: Prepared, tuned: Metrics, ranks: Ranks
) -> str:
    """Writes a model's predictions for a file to OUTPUT/predictions/FILE/.

    Args:
        model: A model that was trained on the task.
        file: The file whose examples it predicts.
        prepared: The task, the head and the settings.
        tuned: The metrics on the first validation file, with the thresholds tuned there.
        ranks: The ranks that predict together; rank 0 writes.

    Returns:
        A line for people: the folder, the names of its files, the number of predictions, and how
        much of the input was cut.
    """
    predictions = _predict(model, file, prepared, ranks)
    contents = prepared.task.prediction_files(file.path, file.examples, predictions, tuned)
    folder = Path(prepared.settings.output) / "predictions" / file.name
    with together(ranks):
        if ranks.rank == 0:
            for name, text in contents.items():
                replace_file(folder / name, text.encode())
    losses = "".join(f", {loss}" for loss in describe_losses(file))
    return f"{folder}: {', '.join(contents)}, {len(predictions):,} rows{losses}"


def _as_finetuned(settings: PredictSettings, opened: OpenedModel) -> FinetuneSettings:
    """Converts the settings of `predict` to those of `finetune`, with which files are prepared.

    The task, the sequence length and the precision are those of the settings. If the settings do
    not give them, they are those that the model was fine-tuned with, as its config.json records
    them. If there is no record either, the sequence length is the default of `finetune`, and the
    precision is fp32.

    Raises:
        ValueError: Neither a flag nor the model names the task, or the model names a precision that
            does not exist.
    """
    record = opened.provenance.get("finetuned", {})
    task = settings.task or record.get("task")
    if task is None:
        says = "does not say which task it was fine-tuned on; give --task"
        raise ValueError(f"{opened.where} {says}")
    names = {field.name for field in dataclasses.fields(FinetuneSettings)} - {"seq_len", "task"}
    values = {name: value for name, value in vars(settings).items() if name in names}
    seq_len = settings.seq_len or record.get("seq_len")
    if seq_len:
        values["seq_len"] = seq_len
    # Models of earlier versions have no record of it, and fp32 was the default.
    precision = settings.precision or record.get("precision", "fp32")
    if precision not in get_args(Precision):
        says = f"says that it was fine-tuned in {precision!r}, expected fp32 or bf16"
        raise ValueError(f"{opened.where} {says}; give --precision")
    values["precision"] = precision
    return FinetuneSettings(**values, task=task, train=[], validation=[], test=settings.input)


def _in_order(recipes: Sequence[Recipe], finished: Mapping[str, results.Run]) -> list[results.Run]:
    """Returns the finished runs in the order of the recipes.

    If several runs have equal metrics, the first one counts as the best. Therefore the order must
    not depend on which of them an earlier launch finished.

    Args:
        recipes: The runs of the search, in order.
        finished: The finished runs by name. They may be fewer than the recipes.
    """
    return [finished[recipe.name] for recipe in recipes if recipe.name in finished]


def _write_results(prepared: Prepared, runs: Sequence[results.Run], ranks: Ranks) -> None:
    """Writes OUTPUT/results.json and prints a table of the search.

    Args:
        prepared: The settings, the task and the files.
        runs: All finished runs, in the order of the recipes.
        ranks: The ranks; rank 0 writes and prints.
    """
    output = Path(prepared.settings.output)
    content = results.make_results(prepared, runs)
    if ranks.rank == 0:
        replace_file(output / "results.json", to_json(content))
    table = results.format_table(content["settings"], content["best"])
    where = f"{output}: results.json, predictions, and the best model in {output / 'best'}"
    _say(f"{table}\n{where}", ranks)


def _say(text: str, ranks: Ranks) -> None:
    """Prints a line on rank 0."""
    if ranks.rank == 0:
        say(text)


def _keep_best(engine: Any, run: results.Run, prepared: Prepared, ranks: Ranks) -> None:
    """Writes the model of the best run so far to OUTPUT/best, and the predictions that it makes.

    Both replace those of the run that was the best before. Predictions for all validation and test
    files are written to OUTPUT/predictions.

    Args:
        engine: The DeepSpeed engine with the model.
        run: The facts of the run, as `train_run` returns them.
        prepared: The files, the task and the head.
        ranks: The ranks, all of which call this function; rank 0 writes.
    """
    settings = prepared.settings
    task = prepared.task
    opened = prepared.opened
    best = str(Path(settings.output) / "best")
    state = dict(iterate_weights(engine, ranks))
    record = {"task": settings.task, "run": run["name"], "seq_len": settings.seq_len}
    record["precision"] = settings.precision
    provenance = {**opened.provenance, "finetuned": {**record, "metrics": run["metrics"]}}
    if ranks.rank == 0 and isinstance(task, OwnModel):
        write_export(task.model_files(state, prepared.head, provenance), best)
    elif ranks.rank == 0:
        vocab = opened.vocabulary().to_text().encode()
        export_hf(
            state,
            opened.config,
            vocab,
            best,
            rule=opened.word_rule,
            provenance=provenance,
            head=prepared.head,
        )

    tuned = run["metrics"][prepared.files["validation"][0].name]
    for file in [*prepared.files["validation"], *prepared.files["test"]]:
        _write_predictions(current_model(engine), file, prepared, tuned, ranks)
