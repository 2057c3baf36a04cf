"""How well a model predicts a set of shards, on the whole and by how frequent the masked token is.

T tokens, M masked positions, B instances, V vocabulary.
"""

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
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


@dataclass(frozen=True)
class Band:
    """Masked positions whose token is about as frequent in the text as that of others.

    Attributes:
        name: For people.
        masked: How many.
        mlm_loss: Mean, nats.
        perplexity: Exponential of the masked-LM loss.
        mlm_accuracy: Share whose most probable token is the right one.
    """

    name: str
    masked: int
    mlm_loss: float
    perplexity: float
    mlm_accuracy: float


@dataclass(frozen=True)
class Evaluation:
    """What was found.

    Attributes:
        columns: The numbers of a validation in a run, and the perplexity.
        bands: From frequent to rare; those without a masked position are left out.
    """

    columns: dict[str, float]
    bands: list[Band]

    def as_json(self) -> dict[str, Any]:
        """The measurement as plain values."""
        return {**self.columns, "bands": [asdict(band) for band in self.bands]}


@dataclass(frozen=True)
class _Tally:
    """Sums over instances, and by token, float64 [V]: of the text, and of masked labels."""

    text: Tensor
    masked: Tensor
    nll: Tensor
    hits: Tensor
    nsp: Tensor
    """[3]: loss, hits and instances whose B is random."""


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

    Raises:
        ValueError: The dataset has another vocabulary, no such split and length, or longer
            instances than the model reads.
    """
    _check_fits(opened, dataset, seq_len)
    device = device or torch.device("cpu")
    has_nsp = (
        opened.provenance.get("objective", WITH_NSP) == WITH_NSP
        and "nsp_head.weight" in opened.state
    )
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
    tally = _measure(opened.build(device), _with_progress(batches, instances), has_nsp, device)
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
    """The length that is asked for, or all of the split that the model reads.

    Raises:
        ValueError: The split has none, or only longer ones.
    """
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
        f"{columns['instances']:,} instances, {columns['masked']:,} masked tokens",
        f"MLM loss {columns['mlm_loss']:.4f} nats (unigram entropy of the text {columns['unigram_entropy']:.4f}), "
        f"perplexity {columns['perplexity']:.2f}, accuracy {columns['mlm_accuracy']:.4f}",
    ]
    if "nsp_loss" in columns:
        lines.append(
            f"NSP loss {columns['nsp_loss']:.4f} nats, accuracy {columns['nsp_accuracy']:.4f}"
            f" (constant answer {columns['nsp_majority_share']:.4f})"
        )
    width = max(len(band.name) for band in evaluation.bands)
    lines.append(
        f"{'in a million tokens of the text':<{width}}  {'masked':>9}    loss  perplexity  accuracy"
    )
    lines += [
        f"{band.name:<{width}}  {band.masked:>9,}  {band.mlm_loss:6.3f}  {band.perplexity:10.1f}  "
        f"{band.mlm_accuracy:8.4f}"
        for band in evaluation.bands
    ]
    return "\n".join(lines)


def _check_fits(opened: OpenedModel, dataset: Dataset, seq_len: int) -> None:
    manifest, config = dataset.manifest, opened.config
    same = (
        opened.vocab is None
        or parse_vocab(opened.vocab, opened.where).sha256 == manifest.vocab_sha256
    )
    if config.vocab_size != manifest.vocab_size or not same:
        raise ValueError(
            f"{dataset.url} has another vocabulary ({manifest.vocab_size} tokens) than {opened.where} "
            f"({config.vocab_size}), so ids mean other words; build a dataset with --vocab of the model's vocab.txt"
        )
    if seq_len > config.max_position_embeddings:
        raise ValueError(
            f"instances of {seq_len} tokens, and {opened.where} reads {config.max_position_embeddings}; give --seq_len"
        )
    opened.check_has(("mlm_head.",), "the masked language model head, which evaluate measures")


def _with_progress(batches: Iterator[MicroBatch], instances: int) -> Iterator[MicroBatch]:
    with tqdm(
        total=instances, unit="instance", unit_scale=True, mininterval=1.0, disable=None
    ) as progress:
        for batch in batches:
            yield batch
            progress.update(len(batch.is_random_next))


@torch.inference_mode()
def _measure(
    model: BertForPreTraining, batches: Iterator[MicroBatch], has_nsp: bool, device: torch.device
) -> _Tally:
    size = model.config.vocab_size
    tally = _Tally(
        *(torch.zeros(length, dtype=torch.float64) for length in (size, size, size, size, 3))
    )
    for read in batches:
        batch = prepare_micro_batch(read, LEFT_TO_RIGHT) if model.config.is_causal else read
        tally.text.add_(torch.bincount(unmasked_text(read).long(), minlength=size))
        _add_batch(tally, model, to_device(batch, device), has_nsp)
    return tally


def _add_batch(tally: _Tally, model: BertForPreTraining, batch: MicroBatch, has_nsp: bool) -> None:
    hidden_TH = model.bert.encode(batch)
    labels_M = batch.masked_labels
    logits_MV = model.mlm_head(
        hidden_TH.index_select(0, batch.masked_positions), model.bert.embeddings.word.weight
    )
    nll_M = F.cross_entropy(logits_MV.float(), labels_M, reduction="none")
    hits_M = logits_MV.argmax(dim=-1) == labels_M
    for total_V, values_M in (
        (tally.masked, torch.ones_like(nll_M)),
        (tally.nll, nll_M),
        (tally.hits, hits_M),
    ):
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
    borders = (np.inf, *PER_MILLION, 0.0)
    for upper, lower in pairwise(borders):
        inside_V = torch.from_numpy((rate_V >= lower) & (rate_V < upper))
        masked = int(tally.masked[inside_V].sum())
        if masked:
            loss = float(tally.nll[inside_V].sum()) / masked
            accuracy = float(tally.hits[inside_V].sum()) / masked
            yield Band(_band_name(lower, upper), masked, loss, math.exp(loss), accuracy)


def _band_name(lower: float, upper: float) -> str:
    if upper == np.inf:
        return f"{lower:,.0f} times or more"
    return f"{lower:,.0f} to {upper:,.0f} times" if lower else f"fewer than {upper:,.0f} times"
