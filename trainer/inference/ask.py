"""What a trained model says of texts: words for [MASK], and whether one text follows another.

Shapes: T tokens of one text, M masks in it, K candidates, V vocabulary, B pairs.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch

from tokenizer.vocab import MASK
from trainer.inference.open_model import OpenedModel
from trainer.model.packed_inputs import pack_sequences
from trainer.pretrain.objectives import WITH_NSP

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
        ids_T = tokenizer.encode(text).ids
        _check_length(f"the text {text[:40]!r}", len(ids_T), opened)
        masked_M = [at for at, number in enumerate(ids_T) if number == tokenizer.token_to_id(MASK)]
        if not masked_M:
            advice = f"write {MASK} where the model is to put a word"
            raise ValueError(f"the text has no {MASK}: {text!r}; {advice}")
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


@torch.inference_mode()
def follow_probabilities(opened: OpenedModel, pairs: Sequence[tuple[str, str]]) -> list[float]:
    """Probability, by the model, that B is what follows A in a text, for each pair (A, B)."""
    heads = ("bert.pooler.", "nsp_head.")
    opened.check_has(heads, "the pooler and the next sentence head, which tell what follows")
    if (objective := opened.provenance.get("objective", WITH_NSP)) != WITH_NSP:
        says = f"was trained with objective {objective}, so its next sentence head is as new"
        raise ValueError(f"{opened.where}: {says}")
    model, encodings = opened.build(), opened.tokenizer().encode_batch(list(pairs))
    for (first, _), encoding in zip(pairs, encodings, strict=True):
        _check_length(f"the pair beginning {first[:40]!r}", len(encoding.ids), opened)
    in_a = [each.type_ids.count(0) for each in encodings]
    _, pooled_BH = model.bert(pack_sequences([each.ids for each in encodings], CPU, in_a))
    probabilities: list[float] = model.nsp_head(pooled_BH).float().softmax(-1)[:, 0].tolist()
    return probabilities


def _check_length(what: str, size: int, opened: OpenedModel) -> None:
    if size > (limit := opened.config.max_position_embeddings):
        says = f"has {size} tokens with [CLS] and [SEP], the model reads {limit}; shorten it"
        raise ValueError(f"{what} {says}")
