"""Asks a trained model which words fit at [MASK].

Shapes: T tokens of one text, M masks in it, K candidates, V vocabulary.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from tokenizers import Tokenizer

from pipeline.storage.quoting import quote
from tokenizer.vocab import MASK
from trainer.inference.open_model import OpenedModel
from trainer.inference.settings import check_text
from trainer.model.packed_inputs import pack_sequences

BERT_TOKENS = "128 billion"  # BERT paper, appendix A.2: 1,000,000 steps of 128,000 tokens
CPU = torch.device("cpu")


class Candidate(NamedTuple):
    """A token that fits at a mask.

    Attributes:
        token: The token as vocab.txt spells it.
        probability: The probability that the model gives it, among all tokens.
    """

    token: str
    probability: float


@torch.inference_mode()
def fill_mask(
    opened: OpenedModel, texts: Sequence[str], top_k: int = 5
) -> list[list[list[Candidate]]]:
    """Returns the tokens that a model finds most probable at every [MASK] of some texts.

    Several masks of one text are filled independently of each other.

    Args:
        opened: A masked model, from `open_model`.
        texts: Texts, each with at least one [MASK].
        top_k: The number of candidates for each mask.

    Returns:
        For each text, for each mask in it, the candidates with the most probable one first.

    Raises:
        ValueError: The model was trained left to right, or has no masked language model head or no
            [MASK] in its tokenizer, a text has no [MASK] or is too long for the model, or `top_k`
            is out of range.

    Example:
        ```python
        from trainer import fill_mask, open_model

        filled = fill_mask(open_model("runs/base"), ["the capital of [MASK] is paris ."], top_k=2)
        filled[0][0]    # [Candidate("france", 0.9), Candidate("algeria", 0.01)]
        ```
    """
    config = opened.config
    if config.is_causal:
        says = "was trained left to right, so it predicts next tokens and cannot fill masks"
        raise ValueError(f"{opened.where}: {says}")
    opened.check_has(("mlm_head.",), "the masked language model head, so it cannot fill masks")
    if not 1 <= top_k <= config.vocab_size:
        limits = f"it must be between 1 and the vocabulary's {config.vocab_size}"
        raise ValueError(f"top_k is {top_k}; {limits}")
    model = opened.build()
    tokenizer = opened.tokenizer()
    mask_id = tokenizer.token_to_id(MASK)
    if mask_id is None:
        says = f"its tokenizer has no {MASK}, as BERT's has; give another model"
        raise ValueError(f"{opened.where}: {says}")
    filled = []
    for text in texts:
        check_text(text)
        ids_T = tokenizer.encode(text).ids
        _check_length(f"the text {quote(text)}", len(ids_T), opened)
        masked_M = [at for at, number in enumerate(ids_T) if number == mask_id]
        hidden_TH = model.bert.encode(pack_sequences([ids_T], CPU))
        logits_MV = model.mlm_head(hidden_TH[masked_M], model.bert.embeddings.word.weight).float()
        probabilities_MK, ids_MK = logits_MV.softmax(-1).topk(top_k)
        filled.append(
            [
                _candidates(tokenizer, ids_K, probabilities_K)
                for ids_K, probabilities_K in zip(
                    ids_MK.tolist(), probabilities_MK.tolist(), strict=True
                )
            ]
        )
    return filled


def _candidates(
    tokenizer: Tokenizer, ids_K: Sequence[int], probabilities_K: Sequence[float]
) -> list[Candidate]:
    """Returns candidates from the ids of tokens and their probabilities."""
    return [
        Candidate(str(tokenizer.id_to_token(token_id)), probability)
        for token_id, probability in zip(ids_K, probabilities_K, strict=True)
    ]


def format_candidates(filled: Mapping[str, list[list[Candidate]]], tokens_seen: int | None) -> str:
    """Formats candidates for people, with a line that compares the model's training with BERT's.

    Args:
        filled: The result of `fill_mask`, by text.
        tokens_seen: The number of tokens that the model was trained on; None if it is unknown.
    """
    candidates = [
        candidate for masks in filled.values() for of_mask in masks for candidate in of_mask
    ]
    width = max(len(candidate.token) for candidate in candidates)
    lines = []
    for text, masks in filled.items():
        if len(filled) > 1:
            lines.append(text)
        for number, of_mask in enumerate(masks, start=1):
            if len(masks) > 1:
                lines.append(f"{MASK} {number}")
            lines += [
                f"{candidate.token:<{width}}  {candidate.probability:.4f}" for candidate in of_mask
            ]
    seen = "an unknown number of" if tokens_seen is None else f"{tokens_seen:,}"
    return "\n".join([*lines, f"This model has seen {seen} tokens; BERT saw {BERT_TOKENS}."])


def _check_length(what: str, size: int, opened: OpenedModel) -> None:
    """Raises ValueError if a text has more tokens than the model reads.

    Args:
        what: What the message calls the text.
        size: The number of tokens of the text, with [CLS] and [SEP].
        opened: The model.
    """
    limit = opened.config.max_position_embeddings
    if size > limit:
        says = f"has {size} tokens with [CLS] and [SEP], the model reads {limit}; shorten it"
        raise ValueError(f"{what} {says}")
