"""Prepares packed micro-batches of masked pairs for the objective that a model is trained for.

    mlm+nsp        masked tokens, and whether B follows A (BERT paper, section 3.1)
    mlm            masked tokens (5.1, "No NSP")
    left-to-right  every token from the tokens before it, nothing masked (5.1, "LTR & No NSP")

The instances are the same for all three: masked pairs of segments. The last two objectives also
learn from instances of one segment. The last one undoes the masks.
"""

import dataclasses

import torch
from torch import Tensor
from torch.nn import Module

from pipeline.shards.dataset import Dataset
from trainer.stream.batches.pack import MicroBatch
from trainer.stream.step import RankStep

LEFT_TO_RIGHT = "left-to-right"
WITH_NSP = "mlm+nsp"
_NSP_PREFIXES = ("bert.pooler.", "nsp_head.")


def prepare_micro_batch(batch: MicroBatch, objective: str) -> MicroBatch:
    """Returns a micro-batch with the tokens and labels that an objective needs.

    For "left-to-right" the masks are undone, and every token predicts the next token of its
    sequence; the last token of a sequence predicts nothing. For the other objectives `batch` is
    returned unchanged.

    Args:
        batch: Masked instances, on the CPU.
        objective: "mlm+nsp", "mlm" or "left-to-right".
    """
    if objective != LEFT_TO_RIGHT:
        return batch
    text_T = unmasked_text(batch)
    predicts_T = torch.ones(len(text_T), dtype=torch.bool)
    predicts_T[batch.cu_seqlens[1:].long() - 1] = False
    positions_M = predicts_T.nonzero().flatten()
    labels_M = text_T[positions_M + 1].long()
    return dataclasses.replace(
        batch, input_ids=text_T, masked_positions=positions_M, masked_labels=labels_M
    )


def prepare_step(step: RankStep, objective: str) -> RankStep:
    """Returns a step with its micro-batches prepared for an objective."""
    prepared = [prepare_micro_batch(batch, objective) for batch in step.micro_batches]
    return dataclasses.replace(step, micro_batches=prepared)


def unmasked_text(batch: MicroBatch) -> Tensor:
    """Returns the tokens as they were before masking, int32 [T]."""
    positions = batch.masked_positions.long()
    labels = batch.masked_labels.int()
    return batch.input_ids.int().index_copy(0, positions, labels)


def count_text(batch: MicroBatch, dataset: Dataset) -> Tensor:
    """Returns how often each token of the vocabulary occurs in instances before masking, int64 [V].

    [CLS] and [SEP] are not counted: their entries are 0.
    """
    counts_V = torch.bincount(unmasked_text(batch), minlength=dataset.manifest.vocab_size)
    counts_V[[dataset.manifest.special_ids[name] for name in ("cls", "sep")]] = 0
    return counts_V


def freeze_unused(model: Module, objective: str) -> None:
    """Freezes the pooler and the NSP head if the objective is not "mlm+nsp".

    These get no gradient then, and weight decay would still shrink them.
    """
    if objective != WITH_NSP:
        for name, parameter in model.named_parameters():
            if name.startswith(_NSP_PREFIXES):
                parameter.requires_grad_(False)
