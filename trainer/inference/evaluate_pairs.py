"""Measures how often a model gives the acceptable sentence of a minimal pair the higher score."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from tqdm import tqdm

from trainer.inference.open_model import OpenedModel
from trainer.minimal_pairs.accuracy import PairAccuracies, count_ties, is_right, summarize
from trainer.minimal_pairs.read import PairSet
from trainer.minimal_pairs.score import (
    EncodedPairs,
    Pll,
    ScoreBatch,
    cut_batches,
    encode_pairs,
    make_batch,
    sentence_sums,
    token_scores,
)
from trainer.model.packed_inputs import PackedInputs


def evaluate_pairs(
    opened: OpenedModel,
    pair_set: PairSet,
    *,
    pll: Pll = "original",
    micro_tokens: int = 8_192,
    device: torch.device | None = None,
) -> PairAccuracies:
    """Measures how often a model scores the acceptable sentence of a minimal pair higher.

    The model runs in fp32 and without dropout.

    Args:
        opened: A masked model, or one that was trained left to right, from `open_model`.
        pair_set: The pairs, from `read_pairs`.
        pll: Which tokens a masked model does not see while it predicts a token: that token alone
            ("original"), or also the later tokens of its word ("word-l2r").
        micro_tokens: The most tokens of a forward pass. It bounds memory and changes no result.
        device: The device that the model runs on; None means the CPU.

    Returns:
        The accuracies over all pairs, in each group, and the mean over the coarsest groups.

    Raises:
        ValueError: The model cannot score a sentence, or its scores are not finite.

    Example:
        ```python
        from trainer import evaluate_pairs, open_model, read_pairs

        accuracies = evaluate_pairs(open_model("runs/base"), read_pairs("blimp"))
        accuracies.total.accuracy    # 0.78
        ```
    """
    good_P, bad_P = score_pairs(opened, pair_set, pll=pll, micro_tokens=micro_tokens, device=device)
    accuracies = summarize(pair_set, is_right(good_P, bad_P))
    return replace(accuracies, ties=count_ties(good_P, bad_P))


def score_pairs(
    opened: OpenedModel,
    pair_set: PairSet,
    *,
    pll: Pll = "original",
    micro_tokens: int = 8_192,
    device: torch.device | None = None,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Returns the scores of every pair's good and bad sentence: two arrays [P], in nats.

    The arguments and errors are those of `evaluate_pairs`.
    """
    opened.check_has(("mlm_head.",), "the masked language model head, which evaluate measures")
    encoded = encode_pairs(
        pair_set.pairs,
        opened.tokenizer(),
        opened.config.max_position_embeddings,
        pll,
        is_causal=opened.config.is_causal,
    )
    device = device or torch.device("cpu")
    model = opened.build(device)

    def predict(inputs: PackedInputs, positions_M: Tensor) -> Tensor:
        hidden_MH = model.bert.encode_at(inputs, positions_M)
        logits_MV: Tensor = model.mlm_head(hidden_MH, model.bert.embeddings.word.weight)
        return logits_MV

    with torch.inference_mode():
        batches = _watched(encoded, micro_tokens)
        scores = token_scores(predict, batches, encoded.num_scores, device)
    sums = sentence_sums(encoded, scores)
    if not np.isfinite(sums).all():
        raise ValueError(f"{opened.where}: its scores are not finite; its weights are damaged")
    return sums[encoded.good], sums[encoded.bad]


def _watched(encoded: EncodedPairs, micro_tokens: int) -> Iterator[ScoreBatch]:
    """Yields all batches, lazily, and shows a progress bar that counts the tokens read.

    Args:
        encoded: The pairs.
        micro_tokens: The most tokens of a batch.
    """
    with tqdm(total=encoded.num_read, unit="token", unit_scale=True, disable=None) as bar:
        for group, rows in cut_batches(encoded, micro_tokens):
            batch = make_batch(group, rows, encoded.mask_id)
            yield batch
            bar.update(batch.input_ids.size)
