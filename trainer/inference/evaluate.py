"""Measures how well a trained model predicts the instances of a dataset."""

import math
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from pipeline.shards.dataset import Dataset
from pipeline.shards.instance_kind import has_pairs
from tokenizer.vocab import parse_vocab
from trainer.inference.open_model import OpenedModel
from trainer.model.bert import name_sums, zero_sums
from trainer.pretrain.objectives import LEFT_TO_RIGHT, WITH_NSP, count_text, prepare_micro_batch
from trainer.pretrain.validation import sum_losses
from trainer.runs.metrics import loss_columns, majority_share, unigram_entropy
from trainer.stream.batches.pack import MicroBatch
from trainer.stream.held_out import iterate_validation

_LARGEST_LOSS = math.log(sys.float_info.max)
"""Losses from here on, 709.8 nats, have no perplexity that a float holds."""


@torch.inference_mode()
def evaluate(
    opened: OpenedModel,
    dataset: Dataset,
    split: str,
    seq_len: int,
    *,
    num_instances: int = 0,
    micro_tokens: int = 8_192,
    device: torch.device | None = None,
) -> dict[str, Any]:
    """Measures a model on one split of a dataset, as a run's validation does.

    A built dataset has several passes, each with other masks and sentence pairs. The model reads
    the instances of the first pass once, in fp32 and without dropout. A masked language model
    predicts the masked tokens. A model that was trained left to right predicts every token of the
    unmasked text from the tokens before it.

    Args:
        opened: The model, from `open_model`.
        dataset: A dataset that was built with the model's vocabulary.
        split: "train" or "validation".
        seq_len: The length of the instances, in tokens; the split must have this length.
        num_instances: The number of instances to read, from the first one; 0 reads all.
        micro_tokens: The most tokens of a forward pass. It bounds memory and changes no result.
        device: The device that the model runs on; None means the CPU.

    Returns:
        Numbers by name: "mlm_loss" and "unigram_entropy" (the loss of a guess by frequency alone)
        in nats, "mlm_accuracy", "perplexity", "instances" and "masked" (the number of predicted
        tokens). "perplexity" is None if the loss of a diverged model is no number, or is above 709
        nats, whose exponential no float holds. "nsp_loss", "nsp_accuracy" and "nsp_majority_share"
        (the accuracy of always giving the more frequent answer) are there if the model has a
        next-sentence head and was trained with this task. "loss" is the sum of both losses, or
        "mlm_loss" alone.

    Raises:
        ValueError: The dataset has another vocabulary or not this length, the model reads fewer
            tokens or has no masked language model head, or a shard is damaged.

    Example:
        ```python
        from pipeline import open_dataset
        from trainer import evaluate, open_model

        opened = open_model("runs/base")
        dataset = open_dataset("data/wiki")
        numbers = evaluate(opened, dataset, "validation", 128)
        numbers["mlm_loss"], numbers["nsp_accuracy"]    # 1.5123, 0.9871
        ```
    """
    _check_fits(opened, dataset, seq_len)
    device = device or torch.device("cpu")
    was_trained_with_nsp = opened.provenance.get("objective", WITH_NSP) == WITH_NSP
    has_head = was_trained_with_nsp and "nsp_head.weight" in opened.state
    has_nsp = has_head and has_pairs(dataset.manifest.settings)
    total = sum(shard.instances for shard in dataset.shards(split, seq_len, 0))
    instances = min(total, num_instances or total)
    batches = iterate_validation(
        dataset,
        seq_len,
        rank=0,
        world_size=1,
        split=split,
        micro_tokens=max(micro_tokens, seq_len),
        max_instances=instances,
    )
    sums = _sum_batches(opened, batches, dataset, device)
    columns: dict[str, Any] = loss_columns(sums.losses, sums.masked, instances, has_nsp)
    columns |= {
        "perplexity": perplexity(columns["mlm_loss"]),
        "instances": instances,
        "masked": sums.masked,
        "unigram_entropy": unigram_entropy(sums.token_counts.numpy()),
    }
    if has_nsp:
        columns["nsp_majority_share"] = majority_share(sums.num_random, instances)
    return columns


def perplexity(mlm_loss: float) -> float | None:
    """Returns the exponential of a loss in nats; None if it is no number or too large for a float.

    Args:
        mlm_loss: The mean loss of a predicted token, which may be infinite or not a number.
    """
    return math.exp(mlm_loss) if mlm_loss < _LARGEST_LOSS else None


