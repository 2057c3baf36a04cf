"""What the settings ask of a model before an engine is built around it."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

from trainer.checkpoints.read import read_weights
from trainer.conversion.initial_weights import extend_rows, read_initial_weights, resolve_model
from trainer.model.bert import BertForPreTraining, compile_model
from trainer.model.config import BertConfig
from trainer.pretrain.objectives import freeze_unused
from trainer.settings import PretrainSettings

# What does not change weights or what they mean.
_FREE_FIELDS = ("hidden_dropout", "attention_dropout", "initializer_range", "attention_backend")


def prepare_model(
    model: BertForPreTraining, settings: PretrainSettings, checkpoint: Path | None, vocabulary: Path
) -> Iterator[str]:
    """Freezes, fills and compiles the model as asked; says which weights came from elsewhere.

    The checkpoint is the one that the run continues from, whose partitions are read later; None for
    a new run. `vocabulary` is vocab.txt of the run.
    """
    freeze_unused(model, settings.objective)
    model.bert.recompute_layers = settings.activation_checkpointing
    frozen = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
    if checkpoint is not None and frozen:
        # No optimizer has them, so they are in no fragment.
        weights = read_weights(checkpoint)
        if lacking := ", ".join(sorted(frozen - weights.keys())[:3]):
            raise ValueError(f"{checkpoint} does not hold {lacking}; it is of another model")
        model.load_state_dict({name: weights[name].float() for name in frozen}, strict=False)
    elif checkpoint is None and settings.init_from is not None:
        yield from _start_from(resolve_model(settings.init_from), model, vocabulary)
    if settings.compile:
        compile_model(model)


def _start_from(folder: str, model: BertForPreTraining, vocabulary: Path) -> Iterator[str]:
    found, num_new = read_initial_weights(folder), 0
    if found.vocab is not None:
        found, num_new = extend_rows(found, vocabulary.read_bytes(), folder)
    _check_config(found.config, model.config, folder)
    missing = model.load_state_dict(found.state, strict=False).missing_keys
    yield f"weights are those of {folder}"
    if num_new:
        yield f"  {num_new:,} pieces are new to it: each begins as the mean of the old pieces that it was cut into"
    if missing:
        yield f"  it lacks {', '.join(sorted(missing))}, which begin as new"
    if found.vocab is None:
        yield "  it has no vocab.txt: nothing but the size says that its vocabulary is the dataset's"


def _check_config(found: BertConfig, expected: BertConfig, folder: str) -> None:
    """Refuses weights of another model by the name of the setting that would fit them."""
    theirs, ours = dataclasses.asdict(found), dataclasses.asdict(expected)
    wrong = [
        f"{name} {value} (this run: {ours[name]})"
        for name, value in theirs.items()
        if name not in _FREE_FIELDS and value != ours[name]
    ]
    if wrong:
        raise ValueError(
            f"{folder} has {', '.join(wrong)}; choose the model preset and overrides that fit it, the dataset for "
            "vocab_size, and objective for is_causal"
        )
