"""How well a model predicts a set of shards, on the whole and by how frequent the masked token is.

T tokens, M masked positions, B instances, V vocabulary.
"""

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple

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


class Band(NamedTuple):
    """Masked positions whose tokens are about as frequent in the text; the loss is a mean in nats."""

    name: str
    masked: int
    mlm_loss: float
    perplexity: float
    mlm_accuracy: float


class Evaluation(NamedTuple):
    """The numbers of a validation in a run with the perplexity, and bands from frequent to rare."""

    columns: dict[str, float]
    bands: list[Band]

    def as_json(self) -> dict[str, Any]:
        """The measurement as plain values."""
        return {**self.columns, "bands": [band._asdict() for band in self.bands]}


class _Tally(NamedTuple):
    """Sums in float64: by token [V]; of NSP [3] the loss, hits, and instances whose B is random."""

    text: Tensor
    masked: Tensor
    nll: Tensor
    hits: Tensor
    nsp: Tensor


def evaluate(
    opened: OpenedModel,
    dataset: Dataset,
    split: str,
    seq_len: int,
    *,
    num_instances: int = 0,
    micro_tokens: int = 8_192,
    device: torch.device | None = None,
) -> Evaluation:
    """Reads the first `num_instances` (0: all) of a split's pass 0 once, without dropout, in fp32.

    A model trained left to right predicts every token, as in its run. NSP is judged where the model
    was trained for it.
    """
    _check_fits(opened, dataset, seq_len)
    device = device or torch.device("cpu")
    objective = opened.provenance.get("objective", WITH_NSP)
    has_nsp = objective == WITH_NSP and "nsp_head.weight" in opened.state
    total = sum(shard.instances for shard in dataset.shards(split, seq_len, 0))
    batches = iterate_validation(
        dataset,
        seq_len,
        rank=0,
        world_size=1,
        micro_tokens=max(micro_tokens, seq_len),
        max_instances=num_instances or None,
        split=split,
    )
    instances = min(total, num_instances or total)
    tally = _measure(opened.build(device), batches, has_nsp, device)
    text_V = tally.text.long().numpy()
    for name in ("cls", "sep"):
        text_V[dataset.manifest.special_ids[name]] = 0
    nsp_loss, nsp_hits, num_random = tally.nsp.tolist()
    sums = [float(tally.nll.sum()), nsp_loss, float(tally.hits.sum()), nsp_hits]
    masked = int(tally.masked.sum())
    columns = loss_columns(sums, masked, instances, has_nsp)
    facts = {"instances": instances, "masked": masked, "unigram_entropy": unigram_entropy(text_V)}
    if has_nsp:
        facts["nsp_majority_share"] = majority_share(int(num_random), instances)
    perplexity = {"perplexity": math.exp(columns["mlm_loss"])}
    return Evaluation({**columns, **perplexity, **facts}, list(_bands(tally, text_V)))


def choose_lengths(
    opened: OpenedModel, dataset: Dataset, split: str, seq_len: int | None
) -> list[int]:
    """The length that is asked for, or all of the split that the model reads; ValueError if none."""
    lengths = sorted(group.seq_len for group in dataset.manifest.groups if group.split == split)
    if seq_len is not None:
        return [seq_len]
    if not lengths:
        raise ValueError(f"{dataset.url}: there are no {split} instances of any length")
    _check_fits(opened, dataset, lengths[0])
    return [each for each in lengths if each <= opened.config.max_position_embeddings]


def format_evaluation(evaluation: Evaluation) -> str:
    """A few lines and a table for people."""
    columns = evaluation.columns
    lines = [
        "{instances:,} instances, {masked:,} masked tokens",
        "MLM loss {mlm_loss:.4f} nats (unigram entropy of the text {unigram_entropy:.4f}), perplexity"
        " {perplexity:.2f}, accuracy {mlm_accuracy:.4f}",
    ]
    if "nsp_loss" in columns:
        constant = "(constant answer {nsp_majority_share:.4f})"
        lines.append(f"NSP loss {{nsp_loss:.4f}} nats, accuracy {{nsp_accuracy:.4f}} {constant}")
    width = max(len(band.name) for band in evaluation.bands)
    heading = (
        f"{'in a million tokens of the text':<{width}}  {'masked':>9}    loss  perplexity  accuracy"
    )
    rows = [
        f"{name:<{width}}  {masked:>9,}  {loss:6.3f}  {perplexity:10.1f}  {accuracy:8.4f}"
        for name, masked, loss, perplexity, accuracy in evaluation.bands
    ]
    return "\n".join([*(line.format(**columns) for line in lines), heading, *rows])


