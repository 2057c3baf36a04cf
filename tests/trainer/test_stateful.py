"""The stream's state as loaders take it and give it back: the same samples as without a stop."""

import json
from itertools import islice

import pytest

from tests.trainer.test_step_pipeline import (
    FORKED,
    LARGE,
    NUM_STEPS,
    micro_batches,
    numbered,
    steps_of,
)

StatefulDataLoader = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader
pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")


@pytest.fixture(scope="module")
def folder(tmp_path_factory, make_dataset):
    return str(make_dataset(tmp_path_factory.mktemp("state") / "data", ((60, 45), (50, 37))))


def tokens_of(batch):
    return batch.input_ids.tolist()


def instances_of(step):
    return [
        ids.tolist()
        for batch in step.micro_batches
        for ids in batch.input_ids.split(batch.cu_seqlens.diff().tolist())
    ]


def after_json(state):
    return json.loads(json.dumps(state))


@pytest.mark.parametrize("done", [0, 1, 4, NUM_STEPS])
def test_an_iteration_goes_on_where_another_stood(folder, done):
    steps, again = (steps_of(folder).map(numbered) for _ in range(2))
    whole = list(steps_of(folder).map(numbered))
    assert list(islice(steps, done)) == whole[:done]
    again.load_state_dict(after_json(steps.state_dict()))
    assert list(again) == whole[done:]
    assert list(again) == whole[done:], "every iteration begins there"
    if done:
        assert steps.state_dict().items() >= whole[done - 1]["state"].items()


@pytest.mark.parametrize("done", [1, 2, 5, 6, 9])
def test_a_state_between_the_samples_of_a_step(folder, done):
    def batches():
        return steps_of(folder, **LARGE).map(micro_batches).unlisted().map(tokens_of)

    whole, begun, again = list(batches()), batches(), batches()
    samples = iter(begun)
    for place in range(done):
        assert next(samples) == whole[place]
        state = begun.state_dict()
    again.load_state_dict(after_json(state))
    assert list(again) == whole[done:] == list(samples)


@FORKED
@pytest.mark.parametrize(("num_workers", "done"), [(0, 3), (1, 4), (3, 4)])
@pytest.mark.engines
def test_a_stateful_dataloader_goes_on(folder, num_workers, done):
    def loader():
        steps = steps_of(folder).map(numbered)
        return StatefulDataLoader(steps, batch_size=None, num_workers=num_workers)

    whole, begun, again = list(steps_of(folder).map(numbered)), loader(), loader()
    assert list(islice(begun, done)) == whole[:done]
    again.load_state_dict(begun.state_dict())
    assert list(again) == whole[done:]


@FORKED
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.engines
def test_a_state_of_two_ranks_opens_on_three(folder, num_workers):
    def loader(rank, world_size):
        steps = steps_of(folder, rank=rank, world_size=world_size).map(instances_of)
        return StatefulDataLoader(steps, batch_size=None, num_workers=num_workers)

    def read(loaders, num_steps):
        """The global batches: what all ranks read of each step."""
        shares = zip(*(islice(each, num_steps) for each in loaders), strict=True)
        return [[row for share in step for row in share] for step in shares]

    whole = read([loader(0, 1)], NUM_STEPS)
    two, three = ([loader(rank, size) for rank in range(size)] for size in (2, 3))
    assert read(two, 4) == whole[:4]
    state = two[0].state_dict()
    for each in three:
        each.load_state_dict(state)
    assert read(three, NUM_STEPS - 4) == whole[4:]
