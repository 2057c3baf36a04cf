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
        self.num_made = 0
        self.step_started = 0.0
        self.ranks = None
        self.settings = SimpleNamespace(follow=follow)
        self.watchdog = SimpleNamespace(beat=lambda *_: None)
        self.stop = SimpleNamespace(is_made=False)
        self.saver = SimpleNamespace(has_failed=False)
        self.clock = loop.PhaseClock(PHASE, budget_seconds, 0.0)
        monkeypatch.setattr(loop, "_steps_of_phase", self.take)
        monkeypatch.setattr(loop, "begin_to_agree", self.begin)

    def take(self, *_):
        for number in itertools.count(1):
            self.log.append(f"take {number}")
            yield SimpleNamespace(micro_batches=number, drawn=()), 0.0, "loader"

    def begin(self, _ranks, number, _waited, must_stop, *_):
        self.log.append(f"begin {number}")

        def agree():
            self.log.append(f"agree {number}")
            return SimpleNamespace(must_stop=must_stop)

        return agree

    def save(self):
        self.log.append(f"save after {self.position.step}")

    def make_steps(self, stop_during=None):
        """Makes the steps of the phase; a signal comes during one of them."""
        for rank_step, _, _ in loop._agreed_steps(self, PHASE, self.clock):
            number = rank_step.micro_batches
            self.log.append(f"make {number}")
            if number == stop_during:
                self.stop.is_made = True
            self.position = dataclasses.replace(
                self.position,
                step=number,
                phase=int(number == PHASE.steps),
                phase_step=number % PHASE.steps,
            )
        return self.log


def test_counts_are_on_their_way_while_the_step_before_is_made(monkeypatch):
    assert RecordedRun(monkeypatch).make_steps() == [
        "take 1", "begin 1", "agree 1",
        "take 2", "begin 2", "make 1", "agree 2",
        "take 3", "begin 3", "make 2", "agree 3",
        "take 4", "begin 4", "make 3", "agree 4",
        "make 4",
    ]  # fmt: skip


@pytest.mark.parametrize("changed", [{"budget_seconds": 60.0}, {"follow": True}])
def test_a_step_is_not_asked_for_early_where_time_or_a_build_decides(monkeypatch, changed):
    assert RecordedRun(monkeypatch, **changed).make_steps()[:8] == [
        "take 1", "begin 1", "agree 1", "make 1", "take 2", "begin 2", "agree 2", "make 2",
    ]  # fmt: skip


def test_a_stop_is_heard_with_the_next_counts_and_saves_after_one_more_step(monkeypatch):
    run = RecordedRun(monkeypatch)
    log = run.make_steps(stop_during=1)
    assert [line for line in log if line.startswith(("make", "save"))] == [
        "make 1", "make 2", "save after 2",
    ]  # fmt: skip
    assert run.must_stop


def test_a_stop_during_the_last_step_but_one_ends_with_the_phase(monkeypatch):
    run = RecordedRun(monkeypatch)
    assert run.make_steps(stop_during=3)[-2:] == ["agree 4", "make 4"]
    assert not run.must_stop


def test_the_next_phase_makes_no_step_after_such_a_stop(monkeypatch):
    run = RecordedRun(monkeypatch)
    run.make_steps(stop_during=3)
    run.log.clear()
    assert run.make_steps() == ["take 1", "begin 1", "agree 1", "save after 4"]
    assert run.must_stop


def test_a_launch_makes_a_step_before_it_stops(monkeypatch):
    """Its checkpoint would otherwise be the one that it has just read."""
    run = RecordedRun(monkeypatch)
    run.stop.is_made = True
    log = run.make_steps()
    assert [line for line in log if line.startswith(("make", "save"))] == ["make 1", "save after 1"]
    assert run.must_stop
