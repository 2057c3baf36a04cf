"""Phases: one stream for a length (docs/order.md, rule 6), rates and ends by steps or by time."""

import dataclasses
import json
from types import SimpleNamespace

import pytest
import torch

from pipeline.shards.growing import WaitPolicy
from tests.trainer.tiny_dataset import write_tiny_dataset
from trainer.engine.train_step import StepCounts
from trainer.guards.spike_guard import SpikeGuard
from trainer.optim.adamw import AdamW
from trainer.pretrain import loop
from trainer.pretrain.run import Position, refuse_consumed
from trainer.settings import Phase, PretrainSettings, ValidationSettings
from trainer.stream.order.source import open_mixture

COUNTS = StepCounts(1, 6, 12, 60, 600, 60, 0.0, 0.0, 0, ((6, 60),))
PHASE = Phase(seq_len=16, global_batch=4, steps=100, peak_lr=1.0, warmup_steps=10)
STATES = [("keep", 3, 1.0), ("zero_step", 0, 1.0), ("reset", 0, 0.0)]


@pytest.fixture(scope="module")
def mixture(tmp_path_factory):
    """450 instances a pass of two lengths, in two datasets of weights 3 and 1."""
    folder = tmp_path_factory.mktemp("mixture")
    write_tiny_dataset(folder / "a", seq_lens=(16, 32))
    write_tiny_dataset(folder / "b", seq_lens=(16, 32), instances=100, seed=5)
    return open_mixture([f"a={folder}/a:3", f"b={folder}/b"])


@pytest.fixture(autouse=True)
def as_many_lanes_as_instances(monkeypatch):
    """As in large datasets; these here would have one, and then any order of lanes is the same."""
    monkeypatch.setattr("trainer.stream.step.default_num_lanes", lambda batch, *_: batch)


def phases(*sizes):
    """Of (length, global batch, steps)."""
    return [Phase(*size, peak_lr=1e-3) for size in sizes]


def make_run(mixture, phases, position, skip=(), left_out=()):
    """What the loop needs of a run to read its data."""
    settings = PretrainSettings(data=[], output="", phases=list(phases), seed=3, skip=list(skip))
    nobody = {"watchdog": SimpleNamespace(beat=lambda *_: None), "wait_policy": WaitPolicy()}
    ranks = SimpleNamespace(rank=0, world_size=1, device=torch.device("cpu"))
    guard = SpikeGuard(settings.safety, {"left_out": left_out})
    nobody["left_out"] = None
    given = {"mixture": mixture, "settings": settings, "ranks": ranks, "guard": guard, **nobody}
    return SimpleNamespace(**given, position=position, must_stop=False, step_started=0.0)


def train(run, stop_after=10**9):
    """First position and tokens of each step up to `stop_after`."""
    read = []
    while run.position.phase < len(run.settings.phases) and not run.must_stop:
        phase = run.settings.phases[run.position.phase]
        for rank_step, _, _ in loop._steps_of_phase(run, phase):
            ends = run.position.phase_step + 1 == phase.steps
            run.position = loop._advance(run.position, ends, COUNTS, rank_step.state)
            tokens = torch.cat([batch.input_ids for batch in rank_step.micro_batches])
            read.append((rank_step.first_position, tokens))
            run.must_stop = run.position.step == stop_after
    return read


def read_all(mixture, phases, **changed):
    return train(make_run(mixture, phases, Position(), **changed))


def assert_same(found, expected):
    assert [start for start, _ in found] == [start for start, _ in expected]
    for (_, ids), (_, theirs) in zip(found, expected, strict=True):
        assert torch.equal(ids, theirs)


def test_two_phases_of_100_steps_read_what_one_of_200_reads(mixture):
    """Through two passes of each dataset: 200 steps of 6 are 900 positions of a and 300 of b."""
    whole = read_all(mixture, phases((16, 6, 200)))
    assert [start for start, _ in whole] == list(range(0, 1200, 6))
    assert_same(read_all(mixture, phases((16, 6, 100), (16, 6, 100))), whole)


def test_another_length_in_between_changes_nothing(mixture):
    between = read_all(mixture, phases((16, 12, 9), (32, 6, 5), (16, 12, 8), (32, 6, 4)))
    assert_same(between[:9] + between[14:22], read_all(mixture, phases((16, 12, 17))))
    assert_same(between[9:14] + between[22:], read_all(mixture, phases((32, 6, 9))))


def test_a_phase_with_another_global_batch_goes_on_over_the_lanes_of_the_first(mixture):
    """Three times 12 and then 4 instances are positions 0 to 35 and 36 to 55, over 12 lanes."""
    run = make_run(mixture, phases((16, 12, 3), (16, 4, 5)), Position())
    found = train(run)
    assert [start for start, _ in found] == [0, 12, 24, 36, 40, 44, 48, 52]
    assert run.position.streams["16"]["num_lanes"] == 12
    [*first, (_, last)] = read_all(mixture, phases((16, 12, 3), (16, 20, 1)))
    assert_same(found[:3], first)
    ids = torch.cat([ids for _, ids in found[3:]])
    assert ids.sort().values.tolist() == last.sort().values.tolist()


