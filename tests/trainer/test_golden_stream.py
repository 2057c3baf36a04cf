"""The stream to the bit: arrays of micro-batches and states, as when these hashes were made."""

import dataclasses
import hashlib
import json
from itertools import islice

import numpy as np
import pytest

from pipeline.shards.block import Block
from pipeline.shards.dataset import open_dataset
from tests.datasets import CLS, MASK, SEP, write_dataset
from tests.trainer.step_loader import load_steps
from trainer.stream.held_out import iterate_validation
from trainer.stream.order.source import open_mixture

SEQ_LEN, VOCAB_SIZE = 8192, 70_000
TRAIN = {"wiki": ((60, 45), (50, 37)), "books": ((31,), (17, 9), (23, 4, 1)), "news": ((40, 8),)}


def spread(key, count, stop):
    """Numbers below `stop` that look drawn, by arithmetic that no library may change."""
    counted = np.arange(1, count + 1, dtype=np.uint64) + np.uint64(key * 1_000_003)
    mixed = counted * np.uint64(0x9E3779B97F4A7C15)
    return ((mixed >> np.uint64(32)) % np.uint64(stop)).astype(np.int64)


def made_block(key, first_id, num_instances):
    key = 10_000_000 * key + first_id
    lengths = 8 + spread(key, num_instances, 60)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    segment_a = 3 + spread(key + 1, num_instances, 4)
    ids = (5 + spread(key + 2, int(offsets[-1]), 60_000)).astype(np.uint16)
    ids[offsets[:-1]] = CLS
    ids[offsets[:-1] + segment_a - 1] = ids[offsets[1:] - 1] = SEP
    positions = np.stack([np.ones(num_instances), lengths - 2], axis=1).astype(np.uint16)
    places = (offsets[:-1, None] + positions).ravel()
    labels = ids[places]
    ids[places] = MASK
    return Block(
        input_ids=ids,
        offsets=offsets,
        segment_a_length=segment_a.astype(np.uint16),
        masked_lm_positions=positions.ravel(),
        masked_lm_ids=labels,
        masked_offsets=np.arange(0, 2 * num_instances + 1, 2, dtype=np.int32),
        is_random_next=spread(key + 3, num_instances, 2).astype(bool),
        document_a=np.arange(first_id, first_id + num_instances, dtype=np.uint64),
        document_b=np.arange(num_instances, dtype=np.uint64),
    )


