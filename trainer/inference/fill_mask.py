"""What a trained model puts in the place of [MASK].

Shapes: T tokens of one text, M masks in it, K candidates, V vocabulary.
"""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from tokenizers import Tokenizer

from tokenizer.vocab import MASK
from trainer.inference.open_model import open_model
from trainer.model.bert import BertForPreTraining
from trainer.model.packed_inputs import pack_sequences

BERT_TOKENS = "128 billion"  # BERT paper, appendix A.2: 128,000 tokens a batch, 1,000,000 steps


class Candidate(NamedTuple):
    """A token that could stand at a mask, as vocab.txt spells it: "##" continues the word before."""

    token: str
    probability: float


class MaskFiller(NamedTuple):
    """A model with its tokenizer; tokens_seen in pretraining is None where the folder does not say."""

    model: BertForPreTraining
    tokenizer: Tokenizer
    mask_id: int
    tokens_seen: int | None


def open_mask_filler(name: str) -> MaskFiller:
    """Opens a run, an export or a folder of transformers for fill_mask()."""
    opened = open_model(name)
    if opened.config.is_causal:
        says = "was trained left to right, so it predicts next tokens and cannot fill masks"
        raise ValueError(f"{opened.where}: {says}")
    opened.check_has(("mlm_head.",), "the masked language model head, so it cannot fill masks")
    tokenizer = opened.tokenizer()
    mask_id = tokenizer.token_to_id(MASK)
    if mask_id is None:
        says = f"its tokenizer has no token {MASK}; BERT's tokenizer is expected"
        raise ValueError(f"{opened.where}: {says}")
    return MaskFiller(opened.build(), tokenizer, mask_id, opened.provenance.get("tokens_seen"))


@torch.inference_mode()
def fill_mask(filler: MaskFiller, text: str, top_k: int = 5) -> list[list[Candidate]]:
    """The `top_k` most probable tokens for each [MASK] of the text, best first, in reading order.

    Several masks are filled independently of each other, each given all the others as masks.
    """
    model, tokenizer, config = filler.model, filler.tokenizer, filler.model.config
    if not 1 <= top_k <= config.vocab_size:
        limits = f"it must be between 1 and the vocabulary's {config.vocab_size}"
        raise ValueError(f"top_k is {top_k}; {limits}")
    tokenizer.encode_special_tokens = False  # "[MASK]" in the text is the mask
    ids = tokenizer.encode(text).ids
    if len(ids) > (limit := config.max_position_embeddings):
        says = f"has {len(ids)} tokens with [CLS] and [SEP], the model reads {limit}; shorten it"
        raise ValueError(f"the text {says}")
    input_ids_T = torch.tensor(ids)
    masked_M = torch.nonzero(input_ids_T.eq(filler.mask_id)).flatten()
    if len(masked_M) == 0:
        advice = f"write {MASK} where the model is to put a word"
        raise ValueError(f"the text has no {MASK}: {text!r}; {advice}")
    hidden_TH = model.bert.encode(pack_sequences([ids], input_ids_T.device))
    logits_MV = model.mlm_head(hidden_TH[masked_M], model.bert.embeddings.word.weight).float()
    probabilities_MK, ids_MK = logits_MV.softmax(dim=-1).topk(top_k)
    return [
        [
            Candidate(str(tokenizer.id_to_token(token)), value)
            for value, token in zip(*row, strict=True)
        ]
        for row in zip(probabilities_MK.tolist(), ids_MK.tolist(), strict=True)
    ]


def format_candidates(filled: Mapping[str, list[list[Candidate]]], tokens_seen: int | None) -> str:
    """What fits each mask of each text, by fill_mask(), then how little the model has read."""
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
