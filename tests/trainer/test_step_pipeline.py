"""The planned steps as a pipeline of webdataset: the exact order, whoever reads.

Their state as loaders take it and give it back: the same samples as without a stop.
"""

import json
from itertools import islice

import pytest
import torch
import webdataset

from pipeline.shards.dataset import open_dataset
from tests.trainer.step_loader import load_steps
from trainer.stream.pipeline import planned_steps
from trainer.stream.reading.settings import Reading

SEQ_LEN = 8192
NUM_STEPS = 11
SIZES = {"global_batch": 12, "micro_tokens": SEQ_LEN, "seed": 3, "num_lanes": 4}
SIZES |= {"rank": 0, "world_size": 1}
LARGE = {"global_batch": 600}  # steps of several micro-batches
QUICK = Reading(num_threads=2)
pytestmark = pytest.mark.filterwarnings(
    "ignore:This process .* is multi-threaded:DeprecationWarning",
    r"ignore:This DataLoader will create \d worker",
    "ignore:'set_vital' is deprecated:UserWarning",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory, make_dataset):
    folder = tmp_path_factory.mktemp("pipeline") / "data"
    return str(make_dataset(folder, ((60, 45), (50, 37))))


@pytest.fixture(scope="module")
def expected(folder):
    with load_steps(open_dataset(folder), "train", SEQ_LEN, **SIZES, reading=QUICK) as loader:
        return list(islice(loader, NUM_STEPS))


@pytest.fixture(scope="module")
def whole(folder):
    return list(steps_of(folder).map(numbered))


def steps_of(data, **changes):
    sizes = {"num_steps": NUM_STEPS, "reading": QUICK, **SIZES, **changes}
    return planned_steps(data, "train", SEQ_LEN, **sizes)


def tensors_of(step):
    columns = [vars(batch).values() for batch in step.micro_batches]
    return [[each for each in values if torch.is_tensor(each)] for values in columns]


def assert_same(found, expected):
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        for name in ("step", "state", "drawn", "epochs"):
            assert getattr(one, name) == getattr(other, name)
        for ours, theirs in zip(tensors_of(one), tensors_of(other), strict=True):
            assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def numbered(step):
    tokens = sum(len(each.input_ids) for each in step.micro_batches)
    return {"step": step.step, "state": step.state, "tokens": tokens}


def micro_batches(step):
    return step.micro_batches


def test_samples_are_the_planned_steps(folder, expected):
    assert isinstance(steps_of(folder), webdataset.DataPipeline)
    for data in (folder, [f"wiki={folder}:3"], open_dataset(folder)):
        assert len(list(steps_of(data))) == NUM_STEPS
    assert_same(list(steps_of(folder)), expected)


def test_every_iteration_begins_at_the_same_step_and_can_be_left(folder, expected):
    pipeline = steps_of(folder, num_steps=None)
    for _ in range(2):
        with iter(pipeline) as samples:
            assert_same(list(islice(samples, 2)), expected[:2])
    with pytest.raises(ValueError, match="the stream is closed"):
        next(samples)


def test_stages_compose_as_those_of_webdataset(folder):
    large = steps_of(folder, **LARGE)
    whole = [len(batch.input_ids) for step in large for batch in step.micro_batches]
    assert len(whole) > NUM_STEPS, "steps of several micro-batches"
    pipeline = large.map(micro_batches).unlisted().map(lambda batch: len(batch.input_ids))
    assert list(pipeline) == whole
    assert sorted(pipeline.shuffle(10)) == sorted(whole)
    stages = webdataset.map(numbered), webdataset.slice(3)
    by_hand = webdataset.DataPipeline(steps_of(folder), *stages)
    assert [each["step"] for each in by_hand] == [0, 1, 2]


@pytest.mark.parametrize(("num_workers", "context"), [(3, "fork"), (1, "spawn")])
@pytest.mark.engines
def test_workers_give_the_steps_in_order(folder, expected, num_workers, context):
    options = {"num_workers": num_workers, "multiprocessing_context": context}
    assert_same(list(webdataset.WebLoader(steps_of(folder), batch_size=None, **options)), expected)