def write_made(folder, key, train):
    sizes = {("train", i): shards for i, shards in enumerate(train)} | {("validation", 0): (30, 23)}
    shards = {
        (split, SEQ_LEN, pass_index, index): [
            made_block(key, 100_000 * pass_index + 1000 * index + first, min(8, size - first))
            for first in range(0, size, 8)
        ]
        for (split, pass_index), each in sizes.items()
        for index, size in enumerate(each)
    }
    return write_dataset(folder, shards, VOCAB_SIZE, {"lower_case": True, "key": key})


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Three datasets of unequal shards and passes."""
    folder = tmp_path_factory.mktemp("golden")
    for key, (name, train) in enumerate(TRAIN.items()):
        write_made(folder / name, key, train)
    return folder


def arrays_of(batches):
    """Names, dtypes, shapes and bytes of all arrays."""
    digest = hashlib.blake2b(digest_size=8)
    for batch in batches:
        for field in dataclasses.fields(batch):
            values = np.asarray(getattr(batch, field.name))
            digest.update(f"{field.name} {values.dtype} {values.shape};".encode())
            digest.update(np.ascontiguousarray(values).tobytes())
    return digest.hexdigest()


def fingerprint(steps):
    digest = hashlib.blake2b(digest_size=8)
    for step in steps:
        numbers = [step.step, step.first_position, step.position_after, step.drawn, step.epochs]
        counts = [step.num_instances, step.num_tokens, step.num_masked]
        said = json.dumps([numbers, counts, step.state, arrays_of(step.micro_batches)])
        digest.update(said.encode())
    return digest.hexdigest()


def take(data, num_steps, rank=0, world_size=1, **changes):
    sizes = {"global_batch": 12, "micro_tokens": SEQ_LEN, "seed": 3, "num_lanes": 4} | changes
    place = {"rank": rank, "world_size": world_size}
    with load_steps(data, "train", SEQ_LEN, **place, **sizes) as steps:
        return list(islice(steps, num_steps))


def ranks_of(data, num_steps, world_size, **changes):
    shares = (take(data, num_steps, rank, world_size, **changes) for rank in range(world_size))
    return [step for share in shares for step in share]


def opened(folder, entries):
    return open_mixture([entry.format(folder=folder) for entry in entries])


WIKI = ["{folder}/wiki"]
MIXED = ["wiki={folder}/wiki:5", "books={folder}/books:2", "news={folder}/news:1"]
SKIPPING = {"skip": ((0, 5), (40, 77), (300, 301)), "global_batch": 16}


@pytest.mark.parametrize(
    ("entries", "world_size", "num_steps", "changes", "expected"),
    [
        (WIKI, 1, 36, {}, "0683aee1e4576261"),
        (WIKI, 3, 36, {}, "eda103e11ff0875c"),
        (["{folder}/books"], 1, 36, {}, "0649400402b8d762"),
        (["{folder}/news"], 3, 36, {}, "e391034a34c398de"),
        (MIXED, 1, 30, {"global_batch": 24}, "dd11f1eace9fab25"),
        (MIXED, 3, 30, {"global_batch": 24}, "e23f3410c4b192c8"),
        (MIXED, 2, 30, SKIPPING, "a65256e5f322bbd4"),
    ],
)
def test_datasets_and_mixtures(folder, entries, world_size, num_steps, changes, expected):
    found = ranks_of(opened(folder, entries), num_steps, world_size, **changes)
    assert fingerprint(found) == expected


def test_a_second_phase_of_one_length_and_other_sizes(folder):
    mixed = opened(folder, MIXED)
    first = take(mixed, 10)
    sizes = {"state": first[-1].state, "first_step": 10, "global_batch": 20, "micro_tokens": 9000}
    assert fingerprint([*first, *take(mixed, 10, **sizes)]) == "070813478cf70065"


def test_resuming_on_other_ranks(folder):
    before = ranks_of(wiki := opened(folder, WIKI), 7, 2)
    found = ranks_of(wiki, 9, 3, state=before[-1].state, first_step=7)
    assert fingerprint([*before, *found]) == "ac122affee51727a"


def test_the_default_number_of_lanes_and_workers_in_turn(folder):
    sizes = {"num_lanes": None, "micro_tokens": 20_000, "num_workers": 2}
    steps = [take(opened(folder, WIKI), 6, worker=worker, **sizes) for worker in range(2)]
    assert fingerprint(step for each in steps for step in each) == "134b491d734b458b"


@pytest.mark.parametrize(
    ("world_size", "limit", "expected"),
    [(1, None, "5d3ec6f414a3322a"), (3, 41, "64cc223fe6a76bee")],
)
def test_a_split_once(folder, world_size, limit, expected):
    sizes = {"world_size": world_size, "micro_tokens": SEQ_LEN, "max_instances": limit}
    data, ranks = open_dataset(str(folder / "wiki")), range(world_size)
    found = [arrays_of(iterate_validation(data, SEQ_LEN, rank=rank, **sizes)) for rank in ranks]
    assert hashlib.blake2b(json.dumps(found).encode(), digest_size=8).hexdigest() == expected


def test_root_hashes(folder):
    found = [open_dataset(str(folder / name)).manifest.root_hash[:16] for name in TRAIN]
    assert found == ["fceda808ac404f06", "d82ca3410470c3be", "72cc68186bae56b9"]
