"""`python -m trainer predict`: what a fine-tuned model says of files without labels, one by one.

All ranks call everything and share each file's items; rank 0 writes and prints.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from trainer.finetune.prepare import (
    check_kind,
    check_names,
    check_positions,
    encode_file,
    start_model,
)
from trainer.finetune.run import write_predictions
from trainer.finetune.settings import FinetuneSettings, PredictSettings
from trainer.finetune.task import OwnModel
from trainer.finetune.tasks import open_task
from trainer.finetune.text import TextEncoder
from trainer.finetune.training import predict_items
from trainer.inference.open_model import OpenedModel, open_model
from trainer.process.ranks import Ranks, start_ranks, stop_ranks, together


def predict(settings: PredictSettings, remainder: object = None) -> None:
    """Writes predictions for every file."""
    assert not remainder, "the command line passes nothing after --"
    check_names(settings.input)
    ranks = start_ranks()
    try:
        _predict_on(ranks, settings)
    finally:
        stop_ranks()


def _predict_on(ranks: Ranks, settings: PredictSettings) -> None:
    with together(ranks):
        opened = open_model(settings.model)
        asked = _as_finetuned(settings, opened)
        task = open_task(asked)
        if isinstance(task, OwnModel):
            advice = "predicts within finetune alone; give its files there as --test"
            raise ValueError(f"task {asked.task} {advice}")  # noqa: TRY004
        head = check_kind(opened, task.kind)
        check_positions(asked.seq_len, opened)
        encoder = TextEncoder(opened.vocabulary(), opened.lower_case, asked.seq_len)
    # Of the first validation file, with the thresholds that were tuned there.
    finetuned = opened.provenance.get("finetuned", {}).get("metrics", {})
    tuned: dict[str, float] = next(iter(finetuned.values()), {})
    model = start_model(opened, opened.config, head, 0, keeps_head=True)
    model.to(ranks.device, torch.bfloat16 if asked.precision == "bf16" else torch.float32)
    for path in tqdm(settings.input, unit="file", disable=None if ranks.rank == 0 else True):
        with together(ranks):
            file = encode_file(task, path, "test", task.read(path, "test"), head, encoder)
        outputs = predict_items(model, file.items, asked.micro_tokens, ranks)
        with together(ranks):
            if ranks.rank == 0:
                predictions = task.decode(file.examples, file.items, outputs, head.labels)
                contents = task.prediction_files(path, file.examples, predictions, tuned)
                folder = write_predictions(Path(settings.output), file.name, contents)
                rows = f"{len(predictions):,} rows{_describe_cut(file.facts)}"
                tqdm.write(f"{folder}: {', '.join(contents)}, {rows}")


def _as_finetuned(settings: PredictSettings, opened: OpenedModel) -> FinetuneSettings:
    """Those of a fine-tuning: what is given, then what the model says of itself, then defaults."""
    facts = opened.provenance.get("finetuned", {})
    task = settings.task or facts.get("task")
    if task is None:
        says = "does not say which task it was fine-tuned on; give --task"
        raise ValueError(f"{opened.where} {says}")
    names = {field.name for field in dataclasses.fields(FinetuneSettings)} - {"seq_len"}
    given = {name: value for name, value in vars(settings).items() if name in names}
    if seq_len := settings.seq_len or facts.get("seq_len"):
        given["seq_len"] = seq_len
    return FinetuneSettings(**given | {"task": task, "train": [], "validation": []})


def _describe_cut(facts: Mapping[str, Any]) -> str:
    """What was left out or cut, where anything was."""
    others = ("file", "sha256", "examples", "items", "tokens")
    cut = {name: value for name, value in facts.items() if name not in others and value}
    return "".join(f", {value} {name.replace('_', ' ')}" for name, value in cut.items())
