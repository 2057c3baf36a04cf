"""Validation loss of the same instances each time, whatever the number of ranks."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed
from torch import Tensor

from pipeline.shards.growing import WaitPolicy, wait_for_pass
from trainer.engine.train_step import forward_sums, stack_sums
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
    """The first instances of the validation split's first pass of one dataset, this rank's share.

    `facts` are columns of all ranks: what guesses reach (`trainer.runs.metrics`) and counts.
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
    """Reads this rank's shares into memory; datasets may hold none out."""
    split = "validation", seq_len
    held_out = [
        each
        for each in mixture
        if split in {(group.split, group.seq_len) for group in each.dataset.manifest.groups}
    ]
    if settings.validation.stop_at_mlm_accuracy is not None and not held_out:
        raise ValueError(
            f"no dataset holds out instances of {seq_len} tokens, and "
            "validation.stop_at_mlm_accuracy ends the run by an accuracy on them; build with "
            "documents held out, or leave it away"
        )
    found = {each.name for each in held_out}
    if missing := ", ".join(each.name for each in mixture if each.name not in found):
        say(f"no validation loss of {missing}: no documents are held out at {seq_len} tokens")
    with together(ranks):
        for each in held_out:
            wait_for_pass(each.dataset, *split, 0, wait)
    return [_load(each, seq_len, settings, ranks) for each in held_out]


def _load(
    source: WeightedDataset, seq_len: int, settings: PretrainSettings, ranks: Ranks
) -> ValidationSet:
    dataset = source.dataset
    size = sum(shard.instances for shard in dataset.shards("validation", seq_len, 0))
    wanted = settings.validation.num_instances or size
    if settings.validation.stop_at_mlm_accuracy is not None and size < wanted:
        raise ValueError(
            f"{dataset.url} holds out {size} instances of {seq_len} tokens, "
            f"validation.num_instances is {wanted} and the run stops at an accuracy on all of them;"
            " build with more --validation_tokens (and --validation_fraction), or ask for fewer"
        )
    instances = min(size, wanted)
    share = iterate_validation(
        dataset,
        seq_len,
        rank=ranks.rank,
        world_size=ranks.world_size,
        micro_tokens=settings.micro_tokens,
        max_instances=instances,
        reading=Reading(cache_dir=settings.cache_dir, cache_bytes=settings.cache_bytes),
    )
    read = list(share)
    micro_batches = [prepare_micro_batch(batch, settings.objective) for batch in read]
    masked = sum(len(batch.masked_labels) for batch in micro_batches)
    num_random = sum(int(batch.is_random_next.sum()) for batch in read)
    counts = list(zip(*ranks.gather((masked, num_random, len(read))), strict=True))
    # Under ZeRO-3 a forward pass is a collective: every rank makes as many.
    micro_batches += [empty_micro_batch()] * (max(counts[2]) - len(read))
    text_V = torch.zeros(dataset.manifest.vocab_size, dtype=torch.int64)
    for batch in read:
        text_V += count_text(batch, dataset)
    torch.distributed.all_reduce(text_V, group=ranks.counts_group)
    facts: dict[str, Any] = {"unigram_entropy": unigram_entropy(text_V.numpy())}
    if settings.objective == WITH_NSP:
        facts["nsp_majority_share"] = majority_share(sum(counts[1]), instances)
    facts |= {"instances": instances, "masked": sum(counts[0])}
    return ValidationSet(source.name, source.weight, micro_batches, facts)


@torch.no_grad()
def validate(engine: Any, validation_set: ValidationSet, ranks: Ranks) -> dict[str, float]:
    """Losses and accuracies over the whole set, beside what guesses reach; equal on all ranks."""
    model = engine.module
    model.eval()
    totals = sum_losses(model, validation_set.micro_batches, ranks.device)
    model.train()
    torch.distributed.all_reduce(totals)
    facts = validation_set.facts
    has_nsp = "nsp_majority_share" in facts
    return loss_columns(totals.tolist(), facts["masked"], facts["instances"], has_nsp) | facts


def sum_losses(model: Any, batches: Sequence[MicroBatch], device: torch.device) -> Tensor:
    """`stack_sums` of all micro-batches."""
    totals = torch.zeros(4, dtype=torch.float64, device=device)
    for batch in batches:
        totals += stack_sums(forward_sums(model, batch, device))
    return totals


def measure(
    engine: Any, sets: Sequence[ValidationSet], ranks: Ranks, step: int
) -> tuple[dict[str, Any], list[str]]:
    """The row of metrics.jsonl after a step, and lines for people."""
    parts = {each.name: validate(engine, each, ranks) for each in sets}
    row = {"step": step, "split": "validation", **join_columns(parts, sets)}
    lines = [f"step {step}: {format_validation(row)}"]
    if len(parts) > 1:
        row["datasets"] = parts
        lines += [f"  {name}: {format_validation(columns)}" for name, columns in parts.items()]
    return row, lines


def join_columns(
    parts: Mapping[str, Mapping[str, float]], sets: Sequence[ValidationSet]
) -> dict[str, Any]:
    """The mixture's columns: means weighted as the datasets are, and sums of what is counted."""
    first, total = parts[sets[0].name], sum(each.weight for each in sets)
    if len(sets) == 1:
        return dict(first)
    means = {
        key: sum(each.weight * parts[each.name][key] for each in sets) / total for key in first
    }
    return means | {k: sum(part[k] for part in parts.values()) for k in ("instances", "masked")}


def format_validation(columns: Mapping[str, Any]) -> str:
    """One line for people."""
    line = (
        f"validation MLM loss {columns['mlm_loss']:.3f} nats (unigram entropy of the text "
        f"{columns['unigram_entropy']:.3f}), accuracy {columns['mlm_accuracy']:.3f}"
    )
    if "nsp_accuracy" in columns:
        constant = f"constant answer {columns['nsp_majority_share']:.3f}"
        line += f"; NSP accuracy {columns['nsp_accuracy']:.3f} ({constant})"
    return line
