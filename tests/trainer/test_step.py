"""Steps of packed micro-batches: exact for any number of ranks, resumable anywhere, complete."""

import dataclasses
import json
from collections import Counter
from itertools import chain, combinations, pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pipeline.shards.block import concatenate_blocks
from pipeline.shards.dataset import open_dataset, read_blocks
from tests.trainer.step_loader import load_steps
from trainer.stream.batches import pack
from trainer.stream.held_out import iterate_validation
from trainer.stream.order.order import StreamOrder
from trainer.stream.order.share import plan_steps
from trainer.stream.order.state import parse_state
from trainer.stream.reading.settings import Reading

SEQ_LEN = 8192
TRAIN = ((60, 45), (50, 37))


@pytest.fixture(scope="module")
def dataset(tmp_path_factory, make_dataset):
    folder = make_dataset(tmp_path_factory.mktemp("stream"), TRAIN, validation=(30, 23))
    return open_dataset(str(folder))


def loader(dataset, **changes):
    place = {"rank": 0, "world_size": 1, "reading": Reading(num_threads=2)}
    sizes = {"global_batch": 12, "micro_tokens": SEQ_LEN, "seed": 3, "num_lanes": 4}
    return load_steps(dataset, "train", SEQ_LEN, **(place | sizes | changes))


def take(dataset, num_steps, **changes):
    with loader(dataset, **changes) as steps:
        return [next(steps) for _ in range(num_steps)]


def instances_of_block(block):
    """Everything the model sees of each instance, in plain numbers."""
    rows = []
    for one in (block.slice(n, n + 1) for n in range(block.num_instances)):
        first, length = int(one.segment_a_length[0]), one.num_tokens
        made = [0] * first + [1] * (length - first), range(length)
        masked = one.masked_lm_positions.tolist(), one.masked_lm_ids.tolist()
        columns = map(tuple, (one.input_ids.tolist(), *made, *masked))
        rows.append((*columns, int(one.is_random_next[0])))
    return rows


def instances_of(batches):
    rows = []
    for batch in batches:
        for n, (start, stop) in enumerate(pairwise(batch.cu_seqlens.tolist())):
            inside = (batch.masked_positions >= start) & (batch.masked_positions < stop)
            tokens = (batch.input_ids, batch.token_type_ids, batch.position_ids)
            masked = (batch.masked_positions[inside] - start, batch.masked_labels[inside])
            columns = [*(column[start:stop] for column in tokens), *masked]
            plain = (tuple(column.tolist()) for column in columns)
            rows.append((*plain, int(batch.is_random_next[n])))
    return rows


def read_pass(dataset, split, pass_index):
    """The instances of every shard of a pass, read plainly."""
    shards = dataset.shards(split, SEQ_LEN, pass_index)
    blocks = (concatenate_blocks(list(read_blocks(dataset, shard))) for shard in shards)
    return [instances_of_block(each) for each in blocks]


@pytest.fixture(scope="module")
def batches(dataset):
    """The first 40 global batches of 12 with 4 lanes and seed 3: more than two epochs."""
    passes = [read_pass(dataset, "train", i) for i in range(2)]
    shards = tuple(tuple(dataset.shards("train", SEQ_LEN, i)) for i in range(2))
    order = StreamOrder((shards,), (1,), seed=3, num_lanes=4)
    found = []
    for step in range(40):
        rows = np.stack(plan_steps(order, [12 * step], 12, 0, 1, 2**40)[0], axis=1).tolist()
        found.append([passes[e % 2][s][n] for _, e, s, _, a, b in rows for n in range(a, b)])
    return found


def test_micro_batches_hold_the_planned_instances_in_order(dataset, batches):
    for step, expected in zip(take(dataset, 40), batches, strict=True):
        assert instances_of(step.micro_batches) == expected


@pytest.mark.parametrize("done", [1, 8, 15, 16, 31])
@pytest.mark.parametrize("world_size", [1, 5])
def test_resuming_continues_the_same_sequence(dataset, batches, done, world_size):
    state = json.loads(json.dumps(take(dataset, done)[-1].state))
    changes = {"state": state, "num_lanes": None, "world_size": world_size, "first_step": done}
    shares = [take(dataset, 3, rank=rank, **changes) for rank in range(world_size)]
    for expected, *steps in zip(batches[done:], *shares, strict=False):
        assert [row for share in steps for row in instances_of(share.micro_batches)] == expected
    assert [step.step for step in shares[0]] == [done, done + 1, done + 2]


def test_skipped_stretches_are_left_out_and_remembered(dataset, batches):
    state = take(dataset, 3)[-1].state
    [step] = take(dataset, 1, state=state, skip=[(36, 60)])
    assert instances_of(step.micro_batches) == batches[5]
    assert (step.first_position, step.state["skipped"]) == (60, [[36, 60]])
    [after] = take(dataset, 1, state=step.state, skip=[(36, 60)])  # the same command again
    assert instances_of(after.micro_batches) == batches[6]
    [later] = take(dataset, 1, state=state, skip=[(40, 46), (44, 52)])
    assert Counter(instances_of(later.micro_batches)) <= Counter(batches[3] + batches[4])
    assert (later.first_position, later.state["position"]) == (36, 60)
    assert later.state["skipped"] == [[40, 52]]


