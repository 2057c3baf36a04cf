"""Mixtures of datasets through StepLoader: exact for any sizes, resumable, and few reads."""

import dataclasses
import json
from collections import Counter
from itertools import chain, islice, pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.shards.dataset import open_dataset
from tests.datasets import write_dataset
from tests.trainer.step_loader import load_steps
from trainer.stream.order.source import open_mixture, parse_entries
from trainer.stream.order.state import MAX_STATE_BYTES, DatasetState, StreamState
from trainer.stream.reading.settings import Reading

SEQ_LEN = 8192
QUICK = Reading(num_threads=2)
BOOKS = ((31,), (17, 9), (23, 4, 1))


@pytest.fixture(scope="module")
def mixture(tmp_path_factory, make_dataset):
    """Three datasets of unequal shards and passes, weights 5, 2 and 1."""
    folder = tmp_path_factory.mktemp("mixture")
    trains = {"wiki": ((60, 45), (50, 37)), "books": BOOKS, "news": ((40, 8),)}
    for number, (name, train) in enumerate(trains.items()):
        make_dataset(folder / name, train, seed=number)
    weights = zip(trains, (5, 2, 1), strict=True)
    return open_mixture([f"{folder / name}:{weight}" for name, weight in weights])


def loader(data, **changes):
    place = {"rank": 0, "world_size": 1, "reading": QUICK}
    sizes = {"global_batch": 24, "micro_tokens": SEQ_LEN, "seed": 3, "num_lanes": 4}
    return load_steps(data, "train", SEQ_LEN, **(place | sizes | changes))


def take(data, num_steps, **changes):
    with loader(data, **changes) as steps:
        return list(islice(steps, num_steps))


def bag(*steps):
    """The instances of steps, each by its tokens and labels."""
    found: Counter = Counter()
    for batch in chain(*(step.micro_batches for step in steps)):
        for start, stop in pairwise(batch.cu_seqlens.tolist()):
            inside = (batch.masked_positions >= start) & (batch.masked_positions < stop)
            labels = batch.masked_labels[inside].tolist()
            found[(*batch.input_ids[start:stop].tolist(), *labels)] += 1
    return found


@pytest.fixture(scope="module")
def expected(mixture):
    return take(mixture, 40)


@settings(
    max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.data())
