"""What is predicted under each objective, and of which weights the loss is a function."""

import dataclasses

import torch

from tests.trainer.tiny_run import BERT, WITHOUT_DROPOUT
from tests.trainer.two_ranks import random_micro_batch
from trainer.model.bert import build_model
from trainer.pretrain.objectives import freeze_unused, prepare_micro_batch, unmasked_text
from trainer.stream.batches.pack import MicroBatch, empty_micro_batch

CONFIG = dataclasses.replace(BERT, **WITHOUT_DROPOUT, is_causal=True)


def as_left_to_right(batch):
    return prepare_micro_batch(batch, "left-to-right")


def two_sequences():
    """[CLS] 7 [MASK] [SEP] where 8 was masked, and [CLS] [MASK] [SEP] where 9 was."""
    return MicroBatch(
        input_ids=torch.tensor([2, 7, 4, 3, 2, 4, 3], dtype=torch.int32),
        cu_seqlens=torch.tensor([0, 4, 7], dtype=torch.int32),
        token_type_ids=torch.zeros(7, dtype=torch.int32),
        position_ids=torch.tensor([0, 1, 2, 3, 0, 1, 2], dtype=torch.int32),
        masked_positions=torch.tensor([2, 5]),
        masked_labels=torch.tensor([8, 9]),
        is_random_next=torch.tensor([0, 1]),
        max_seqlen=4,
    )


def test_left_to_right_undoes_the_masks_and_predicts_every_next_token():
    batch = as_left_to_right(two_sequences())
    assert batch.input_ids.tolist() == [2, 7, 8, 3, 2, 9, 3]
    assert batch.masked_positions.tolist() == [0, 1, 2, 4, 5]
    assert batch.masked_labels.tolist() == [7, 8, 3, 9, 3]
    assert (batch.input_ids.dtype, batch.masked_labels.dtype) == (torch.int32, torch.int64)


def test_masked_objectives_leave_the_batch_as_it_is():
    batch = two_sequences()
    assert prepare_micro_batch(batch, "mlm+nsp") is batch
    assert prepare_micro_batch(batch, "mlm") is batch
    assert unmasked_text(batch).tolist() == [2, 7, 8, 3, 2, 9, 3]


def test_an_empty_micro_batch_stays_empty():
    batch = as_left_to_right(empty_micro_batch())
    assert len(batch.input_ids) == len(batch.masked_labels) == 0


def test_no_prediction_sees_what_it_predicts():
    """Another end of each sequence changes no logits of the positions before it."""
    model = build_model(CONFIG, seed=1).eval()
    batch = as_left_to_right(random_micro_batch([9, 14, 5], 50, seed=2))
    before, _ = model(batch, batch.masked_positions)
    ends = batch.cu_seqlens[1:].long() - 1
    batch.input_ids[ends] = (batch.input_ids[ends] + 1) % 50
    after, _ = model(batch, batch.masked_positions)
    torch.testing.assert_close(after, before, rtol=0, atol=1e-6)
    batch.input_ids[0] = 49 - batch.input_ids[0]
    after, _ = model(batch, batch.masked_positions)
    assert (after - before)[:8].abs().amax(dim=-1).min() > 1e-4, "each sees all before it"


def test_heads_that_nothing_trains_are_frozen():
    model = build_model(CONFIG, seed=1)
    freeze_unused(model, "mlm+nsp")
    assert all(parameter.requires_grad for parameter in model.parameters())
    freeze_unused(model, "mlm")
    frozen = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
    assert frozen == {"bert.pooler.weight", "bert.pooler.bias", "nsp_head.weight", "nsp_head.bias"}
