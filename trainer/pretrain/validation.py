"""Measures the validation loss, always on the same instances, with any number of ranks."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed
from torch import Tensor

from pipeline.shards.growing import WaitPolicy, wait_for_pass
from trainer.engine.train_step import forward_sums
from trainer.engine.zero import current_model
from trainer.model.bert import name_sums, stack_sums, zero_sums
from trainer.pretrain.objectives import WITH_NSP, count_text, prepare_micro_batch
from trainer.process.ranks import Ranks, together
from trainer.runs.metrics import loss_columns, majority_share, unigram_entropy
from trainer.settings import PretrainSettings
from trainer.stream.batches.pack import MicroBatch, empty_micro_batch
from trainer.stream.held_out import iterate_validation
from trainer.stream.order.source import Mixture, WeightedDataset
from trainer.stream.reading.settings import Reading


@dataclass(frozen=True)
class ValidationSet:
    """This rank's share of the validation instances of one dataset.

    Attributes:
        name: Name of the dataset in the mixture.
        weight: Weight of the dataset in the mixture.
        micro_batches: This rank's instances; every rank has the same number of micro-batches.
        facts: Columns of metrics.jsonl that depend on the instances of all ranks and not on the
            model: the entropy of the text's tokens, the share of the more frequent NSP answer (only
            if NSP is trained), and the numbers of instances and masked tokens.
    """

    name: str
    weight: int
    micro_batches: list[MicroBatch]
    facts: dict[str, Any]


def load_validation_sets(
    mixture: Mixture,
    seq_len: int,
    settings: PretrainSettings,
    ranks: Ranks,
    wait: WaitPolicy,
    say: Callable[[str], None],
) -> list[ValidationSet]:
    """Reads this rank's share of the validation instances of every dataset that has some.

    All ranks call this together.

    Args:
        mixture: The datasets. A dataset without validation instances is left out, and named.
        seq_len: The length of the instances.
        settings: The settings of the run.
        ranks: All ranks.
        wait: How long to wait for validation instances that are being built.
        say: Prints a line.

    Raises:
        ValueError: The run should stop at an accuracy, and there are too few instances to
            measure it.
    """
    split = ("validation", seq_len)
    held_out = [
        source
        for source in mixture
        if split in {(group.split, group.seq_len) for group in source.dataset.manifest.groups}
    ]
    if settings.validation.stop_at_mlm_accuracy is not None and not held_out:
        raise ValueError(
            f"no dataset holds out instances of {seq_len} tokens, and "
            "validation.stop_at_mlm_accuracy ends the run by an accuracy on them; build with "
            "documents held out, or leave this setting out"
        )
    names = {source.name for source in held_out}
    missing = ", ".join(source.name for source in mixture if source.name not in names)
    if missing:
        say(f"no validation loss of {missing}: no documents are held out at {seq_len} tokens")
    with together(ranks):
        for source in held_out:
            wait_for_pass(source.dataset, "validation", seq_len, 0, wait)
    return [_load(source, seq_len, settings, ranks) for source in held_out]


def _load(
    source: WeightedDataset, seq_len: int, settings: PretrainSettings, ranks: Ranks
) -> ValidationSet:
    """Reads this rank's share of the validation instances of one dataset.

    All ranks call this together, because it adds up numbers over the ranks.

    Raises:
        ValueError: The run is set to stop at an accuracy, and there are too few instances to
            measure it.
    """
    dataset = source.dataset
    size = sum(shard.instances for shard in dataset.shards("validation", seq_len, 0))
    requested = settings.validation.num_instances or size
    if settings.validation.stop_at_mlm_accuracy is not None and size < requested:
        raise ValueError(
            f"{dataset.url} holds out {size} instances of {seq_len} tokens, "
            f"validation.num_instances is {requested} and the run stops at an accuracy on all of"
            " them; build with more --validation_tokens (and --validation_fraction), or ask for"
            " fewer"
        )
    instances = min(size, requested)
    share = iterate_validation(
        dataset,
        seq_len,
        rank=ranks.rank,
        world_size=ranks.world_size,
        micro_tokens=settings.micro_tokens,
        max_instances=instances,
        reading=Reading(cache_dir=settings.cache_dir, cache_bytes=settings.cache_bytes),
    )
    stored_batches = list(share)
    micro_batches = [prepare_micro_batch(batch, settings.objective) for batch in stored_batches]
    num_masked = sum(len(batch.masked_labels) for batch in micro_batches)
    num_random = sum(int(batch.is_random_next.sum()) for batch in stored_batches)
    counts_of_ranks = ranks.gather((num_masked, num_random, len(stored_batches)))
    masked_of_ranks, random_of_ranks, batches_of_ranks = zip(*counts_of_ranks, strict=True)
    # Under ZeRO-3 all ranks make a forward pass together, so they need the same number of batches.
    micro_batches += [empty_micro_batch()] * (max(batches_of_ranks) - len(stored_batches))

    text_V = torch.zeros(dataset.manifest.vocab_size, dtype=torch.int64)
    for batch in stored_batches:
        text_V += count_text(batch, dataset)
    torch.distributed.all_reduce(text_V, group=ranks.counts_group)
    facts: dict[str, Any] = {"unigram_entropy": unigram_entropy(text_V.numpy())}
    if settings.objective == WITH_NSP:
        facts["nsp_majority_share"] = majority_share(sum(random_of_ranks), instances)
    facts |= {"instances": instances, "masked": sum(masked_of_ranks)}
    return ValidationSet(source.name, source.weight, micro_batches, facts)


@torch.no_grad()
def validate(engine: Any, validation_set: ValidationSet, ranks: Ranks) -> dict[str, float]:
    """Measures losses and accuracies over the validation instances of one dataset.

    All ranks call this together.

    Args:
        engine: DeepSpeed's engine around the model.
        validation_set: This rank's share of the instances.
        ranks: All ranks.

    Returns:
        Columns of metrics.jsonl, the same on every rank: those of `loss_columns`, and those in
        `validation_set.facts`.
    """
    model = current_model(engine)
    model.eval()
    totals = sum_losses(model, validation_set.micro_batches, ranks.device)
    model.train()
    torch.distributed.all_reduce(totals)
    facts = validation_set.facts
    has_nsp = "nsp_majority_share" in facts
    return loss_columns(name_sums(totals), facts["masked"], facts["instances"], has_nsp) | facts


def sum_losses(model: Any, batches: Sequence[MicroBatch], device: torch.device) -> Tensor:
    """Returns a model's sums of losses and right answers over micro-batches.

    They are a float64 tensor in the order of the fields of `PretrainingSums`.
    """
    totals = zero_sums(device)
    for batch in batches:
        totals += stack_sums(forward_sums(model, batch, device))
    return totals


def measure(
    engine: Any, sets: Sequence[ValidationSet], ranks: Ranks, step: int
) -> tuple[dict[str, Any], list[str]]:
    """Measures the model on all datasets; all ranks call this together.

    Args:
        engine: DeepSpeed's engine around the model.
        sets: The validation sets, at least one.
        ranks: All ranks.
        step: Number of steps made.

    Returns:
        A row of metrics.jsonl, and lines of output.
    """
    columns_of = {held_out.name: validate(engine, held_out, ranks) for held_out in sets}
    row = {"step": step, "split": "validation", **join_columns(columns_of, sets)}
    lines = [f"step {step}: {format_validation(row)}"]
    if len(columns_of) > 1:
        row["datasets"] = columns_of
        lines += [f"  {name}: {format_validation(columns)}" for name, columns in columns_of.items()]
    return row, lines


def join_columns(
    parts: Mapping[str, Mapping[str, float]], sets: Sequence[ValidationSet]
) -> dict[str, Any]:
    """Returns the columns of a mixture: weighted means of measures, and sums of counts.

    A measure is left out if some dataset does not have it, because the mean over the other datasets
    would not describe the mixture.

    Args:
        parts: The columns of each dataset, by its name.
        sets: The validation sets, which have the weights.
    """
    first = parts[sets[0].name]
    if len(sets) == 1:
        return dict(first)
    total_weight = sum(held_out.weight for held_out in sets)
    joined = {
        key: sum(held_out.weight * parts[held_out.name][key] for held_out in sets) / total_weight
        for key in first
        if all(key in columns for columns in parts.values())
    }
    for key in ("instances", "masked"):
        joined[key] = sum(columns[key] for columns in parts.values())
    return joined


def format_validation(columns: Mapping[str, Any]) -> str:
    """Returns the measures of a validation as one line of output.

    Args:
        columns: The columns of a row of metrics.jsonl whose split is "validation", or those of one
            dataset of it. The columns of next-sentence prediction may be missing.
    """
    line = (
        f"validation MLM loss {columns['mlm_loss']:.3f} nats (unigram entropy of the text "
        f"{columns['unigram_entropy']:.3f}), accuracy {columns['mlm_accuracy']:.3f}"
    )
    if "nsp_accuracy" in columns:
        constant = f"constant answer {columns['nsp_majority_share']:.3f}"
        line += f"; NSP accuracy {columns['nsp_accuracy']:.3f} ({constant})"
    return line