@pytest.mark.parametrize(
    "compose",
    [
        lambda steps: steps.map(micro_batches).unlisted(),
        lambda steps: steps.select(lambda step: step.step != 4),
        lambda steps: steps.listed(2),
    ],
    ids=["unlisted", "select", "listed"],
)
@pytest.mark.engines
def test_several_workers_refuse_stages_that_mix_steps_up(folder, compose):
    steps = steps_of(folder, **LARGE)
    with pytest.raises(ValueError, match=r"samples of \d+ steps: .* behind the loader"):
        list(webdataset.WebLoader(compose(steps), batch_size=None, num_workers=2))
    assert len(list(compose(webdataset.WebLoader(steps, batch_size=None, num_workers=2)))) > 1


@pytest.mark.engines
def test_opened_datasets_do_not_go_to_workers(folder):
    with pytest.raises(ValueError, match="give planned_steps their URLs"):
        list(webdataset.WebLoader(steps_of(open_dataset(folder)), batch_size=None, num_workers=1))


@pytest.mark.parametrize("repeating", [lambda it: it.with_epoch(3), lambda it: it.repeat(2)])
def test_repeating_is_refused(folder, repeating):
    with pytest.raises(ValueError, match="ask for num_steps"):
        iter(repeating(steps_of(folder)))


def test_what_does_not_fit_is_refused_at_once():
    with pytest.raises(ValueError, match="micro_tokens is 8: one instance"):
        steps_of("nowhere", micro_tokens=8)
    with pytest.raises(TypeError, match="num_lames"):
        steps_of("nowhere", num_lames=4)


@pytest.fixture
def stateful_loader():
    return pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader


def instances_of(step):
    return [
        ids.tolist()
        for batch in step.micro_batches
        for ids in batch.input_ids.split(batch.cu_seqlens.diff().tolist())
    ]


@pytest.mark.parametrize("done", [0, 1, 4, NUM_STEPS])
def test_an_iteration_goes_on_where_another_stood(folder, whole, done):
    steps, again = (steps_of(folder).map(numbered) for _ in range(2))
    assert list(islice(steps, done)) == whole[:done]
    again.load_state_dict(json.loads(json.dumps(steps.state_dict())))
    assert list(again) == whole[done:]
    assert list(again) == whole[done:], "every iteration begins there"
    if done:
        assert steps.state_dict().items() >= whole[done - 1]["state"].items()


@pytest.mark.parametrize("done", [1, 2, 5, 6, 9])
def test_a_state_between_the_samples_of_a_step(folder, done):
    def batches():
        steps = steps_of(folder, **LARGE).map(micro_batches).unlisted()
        return steps.map(lambda batch: batch.input_ids.tolist())

    whole, begun, again = list(batches()), batches(), batches()
    samples = iter(begun)
    for place in range(done):
        assert next(samples) == whole[place]
        state = begun.state_dict()
    again.load_state_dict(json.loads(json.dumps(state)))
    assert list(again) == whole[done:] == list(samples)


@pytest.mark.parametrize(("num_workers", "done"), [(0, 3), (1, 4), (3, 4)])
@pytest.mark.engines
def test_a_stateful_dataloader_goes_on(folder, whole, stateful_loader, num_workers, done):
    def loader():
        steps = steps_of(folder).map(numbered)
        return stateful_loader(steps, batch_size=None, num_workers=num_workers)

    begun, again = loader(), loader()
    assert list(islice(begun, done)) == whole[:done]
    again.load_state_dict(begun.state_dict())
    assert list(again) == whole[done:]


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.engines
def test_a_state_of_two_ranks_opens_on_three(folder, stateful_loader, num_workers):
    def loader(rank, world_size):
        steps = steps_of(folder, rank=rank, world_size=world_size).map(instances_of)
        return stateful_loader(steps, batch_size=None, num_workers=num_workers)

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
