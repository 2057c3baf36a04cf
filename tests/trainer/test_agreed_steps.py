"""When ranks exchange the counts of a step, and which step a stop takes effect after."""

import dataclasses
import itertools
from types import SimpleNamespace

import pytest

from trainer.pretrain import loop
from trainer.pretrain.run import Position
from trainer.settings import Phase

PHASE = Phase(seq_len=16, global_batch=4, steps=4, peak_lr=1e-3)


class RecordedRun:
    """Stands for a run of one phase, and records what its loop does."""

    def __init__(self, monkeypatch, budget_seconds=None, follow=False):
        self.log = []
        self.position = Position()
        self.must_stop = False
        self.step_started = 0.0
        self.ranks = None
        self.settings = SimpleNamespace(follow=follow)
        self.watchdog = SimpleNamespace(beat=lambda *_: None)
        self.clock = loop.PhaseClock(PHASE, budget_seconds, 0.0)
        monkeypatch.setattr(loop, "_steps_of_phase", self.take)
        monkeypatch.setattr(loop, "begin_to_agree", self.begin)

    def take(self, *_):
        for number in itertools.count(1):
            self.log.append(f"take {number}")
            yield SimpleNamespace(micro_batches=number, drawn=()), 0.0, "loader"

    def begin(self, _ranks, number, *_):
        self.log.append(f"begin {number}")

        def agree():
            self.log.append(f"agree {number}")
            return SimpleNamespace()

        return agree

    def save(self):
        self.log.append(f"save after {self.position.step}")

    def make_steps(self, stop_during=None):
        """Makes the steps of the phase; the ranks agree to stop during one of them."""
        for rank_step, _, _ in loop._agreed_steps(self, PHASE, self.clock):
            number = rank_step.micro_batches
            self.log.append(f"make {number}")
            self.must_stop = number == stop_during
            self.position = dataclasses.replace(
                self.position,
                step=number,
                phase=int(number == PHASE.steps),
                phase_step=number % PHASE.steps,
            )
        self.log.append("end")
        return self.log


def test_counts_are_on_their_way_while_the_step_before_is_made(monkeypatch):
    assert RecordedRun(monkeypatch).make_steps() == [
        "take 1", "begin 1", "agree 1",
        "take 2", "begin 2", "make 1", "agree 2",
        "take 3", "begin 3", "make 2", "agree 3",
        "take 4", "begin 4", "make 3", "agree 4",
        "make 4", "end",
    ]  # fmt: skip


@pytest.mark.parametrize("changed", [{"budget_seconds": 60.0}, {"follow": True}])
def test_a_step_is_not_asked_for_early_where_time_or_a_build_decides(monkeypatch, changed):
    assert RecordedRun(monkeypatch, **changed).make_steps()[:8] == [
        "take 1", "begin 1", "agree 1", "make 1", "take 2", "begin 2", "agree 2", "make 2",
    ]  # fmt: skip


def test_a_step_after_which_all_must_stop_is_the_last(monkeypatch):
    """The counts of the next step are exchanged already, but it is not made."""
    run = RecordedRun(monkeypatch)
    assert run.make_steps(stop_during=2)[-5:] == [
        "take 3", "begin 3", "make 2", "save after 2", "end",
    ]  # fmt: skip


def test_the_last_step_of_a_phase_can_be_the_one_to_stop_after(monkeypatch):
    run = RecordedRun(monkeypatch)
    assert run.make_steps(stop_during=4)[-3:] == ["make 4", "save after 4", "end"]


@pytest.mark.parametrize("changed", [{"budget_seconds": 60.0}, {"follow": True}])
def test_a_stop_is_heard_as_soon_where_no_step_is_asked_for_early(monkeypatch, changed):
    run = RecordedRun(monkeypatch, **changed)
    assert run.make_steps(stop_during=2)[-3:] == ["make 2", "save after 2", "end"]