@pytest.mark.parametrize(
    ("skip", "message"),
    [
        ([(30, 60)], "positions 30-60 cannot be skipped any more: training has come to position"),
        ([(60, 60)], "positions 60-60 cannot be skipped: the first must be below the second"),
        (
            [(n, n + 1) for n in range(10**6, 2 * 10**6, 10**4)],
            r"\d+ skipped stretches make the stream's state \d+ bytes, 1024 are",
        ),
    ],
)
def test_what_cannot_be_skipped_is_refused(dataset, skip, message):
    with pytest.raises(ValueError, match=message):
        loader(dataset, state=take(dataset, 3)[-1].state, skip=skip)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"micro_tokens": 8191}, "micro_tokens is 8191: one instance may take all of seq_len 8192"),
        ({"world_size": 13}, "global_batch 12 is smaller than world_size 13"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(dataset, changes, message):
    with pytest.raises(ValueError, match=message):
        loader(dataset, **changes)


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({}, "stream state has format None, this version reads 2"),
        ({"format": 1}, "stream state has format 1, this version reads 2"),
        ({"format": 2, "position": 3}, "stream state is damaged: KeyError"),
    ],
)
def test_foreign_states_are_refused(state, message):
    with pytest.raises(ValueError, match=message):
        parse_state(state)


def test_faults_of_the_background_reach_the_caller(tmp_path, make_dataset):
    folder = make_dataset(tmp_path, TRAIN)
    (folder / "train/L8192/pass-00/shard-00000.tar").unlink()
    with loader(open_dataset(str(folder))) as steps:
        for _ in range(2):
            with pytest.raises(FileNotFoundError, match=r"shard-00000.tar.* is missing"):
                next(steps)


@pytest.mark.parametrize("world_size", [1, 2, 3, 60])
@pytest.mark.parametrize("max_instances", [None, 17])
def test_validation_is_read_once_and_in_order(dataset, world_size, max_instances):
    expected = [*chain(*read_pass(dataset, "validation", 0))][:max_instances]
    found = []
    for rank in range(world_size):
        place = {"rank": rank, "world_size": world_size, "max_instances": max_instances}
        share = iterate_validation(dataset, SEQ_LEN, micro_tokens=SEQ_LEN, **place)
        found += instances_of(list(share))
    assert found == expected


@pytest.mark.parametrize("first_id", [10, 60_000, 70_000])
def test_models_get_the_same_values_in_wider_types(make_block, first_id):
    block = make_block(3, seed=1)
    dtype = np.uint16 if first_id < 65_536 else np.uint32
    names = ("input_ids", "masked_lm_ids")
    ids = {name: getattr(block, name).astype(dtype) + dtype(first_id) for name in names}
    [batch] = pack.pack_micro_batches(dataclasses.replace(block, **ids), [(0, 3)])
    assert batch.max_seqlen == int(batch.cu_seqlens.diff().max())
    moved = pack.to_device(batch, torch.device("cpu"))
    assert {name: getattr(moved, name).dtype for name in pack.DEVICE_DTYPES} == pack.DEVICE_DTYPES
    for name in pack.DEVICE_DTYPES:
        assert getattr(moved, name).tolist() == getattr(batch, name).tolist()
    assert moved.input_ids.min() >= first_id
    assert moved.max_seqlen == batch.max_seqlen


def test_a_padded_view_holds_the_same_instances(make_block):
    block = make_block(5, seed=3)
    [batch] = pack.pack_micro_batches(block, [(0, 5)])
    padded = pack.pad_micro_batch(batch, 48)
    for n, (ids, types, _, positions, labels, is_random) in enumerate(instances_of_block(block)):
        rest, labelled = [0] * (48 - len(ids)), dict(zip(positions, labels, strict=True))
        assert padded["input_ids"][n].tolist() == [*ids, *rest]
        assert padded["attention_mask"][n].tolist() == [*[1] * len(ids), *rest]
        assert padded["token_type_ids"][n].tolist() == [*types, *rest]
        assert padded["labels"][n].tolist() == [labelled.get(place, -100) for place in range(48)]
        assert padded["next_sentence_label"][n] == is_random
    assert pack.pad_micro_batch(pack.empty_micro_batch(), 48)["input_ids"].shape == (0, 48)


def fewest_tokens(lengths, num_cuts):
    """The least maximum of sums over all ways to cut a list into so many pieces."""
    places = combinations(range(1, len(lengths)), num_cuts - 1)
    cuts = (pairwise((0, *each, len(lengths))) for each in places)
    return min(max(sum(lengths[a:b]) for a, b in each) for each in cuts)


@given(st.lists(st.integers(1, 10), max_size=12), st.integers(10, 40))
def test_cuts_are_as_few_as_can_be_and_balanced_ones_as_short(lengths, micro_tokens):
    offsets = torch.tensor([7, *lengths]).cumsum(0).numpy()
    places = (offsets, (0, len(lengths)), micro_tokens)
    greedy, balanced = pack.cut_micro_batches(*places), pack.balance_micro_batches(*places)
    for cuts in (greedy, balanced):
        assert [n for start, stop in cuts for n in range(start, stop)] == list(range(len(lengths)))
        assert all(sum(lengths[start:stop]) <= micro_tokens for start, stop in cuts)
    assert all(sum(lengths[start : stop + 1]) > micro_tokens for start, stop in greedy[:-1])
    assert len(balanced) == len(greedy)
    if lengths:
        most = max(sum(lengths[start:stop]) for start, stop in balanced)
        assert most == fewest_tokens(lengths, len(balanced))


def test_steps_are_pinned_where_they_are_to_be(dataset, monkeypatch):
    pinned = []
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda each: (pinned.append(each), each)[1])
    found = [instances_of(step.micro_batches) for step in take(dataset, 5, pin_memory=True)]
    assert len(pinned) >= len(pack.DEVICE_DTYPES)
    monkeypatch.undo()
    assert found == [instances_of(step.micro_batches) for step in take(dataset, 5)]