@pytest.mark.parametrize("step", [1, 5, 6, 7, 11, 13])
def test_a_run_that_was_stopped_goes_on_with_every_stream(mixture, step):
    plan = phases((16, 12, 6), (32, 6, 5), (16, 8, 4))
    first = make_run(mixture, plan, Position())
    before = train(first, stop_after=step)
    saved = json.loads(json.dumps(vars(first.position)))  # as a checkpoint keeps it
    after = train(make_run(mixture, plan, Position(**saved)))
    assert_same(before + after, read_all(mixture, plan))


@pytest.mark.parametrize("named", [0, 2])
def test_what_is_skipped_is_left_out_whichever_phase_of_the_length_is_named(mixture, named):
    """Positions 66 to 89 lie behind the end of phase 0, which is 72 without them."""
    plan = phases((16, 12, 6), (32, 6, 2), (16, 12, 4))
    found = [start for start, _ in read_all(mixture, plan, skip=[f"{named}:66-90"])]
    assert found == [0, 12, 24, 36, 48, 60, 0, 6, 96, 108, 120, 132]
    assert found == [start for start, _ in read_all(mixture, plan, left_out=[[named, 66, 90]])]
    both = read_all(mixture, plan, skip=["0:66-90"], left_out=[[2, 100, 112], [1, 3, 4]])
    assert [start for start, _ in both][6:] == [0, 7, 96, 120, 132, 144]


def test_what_a_finished_phase_consumed_cannot_be_skipped_any_more(mixture):
    plan = phases((16, 12, 6), (32, 6, 4))
    run = make_run(mixture, plan, Position())
    train(run, stop_after=8)
    for skip, last in ((["0:12-24"], 72), (["1:11-13"], 12)):
        said = f"cannot be skipped any more: training has come to position {last}"
        with pytest.raises(ValueError, match=said):
            refuse_consumed(make_run(mixture, plan, run.position, skip=skip).settings, run.position)
    later = make_run(mixture, plan, run.position, skip=["0:72-90", "1:12-18"])
    refuse_consumed(later.settings, run.position)


def test_by_steps_time_does_not_matter():
    clock = loop.PhaseClock(PHASE, None, 0.0)
    assert clock.learning_rate(5, elapsed_seconds=1e6) == 0.5
    assert [clock.ends(made, 1e6) for made in (99, 100)] == [False, True]


def test_by_time_steps_do_not_matter():
    clock = loop.PhaseClock(PHASE, 50.0, 0.0)
    rates = [clock.learning_rate(7, seconds) for seconds in (0.0, 2.5, 5.0, 27.5, 50.0, 60.0)]
    assert rates == pytest.approx([0.0, 0.5, 1.0, 0.5, 0.0, 0.0])
    assert [clock.ends(1_000, seconds) for seconds in (49.9, 50.0)] == [False, True]


def test_a_continued_phase_goes_on_where_it_was():
    assert loop.PhaseClock(PHASE, 50.0, 30.0).elapsed_seconds == pytest.approx(30.0, abs=1.0)


def test_phases_share_the_budget_by_their_steps():
    phases = [PHASE, dataclasses.replace(PHASE, steps=300)]
    settings = PretrainSettings(data=["d"], output="o", phases=phases, budget_hours=2.0)
    assert [settings.budget_seconds(index) for index in (0, 1)] == [1_800.0, 5_400.0]


@pytest.mark.parametrize(("state", "updates", "moment"), STATES)
def test_what_a_phase_does_with_the_state(state, updates, moment):
    weight = torch.nn.Parameter(torch.zeros(2, 2))
    optimizer = AdamW([("a.weight", weight)])
    optimizer.tensors("exp_avg")[0].fill_(1.0)
    optimizer.num_updates = 3
    loop.begin_phase(optimizer, dataclasses.replace(PHASE, optimizer_state=state))
    assert optimizer.num_updates == updates
    assert optimizer.tensors("exp_avg")[0][0, 0] == moment


def test_an_accuracy_finishes_the_run():
    target, phases = ValidationSettings(stop_at_mlm_accuracy=0.5), [PHASE, PHASE]
    settings = PretrainSettings(data=["d"], output="o", phases=phases, validation=target)
    position = Position(step=7, phase=0, phase_step=7, streams={"16": {"position": 28}})
    assert loop.finish_at_accuracy(position, 0.49, settings) is position
    finished = Position(step=7, phase=2, streams=position.streams)
    assert loop.finish_at_accuracy(position, 0.5, settings) == finished
