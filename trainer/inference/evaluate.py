"""How well a model predicts a set of shards: the numbers of a validation in a run."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from tqdm import tqdm

from pipeline.shards.dataset import Dataset
from tokenizer.vocab import parse_vocab
from trainer.inference.open_model import OpenedModel
from trainer.pretrain.objectives import LEFT_TO_RIGHT, WITH_NSP, count_text, prepare_micro_batch
from trainer.pretrain.validation import sum_losses
from trainer.runs.metrics import loss_columns, majority_share, unigram_entropy
from trainer.stream.held_out import iterate_validation


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
    """The numbers of a validation in a run, and the perplexity.

    Reads the first `num_instances` (0: all) of a split's pass 0 once, without dropout, in fp32. A
    model trained left to right predicts every token.
    """
    _check_fits(opened, dataset, seq_len)
    device = device or torch.device("cpu")
    is_judge = opened.provenance.get("objective", WITH_NSP) == WITH_NSP
    has_nsp = is_judge and "nsp_head.weight" in opened.state
    total = sum(shard.instances for shard in dataset.shards(split, seq_len, 0))
    instances = min(total, num_instances or total)
    limits: dict[str, Any] = {
        "micro_tokens": max(micro_tokens, seq_len),
        "max_instances": instances,
    }
    batches = iterate_validation(dataset, seq_len, rank=0, world_size=1, split=split, **limits)
    model, objective = opened.build(device), LEFT_TO_RIGHT if opened.config.is_causal else WITH_NSP
    sums, masked, num_random = torch.zeros(4, dtype=torch.float64), 0, 0
    text_V = torch.zeros(dataset.manifest.vocab_size, dtype=torch.int64)
    for read in tqdm(batches, unit="batch", disable=None):
        batch = prepare_micro_batch(read, objective)
        sums += sum_losses(model, [batch], device).cpu()
        text_V += count_text(read, dataset)
        masked += len(batch.masked_labels)
        num_random += int(batch.is_random_next.sum())
    columns: dict[str, Any] = loss_columns(sums.tolist(), masked, instances, has_nsp)
    columns |= {"perplexity": math.exp(columns["mlm_loss"]), "instances": instances}
    columns |= {"masked": masked, "unigram_entropy": unigram_entropy(text_V.numpy())}
    if has_nsp:
        columns["nsp_majority_share"] = majority_share(num_random, instances)
    return columns


def choose_lengths(
    opened: OpenedModel, dataset: Dataset, split: str, seq_len: int | None
) -> list[int]:
    """The length that is asked for, or all of the split that the model reads."""
    lengths = sorted(group.seq_len for group in dataset.manifest.groups if group.split == split)
    if seq_len is not None:
        return [seq_len]
    if not lengths:
        raise ValueError(f"{dataset.url}: there are no {split} instances of any length")
    _check_fits(opened, dataset, lengths[0])
    return [each for each in lengths if each <= opened.config.max_position_embeddings]


def format_evaluation(found: Mapping[str, Any]) -> str:
    """A few lines for people."""
    lines = [
        "{instances:,} instances, {masked:,} masked tokens",
        "MLM loss {mlm_loss:.4f} nats (unigram entropy of the text {unigram_entropy:.4f}), "
        "perplexity {perplexity:.2f}, accuracy {mlm_accuracy:.4f}",
    ]
    if "nsp_loss" in found:
        constant = "(constant answer {nsp_majority_share:.4f})"
        lines.append(f"NSP loss {{nsp_loss:.4f}} nats, accuracy {{nsp_accuracy:.4f}} {constant}")
    return "\n".join(lines).format(**found)


def _check_fits(opened: OpenedModel, dataset: Dataset, seq_len: int) -> None:
    manifest, config, where = dataset.manifest, opened.config, opened.where
    size, limit = config.vocab_size, config.max_position_embeddings
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
