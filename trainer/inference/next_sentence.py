"""How probable it is that one text follows another."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from tokenizers import Tokenizer

from trainer.inference.open_model import open_model
from trainer.model.bert import BertForPreTraining
from trainer.model.packed_inputs import pack_sequences
from trainer.pretrain.objectives import WITH_NSP

HEADS = ("bert.pooler.", "nsp_head.")


class NextSentenceJudge(NamedTuple):
    """A model with its tokenizer, ready for `follow_probabilities`."""

    model: BertForPreTraining
    tokenizer: Tokenizer


def open_judge(name: str) -> NextSentenceJudge:
    """Opens a run or a model folder (`trainer.inference.open_model`)."""
    opened = open_model(name)
    opened.check_has(HEADS, "the pooler and the next sentence head, which tell what follows")
    objective = opened.provenance.get("objective", WITH_NSP)
    if objective != WITH_NSP:
        says = f"was trained with objective {objective}, so its next sentence head is as new"
        raise ValueError(f"{opened.where}: {says}")
    return NextSentenceJudge(opened.build(), opened.tokenizer())


@torch.inference_mode()
def follow_probabilities(judge: NextSentenceJudge, pairs: Sequence[tuple[str, str]]) -> list[float]:
    """Probability, by the model, that B is what follows A in a text, for each pair (A, B)."""
    encodings = judge.tokenizer.encode_batch(list(pairs))
    limit = judge.model.config.max_position_embeddings
    for (first, _), encoding in zip(pairs, encodings, strict=True):
        if (size := len(encoding.ids)) > limit:
            says = f"has {size} tokens with [CLS] and [SEP], the model reads {limit}; shorten it"
            raise ValueError(f"the pair beginning {first[:40]!r} {says}")
    in_a = [each.type_ids.count(0) for each in encodings]
    packed = pack_sequences([each.ids for each in encodings], torch.device("cpu"), in_a)
    _, pooled_BH = judge.model.bert(packed)
    probabilities_B2 = judge.model.nsp_head(pooled_BH).float().softmax(-1)
    return [float(value) for value in probabilities_B2[:, 0]]