def test_global_batches_depend_on_nothing_but_their_size(mixture, monkeypatch, data):
    """Random ranks, micro-batches, memory, request sizes, threads and steps packed ahead."""
    global_batch = data.draw(st.integers(1, 40), "global batch")
    world_size = data.draw(st.integers(1, min(9, global_batch)), "world size")
    reading = Reading(
        buffer_bytes=data.draw(st.sampled_from([1, 10_000, 2**20])),
        max_read_bytes=data.draw(st.sampled_from([1, 4_000, 2**20])),
        num_threads=data.draw(st.integers(1, 3)),
    )
    depth = data.draw(st.integers(1, 9), "depth")
    monkeypatch.setattr("trainer.stream.step.PREFETCH_GROUPS", depth)
    gathered = SEQ_LEN * data.draw(st.sampled_from([1, 30, 4096]), "gathered")
    monkeypatch.setattr("trainer.stream.reading.block_reader.GATHERED_TOKENS", gathered)
    lanes = data.draw(st.integers(1, 50), "lanes")
    num_steps = max(2, 80 // global_batch)
    sizes = {"global_batch": global_batch, "num_lanes": lanes}
    whole = take(mixture, num_steps, **sizes)
    micro_tokens = data.draw(st.integers(SEQ_LEN, 20_000))
    sizes |= {"world_size": world_size, "reading": reading, "micro_tokens": micro_tokens}
    shares = [take(mixture, num_steps, rank=rank, **sizes) for rank in range(world_size)]
    assert [bag(*steps) for steps in zip(*shares, strict=True)] == [bag(step) for step in whole]


@pytest.mark.parametrize(
    ("done", "ranks", "micro_tokens", "batch"),
    [(1, 1, 8192, 48), (7, 3, 20_000, 8), (20, 7, 9000, 12)],
)
def test_resuming_with_other_sizes_goes_on(mixture, expected, done, ranks, micro_tokens, batch):
    state = json.loads(json.dumps(expected[done - 1].state))
    sizes = {"state": state, "num_lanes": None, "world_size": ranks, "micro_tokens": micro_tokens}
    sizes |= {"global_batch": batch}
    steps = [take(mixture, 48 // batch, rank=rank, **sizes) for rank in range(ranks)]
    assert bag(*chain(*steps)) == bag(*expected[done : done + 2])


def other(mixture, number, **changed):
    found = list(mixture)
    found[number] = dataclasses.replace(found[number], **changed)
    return tuple(found)


def test_another_mixture_is_refused_by_what_changed(mixture, expected, tmp_path, make_dataset):
    rebuilt = open_dataset(str(make_dataset(tmp_path / "books", BOOKS, seed=9)))
    longer = open_dataset(str(make_dataset(tmp_path / "news", ((40, 8), (9,)), seed=2)))
    reordered = r"weight of books was 5, is 2; passes of books was 2, is 3; content of books was"
    for data, said in (
        (other(mixture, 1, weight=3), r"began: weight of books was 2, is 3\. The"),
        (
            other(mixture, 1, dataset=rebuilt),
            r"began: content of books was \w{16}, is \w{16}\. The",
        ),
        (other(mixture, 2, dataset=longer), r"began: passes of news was 1, is 2\. The"),
        (mixture[:2], r"began: datasets were 3, are 2 \(wiki, books\)"),
        ((mixture[1], mixture[0], mixture[2]), reordered),
    ):
        with pytest.raises(ValueError, match=said):
            loader(data, state=expected[3].state)


def test_datasets_that_do_not_agree_are_refused(tmp_path, make_dataset, make_block):
    make_dataset(tmp_path / "a", ((20,),))
    shards = {("train", 8192, 0, 0): [make_block(5)]}
    write_dataset(tmp_path / "b", shards, 101, {"lower_case": False, "seed": 0})
    said = r"/a and .*/b cannot be mixed: .* \(sha256\) \w{16} and \w{16}; vocab_size 100 and 101;"
    said += r" lower_case True and False\. Build them with the same --vocab"
    with pytest.raises(ValueError, match=said):
        open_mixture([str(tmp_path / "a"), str(tmp_path / "b")])
    make_dataset(tmp_path / "c", ((20,),), seq_len=4096)
    said = r"/c: no train instances of seq_len 8192; the dataset has train L4096"
    with pytest.raises(ValueError, match=said):
        loader(open_mixture([str(tmp_path / "a"), str(tmp_path / "c")]))


@pytest.mark.parametrize(
    ("entries", "found"),
    [
        (["data"], [("data", "data", 1)]),
        (["s3://b/wiki:3", "books/:1"], [("wiki", "s3://b/wiki", 3), ("books", "books/", 1)]),
        (["w=gs://b/data:20", "c/data", "x/data:2"],
         [("w", "gs://b/data", 20), ("data", "c/data", 1), ("data-2", "x/data", 2)]),
        (["a:3:1"], [("a:3", "a:3", 1)]),
    ],
)  # fmt: skip
def test_entries_of_data(entries, found):
    assert parse_entries(entries) == found


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([], "data names 0 datasets; 1 to 20 can be mixed"),
        ([f"d{n}" for n in range(21)], "data names 21 datasets"),
        (["a:0", "b"], "each must be a whole number of at least 1"),
        (["a:9999", "b:20"], "add up to more than 10000"),
        (["a", "a:2"], "data names a twice"),
        (["n=a", "n=b"], "data names n twice"),
        ([""], "'' is not"),
    ],
)
def test_entries_that_make_no_sense(entries, message):
    with pytest.raises(ValueError, match=message):
        parse_entries(entries)


def test_the_state_stays_small_with_twenty_datasets():
    datasets = tuple(DatasetState(481 + n, 100, "0123456789abcdef") for n in range(20))
    state = StreamState(10**15, 2**64, 8192, "validation", 65_535, (), datasets)
    assert len(json.dumps(state.to_dict())) < MAX_STATE_BYTES - 150
    stretches = [(10**15 + each, 10**15 + 2 * each) for each in (10**6, 10**9)]
    skipping = state.skipping(stretches)
    assert len(json.dumps(skipping.to_dict())) <= MAX_STATE_BYTES


@pytest.fixture(scope="module")
def large(tmp_path_factory, make_dataset):
    """250 blocks of 64 in 3 shards, and as many in a second pass."""
    sizes = ((7000, 4000, 5000), (9000, 6990))
    folder = tmp_path_factory.mktemp("large")
    return make_dataset(folder / "data", sizes, seq_len=1024, max_tokens=12)


@pytest.mark.parametrize(
    ("world_size", "num_lanes", "limit"),
    [(1, 16, 1.2), (8, 8, 1.2), (7, 16, None), (5, 12, 1.8)],  # 12 does not divide 128
)
def test_an_epoch_is_read_hardly_more_than_once(large, world_size, num_lanes, limit):
    """By the counters of all ranks: bytes fetched over the first pass, against its blocks'."""
    bound = 1 + num_lanes * 64 / 16_000 + (world_size - 1) / num_lanes  # docs/order.md, "Reads"
    sizes = {"world_size": world_size, "num_lanes": num_lanes, "num_steps": 125}
    sizes |= {"global_batch": 128, "micro_tokens": 4096, "seed": 1, "reading": QUICK}
    fetched = 0
    for rank in range(world_size):
        data = open_dataset(str(large))
        with load_steps(data, "train", 1024, rank=rank, **sizes) as steps:
            assert sum(1 for _ in steps) == 125
            fetched += steps.reads.bytes
    size = sum(shard.num_bytes for shard in open_dataset(str(large)).shards("train", 1024, 0))
    assert 0.95 < fetched / size <= (limit or bound)
