"""`python -m trainer predict`: what a fine-tuned model says of files that have no labels, one file after another.

All ranks call everything and share each file's items; rank 0 writes and prints.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from trainer.finetune.output import OutputFolder
from trainer.finetune.prepare import check_names, check_positions, encode_file
from trainer.finetune.settings import FinetuneSettings, PredictSettings, check_lengths
from trainer.finetune.start import check_kind, read_vocabulary, start_model
from trainer.finetune.task import OwnModel
from trainer.finetune.tasks import open_task
from trainer.finetune.text import TextEncoder
from trainer.finetune.training import predict_items
from trainer.inference.open_model import OpenedModel, open_model
from trainer.process.ranks import start_ranks, stop_ranks, together

_SEQ_LEN = 128
"""Sequence length for models of others, as fine-tuning has it by default."""


def predict(settings: PredictSettings, remainder: object = None) -> None:
    """Writes predictions for every file.

    Raises:
        ValueError: The model has no head, or one for another task; or a file is malformed.
        FileNotFoundError: No such file or model.
    """
    assert not remainder, "the command line passes nothing after --"
    check_names(settings.input)
    ranks = start_ranks()
    try:
        with together(ranks):
            opened = open_model(settings.model)
            asked = _as_finetuned(settings, opened)
            task = open_task(asked)
            has_own_model = isinstance(task, OwnModel)
            if has_own_model:
                raise ValueError(
                    f"task {asked.task} predicts within finetune alone; give its files there as --test"
                )
            head = check_kind(opened, task.kind)
            check_positions(asked.seq_len, opened)
            lower_case = opened.lower_case if asked.lower_case is None else asked.lower_case
            encoder = TextEncoder(read_vocabulary(opened), lower_case, asked.seq_len)
        model, _ = start_model(opened, opened.config, head, 0, keeps_head=True)
        model.to(ranks.device, torch.bfloat16 if asked.precision == "bf16" else torch.float32)
        output, metrics = OutputFolder(Path(settings.output)), _tuned(opened)
        for path in tqdm(settings.input, unit="file", disable=None if ranks.rank == 0 else True):
            with together(ranks):
                file = encode_file(task, path, "test", task.read(path, "test"), head, encoder)
            outputs = predict_items(model, file.items, asked.micro_tokens, ranks)
            with together(ranks):
                if ranks.rank == 0:
                    predictions = task.decode(file.examples, file.items, outputs, head.labels)
                    contents = task.prediction_files(path, file.examples, predictions, metrics)
                    output.write_predictions(file.name, contents)
                    cut = "".join(
                        f", {number} {name.replace('_', ' ')}"
                        for name, number in _cut(file.facts).items()
                    )
                    tqdm.write(
                        f"{output.predictions / file.name}: {', '.join(contents)}, {len(predictions):,} rows{cut}"
                    )
    finally:
        stop_ranks()


def _as_finetuned(settings: PredictSettings, opened: OpenedModel) -> FinetuneSettings:
    """The settings of a fine-tuning that has come to its predictions: those given, then what the model says of itself.

    Raises:
        ValueError: The model does not say its task, or numbers make no sense.
    """
    facts = opened.provenance.get("finetuned", {})
    task = settings.task or facts.get("task")
    if task is None:
        raise ValueError(
            f"{opened.where} does not say which task it was fine-tuned on; give --task"
        )
    names = {field.name for field in dataclasses.fields(FinetuneSettings)}
    given = {name: value for name, value in vars(settings).items() if name in names}
    seq_len = settings.seq_len or facts.get("seq_len") or _SEQ_LEN
    asked = FinetuneSettings(
        **{**given, "task": task, "seq_len": seq_len, "train": [], "validation": []}
    )
    check_lengths(asked)
    return asked


def _tuned(opened: OpenedModel) -> Mapping[str, float]:
    """Metrics of the first validation file, with the thresholds that were tuned there."""
    metrics: dict[str, Any] = opened.provenance.get("finetuned", {}).get("metrics", {})
    return next(iter(metrics.values()), {})


def _cut(facts: Mapping[str, Any]) -> dict[str, int]:
    """What was left out or cut, where anything was."""
    others = ("file", "sha256", "examples", "items", "tokens")
    return {name: value for name, value in facts.items() if name not in others and value}
