"""Validation loss of the same instances each time, whatever the number of ranks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed

from pipeline.shards.dataset import Dataset
from pipeline.shards.growing import WaitPolicy, wait_for_pass
from trainer.batches.pack import MicroBatch, empty_micro_batch
from trainer.engine.train_step import forward_sums, stack_sums
from trainer.order.source import Mixture, WeightedDataset
from trainer.pretrain.objectives import WITH_NSP, prepare_micro_batch, unmasked_text
from trainer.process.ranks import Ranks, together
from trainer.reading.settings import Reading
from trainer.runs.metrics import loss_columns, majority_share, unigram_entropy
from trainer.settings import PretrainSettings
from trainer.stream.held_out import iterate_validation


@dataclass(frozen=True)
class ValidationSet:
    """The first instances of the validation split's first pass of one dataset.

    The micro-batches are this rank's share; what follows is of all ranks. The last two are what
    guesses reach: see `trainer.runs.metrics`.
    """

    name: str
    weight: int
    micro_batches: list[MicroBatch]
    has_nsp: bool
    instances: int
    masked: int
    unigram_entropy: float
    nsp_majority_share: float


def load_validation_sets(
    mixture: Mixture,
    seq_len: int,
    settings: PretrainSettings,
    ranks: Ranks,
    wait_policy: WaitPolicy,
) -> list[ValidationSet]:
    """Reads this rank's shares into memory; datasets built without validation documents have none.

    The builder holds a split to some 1.3 M tokens, 6 bytes each in here.
    """
    held_out = [each for each in mixture if _holds_out(each.dataset, seq_len)]
    if settings.validation.stop_at_mlm_accuracy is not None and not held_out:
        raise ValueError(
            f"no dataset holds out instances of {seq_len} tokens, and validation.stop_at_mlm_accuracy ends the run by "
            "an accuracy on them; build with documents held out, or leave it away"
        )
    with together(ranks):
        for each in held_out:
            wait_for_pass(each.dataset, "validation", seq_len, 0, wait_policy)
    return [_load(each, seq_len, settings, ranks) for each in held_out]


def _holds_out(dataset: Dataset, seq_len: int) -> bool:
    groups = dataset.manifest.groups
    return any((each.split, each.seq_len) == ("validation", seq_len) for each in groups)


def describe_unmeasured(mixture: Mixture, sets: Sequence[ValidationSet], seq_len: int) -> str:
    """Says which datasets have no validation split of a length, if any."""
    found = {each.name for each in sets}
    if missing := [each.name for each in mixture if each.name not in found]:
        names = ", ".join(missing)
        return f"no validation loss of {names}: no documents are held out at {seq_len} tokens"
    return ""


def _load(
    source: WeightedDataset, seq_len: int, settings: PretrainSettings, ranks: Ranks
) -> ValidationSet:
    dataset = source.dataset
    size = sum(shard.instances for shard in dataset.shards("validation", seq_len, 0))
    wanted = settings.validation.num_instances or size
    if settings.validation.stop_at_mlm_accuracy is not None and size < wanted:
        raise ValueError(
            f"{dataset.url} holds out {size} instances of {seq_len} tokens, validation.num_instances is {wanted} and "
            "the run stops at an accuracy on all of them; build with more --validation_tokens (and "
            "--validation_fraction), or ask for fewer"
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
    entropy = unigram_entropy(_count_text(read, dataset, ranks))
    micro_batches = [prepare_micro_batch(batch, settings.objective) for batch in read]
    masked = sum(len(batch.masked_labels) for batch in micro_batches)
    num_random = sum(int(batch.is_random_next.sum()) for batch in read)
    counts = list(zip(*ranks.gather((masked, num_random, len(read))), strict=True))
    # Under ZeRO-3 a forward pass is a collective: every rank makes as many.
    micro_batches += [empty_micro_batch()] * (max(counts[2]) - len(read))
    share_of_guess = majority_share(sum(counts[1]), instances)
    has_nsp, masked = settings.objective == WITH_NSP, sum(counts[0])
    ours = source.name, source.weight, micro_batches, has_nsp
    return ValidationSet(*ours, instances, masked, entropy, share_of_guess)


@torch.no_grad()
def validate(engine: Any, validation_set: ValidationSet, ranks: Ranks) -> dict[str, float]:
    """Losses and accuracies over the whole set, beside what guesses reach; equal on all ranks."""
    model = engine.module
    model.eval()
    totals = torch.zeros(4, dtype=torch.float64, device=ranks.device)
    for batch in validation_set.micro_batches:
        totals += stack_sums(forward_sums(model, batch, ranks.device))
    model.train()
    torch.distributed.all_reduce(totals)
    counts = {"instances": validation_set.instances, "masked": validation_set.masked}
    columns = loss_columns(totals.tolist(), **counts, has_nsp=validation_set.has_nsp)
    columns["unigram_entropy"] = validation_set.unigram_entropy
    if validation_set.has_nsp:
        columns["nsp_majority_share"] = validation_set.nsp_majority_share
    return columns | counts


def join_columns(
    parts: Mapping[str, Mapping[str, float]], sets: Sequence[ValidationSet]
) -> dict[str, Any]:
    """The mixture's columns: means weighted as the datasets are, and sums of what is counted."""
    total = sum(each.weight for each in sets)
    joined = {
        key: sum(each.weight * parts[each.name][key] for each in sets) / total
        for key in parts[sets[0].name]
    }
    for key in ("instances", "masked"):
        joined[key] = sum(part[key] for part in parts.values())
    return dict(parts[sets[0].name]) if len(sets) == 1 else joined


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


def _count_text(
    batches: Sequence[MicroBatch], dataset: Dataset, ranks: Ranks
) -> npt.NDArray[np.int64]:
    """How often each token [V] stands in the unmasked text, over all ranks; no [CLS], [SEP]."""
    counts_V = torch.zeros(dataset.manifest.vocab_size, dtype=torch.int64)
    for batch in batches:
        counts_V += torch.bincount(unmasked_text(batch), minlength=len(counts_V))
    special = dataset.manifest.special_ids
    counts_V[[special["cls"], special["sep"]]] = 0
    torch.distributed.all_reduce(counts_V, group=ranks.counts_group)
    return counts_V.numpy()
