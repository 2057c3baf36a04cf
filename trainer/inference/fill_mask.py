"""What a trained model puts in the place of [MASK].

Shapes: T tokens of one text, M masks in it, K candidates, V vocabulary.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from tokenizers import Tokenizer
from torch import Tensor

from tokenizer.vocab import MASK
from trainer.inference.open_model import open_model
from trainer.model.bert import BertForPreTraining
from trainer.model.packed_inputs import pack_sequences

BERT_TOKENS = "128 billion"  # BERT paper, appendix A.2: 128,000 tokens a batch, 1,000,000 steps


@dataclass(frozen=True)
class Candidate:
    """One token of the vocabulary that could stand at a mask."""

    token: str
    """The token as vocab.txt spells it: "##" begins one that continues the word before the mask."""
    probability: float


@dataclass(frozen=True)
class MaskFiller:
    """A model with its tokenizer, ready for fill_mask()."""

    model: BertForPreTraining
    tokenizer: Tokenizer
    mask_id: int
    tokens_seen: int | None
    """Tokens of pretraining; None where the folder does not say."""


def open_mask_filler(name: str) -> MaskFiller:
    """Opens a run, an export or a folder of transformers for fill_mask().

    Raises:
        FileNotFoundError: There is no model, or it lacks a file.
        ValueError: It is no BERT, was trained left to right, or saved without its masked language
            model head.
    """
    opened = open_model(name)
    if opened.config.is_causal:
        raise ValueError(
            f"{opened.where}: was trained left to right, so it predicts next tokens and cannot fill masks"
        )
    opened.check_has(("mlm_head.",), "the masked language model head, so it cannot fill masks")
    tokenizer = opened.tokenizer()
    mask_id = tokenizer.token_to_id(MASK)
    if mask_id is None:
        raise ValueError(
            f"{opened.where}: its tokenizer has no token {MASK}; BERT's tokenizer is expected"
        )
    return MaskFiller(opened.build(), tokenizer, mask_id, opened.provenance.get("tokens_seen"))


@torch.inference_mode()
def fill_mask(filler: MaskFiller, text: str, top_k: int = 5) -> list[list[Candidate]]:
    """The `top_k` most probable tokens for each [MASK] of the text, best first, in reading order.

    Several masks are filled independently of each other, each given all the others as masks.

    Raises:
        ValueError: The text has no [MASK], is too long for the model, or top_k is not in
            1..vocabulary size.
    """
    _check_top_k(top_k, filler.model.config.vocab_size)
    input_ids_T = _encode(filler, text)
    masked_M = torch.nonzero(input_ids_T.eq(filler.mask_id)).flatten()
    if len(masked_M) == 0:
        raise ValueError(
            f"the text has no {MASK}: {text!r}; write {MASK} where the model is to put a word"
        )
    probabilities_MK, ids_MK = (
        _mlm_logits(filler.model, input_ids_T, masked_M).softmax(dim=-1).topk(top_k)
    )
    return [
        [
            Candidate(str(filler.tokenizer.id_to_token(token)), value)
            for value, token in zip(*row, strict=True)
        ]
        for row in zip(probabilities_MK.tolist(), ids_MK.tolist(), strict=True)
    ]


def format_candidates(filled: Mapping[str, list[list[Candidate]]], tokens_seen: int | None) -> str:
    """Lines for a terminal: what fits each mask of each text, then how little the model has read.

    Args:
        filled: The answers of fill_mask() by text.
        tokens_seen: How many tokens the model was trained on.
    """
    width = max(
        len(candidate.token)
        for masks in filled.values()
        for of_mask in masks
        for candidate in of_mask
    )
    lines = []
    for text, masks in filled.items():
        lines += [text] if len(filled) > 1 else []
        for number, of_mask in enumerate(masks, start=1):
            lines += [f"{MASK} {number}"] if len(masks) > 1 else []
            lines += [
                f"{candidate.token:<{width}}  {candidate.probability:.4f}" for candidate in of_mask
            ]
    seen = "an unknown number of" if tokens_seen is None else f"{tokens_seen:,}"
    return "\n".join([*lines, f"This model has seen {seen} tokens; BERT saw {BERT_TOKENS}."])


def _check_top_k(top_k: int, vocab_size: int) -> None:
    if not 1 <= top_k <= vocab_size:
        raise ValueError(
            f"top_k is {top_k}; it must be between 1 and the vocabulary's {vocab_size}"
        )


def _encode(filler: MaskFiller, text: str) -> Tensor:
    """Ids [T] of [CLS] text [SEP], where "[MASK]" in the text is the mask."""
    filler.tokenizer.encode_special_tokens = False
    filler.tokenizer.no_truncation()
    filler.tokenizer.no_padding()
    ids = filler.tokenizer.encode(text).ids
    limit = filler.model.config.max_position_embeddings
    if len(ids) > limit:
        raise ValueError(
            f"the text has {len(ids)} tokens with [CLS] and [SEP], the model reads {limit}; shorten it"
        )
    return torch.tensor(ids)


def _mlm_logits(model: BertForPreTraining, input_ids_T: Tensor, masked_M: Tensor) -> Tensor:
    """Logits [M, V] in float32, without the pooler and the next sentence head."""
    hidden_TH = model.bert.encode(pack_sequences([input_ids_T.tolist()], input_ids_T.device))
    logits_MV: Tensor = model.mlm_head(hidden_TH[masked_M], model.bert.embeddings.word.weight)
    return logits_MV.float()
