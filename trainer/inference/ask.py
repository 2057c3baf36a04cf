"""Words that a trained model finds for [MASK].

Shapes: T tokens of one text, M masks in it, K candidates, V vocabulary.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch

from pipeline.storage.quoting import quote
from tokenizer.vocab import MASK
from trainer.inference.open_model import OpenedModel
from trainer.inference.settings import check_text
from trainer.model.packed_inputs import pack_sequences

BERT_TOKENS = "128 billion"  # BERT paper, appendix A.2: 128,000 tokens a batch, 1,000,000 steps
CPU = torch.device("cpu")


class Candidate(NamedTuple):
    """A token that could stand at a mask, as vocab.txt spells it."""

    token: str
    probability: float


@torch.inference_mode()
def fill_mask(
    opened: OpenedModel, texts: Sequence[str], top_k: int = 5
) -> list[list[list[Candidate]]]:
    """For each text and each [MASK] in it, alone, the most probable tokens, best first."""
    config = opened.config
    if config.is_causal:
        says = "was trained left to right, so it predicts next tokens and cannot fill masks"
        raise ValueError(f"{opened.where}: {says}")
    opened.check_has(("mlm_head.",), "the masked language model head, so it cannot fill masks")
    if not 1 <= top_k <= config.vocab_size:
        limits = f"it must be between 1 and the vocabulary's {config.vocab_size}"
        raise ValueError(f"top_k is {top_k}; {limits}")
    model, tokenizer, filled = opened.build(), opened.tokenizer(), []
    for text in texts:
        check_text(text)
        ids_T = tokenizer.encode(text).ids
        _check_length(f"the text {quote(text)}", len(ids_T), opened)
        masked_M = [at for at, number in enumerate(ids_T) if number == tokenizer.token_to_id(MASK)]
        hidden_TH = model.bert.encode(pack_sequences([ids_T], CPU))
        logits_MV = model.mlm_head(hidden_TH[masked_M], model.bert.embeddings.word.weight).float()
        probabilities_MK, ids_MK = (each.tolist() for each in logits_MV.softmax(-1).topk(top_k))
        pairs = (zip(*row, strict=True) for row in zip(ids_MK, probabilities_MK, strict=True))
        filled.append(
            [[Candidate(str(tokenizer.id_to_token(n)), p) for n, p in row] for row in pairs]
        )
    return filled


def format_candidates(filled: Mapping[str, list[list[Candidate]]], tokens_seen: int | None) -> str:
    """What fits each mask of each text, then how little the model has read."""
    every = [each for masks in filled.values() for of_mask in masks for each in of_mask]
    width = max(len(each.token) for each in every)
    lines = []
    for text, masks in filled.items():
        lines += [text] if len(filled) > 1 else []
        for number, of_mask in enumerate(masks, start=1):
            lines += [f"{MASK} {number}"] if len(masks) > 1 else []
            lines += [f"{each.token:<{width}}  {each.probability:.4f}" for each in of_mask]
    seen = "an unknown number of" if tokens_seen is None else f"{tokens_seen:,}"
    return "\n".join([*lines, f"This model has seen {seen} tokens; BERT saw {BERT_TOKENS}."])


def _check_length(what: str, size: int, opened: OpenedModel) -> None:
    if size > (limit := opened.config.max_position_embeddings):
        says = f"has {size} tokens with [CLS] and [SEP], the model reads {limit}; shorten it"
        raise ValueError(f"{what} {says}")
