"""Validation loss of the same instances each time, whatever the number of ranks.

Of a mixture, every dataset's split is measured by itself; together they are the mean weighted as
the mixture is.
"""

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
from trainer.runs.metrics import loss_columns, majority_share, unigram_entropy
from trainer.settings import PretrainSettings
from trainer.stream.held_out import iterate_validation


@dataclass(frozen=True)
class ValidationSet:
    """The first instances of the validation split's first pass of one dataset.

    Attributes:
        name: Name of the dataset.
        weight: Weight of the dataset in the mixture.
        micro_batches: This rank's share.
        instances: How many instances all ranks read.
        masked: Masked positions of all ranks.
        unigram_entropy: Entropy of the tokens of all ranks, in nats; see `trainer.runs.metrics`.
        nsp_majority_share: NSP accuracy of a constant answer over the instances of all ranks.
        has_nsp: Whether next sentences are predicted.
    """

    name: str
    weight: int
    micro_batches: list[MicroBatch]
    instances: int
    masked: int
    unigram_entropy: float
    nsp_majority_share: float
    has_nsp: bool = True


def load_validation_sets(
    mixture: Mixture,
    seq_len: int,
    settings: PretrainSettings,
    ranks: Ranks,
    wait_policy: WaitPolicy,
) -> list[ValidationSet]:
    """Reads this rank's shares into memory; datasets built without validation documents have none.

    The builder holds a split to some 1.3 M tokens, 6 bytes each in here.

    Raises:
        FileNotFoundError: The waiting for a build that is still running ended; the same on every
            rank.
        ValueError: The run is to stop at an accuracy, and too few instances are held out for it.
    """
    held_out = [
        each
        for each in mixture
        if ("validation", seq_len)
        in {(group.split, group.seq_len) for group in each.dataset.manifest.groups}
    ]
    if settings.validation.stop_at_mlm_accuracy is not None and not held_out:
        raise ValueError(
            f"no dataset holds out instances of {seq_len} tokens, and validation.stop_at_mlm_accuracy ends the run by "
            "an accuracy on them; build with documents held out, or leave it away"
        )
    with together(ranks):
        for each in held_out:
            wait_for_pass(each.dataset, "validation", seq_len, 0, wait_policy)
    return [_load(each, seq_len, settings, ranks) for each in held_out]


def describe_unmeasured(mixture: Mixture, sets: Sequence[ValidationSet], seq_len: int) -> str:
    """Says which datasets have no validation split of a length, if any."""
    missing = [
        each.name for each in mixture if each.name not in {held_out.name for held_out in sets}
    ]
    if not missing:
        return ""
    return (
        f"no validation loss of {', '.join(missing)}: no documents are held out at {seq_len} tokens"
    )


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
        reading=settings.reading.with_cache(settings.cache_dir, settings.cache_bytes),
    )
    read = list(share)
    entropy = unigram_entropy(_count_text(read, dataset, ranks))
    micro_batches = [prepare_micro_batch(batch, settings.objective) for batch in read]
    counts = torch.tensor(
        [
            sum(len(batch.masked_labels) for batch in micro_batches),
            sum(int(batch.is_random_next.sum()) for batch in read),
        ]
    )
    torch.distributed.all_reduce(counts, group=ranks.counts_group)
    masked, num_random = counts.tolist()
    most = torch.tensor(len(micro_batches))
    torch.distributed.all_reduce(most, torch.distributed.ReduceOp.MAX, group=ranks.counts_group)
    # Under ZeRO-3 a forward pass is a collective: every rank makes as many.
    micro_batches += [empty_micro_batch()] * (int(most) - len(micro_batches))
    return ValidationSet(
        source.name,
        source.weight,
        micro_batches,
        instances,
        masked,
        entropy,
        majority_share(num_random, instances),
        has_nsp=settings.objective == WITH_NSP,
    )


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
    columns = loss_columns(
        totals.tolist(), validation_set.masked, validation_set.instances, validation_set.has_nsp
    )
    guesses = {"unigram_entropy": validation_set.unigram_entropy}
    if validation_set.has_nsp:
        guesses["nsp_majority_share"] = validation_set.nsp_majority_share
    return {
        **columns,
        **guesses,
        "instances": validation_set.instances,
        "masked": validation_set.masked,
    }


def join_columns(
    parts: Mapping[str, Mapping[str, float]], sets: Sequence[ValidationSet]
) -> dict[str, Any]:
    """The mixture's columns: means weighted as the datasets are, and sums of what is counted."""
    if len(sets) == 1:
        return dict(parts[sets[0].name])
    total = sum(each.weight for each in sets)
    means = {
        key: sum(each.weight * parts[each.name][key] for each in sets) / total
        for key in parts[sets[0].name]
    }
    return means | {
        key: sum(parts[each.name][key] for each in sets) for key in ("instances", "masked")
    }


def format_validation(columns: Mapping[str, Any]) -> str:
    """One line for people."""
    return (
        f"validation MLM loss {columns['mlm_loss']:.3f} nats (unigram entropy of the text "
        f"{columns['unigram_entropy']:.3f}), accuracy {columns['mlm_accuracy']:.3f}"
        + (f"; {format_nsp_accuracy(columns)}" if "nsp_accuracy" in columns else "")
    )


def format_nsp_accuracy(columns: Mapping[str, Any]) -> str:
    """The accuracy beside that of a constant answer."""
    return f"NSP accuracy {columns['nsp_accuracy']:.3f} (constant answer {columns['nsp_majority_share']:.3f})"


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