@dataclass(frozen=True)
class _Sums:
    """Sums over all instances of an evaluation.

    Attributes:
        losses: Sums of losses and of right predictions, by the names of the fields of
            `trainer.model.bert.PretrainingSums`.
        masked: The number of predicted tokens.
        num_random: The number of instances whose second segment is random.
        token_counts: int64 [V], how often each token of the vocabulary occurs in the text.
    """

    losses: dict[str, float]
    masked: int
    num_random: int
    token_counts: Tensor


def _sum_batches(
    opened: OpenedModel, batches: Iterable[MicroBatch], dataset: Dataset, device: torch.device
) -> _Sums:
    """Runs the model on all batches, and adds up losses and counts. It shows a progress bar.

    Args:
        opened: The model.
        batches: Micro-batches of masked instances, as the dataset has them. For a left-to-right
            model they are changed so that every token is predicted.
        dataset: The dataset, whose vocabulary gives the size of the counts.
        device: The device that the model runs on.
    """
    model = opened.build(device)
    objective = LEFT_TO_RIGHT if opened.config.is_causal else WITH_NSP
    losses = zero_sums(torch.device("cpu"))
    masked = 0
    num_random = 0
    token_counts_V = torch.zeros(dataset.manifest.vocab_size, dtype=torch.int64)
    for masked_batch in tqdm(batches, unit="batch", disable=None):
        batch = prepare_micro_batch(masked_batch, objective)
        losses += sum_losses(model, [batch], device).cpu()
        token_counts_V += count_text(masked_batch, dataset)
        masked += len(batch.masked_labels)
        num_random += int(batch.is_random_next.sum())
    return _Sums(name_sums(losses), masked, num_random, token_counts_V)


def choose_lengths(
    opened: OpenedModel, dataset: Dataset, split: str, seq_len: int | None
) -> list[int]:
    """Returns the lengths of instances to evaluate, in tokens, shortest first.

    They are `seq_len` alone if it is given, and otherwise all lengths of the split that the model
    can read.

    Args:
        opened: The model.
        dataset: The dataset.
        split: "train" or "validation".
        seq_len: The only length to evaluate; None takes every length of the split.

    Raises:
        ValueError: The split has no instances, or the model cannot read the shortest ones.
    """
    lengths = sorted(group.seq_len for group in dataset.manifest.groups if group.split == split)
    if seq_len is not None:
        return [seq_len]
    if not lengths:
        raise ValueError(f"{dataset.url}: there are no {split} instances of any length")
    _check_fits(opened, dataset, lengths[0])
    return [length for length in lengths if length <= opened.config.max_position_embeddings]


def format_evaluation(found: Mapping[str, Any]) -> str:
    """Formats the result of `evaluate` as a few lines for people."""
    exponential = found["perplexity"]
    shown = "none (the model has diverged)" if exponential is None else f"{exponential:.2f}"
    lines = [
        "{instances:,} instances, {masked:,} masked tokens",
        "MLM loss {mlm_loss:.4f} nats (unigram entropy of the text {unigram_entropy:.4f}), "
        f"perplexity {shown}, accuracy {{mlm_accuracy:.4f}}",
    ]
    if "nsp_loss" in found:
        constant = "(constant answer {nsp_majority_share:.4f})"
        lines.append(f"NSP loss {{nsp_loss:.4f}} nats, accuracy {{nsp_accuracy:.4f}} {constant}")
    return "\n".join(lines).format(**found)


def _check_fits(opened: OpenedModel, dataset: Dataset, seq_len: int) -> None:
    """Checks that a model can be measured on the instances of a dataset.

    Args:
        opened: The model.
        dataset: The dataset.
        seq_len: The length of the instances, in tokens.

    Raises:
        ValueError: The model has another vocabulary than the dataset, reads fewer than `seq_len`
            tokens, or lacks the masked language model head.
    """
    manifest = dataset.manifest
    where = opened.where
    size = opened.config.vocab_size
    limit = opened.config.max_position_embeddings
    sha256 = opened.vocab and parse_vocab(opened.vocab, where).sha256
    if size != manifest.vocab_size or sha256 not in (None, manifest.vocab_sha256):
        says = f"has another vocabulary ({manifest.vocab_size} tokens) than {where} ({size})"
        advice = "build a dataset with --vocab of the model's vocab.txt"
        raise ValueError(f"{dataset.url} {says}, so ids mean other words; {advice}")
    if seq_len > limit:
        raise ValueError(
            f"instances of {seq_len} tokens, and {where} reads {limit}; give --seq_len"
        )
    opened.check_has(("mlm_head.",), "the masked language model head, which evaluate measures")
