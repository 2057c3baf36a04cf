"""Validation loss: the same instances at every measurement, each counted once whatever the number of ranks."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed

from pipeline.shards.dataset import Dataset
from trainer.engine import forward_sums, stack_sums
from trainer.metrics import loss_columns, unigram_entropy, unigram_loss
from trainer.ranks import Ranks
from trainer.settings import PretrainSettings
from trainer.stream.step import MicroBatch, StepLoader, iterate_validation

# Training instances whose masked tokens are counted: 1 % of noise in the unigram loss, read in a fraction of a second.
COUNTED_INSTANCES = 20_000


@dataclass(frozen=True)
class ValidationSet:
    """The first instances of the validation split's first pass.

    Attributes:
        micro_batches: This rank's share.
        instances: Of all ranks.
        masked: Masked positions of all ranks.
        baselines: unigram_entropy and unigram_loss of the masked tokens, see `trainer.metrics`.
    """

    micro_batches: list[MicroBatch]
    instances: int
    masked: int
    baselines: dict[str, float]


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
    label_counts_V = _count_labels(micro_batches, dataset, ranks)
    counted = min(sizes["train"], COUNTED_INSTANCES)
    train_counts_V = _count_labels(_first_train_share(dataset, seq_len, counted, settings, ranks), dataset, ranks)
    baselines = {
        "unigram_entropy": unigram_entropy(label_counts_V),
        "unigram_loss": unigram_loss(label_counts_V, train_counts_V),
    }
    return ValidationSet(micro_batches, instances, int(label_counts_V.sum()), baselines)


@torch.no_grad()
def validate(engine: Any, validation_set: ValidationSet, ranks: Ranks) -> dict[str, float]:
    """Losses and accuracies over the whole set, without dropout, and its baselines; equal on all ranks."""
    model = engine.module
    model.eval()
    totals = torch.zeros(4, dtype=torch.float64, device=ranks.device)
    for batch in validation_set.micro_batches:
        totals += stack_sums(forward_sums(model, batch, ranks.device))
    model.train()
    torch.distributed.all_reduce(totals)
    columns = loss_columns(totals.tolist(), validation_set.masked, validation_set.instances)
    return {**columns, **validation_set.baselines}


def _first_train_share(
    dataset: Dataset, seq_len: int, instances: int, settings: PretrainSettings, ranks: Ranks
) -> list[MicroBatch]:
    """This rank's share of the first instances of training, as one large step of the stream."""
    if instances < ranks.world_size:
        return []
    with StepLoader(
        dataset,
        "train",
        seq_len,
        rank=ranks.rank,
        world_size=ranks.world_size,
        global_batch=instances,
        micro_tokens=settings.micro_tokens,
        seed=settings.seed,
    ) as loader:
        return next(loader).micro_batches


def _count_labels(batches: Iterable[MicroBatch], dataset: Dataset, ranks: Ranks) -> npt.NDArray[np.int64]:
    """How often each token [V] is a masked one, over all ranks."""
    labels = torch.cat([torch.zeros(0, dtype=torch.int64), *(batch.masked_labels for batch in batches)])
    counts_V = torch.bincount(labels, minlength=dataset.manifest.vocab_size)
    torch.distributed.all_reduce(counts_V, group=ranks.counts_group)
    return counts_V.numpy()