def _check_fits(opened: OpenedModel, dataset: Dataset, seq_len: int) -> None:
    manifest, config, where = dataset.manifest, opened.config, opened.where
    size, limit = config.vocab_size, config.max_position_embeddings
    expected = manifest.vocab_sha256
    same = opened.vocab is None or parse_vocab(opened.vocab, where).sha256 == expected
    if size != manifest.vocab_size or not same:
        raise ValueError(
            f"{dataset.url} has another vocabulary ({manifest.vocab_size} tokens) than {where} ({size}), "
            "so ids mean other words; build a dataset with --vocab of the model's vocab.txt"
        )
    if seq_len > limit:
        says = f"{where} reads {limit}; give --seq_len"
        raise ValueError(f"instances of {seq_len} tokens, and {says}")
    opened.check_has(("mlm_head.",), "the masked language model head, which evaluate measures")


@torch.inference_mode()
def _measure(
    model: BertForPreTraining, batches: Iterator[MicroBatch], has_nsp: bool, device: torch.device
) -> _Tally:
    size = model.config.vocab_size
    tally = _Tally(*(torch.zeros(n, dtype=torch.float64) for n in (size, size, size, size, 3)))
    for read in tqdm(batches, unit="batch", disable=None):
        batch = prepare_micro_batch(read, LEFT_TO_RIGHT) if model.config.is_causal else read
        tally.text.add_(torch.bincount(unmasked_text(read).long(), minlength=size))
        _add_batch(tally, model, to_device(batch, device), has_nsp)
    return tally


def _add_batch(tally: _Tally, model: BertForPreTraining, batch: MicroBatch, has_nsp: bool) -> None:
    hidden_TH = model.bert.encode(batch)
    labels_M = batch.masked_labels
    masked_MH = hidden_TH.index_select(0, batch.masked_positions)
    logits_MV = model.mlm_head(masked_MH, model.bert.embeddings.word.weight)
    nll_M = F.cross_entropy(logits_MV.float(), labels_M, reduction="none")
    hits_M = logits_MV.argmax(dim=-1) == labels_M
    values = (torch.ones_like(nll_M), nll_M, hits_M)
    for total_V, values_M in zip((tally.masked, tally.nll, tally.hits), values, strict=True):
        total_V.index_add_(0, labels_M.cpu(), values_M.double().cpu())
    if has_nsp:
        first_BH = hidden_TH.index_select(0, batch.cu_seqlens[:-1])
        logits_B2 = model.nsp_head(torch.tanh(model.bert.pooler(first_BH))).float()
        nll = F.cross_entropy(logits_B2, batch.is_random_next, reduction="sum")
        hits = (logits_B2.argmax(dim=-1) == batch.is_random_next).sum()
        sums = (nll, hits, batch.is_random_next.sum())
        tally.nsp.add_(torch.stack([each.double() for each in sums]).cpu())


def _bands(tally: _Tally, text_V: npt.NDArray[np.int64]) -> Iterator[Band]:
    rate_V = text_V * (1_000_000 / text_V.sum())
    for upper, lower in pairwise((np.inf, *PER_MILLION, 0.0)):
        inside_V = torch.from_numpy((rate_V >= lower) & (rate_V < upper))
        masked = int(tally.masked[inside_V].sum())
        name = f"{lower:,.0f} to {upper:,.0f} times" if lower else f"fewer than {upper:,.0f} times"
        if upper == np.inf:
            name = f"{lower:,.0f} times or more"
        if masked:
            loss = float(tally.nll[inside_V].sum()) / masked
            accuracy = float(tally.hits[inside_V].sum()) / masked
            yield Band(name, masked, loss, math.exp(loss), accuracy)
