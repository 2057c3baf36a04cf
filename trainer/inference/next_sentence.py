"""How probable it is that one text follows another."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from tokenizers import Encoding, Tokenizer

from trainer.inference.open_model import open_model
from trainer.model.bert import BertForPreTraining
from trainer.model.packed_inputs import pack_sequences
from trainer.pretrain.objectives import WITH_NSP

HEADS = ("bert.pooler.", "nsp_head.")


@dataclass(frozen=True)
class NextSentenceJudge:
    """A model with its tokenizer, ready for `follow_probabilities`."""

    model: BertForPreTraining
    tokenizer: Tokenizer


def open_judge(name: str) -> NextSentenceJudge:
    """Opens a run or a model folder (`trainer.inference.open_model`).

    Raises:
        FileNotFoundError: There is none.
        ValueError: It has no next sentence head, or was trained without one.
    """
    opened = open_model(name)
    opened.check_has(HEADS, "the pooler and the next sentence head, which tell what follows")
    objective = opened.provenance.get("objective", WITH_NSP)
    if objective != WITH_NSP:
        raise ValueError(
            f"{opened.where}: was trained with objective {objective}, so its next sentence head is as new"
        )
    return NextSentenceJudge(opened.build(), opened.tokenizer())


@torch.inference_mode()
def follow_probabilities(judge: NextSentenceJudge, pairs: Sequence[tuple[str, str]]) -> list[float]:
    """Probability, by the model, that B is what follows A in a text, for each pair (A, B).

    Raises:
        ValueError: A pair is too long for the model.
    """
    encodings = judge.tokenizer.encode_batch(list(pairs))
    for pair, encoding in zip(pairs, encodings, strict=True):
        _check_length(pair, encoding, judge.model.config.max_position_embeddings)
    packed = pack_sequences(
        [each.ids for each in encodings],
        torch.device("cpu"),
        [each.type_ids.count(0) for each in encodings],
    )
    _, pooled_BH = judge.model.bert(packed)
    probabilities_B2 = judge.model.nsp_head(pooled_BH).float().softmax(-1)
    return [float(value) for value in probabilities_B2[:, 0]]


def _check_length(pair: tuple[str, str], encoding: Encoding, limit: int) -> None:
    if len(encoding.ids) > limit:
        raise ValueError(
            f"the pair beginning {pair[0][:40]!r} has {len(encoding.ids)} tokens with [CLS] and [SEP], the model reads "
            f"{limit}; shorten it"
        )
