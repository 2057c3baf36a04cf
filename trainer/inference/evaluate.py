"""How well a model predicts a set of shards, on the whole and by how frequent the token is.

T tokens, M masked positions, B instances, V vocabulary.
"""

import math
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F
from tqdm import tqdm

from pipeline.shards.dataset import Dataset
from tokenizer.vocab import parse_vocab
from trainer.batches.pack import MicroBatch, to_device
from trainer.inference.open_model import OpenedModel
from trainer.model.bert import BertForPreTraining
from trainer.pretrain.objectives import LEFT_TO_RIGHT, WITH_NSP, prepare_micro_batch, unmasked_text
from trainer.runs.metrics import loss_columns, majority_share, unigram_entropy
from trainer.stream.held_out import iterate_validation

PER_MILLION = (1_000, 100, 10)
"""Borders of the bands: occurrences among a million tokens of the evaluated text."""
Sums = npt.NDArray[np.float64]


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
    """The numbers of a validation in a run, the perplexity, and bands of frequent to rare tokens.

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
    sums_4V, sums_3 = _measure(opened.build(device), batches, has_nsp, device)
    sums_4V[0, [dataset.manifest.special_ids[name] for name in ("cls", "sep")]] = 0
    text_V, masked_V, nll_V, hits_V = sums_4V
    nsp_loss, nsp_hits, num_random = sums_3.tolist()
    masked = int(masked_V.sum())
    sums = [float(nll_V.sum()), nsp_loss, float(hits_V.sum()), nsp_hits]
    columns: dict[str, Any] = loss_columns(sums, masked, instances, has_nsp)
    columns |= {"perplexity": math.exp(columns["mlm_loss"]), "instances": instances}
    columns |= {"masked": masked, "unigram_entropy": unigram_entropy(text_V.astype(np.int64))}
    if has_nsp:
        columns["nsp_majority_share"] = majority_share(int(num_random), instances)
    return columns | {"bands": list(_bands(sums_4V))}


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
    """A few lines and a table for people."""
    lines = [
        "{instances:,} instances, {masked:,} masked tokens",
        "MLM loss {mlm_loss:.4f} nats (unigram entropy of the text {unigram_entropy:.4f}), "
        "perplexity {perplexity:.2f}, accuracy {mlm_accuracy:.4f}",
    ]
    if "nsp_loss" in found:
        constant = "(constant answer {nsp_majority_share:.4f})"
        lines.append(f"NSP loss {{nsp_loss:.4f}} nats, accuracy {{nsp_accuracy:.4f}} {constant}")
    names = ("in a million tokens of the text", "masked", "loss", "perplexity", "accuracy")
    row = "{name:<31}  {masked:>9,}  {mlm_loss:6.3f}  {perplexity:10.1f}  {mlm_accuracy:8.4f}"
    heading = "{:<31}  {:>9}  {:>6}  {:>10}  {:>8}".format(*names)
    rows = [row.format(**band) for band in found["bands"]]
    return "\n".join([*(line.format(**found) for line in lines), heading, *rows])


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


@torch.inference_mode()
def _measure(
    model: BertForPreTraining, batches: Iterator[MicroBatch], has_nsp: bool, device: torch.device
) -> tuple[Sums, Sums]:
    """Sums of the text's tokens, masked positions, their losses and hits, by token; and of NSP."""
    sums_4V = torch.zeros(4, model.config.vocab_size, dtype=torch.float64)
    sums_3 = torch.zeros(3, dtype=torch.float64)
    for read in tqdm(batches, unit="batch", disable=None):
        batch = prepare_micro_batch(read, LEFT_TO_RIGHT) if model.config.is_causal else read
        sums_4V[0] += torch.bincount(unmasked_text(read).long(), minlength=sums_4V.shape[1])
        batch = to_device(batch, device)
        hidden_TH, labels_M = model.bert.encode(batch), batch.masked_labels
        masked_MH = hidden_TH.index_select(0, batch.masked_positions)
        logits_MV = model.mlm_head(masked_MH, model.bert.embeddings.word.weight)
        nll_M = F.cross_entropy(logits_MV.float(), labels_M, reduction="none")
        hits_M = logits_MV.argmax(dim=-1) == labels_M
        values_3M = torch.stack([torch.ones_like(nll_M), nll_M, hits_M]).double().cpu()
        sums_4V[1:].index_add_(1, labels_M.cpu(), values_3M)
        if has_nsp:
            sums_3 += _judge_pairs(model, hidden_TH, batch).double().cpu()
    return sums_4V.numpy(), sums_3.numpy()


def _judge_pairs(model: BertForPreTraining, hidden_TH: Tensor, batch: MicroBatch) -> Tensor:
    """[3]: the sum of losses of next sentence prediction, hits, and instances whose B is random."""
    first_BH = hidden_TH.index_select(0, batch.cu_seqlens[:-1])
    logits_B2 = model.nsp_head(torch.tanh(model.bert.pooler(first_BH))).float()
    labels_B = batch.is_random_next
    nll = F.cross_entropy(logits_B2, labels_B, reduction="sum")
    return torch.stack([nll, (logits_B2.argmax(dim=-1) == labels_B).sum(), labels_B.sum()])


def _bands(sums_4V: Sums) -> Iterator[dict[str, Any]]:
    """Masked positions whose tokens are about as frequent in the text; mean loss in nats."""
    text_V = sums_4V[0]
    rate_V = text_V * (1_000_000 / text_V.sum())
    for upper, lower in pairwise((np.inf, *PER_MILLION, 0.0)):
        masked, loss, hits = sums_4V[1:, (rate_V >= lower) & (rate_V < upper)].sum(axis=1).tolist()
        name = f"{lower:,.0f} to {upper:,.0f} times" if lower else f"fewer than {upper:,.0f} times"
        if upper == np.inf:
            name = f"{lower:,.0f} times or more"
        if masked:
            means = {"mlm_loss": loss / masked, "perplexity": math.exp(loss / masked)}
            yield {"name": name, "masked": int(masked), **means, "mlm_accuracy": hits / masked}
