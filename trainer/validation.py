"""Validation loss: the same instances at every measurement, each counted once whatever the number of ranks."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed

from pipeline.shards.dataset import Dataset
from trainer.engine import forward_sums, stack_sums
from trainer.metrics import loss_columns, unigram_entropy
from trainer.ranks import Ranks
from trainer.settings import PretrainSettings
from trainer.stream.held_out import iterate_validation
from trainer.stream.packing import MicroBatch


@dataclass(frozen=True)
class ValidationSet:
    """The first instances of the validation split's first pass.

    Attributes:
        micro_batches: This rank's share.
        instances: Of all ranks.
        masked: Masked positions of all ranks.
        unigram_entropy: Of the text of all ranks, in nats; see `trainer.metrics`.
    """

    micro_batches: list[MicroBatch]
    instances: int
    masked: int
    unigram_entropy: float


def load_validation_set(
    dataset: Dataset, seq_len: int, settings: PretrainSettings, ranks: Ranks
) -> ValidationSet | None:
    """Reads this rank's share into memory, or None where the dataset was built without validation documents.

    The builder holds the split to some 1.3 M tokens, 24 bytes each in here.
    """
    sizes = {group.split: group.instances for group in dataset.manifest.groups if group.seq_len == seq_len}
    if "validation" not in sizes:
        return None
    instances = min(sizes["validation"], settings.validation.num_instances or sizes["validation"])
    share = iterate_validation(
        dataset,
        seq_len,
        rank=ranks.rank,
        world_size=ranks.world_size,
        micro_tokens=settings.micro_tokens,
        max_instances=instances,
    )
    micro_batches = list(share)
    masked = torch.tensor(sum(len(batch.masked_labels) for batch in micro_batches))
    torch.distributed.all_reduce(masked, group=ranks.counts_group)
    entropy = unigram_entropy(_count_text(micro_batches, dataset, ranks))
    return ValidationSet(micro_batches, instances, int(masked), entropy)


@torch.no_grad()
def validate(engine: Any, validation_set: ValidationSet, ranks: Ranks) -> dict[str, float]:
    """Losses and accuracies over the whole set, without dropout, beside its entropy; equal on all ranks."""
    model = engine.module
    model.eval()
    totals = torch.zeros(4, dtype=torch.float64, device=ranks.device)
    for batch in validation_set.micro_batches:
        totals += stack_sums(forward_sums(model, batch, ranks.device))
    model.train()
    torch.distributed.all_reduce(totals)
    columns = loss_columns(totals.tolist(), validation_set.masked, validation_set.instances)
    return {**columns, "unigram_entropy": validation_set.unigram_entropy}


def _count_text(batches: Sequence[MicroBatch], dataset: Dataset, ranks: Ranks) -> npt.NDArray[np.int64]:
    """How often each token [V] stands in the text as it was before masking, over all ranks; no [CLS], [SEP]."""
    counts_V = torch.zeros(dataset.manifest.vocab_size, dtype=torch.int64)
    for batch in batches:
        text_T = batch.input_ids.index_copy(0, batch.masked_positions, batch.masked_labels)
        counts_V += torch.bincount(text_T, minlength=len(counts_V))
    special = dataset.manifest.special_ids
    counts_V[[special["cls"], special["sep"]]] = 0
    torch.distributed.all_reduce(counts_V, group=ranks.counts_group)
    return counts_V.numpy()
